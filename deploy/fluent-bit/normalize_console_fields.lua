-- Numbers in console lines: `PPO Step 128 | Epoch 0.02 | KL: 0.0124 | GPU Util: 82%`, `took 1.24s | tokens=512`.
-- Names are kept as printed; a unit that follows a number is left out, one that makes the name is joined to it.
local document = ...
local find, match, sub = string.find, string.match, string.sub

local fields = {}

local PART_BYTES = 512 -- a longer part is prose
local NUMBER = "([+-]?%.?%d[%d.eE+-]*)"
local NAMED = "^(.+)([:=])%s*" .. NUMBER .. "%s?([%a%%]?[%w/%%]*)$" -- KL: 0.0124, GPU Util: 82%, avg_latency=2.4ms/token
local WORD = "^(.+)([:=])%s*([+-]?%a+)$" -- KL: nan
local PLAIN = "^(%a.-)%s+" .. NUMBER .. "$" -- Epoch 0.02
local DURATION = "^(.+) in " .. NUMBER .. "(%a+)$" -- Rollout completed in 3.21s
local TOOK = "^(.+) took " .. NUMBER .. "(%a+)$" -- Rollout for prompt_id=12345 took 1.24s

-- Return name and number of a part, and name and value of an id that it has; nil where it holds no number.
local function split(part)
  if #part > PART_BYTES then return nil end
  local name, mark, digits = match(part, NAMED)
  local number = tonumber(digits)
  if not number then
    name, mark, digits = match(part, WORD)
    number = digits and document.spelled(digits)
  end
  if number then
    if mark == "=" then name = match(name, "[^%s,:(]+$") end
    return name, number
  end
  local unit
  name, digits, unit = match(part, DURATION)
  number = tonumber(digits)
  if number then return name .. "_" .. unit, number end
  name, digits, unit = match(part, TOOK)
  number = tonumber(digits)
  if number then
    local id, value = match(name, "([%w_]+)=(%d+)$")
    return "took_" .. unit, number, id, tonumber(value)
  end
  name, digits = match(part, PLAIN)
  number = tonumber(digits)
  if number and not find(name, "[:=]$") then return name, number end
end

-- Return the names, numbers and texts of a line's parts; prefix: what its names begin with.
local function find_parts(s, separator, prefix)
  local found = { names = {}, numbers = {}, n = 0, texts = 0, prefix = prefix }
  local p = 1
  while true do
    local mark, behind = find(s, separator, p, true)
    local name, number, id, value = split(sub(s, p, (mark or #s + 1) - 1))
    if name then
      found.n = found.n + 1
      found.names[found.n], found.numbers[found.n] = name, number
      found.id, found.id_value = id or found.id, value or found.id_value
    else
      found.texts = found.texts + 1
    end
    if not mark then return found end
    p = behind + 1
  end
end

-- Return the fields of a line in the bracketed dialect, nil where it is prose.
function fields.find(s, is_debug)
  local prefix = ""
  if sub(s, 1, 16) == "Loss breakdown: " then s, prefix = sub(s, 17), "Loss breakdown " end
  local separator = find(s, " | ", 1, true) and " | " or ", "
  if separator == ", " and not is_debug and find(s, ", ", 1, true) then return nil end
  local found = find_parts(s, separator, prefix)
  return found.n > 0 and found or nil
end

-- Tell whether a line without a head is of the dialect.
function fields.known(s)
  return sub(s, 1, 16) == "Loss breakdown: " or find(s, "^%u[%a ]* ?Step %d+ | ") ~= nil
end

-- Return the numbers of vLLM's throughput line and of verl's memory line.
function fields.find_statistics(s)
  if not (find(s, "throughput: ", 1, true) or find(s, "memory allocated (GB): ", 1, true)) then return nil end
  local engine, rest = match(s, "^Engine (%d+): (.*)$")
  local found = find_parts(rest or s, ", ", "")
  if engine then found.id, found.id_value, found.stage = "engine", engine, "rollout" end
  return found
end

-- Put the fields of a line into the document.
function fields.apply(found)
  if found.id then document.extra(found.id, found.id_value) end
  if found.stage then document.field("stage", found.stage) end
  for i = 1, found.n do
    local name, number = found.names[i], found.numbers[i]
    if find(name, "^Global Steps?$") then
      document.integer("global_step", name, number)
    elseif find(name, "^[%a ]*Step$") then
      document.integer("step", name, number, "step_invalid")
    elseif find(name, "_?i[dx]x?$") and number % 1 == 0 then
      document.extra(name, number)
    else
      document.metric(found.prefix .. name, number)
    end
  end
  if not document.get("step") and document.get("global_step") then
    document.field("step", document.get("global_step"))
    document.flag("step_from_global_step")
  end
end

return fields
