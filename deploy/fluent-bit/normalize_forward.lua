-- Records that a process sends by itself (forward input): no line, no file, no offset.
local document, json, id, text, settings, read_record = ...
local buffer = require("string.buffer")
local floor = math.floor

local MILLISECONDS = 1099511627776 -- 2^40: what the offset's place in an id holds

-- Return a value as json.read gives it: lists marked as such, texts UTF-8.
local function plain(value)
  if type(value) == "string" then return (text.utf8(value)) end
  if type(value) ~= "table" then return value end
  local copy = {}
  if value[1] ~= nil then
    for i = 1, #value do copy[i] = plain(value[i]) end
    return json.array(copy)
  end
  for key, item in pairs(value) do copy[text.utf8(tostring(key))] = plain(item) end
  return copy
end

-- Return the record as json.read gives a line's object, its keys in order.
local function to_object(record)
  local keys = {}
  for key in pairs(record) do
    if type(key) == "string" then keys[#keys + 1] = key end
  end
  table.sort(keys)
  local object = { n = #keys, keys = keys, values = {}, digits = {} }
  for i, key in ipairs(keys) do
    local value = record[key]
    object.keys[i] = text.utf8(key)
    object.values[i] = plain(value)
    if type(value) == "number" then
      object.digits[i] = value % 1 == 0 and string.format("%.0f", value) or string.format("%.16g", value)
    end
  end
  return object
end

-- Append a value with the keys of its objects in order, so that equal records are equal texts.
local function put_ordered(out, value)
  if type(value) ~= "table" or value[1] ~= nil then
    json.put(out, value)
    return
  end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    out:put(tostring(key), "=")
    put_ordered(out, value[key])
    out:put("\n")
  end
end

-- Return the event_id: the sender's tag stands for the file, the time for the offset, the content for the line.
local function event_id(run_id, tag, timestamp, record)
  local out = buffer.new()
  put_ordered(out, record)
  local milliseconds = timestamp.sec * 1000 + floor(timestamp.nsec / 1000000)
  return id.line(id.file(run_id, "forward/" .. tag), milliseconds % MILLISECONDS, out:tostring())
end

local function read(tag, timestamp, record)
  local doc = document.start("metric")
  local seconds, nanos = read_record(to_object(record))
  if doc.kind == "metric" and not document.has_values() and not doc.metric_name then
    document.kind("log")
  end
  local run_id = document.run(document.run_of_record() or settings.run or "unnamed")
  document.field("event_id", event_id(run_id, tag, timestamp, record))
  document.field("time_source", "record")
  if not seconds or (seconds == timestamp.sec and math.abs(nanos - timestamp.nsec) < 1000) then
    seconds, nanos = timestamp.sec, timestamp.nsec -- exact, where the record's own number is rounded to a double
  end
  return document.finish(), seconds, nanos
end

-- Return the document of a record on which the normaliser itself failed: its text, flagged and findable.
local function to_failure(tag, timestamp, record, reason)
  document.start("unparsed")
  document.flag("normalizer_error")
  local out = buffer.new()
  put_ordered(out, record)
  document.message((text.utf8(out:tostring())))
  document.extra("reason", reason)
  local run_id = document.run(settings.run or "unnamed")
  document.field("event_id", event_id(run_id, tag, timestamp, record))
  document.field("time_source", "record")
  return document.finish(), timestamp.sec, timestamp.nsec
end

-- Return document, seconds, nanoseconds of a record as it came, with the time that its sender gave it.
return function(tag, timestamp, record)
  local ok, doc, seconds, nanos = pcall(read, tag, timestamp, record)
  if not ok then return to_failure(tag, timestamp, record, tostring(doc)) end
  return doc, seconds, nanos
end
