-- The document of the line in hand: built from an empty table with the catalogue's fields only, so that nothing of a
-- line reaches the top level unasked and no line can make Elasticsearch refuse it.
local text, id, json = ...
local table_new = require("table.new")
local find, match, floor, huge = string.find, string.match, math.floor, math.huge

local document = {}

local KEYWORD_BYTES = 1024 -- a longer text is no keyword; 32,766 bytes is where Lucene refuses one
local RUN_ID_BYTES = 256
local NAME_BYTES = 256 -- of a metric or an extra key
local TEXT_BYTES = 262144
local METRICS = 2048 -- of one line: Elasticsearch gives up on a line with a hundred thousand new names
local EXTRA_KEYS = 1000
local EXTRA_DEPTH = 8 -- Elasticsearch refuses 20
local MAX_INTEGER = 9007199254740991 -- 2^53 - 1: beyond it a double is no exact whole number
local MAX_INT32 = 2147483647 -- of the fields that the index keeps in 32 bits
local LIMITS = { rank = MAX_INT32, ["gpu.index"] = MAX_INT32, ["log.origin.file.line"] = MAX_INT32,
  ["log.repeated"] = MAX_INT32 }

local MAX_DOUBLE = 1.797693134862315e308 -- a larger one is infinite once it is printed with 16 digits

local function clean_key(key)
  key = text.cut(text.plain(key), NAME_BYTES)
  return find(key, "[^%s]") and key or "_"
end

-- Return a key that stands for `key` and that an object does not have yet.
local function free_key(object, key)
  key = clean_key(key)
  while object[key] ~= nil do key = key .. "_" end
  return key
end

local doc, metrics, metric_count, extra, extra_keys, nonfinite, flags, flagged, record_run

function document.start(kind)
  record_run = nil
  metric_count = 0
  doc, metrics, extra, extra_keys, nonfinite, flags, flagged = table_new(0, 16), nil, nil, 0, nil, nil, nil
  doc.kind = kind
  return doc
end

-- Set a field whose value is already right.
function document.field(name, value)
  doc[name] = value
end

function document.get(name)
  return doc[name]
end

function document.kind(kind)
  doc.kind = kind
end

function document.flag(name, about)
  if not flags then flags, flagged = {}, {} end
  if about then name = name .. ":" .. clean_key(about) end
  if flagged[name] then return end
  flagged[name] = true
  flags[#flags + 1] = name
end
local flag = document.flag

-- Set a text field; what is over the limit is cut and flagged.
function document.text(field, value, limit)
  local cut
  doc[field], cut = text.cut(value, limit or TEXT_BYTES)
  if cut then flag("truncated", field) end
end

-- Set the message: without terminal codes, so that it can be read and found.
function document.message(value)
  local plain, changed = text.plain(value)
  if changed then flag("control_characters") end
  document.text("message", plain)
end

local known_names, known = {}, 0 -- metric name -> may it be a field name

-- A field name may not be empty or blank; Elasticsearch takes everything else below a `metrics` without subobjects.
local function is_field_name(name)
  if #name > NAME_BYTES then return false end
  local valid = known_names[name]
  if valid == nil then
    valid = not text.is_blank(name) and not find(name, "[%z\1-\31\127]")
    if known > 20000 then known_names, known = {}, 0 end
    known_names[name], known = valid, known + 1
  end
  return valid
end

-- Return a nested value as `extra` may hold it.
local function bounded(value, depth)
  local kind = type(value)
  if kind == "string" then
    local cut, was_cut = text.cut(value, KEYWORD_BYTES)
    if was_cut then flag("extra_cut") end
    return cut
  end
  if kind == "number" then
    return value >= -MAX_DOUBLE and value <= MAX_DOUBLE and value or tostring(value)
  end
  if kind ~= "table" or value == json.null then return value end
  if depth >= EXTRA_DEPTH then
    flag("extra_cut")
    return "..."
  end
  local copy = setmetatable({}, getmetatable(value))
  if json.is_array(value) then
    if value[1] == nil then return "[]" end -- Fluent Bit can't tell an empty list from an empty object
    for i = 1, #value do
      if extra_keys >= EXTRA_KEYS then
        flag("extra_cut")
        break
      end
      extra_keys = extra_keys + 1
      copy[i] = value[i] == json.null and "null" or bounded(value[i], depth + 1)
    end
  else
    for _, key in ipairs(json.keys(value)) do
      local item = value[key]
      if extra_keys >= EXTRA_KEYS then
        flag("extra_cut")
        break
      end
      extra_keys = extra_keys + 1
      if item ~= json.null then copy[free_key(copy, key)] = bounded(item, depth + 1) end
    end
  end
  return copy
end

-- Keep a value that no field takes. A text too long for a keyword moves to `message`, where words of it are found.
function document.extra(key, value)
  extra = extra or {}
  if extra_keys >= EXTRA_KEYS then
    flag("extra_cut")
    return
  end
  extra_keys = extra_keys + 1
  key = free_key(extra, key)
  if type(value) == "string" and #value > KEYWORD_BYTES and not doc.message then
    document.message(value)
    flag("truncated", key)
    extra[key] = text.cut(value, KEYWORD_BYTES)
    return
  end
  extra[key] = value == json.null and "null" or bounded(value, 1)
end

-- Set a keyword field; a value that is no text goes to `extra`.
function document.keyword(field, key, value)
  if type(value) ~= "string" then
    flag("not_text", key)
    document.extra(key, value)
  elseif value ~= "" then
    document.text(field, value, KEYWORD_BYTES)
  end
end

-- Return the number that a text spells ("0.7", "nan", "-Infinity", "np.float64(1.5)"), or nil.
local function spelled(value)
  local number = match(value, "^np%.%w+%((.*)%)$") or value
  local sign, word = match(number, "^%s*([+-]?)(%a+)%s*$")
  if word then
    word = string.lower(word)
    if word == "nan" then return 0 / 0 end
    if word == "inf" or word == "infinity" then return sign == "-" and -huge or huge end
  elseif find(number, "^%s*[+-]?%.?%d[%d.eE+-]*%s*$") then
    return tonumber(number)
  end
end
document.spelled = spelled

-- Set a field that holds a whole number from 0 to a limit; what is none goes to `extra`.
function document.integer(field, key, value, invalid)
  if type(value) == "string" then
    local number = spelled(value)
    if number then
      value = number
      flag("number_from_text", key)
    end
  end
  if type(value) == "number" and value >= 0 and value <= (LIMITS[field] or MAX_INTEGER)
    and value == floor(value) then
    doc[field] = value
    return
  end
  flag(invalid or "not_a_number", not invalid and key or nil)
  document.extra(key, value)
end

-- Return whether the line may have one more metric.
local function has_room()
  metric_count = metric_count + 1
  if metric_count <= METRICS then return true end
  flag("truncated", "metrics")
  return false
end

local function not_finite(name, kind)
  nonfinite = nonfinite or {}
  nonfinite[#nonfinite + 1] = name
  flag(kind, name)
end

-- Return the number where it is finite; else note its name as one that was not.
function document.finite(name, value)
  if value >= -MAX_DOUBLE and value <= MAX_DOUBLE then return value end
  not_finite(name, value ~= value and "nan" or value > 0 and "inf" or "-inf")
  return nil
end

-- Set metrics[name]; return the number where it is finite.
function document.metric(name, value)
  if not is_field_name(name) then
    flag("metric_name")
    document.extra(name, value)
    return nil
  end
  if not has_room() or not document.finite(name, value) then return nil end
  metrics = metrics or {}
  metrics[name] = value
  return value
end

-- Note a key that stands for no value.
function document.no_value(key)
  flag("null", key)
end

-- Note a metric that is null: verl's file logger writes NaN and infinity so.
function document.null_metric(name)
  if is_field_name(name) then
    if has_room() then not_finite(name, "null") end
  else
    flag("metric_name")
    document.extra(name, json.null)
  end
end

-- Set the run; a name too long to be a link's key is cut and stays unique by its hash.
function document.run(run_id)
  if #run_id > RUN_ID_BYTES then
    flag("run_id_cut")
    run_id = text.cut(run_id, RUN_ID_BYTES - 17) .. "-" .. id.hex(run_id)
  end
  doc.run_id = run_id
  return run_id
end

-- Note the run that the record names; return whether it can be one. The path's run comes before it.
function document.offer_run(value)
  local name = type(value) == "string" and text.plain(value)
  if not name or text.is_blank(name) then return false end
  record_run = name
  return true
end

function document.run_of_record()
  return record_run
end

function document.has_values()
  return metrics ~= nil or nonfinite ~= nil
end

local function sorted(list)
  if list and list[2] then table.sort(list) end
  return list
end

-- Return the finished document.
function document.finish()
  -- Sorted, since Lua walks an object's keys in another order in each process.
  doc.metrics, doc.extra, doc.nonfinite, doc.flags = metrics, extra, sorted(nonfinite), sorted(flags)
  if doc.step and doc.run_id then
    doc.step_key = doc.run_id .. "|" .. string.format("%d", doc.step)
    doc.step_source = doc.step_source or "record"
  end
  return doc
end

return document
