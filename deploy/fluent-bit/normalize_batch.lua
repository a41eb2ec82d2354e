-- The loader's way in: a block of whole lines at a call, answered with the body of a `_bulk` request.
local normalizer = ...
local read_line, time, json = normalizer.read_line, normalizer.time, normalizer.json
local buffer = require("string.buffer")
local find, sub, byte, floor = string.find, string.sub, string.byte, math.floor

-- What lines of one step share comes first and what tells them apart last: so they compress best beside each other.
-- Without event_id: that carries the agent's id into its request, and the loader's stands there already.
local SHARED = {
  "run_id", "kind", "time_source", "step_source", "step", "global_step", "step_key", "stage", "rank", "attempt",
  "host.name", "process.pid", "process.name", "gpu.index", "gpu.uuid",
}
local OWN = {
  "metric_name", "metrics", "value", "nonfinite", "weight", "message", "log.level", "log.logger",
  "log.origin.file.name", "log.origin.file.line", "log.file.path", "log.offset", "log.repeated", "error.type",
  "error.message", "error.stack_trace", "error.fingerprint", "error.id", "sample.input", "sample.output",
  "sample.ground_truth", "sample.score", "sample.uid", "sample.split", "sample.prompt_id", "sample.input_length",
  "sample.output_length", "event", "extra", "flags",
}

local function put_fields(out, doc, fields)
  for i = 1, #fields do
    local field = fields[i]
    local value = doc[field]
    if value ~= nil then
      out:put('"', field, '":')
      json.put(out, value)
      out:put(",")
    end
  end
end

local function put_document(out, doc, seconds, nanos)
  out:put("{")
  put_fields(out, doc, SHARED)
  put_fields(out, doc, OWN)
  out:put('"@timestamp":"', time.format(seconds, nanos), '"}\n')
end

local index_date, index_suffix -- of the last document: most fall on one day
local function index_of(file, seconds)
  local date = time.date(seconds)
  if date ~= index_date then index_date, index_suffix = date, date:gsub("-", ".") end
  return (file.dump_step and "verl-samples-" or "verl-") .. index_suffix
end

local function count(counts, names)
  for i = 1, #names do
    local reason = names[i]:match("^[^:]+")
    counts[reason] = (counts[reason] or 0) + 1
  end
end

local LATE = 60 -- seconds: Ray prints lines that it left out a little later

-- Move the clock of a finished file to a line: the time of the last line that had one, and the steps' durations since.
local function follow(file, doc, own_seconds, began)
  if own_seconds then
    local latest = file.latest
    if not latest or own_seconds > latest or latest - own_seconds > LATE then file.latest = own_seconds end
    file.clock = file.latest
  end
  local metrics = doc.metrics
  local step = metrics and metrics["timing_s/step"]
  if step and step > 0 then
    local clock = (file.clock or began) + step + math.max(metrics["timing_s/testing"] or 0, 0)
    file.clock = math.min(clock, time.LATEST)
  end
end

normalize_locate = normalizer.locate

-- Open the file that `path` names; the loader says the run and the path below the run folder where no setting does.
normalize_open = normalizer.open

-- Normalise a block of lines, each ended by a newline. seconds, nanos, time_source serve lines without a time; where
-- that is "estimated", seconds is when the file began, and later lines follow the file's clock.
-- Return {lines, documents, flagged, flags = {reason = n}, dropped = {rule = n}, dated = body,
--   undated = {{index, id, action and document}, ...}}: documents without a time of their own may stand in another
--   day's index already, so the loader looks before it writes them.
function normalize_batch(file, block, offset, seconds, nanos, time_source)
  local dated, undated = buffer.new(#block * 2), {}
  local result = { lines = 0, documents = 0, flagged = 0, flags = {}, dropped = {}, undated = undated }
  local estimated = time_source == "estimated"
  if offset == 0 then file.clock, file.latest = nil, nil end
  local from, size = 1, #block
  while from <= size do
    local newline = find(block, "\n", from, true) or size + 1
    local last = newline - 1
    if last >= from and byte(block, last) == 13 then last = last - 1 end
    local doc, own_seconds, own_nanos =
      read_line(file, sub(block, from, last), offset + from - 1, file.clock or seconds)
    result.lines = result.lines + 1
    if not doc then
      result.dropped[own_seconds] = (result.dropped[own_seconds] or 0) + 1
    else
      result.documents = result.documents + 1
      if doc.flags then
        result.flagged = result.flagged + 1
        count(result.flags, doc.flags)
      end
      if estimated then follow(file, doc, own_seconds, seconds) end
      if own_seconds then
        dated:put('{"index":{"_index":"', index_of(file, own_seconds), '","_id":"', doc.event_id, '"}}\n')
        put_document(dated, doc, own_seconds, own_nanos)
      else
        doc.time_source = time_source
        local out, at = buffer.new(), estimated and file.clock and floor(file.clock) or seconds
        put_document(out, doc, at, nanos)
        undated[#undated + 1] = { index_of(file, at), doc.event_id, out:tostring() }
      end
    end
    from = newline + 1
  end
  result.dated = dated:tostring()
  return result
end
