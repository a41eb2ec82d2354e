-- The normaliser: one log line in, one document out. Fluent Bit calls `normalize`, the loader `normalize_batch`; both
-- run these same files, so that agent and loader can't differ. Formats are recognised by content and file name alone.
--
--   normalize.lua          this file: which format a line has, and the two ways in
--   normalize_source.lua   what the path says: run, stage, rank, id
--   normalize_json.lua     reading and writing JSON
--   normalize_record.lua   rank JSONL: long, wide, event and message lines
--   normalize_verl.lua     verl's file logger and rollout dumps
--   normalize_console.lua  console lines, with its own parts and normalize_traceback.lua
--   normalize_noise.lua    rules that leave out log lines
--   normalize_forward.lua  records without a line, sent by the training process
--   normalize_document.lua the document being built, with its limits and flags
--   normalize_time.lua, normalize_id.lua, normalize_text.lua
local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or ""
local function part(name, ...)
  return assert(loadfile(folder .. name .. ".lua"))(...)
end

collectgarbage("setpause", 400) -- what a line leaves is small and short-lived: collect it less often

local settings = ... or part("settings") -- the loader brings its own
settings.run = settings.run or os.getenv("VERL_INGEST_RUN") -- of an agent that runs for one job or pod
local text = part("normalize_text")
local time = part("normalize_time")
local id = part("normalize_id")
local json = part("normalize_json", text)
local source = part("normalize_source", id, text, settings)
local document = part("normalize_document", text, id, json)
local read_record = part("normalize_record", document, time, json, settings)
local verl = part("normalize_verl", document, json, id, text, settings)
local noise = part("normalize_noise", id, settings)
local read_forward = part("normalize_forward", document, json, id, text, settings, read_record)

local LINE_BYTES = settings.line_bytes -- the agent's buffer_max_size; it hands over one byte less

-- Read the object of a line; return seconds, nanoseconds where it has a time.
local function read_object(file, object)
  local seconds, nanos
  if file.dump_step and verl.is_sample(object) then
    verl.read_sample(object, file)
  elseif verl.is_logger(object) then
    verl.read_logger(object)
  else
    seconds, nanos = read_record(object)
  end
  if object.repeated then
    for _, pair in ipairs(object.repeated) do
      document.flag("duplicate_key", pair[1])
      document.extra(pair[1], pair[2])
    end
  end
  if object.half_pair then document.flag("bad_utf8") end
  if seconds then document.field("time_source", "record") end
  return seconds, nanos
end

-- Give the line in hand its run and its id.
local function identify(file, line, offset)
  local run_id = document.run(file.run_id or document.run_of_record() or settings.run or file.folder)
  local event_id = source.event_id(file, run_id, offset, line)
  document.field("event_id", event_id)
  return event_id
end

local console = part("normalize_console", {
  document = document, id = id, json = json, text = text, time = time, noise = noise, settings = settings, part = part,
  identify = identify, read_object = read_object,
})

-- Say where a line stands that is more than numbers.
local function locate(file, offset)
  document.field("log.file.path", file.path)
  document.field("log.offset", offset)
end

-- Return document, seconds, nanoseconds of a line, seconds are nil where the line has no time; or nil and the rule that
-- drops it. now: seconds of the reading time.
local function to_document(file, line, offset, now)
  local doc = document.start("metric")
  local cut = #line >= LINE_BYTES - 1
  if cut then document.flag("truncated", "line") end
  local clean, repaired = text.utf8(cut and text.cut(line, LINE_BYTES - 2) or line)
  if repaired then document.flag("bad_utf8") end
  if clean:byte(1) == 239 and clean:sub(1, 3) == "\239\187\191" then -- a byte order mark
    clean = clean:sub(4)
    document.flag("control_characters")
  end
  local object, rule, seconds, nanos
  if file.is_console then
    rule, seconds, nanos = console.read(file, clean, line, offset, now)
    if rule then return nil, rule end
  else
    object = not cut and json.read(clean, file.layouts)
    if object then seconds, nanos = read_object(file, object) end
  end
  if doc.kind == "metric" and not document.has_values() and not doc.metric_name then
    if object or file.is_console then
      document.kind("log")
    else
      document.kind("unparsed")
      document.flag("unparsed")
    end
    document.message(clean)
  end
  doc.stage = doc.stage or file.stage
  doc.rank = doc.rank or file.rank
  doc.attempt = doc.attempt or file.attempt
  if doc.message or (doc.kind ~= "metric" and doc.kind ~= "sample") then locate(file, offset) end
  local event_id = doc.event_id or identify(file, line, offset)
  if noise.any and doc.kind == "log" and not file.is_console then
    rule = noise.rule(doc["log.level"], doc["log.logger"], doc.message, event_id)
    if rule then return nil, rule end
  end
  return document.finish(), seconds, nanos
end

-- Return the same for a line on which the normaliser itself failed: its text, flagged and findable.
local function to_failure(file, line, offset, reason)
  local doc = document.start("unparsed")
  document.flag("normalizer_error")
  document.message((text.utf8(line)))
  document.extra("reason", reason)
  locate(file, offset)
  identify(file, line, offset)
  return document.finish()
end

-- Return document, seconds, nanoseconds; or nil and the rule that drops the line.
local function read_line(file, line, offset, now)
  if not line:find("[^%s%z]") then return nil, "empty" end
  local ok, doc, seconds, nanos = pcall(to_document, file, line, offset, now)
  if not ok then return to_failure(file, line, offset, tostring(doc)) end
  return doc, seconds, nanos
end

local FILES = 4096 -- sources remembered at once
local files, count = {}, 0

local function open(path, run_id, relative)
  local file = files[path]
  if not file then
    if count >= FILES then files, count = {}, 0 end
    file = source.open(path, run_id, relative)
    files[path], count = file, count + 1
  end
  return file
end

local REPORT_SECONDS, REPORT_LINES = 60, 10000

-- Count a dropped line; now and then return the document that reports what was dropped in this file since the last.
-- The loader has its summary for that; an agent has only what it ships.
local function report(file, rule, line, offset, now)
  local drops = file.drops or { since = now, lines = 0, rules = {} }
  file.drops = drops
  drops.lines, drops.rules[rule] = drops.lines + 1, (drops.rules[rule] or 0) + 1
  if now - drops.since < REPORT_SECONDS and drops.lines < REPORT_LINES then return nil end
  file.drops = nil
  local doc = document.start("event")
  document.field("event", "dropped")
  document.field("stage", "system")
  for name, count in pairs(drops.rules) do document.metric(name, count) end
  locate(file, offset)
  identify(file, line, offset)
  document.field("time_source", "read")
  return document.finish()
end

-- Fluent Bit's way in (filter lua, time_as_table on): the raw line with its path and offset, or a record as it was sent.
function normalize(tag, timestamp, record)
  local doc, seconds, nanos
  if type(record.log) == "string" and type(record.path) == "string" and type(record.offset) == "number" then
    local file, line = open(record.path), record.log
    if line:byte(-1) == 13 then line = line:sub(1, -2) end
    doc, seconds, nanos = read_line(file, line, record.offset, timestamp.sec)
    if not doc then
      doc = report(file, seconds, line, record.offset, timestamp.sec)
      if not doc then return -1, timestamp, record end
      return 1, timestamp, doc
    end
  else
    doc, seconds, nanos = read_forward(tag, timestamp, record)
  end
  if not seconds then
    doc.time_source = "read"
    return 1, timestamp, doc
  end
  return 1, { sec = seconds, nsec = nanos }, doc
end

part("normalize_batch", { read_line = read_line, open = open, locate = source.locate, time = time, json = json })
