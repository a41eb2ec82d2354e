-- What verl itself writes as JSON lines: its file logger and its rollout dumps. Neither has a time.
local document, json, id, text, settings = ...

local verl = {}

-- A file logger's line is {"step": N, "data": {name: value}} and nothing else.
function verl.is_logger(object)
  if object.n ~= 2 then return false end
  local first, second = object.keys[1], object.keys[2]
  if first == "data" then first, second = second, first end
  if first ~= "step" or second ~= "data" then return false end
  local data = object.values[object.keys[1] == "data" and 1 or 2]
  return type(data) == "table" and data ~= json.null and not json.is_array(data)
end

function verl.read_logger(object)
  document.field("stage", "trainer")
  for i = 1, 2 do
    local key, value = object.keys[i], object.values[i]
    if key == "step" then
      document.integer("step", key, value, "step_invalid")
    else
      for _, name in ipairs(json.keys(value)) do
        local item = value[name]
        if type(item) == "number" then
          document.metric(name, item)
        elseif item == json.null then
          document.null_metric(name)
        else
          document.extra(name, item)
        end
      end
    end
  end
end

-- A dump's line has a prompt and a response.
function verl.is_sample(object)
  local input, output = false, false
  for i = 1, object.n do
    local key = object.keys[i]
    if key == "input" then input = type(object.values[i]) == "string" end
    if key == "output" then output = type(object.values[i]) == "string" end
  end
  return input and output
end

local TEXT_BYTES = 65536 -- of a prompt or a response; the dump file has the whole

-- Texts are kept for the lowest, the highest and a spread of the scores seen so far in the file. Judged line by line,
-- from the file's start, so that agent and loader keep the same ones: at least the promised number, and never more
-- than a few dozen of thousands.
local LOWEST = math.ceil(settings.samples.text_per_step / 2)
local HIGHEST = math.floor(settings.samples.text_per_step / 4)

-- Insert a score into a short ascending list of at most `size`; return whether it belongs there.
local function ranks_among(list, size, score)
  if size == 0 or (#list >= size and score >= list[#list]) then return false end
  local place = #list + 1
  while place > 1 and score < list[place - 1] do place = place - 1 end
  table.insert(list, place, score)
  list[size + 1] = nil
  return true
end

local function keeps_text(file, score)
  if settings.samples.text_per_step == 0 then return false end
  local seen = file.samples
  if not seen then
    seen = { lines = 0, lowest = {}, highest = {}, next_spread = 1 }
    file.samples = seen
  end
  seen.lines = seen.lines + 1
  local spread = seen.lines == seen.next_spread
  if spread then seen.next_spread = seen.next_spread * 2 end
  if not score then return true end -- no score, or one that is not finite: always worth reading
  local low = ranks_among(seen.lowest, LOWEST, score)
  local high = ranks_among(seen.highest, HIGHEST, -score)
  return low or high or spread
end

-- Return the number that a score stands for, or nil.
local function number_of(score)
  if type(score) == "boolean" then
    document.flag("number_from_bool", "score")
    return score and 1 or 0
  end
  if type(score) == "string" then
    local number = document.spelled(score)
    if number then document.flag("number_from_text", "score") end
    return number
  end
  return type(score) == "number" and score or nil
end

-- Set the score; return it where it is a finite number.
local function take_score(score)
  if score == nil then return nil end
  if score == json.null then
    document.null_metric("score")
    return nil
  end
  local number = number_of(score)
  if not number then
    document.flag("not_a_number", "score")
    document.extra("score", score)
    return nil
  end
  local finite = document.finite("score", number)
  if finite then document.field("sample.score", finite) end
  return finite
end

local function take_ground_truth(value, digits)
  if type(value) == "string" or digits then
    document.keyword("sample.ground_truth", "gts", digits or value)
  elseif value ~= json.null then
    document.extra("gts", value)
  end
end

local TAKE = {
  step = function(value) document.integer("step", "step", value, "step_invalid") end,
  gts = take_ground_truth,
  uid = function(value) document.keyword("sample.uid", "uid", value) end,
  request_id = function(value)
    if document.get("sample.uid") then
      document.extra("request_id", value)
    else
      document.keyword("sample.uid", "request_id", value)
    end
  end,
}

local function take_texts(file, input, output, score)
  document.field("sample.prompt_id", id.hex(input))
  document.field("sample.input_length", text.length(input))
  document.field("sample.output_length", text.length(output))
  if keeps_text(file, score) then
    document.text("sample.input", input, TEXT_BYTES)
    document.text("sample.output", output, TEXT_BYTES)
  else
    document.flag("text_not_kept")
  end
end

function verl.read_sample(object, file)
  document.kind("sample")
  document.field("stage", "rollout")
  document.field("sample.split", file.split)
  local input, output, score
  for i = 1, object.n do
    local key, value = object.keys[i], object.values[i]
    if key == "input" then
      input = value
    elseif key == "output" then
      output = value
    elseif key == "score" then
      score = value
    elseif TAKE[key] then
      TAKE[key](value, object.digits[i])
    elseif type(value) == "number" then
      document.metric(key, value)
    else
      document.extra(key, value)
    end
  end
  if not document.get("step") then
    document.integer("step", "step", file.dump_step, "step_invalid")
  elseif file.dump_step ~= document.get("step") then
    document.flag("step_mismatch")
  end
  take_texts(file, input, output, take_score(score))
end

return verl
