-- Rank JSONL: long lines (metric_name, value), wide lines (every number a metric), events and log messages.
local document, time, json, settings = ...
local huge = math.huge

local TIME_KEYS = { "timestamp_ns", "timestamp", "ts", "time", "@timestamp" } -- the first that holds a time counts
local LONGEST_NUMBER = 24 -- of a text that may stand for one that is not finite: "np.float64(-Infinity)"
local EARLIEST = 1e9 -- seconds (2001): a smaller number named `time` is a duration

-- Values of the line in hand that are decided on once all keys are known.
local times, nulls, metric_name, value, value_at_hand

local function is_time(key, item)
  return key == "timestamp_ns" or type(item) == "string" or (type(item) == "number" and item >= EARLIEST)
end

local function other(key, item)
  local kind = type(item)
  if kind == "number" then
    document.metric(key, item)
  elseif item == json.null then
    nulls = nulls or {}
    nulls[#nulls + 1] = key
  elseif kind == "string" then
    local number = #item <= LONGEST_NUMBER and document.spelled(item)
    if number and (number ~= number or number == huge or number == -huge) then
      document.metric(key, number)
    else
      document.extra(key, item)
    end
  else
    document.extra(key, item)
  end
end

local function take_time(key, item, digits)
  if is_time(key, item) then
    times = times or {}
    times[key] = digits or item
  else
    other(key, item)
  end
end

local function take_keyword(field)
  return function(key, item) document.keyword(field, key, item) end
end

-- A number under such a key is a metric like any other.
local function take_word(field, change)
  return function(key, item)
    if type(item) == "number" then
      other(key, item)
    else
      document.keyword(field, key, change and type(item) == "string" and change(item) or item)
    end
  end
end

local function take_integer(field, invalid)
  return function(key, item) document.integer(field, key, item, invalid) end
end

local function take_weight(key, item)
  if type(item) == "number" then
    local weight = document.metric(key, item)
    if weight and weight > 0 then document.field("weight", weight) end
  else
    other(key, item)
  end
end

local function take_message(key, item)
  if type(item) == "string" then
    document.message(item)
    document.kind("log")
  else
    other(key, item)
  end
end

local TAKE = {
  step = take_integer("step", "step_invalid"),
  global_step = take_integer("global_step"),
  rank = take_integer("rank", "rank_invalid"),
  stage = take_keyword("stage"),
  hostname = take_keyword("host.name"),
  pid = take_integer("process.pid"),
  attempt = function(key, item)
    document.keyword("attempt", key, type(item) == "number" and item % 1 == 0 and string.format("%.0f", item) or item)
  end,
  ["gpu.index"] = take_integer("gpu.index"),
  ["gpu.uuid"] = take_keyword("gpu.uuid"),
  n = take_weight, count = take_weight, num_samples = take_weight,
  metric_name = function(_, item) metric_name = item end,
  value = function(_, item) value, value_at_hand = item, true end,
  event = function(key, item)
    document.keyword("event", key, item)
    if type(item) == "string" then document.kind("event") end
  end,
  message = take_message, msg = take_message,
  logger = take_word("log.logger"),
  run_id = function(key, item)
    if not document.offer_run(item) then document.extra(key, item) end
  end,
  level = take_word("log.level", string.lower),
}
for _, key in ipairs(TIME_KEYS) do TAKE[key] = take_time end

local function take_long()
  if type(metric_name) ~= "string" then
    if metric_name ~= nil then document.extra("metric_name", metric_name) end
    if value_at_hand then other("value", value) end
    return
  end
  document.keyword("metric_name", "metric_name", metric_name)
  if not value_at_hand then return end
  local number = value
  if type(value) == "string" then
    number = document.spelled(value)
    if number then document.flag("number_from_text", "value") end
  elseif type(value) == "boolean" then
    number = value and 1 or 0
    document.flag("number_from_bool", "value")
  end
  if number == json.null then
    document.null_metric(metric_name)
  elseif type(number) == "number" then
    local finite = document.metric(metric_name, number)
    if finite then document.field("value", finite) end
  else
    document.flag("not_a_number", "value")
    document.extra("value", value)
  end
end

-- Beside metrics a null is one that was not finite; in an event or a message it is just nothing.
local function take_nulls()
  local note = document.get("kind") == "metric" and document.null_metric or document.no_value
  for i = 1, #nulls do note(nulls[i]) end
end

-- Return seconds, nanoseconds and whether the host's zone was assumed, of one time value.
local function read_time(key, item)
  if type(item) ~= "string" then return nil end
  if (key == "timestamp_ns" or #item >= 19) and time.is_whole(item) then return time.from_nanos(item) end
  if tonumber(item) then
    local seconds, nanos = time.from_number(item)
    if seconds then document.flag("time_unit_assumed") end
    return seconds, nanos
  end
  return time.from_iso(item, settings.utc_offsets)
end

local function take_times()
  local seconds, nanos
  if times then
    for _, key in ipairs(TIME_KEYS) do
      local item = times[key]
      if item ~= nil then
        if seconds then
          document.extra(key, item)
        else
          local s, ns, assumed = read_time(key, item)
          if s then
            seconds, nanos = s, ns
            if assumed then document.flag("zone_assumed") end
          else
            document.flag("time_invalid")
            document.extra(key, item)
          end
        end
      end
    end
  end
  return seconds, nanos
end

-- Fill the document from the object of a line; return seconds, nanoseconds where the line has its time.
return function(object)
  times, nulls, metric_name, value, value_at_hand = nil, nil, nil, nil, false
  local keys, values, digits = object.keys, object.values, object.digits
  for i = 1, object.n do
    local key, item = keys[i], values[i]
    local take = TAKE[key]
    if not take then
      other(key, item)
    elseif item == json.null and key ~= "value" then
      document.no_value(key)
    else
      take(key, item, digits[i])
    end
  end
  if metric_name ~= nil or value_at_hand then take_long() end
  if nulls then take_nulls() end
  if not document.get("step") and document.get("global_step") then
    document.field("step", document.get("global_step"))
    document.flag("step_from_global_step")
  end
  return take_times()
end
