-- Console lines: what a training prints, behind the prefixes of Ray and others.
--
--   normalize_console_prefix.lua    container time, Ray's and vLLM's processes, repeat marks
--   normalize_console_progress.lua  progress bars
--   normalize_console_step.lua      verl's step line
--   normalize_console_block.lua     the printed configuration and validation metrics
--   normalize_console_head.lua      time, level, logger, source file, rank
--   normalize_console_fields.lua    numbers in other lines
--   normalize_traceback.lua         stacks, put together
--
-- Lines are read in order, and a file's state (step in progress, open stacks) is built from them; after a restart it
-- begins empty and only says less. It never decides whether a line is dropped.
local normalizer = ...
local document, json, noise, part = normalizer.document, normalizer.json, normalizer.noise, normalizer.part
local find, match, sub, byte = string.find, string.match, string.sub, string.byte

local prefix = part("normalize_console_prefix", normalizer.time)
local without_bars = part("normalize_console_progress")
local layout = part("normalize_console_layout", json)
local read_step = part("normalize_console_step", document, layout)
local block = part("normalize_console_block")
local head = part("normalize_console_head", document, normalizer.time, normalizer.settings)
local fields = part("normalize_console_fields", document, layout)
local traceback = part("normalize_traceback", document, normalizer.id, normalizer.text)

local console = {}

local RECORD = { step = true, metric_name = true, event = true, message = true, msg = true, timestamp = true,
  timestamp_ns = true }
local PROCESSES = 1024 -- of one file, that have a stack, a sample or a block open
local SAMPLE_LINES = 2000 -- a printed sample without an end is none

-- Return the state of a file, begun anew where the file was.
local function state_of(file, offset)
  local state = file.console
  if not state or offset <= state.offset then
    state = { offset = -1, processes = {}, count = 0, step_layouts = {}, number_layouts = {} }
    file.console = state
  end
  state.offset = offset
  return state
end

local function process_of(state, key)
  local process = state.processes[key]
  if not process then
    if state.count >= PROCESSES then state.processes, state.count = {}, 0 end
    process = {}
    state.processes[key], state.count = process, state.count + 1
  end
  return process
end

local function put_process(file, state, writer, parent)
  if writer then
    document.field("process.name", writer.name)
    if writer.pid then document.integer("process.pid", "pid", writer.pid) end
    if writer.ip then document.extra("ip", writer.ip) end
    if writer.elapsed then document.extra("elapsed", writer.elapsed) end
    if writer.rank then document.integer("rank", "rank", writer.rank, "rank_invalid") end
    if parent and parent.name then document.extra("parent", parent.name) end
    if parent and parent.pid then document.extra("parent_pid", parent.pid) end
  else
    if state.actor then document.keyword("process.name", "actor_name", state.actor) end
    document.field("process.pid", file.pid)
  end
end

-- Return the step that a line names as its own.
local function own_step(s)
  local step
  if find(s, "Dumped generations to ", 1, true) then step = match(s, "/(%d+)%.jsonl") end
  if not step and find(s, "global_step", 1, true) then
    step = match(s, "global_step_(%d+)") or match(s, "'global_steps': (%d+)")
  end
  return step or match(s, "^Setting global step to (%d+)")
end

-- Set the step of a line that is no step line: its own, else the one in progress.
local function put_step(state, s, rank)
  local step = own_step(s) or (rank and match(s, "^step (%d+) "))
  if document.get("step") then
    state.step = document.get("step")
  elseif step then
    document.integer("step", "step", tonumber(step), "step_invalid")
  elseif state.step then
    document.field("step", state.step + 1)
    document.field("step_source", "stream")
  end
end

-- Follow the lines that say where the steps stand: a new launch in the same file begins before its first step line.
local function follow_launch(state, s)
  if sub(s, 1, 17) == "ray init kwargs: " then
    state.step = nil
  elseif sub(s, 1, 23) == "Setting global step to " then
    local digits = match(s, "^%d+", 24)
    if digits and #digits < 16 then state.step = tonumber(digits) end
  end
end

-- Reward managers print whole samples: a prompt and a response may hold anything that looks like a log line.
local function in_sample(state, key, s, said)
  local process = state.processes[key]
  if sub(s, 1, 9) == "[prompt] " then
    process_of(state, key).sample = SAMPLE_LINES
    return true
  end
  if not process or not process.sample then return false end
  process.sample = process.sample - 1
  local ends = sub(s, 1, 8) == "[score] " or process.sample == 0
  if ends or said.seconds then process.sample = nil end
  return not said.seconds
end

-- Read the lines of printed blocks; return true where the line became the event of a whole configuration.
local function read_block(state, key, s)
  local process = state.processes[key]
  if not (process and process.block) then
    local opened = byte(s, 1) == 123 and block.open(s)
    if not opened then return false end
    process = process_of(state, key)
    process.block = opened
  end
  local b = process.block
  local goes_on = block.has(s)
  if goes_on and not block.feed(b, s) then return false end
  process.block = nil
  if not goes_on then return false end
  local config, cut = block.config(b)
  if not config then return false end
  document.kind("event")
  document.field("event", "config")
  if cut then document.flag("extra_cut") end
  for _, name in ipairs(json.keys(config)) do document.extra(name, config[name]) end
  return true
end

-- Name what else a line says of its run.
local function read_run(s)
  local overrides = match(s, "^Error executing job with overrides: (%[.*)$")
  if overrides then
    if not document.get("log.level") then document.field("log.level", "error") end
    local values = block.overrides(overrides)
    if values then document.extra("overrides", values) end
    return
  end
  local url = find(s, "View run ", 1, true) and match(s, "https?://%S+")
  if url then
    document.kind("event")
    document.field("event", "tracker")
    document.extra("url", url)
  end
end

-- Return the numbers of a line that are metrics, or nil.
local function find_fields(said, s, learned)
  if said.bracketed or fields.known(s) then return fields.find(s, said.level == "debug", learned) end
  return fields.find_statistics(s, learned)
end

-- Tell whether a line is nothing but metrics, of its step and not of one prompt.
local function is_metric(said, found)
  return found and found.texts == 0 and found.parts > 1 and (said.level == nil or said.level == "info")
end

-- Fill the document from a bare line that is no step line; s: what stands behind its head.
local function read_text(state, key, line, event_id, said, s, found, numbers)
  if in_sample(state, key, line, said) then
    document.message(line)
    return
  end
  head.apply(said)
  local has_head = said.level or said.seconds
  local is_event = not has_head and read_block(state, key, s)
  local process = state.processes[key]
  local in_stack = process and process.trace
  if (in_stack and not has_head) or traceback.opens(s) then
    traceback.read(process_of(state, key), s, event_id)
  elseif in_stack then
    traceback.interrupt(process)
  end
  if not is_event and not document.get("error.id") then
    if found then fields.apply(found, numbers) end
    if is_metric(said, found) then
      document.kind("metric")
      return
    end
    traceback.read_alone(s)
    read_run(s)
  end
  document.message(find(s, "%S") and s or line)
end

-- Return the object that a line is, where it is a record; other objects are text that something printed.
local function record_of(s, layouts)
  if byte(s, 1) ~= 123 or not find(s, '^{%s*"') then return nil end
  local object = json.read(s, layouts)
  if not object then
    if find(s, '"step":', 1, true) then
      document.kind("unparsed")
      document.flag("unparsed")
    end
    return nil
  end
  for i = 1, object.n do
    if RECORD[object.keys[i]] then return object end
  end
end

-- Read a line. Return the rule that drops it, or nil and seconds, nanoseconds where it has a time; the document is
-- then filled. raw: the line's own bytes; now: seconds of the reading time.
function console.read(file, line, raw, offset, now)
  local state = state_of(file, offset)
  local seconds, nanos
  local first = byte(line, 1)
  if first >= 48 and first <= 57 then line, seconds, nanos = prefix.container_time(line) end
  local s, writer, parent = prefix.processes(line)
  s = without_bars(s)
  if not s then return "progress" end
  local repeated
  s, repeated = prefix.repeated(s)
  if not find(s, "%S") then return "empty" end
  if byte(s, 1) == 58 and find(s, "^:%l+_%l+:%S") then
    state.actor = match(s, "^:actor_name:(.*)$") or state.actor
    return "ray_marker"
  end
  put_process(file, state, writer, parent)
  if repeated then document.integer("log.repeated", "repeated", repeated) end

  local object = record_of(s, file.layouts)
  if object then
    local own_seconds, own_nanos = normalizer.read_object(file, object)
    return nil, own_seconds or seconds, own_nanos or nanos
  end
  if read_step(s, state.step_layouts) then
    state.step = document.get("step")
  else
    local key = writer and writer.key or ""
    local rule = block.rule(s)
    if rule then
      local process = state.processes[key]
      if process and process.block then block.feed(process.block, s) end
      return rule
    end
    local said, rest = head.read(s, now)
    local found, numbers = find_fields(said, rest, state.number_layouts)
    local event_id = normalizer.identify(file, raw, offset)
    rule = noise.any and not is_metric(said, found) and noise.rule(said.level, said.logger or said.file, rest, event_id)
    if rule then return rule end
    if document.get("kind") == "metric" then document.kind("log") end
    read_text(state, key, s, event_id, said, rest, found, numbers)
    follow_launch(state, rest)
    put_step(state, rest, said.rank)
    if not seconds then seconds, nanos = said.seconds, said.nanos end
  end
  if seconds then document.field("time_source", "line") end
  return nil, seconds, nanos
end

return console
