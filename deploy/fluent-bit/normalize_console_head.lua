-- Heads of console lines: time, level, logger, source file and rank, as the loggers around a training print them.
local document, time, settings = ...
local find, match, sub, byte, lower = string.find, string.match, string.sub, string.byte, string.lower

local LEVELS = { DEBUG = true, INFO = true, WARNING = true, WARN = true, ERROR = true, CRITICAL = true, FATAL = true,
  TRACE = true }
local LETTERS = { D = "debug", I = "info", W = "warning", E = "error", F = "fatal" } -- glog's

local head = {}

local h -- what the head of the line in hand says: level, logger, file, line, rank, seconds, nanos, ...
local now -- seconds: when the line was read, for heads without a year

local function level_of(word)
  if not LEVELS[word] then return false end
  h.level = lower(word)
  return true
end

local function origin(file, line)
  h.file, h.line = file, tonumber(line)
end

local minute, minute_seconds, minute_assumed -- of the last time: most lines fall into the same

-- Return seconds, nanoseconds and whether the zone was assumed of a time as printed, or nil.
local function time_of(text)
  local second, fraction = match(text, "^:(%d%d)[.,]?(%d*)$", 17)
  if not second or second > "59" then return time.from_iso(text, settings.utc_offsets) end
  if sub(text, 1, 16) ~= minute then
    local seconds, _, assumed = time.from_iso(sub(text, 1, 16) .. ":00", settings.utc_offsets)
    if not seconds then return nil end
    minute, minute_seconds, minute_assumed = sub(text, 1, 16), seconds, assumed
  end
  return minute_seconds + tonumber(second), tonumber(sub(fraction .. "000000000", 1, 9)), minute_assumed
end

-- Take a time as printed; return whether it is one.
local function take_time(text)
  local seconds, nanos, assumed = time_of(text)
  if not seconds then return false end
  if not h.seconds then
    h.seconds, h.nanos = seconds, nanos
    if assumed then h.zone_assumed = true end
  end
  return true
end

local function take_yearless(month, day, clock, fraction)
  local seconds, assumed = time.without_year(settings.utc_offsets, now, tonumber(month), tonumber(day), clock)
  if not seconds then return false end
  h.seconds, h.nanos = seconds, tonumber(sub((fraction or "") .. "000000000", 1, 9))
  h.year_assumed = true
  if assumed then h.zone_assumed = true end
  return true
end

local DATE = "%d%d%d%d%-%d%d%-%d%d[ T]%d%d:%d%d:%d%d[.,]?%d*"

-- Return what a bracket says that tells no time: {level}, {rank} or {file, line}; false for other text.
local function words_of(text)
  if LEVELS[text] then return { level = lower(text) } end
  local rank = match(text, "^[Rr]ank[ :]?(%d+)$")
  if rank then return { rank = tonumber(rank) } end
  local file, line = match(text, "^([%w_./-]+%.%w+):(%d+)$")
  return file and { file = file, line = tonumber(line) } or false
end

local words, word_count = {}, 0 -- a console has few of them

local function known_words(text)
  if #text > 200 then return false end
  local said = words[text]
  if said == nil then
    if word_count >= 1024 then words, word_count = {}, 0 end
    said, word_count = words_of(text), word_count + 1
    words[text] = said
  end
  return said
end

-- Take what stands between brackets and begins with a date; return whether it belongs to a head.
local function take_dated(text)
  local stamp, more = match(text, "^(" .. DATE .. ")(.*)$")
  if not stamp then return false end
  if more == "" then return take_time(stamp) end
  local file, line, name = match(more, "^%-([^:]+):(%d+):(.+)$") -- verl's log_print
  local letter, pid = match(more, "^ (%u) (%d+) %d+$") -- Ray's C++ logs
  local worker = match(more, "^ (%u[%w ]*)$") -- SGLang's
  if file then
    origin(file, line)
    h["function"] = name
  elseif LETTERS[letter] then
    h.level = LETTERS[letter]
    h.pid = tonumber(pid)
  elseif worker then
    h.worker = worker
  elseif find(more, "^[Zz+-][%d:]*$") then
    stamp = stamp .. more
  else
    return false
  end
  return take_time(stamp)
end

-- Take what stands between brackets; return whether it belongs to a head.
local function take_bracket(text)
  local first = byte(text, 1)
  if first and first >= 48 and first <= 57 then return take_dated(text) end
  local said = known_words(text)
  if said then
    for name, value in pairs(said) do h[name] = value end
    h.bracketed = h.bracketed or not said.rank
    return true
  end
  if h.seconds and find(text, "^[%a_][%w_.]*$") then -- hydra: [time][logger][level]
    h.logger = text
    return true
  end
  local letter, month, day, clock, fraction, source, number =
    match(text, "^([DIWEF])(%d%d?)(%d%d) (%d%d:%d%d:%d%d)%.?(%d*) ([^ :]+):(%d+)$") -- c10's, inside NCCL's watchdog
  if letter and take_yearless(month, day, clock, fraction) then
    h.level = LETTERS[letter]
    origin(source, number)
    return true
  end
  return false
end

local function read_brackets(s)
  local p = 1
  while byte(s, p) == 91 do
    local text, behind = match(s, "^%[([^%[%]]*)%]()", p)
    if not text or not take_bracket(text) then break end
    p = match(s, "^ *()", behind)
  end
  if p == 1 then return s end
  p = match(s, "^[-:] ()", p) or p
  if h.pid then
    local component, at = match(s, "^%(([%w_]+)%) ()", p)
    local file, line, behind = match(s, "^([%w_]+%.cc):(%d+): ()", at or p)
    if file then
      origin(file, line)
      h.logger, p = component, behind
    end
  end
  return sub(s, p)
end

-- LEVEL:time:text, LEVEL:logger:text, LEVEL: text, LEVEL MM-DD time [file:line] text (vLLM).
local function read_level(s)
  local word, p = match(s, "^(%u+)()")
  if not LEVELS[word] then return s end
  local mark = byte(s, p)
  if mark == 58 then
    local stamp, behind = match(s, "^:(" .. DATE .. "):()", p)
    if stamp and take_time(stamp) then
      level_of(word)
      return sub(s, behind)
    end
    local logger
    logger, behind = match(s, "^:([%a_][%w_.]*):()", p)
    behind = behind or match(s, "^:%s+()", p)
    if not behind then return s end
    level_of(word)
    h.logger = logger
    return sub(s, behind)
  end
  if mark == 32 then
    local month, day, clock, file, line, behind =
      match(s, "^ (%d%d)%-(%d%d) (%d%d:%d%d:%d%d) %[?([^%]%s:]+):(%d+)%] ?()", p)
    if month and take_yearless(month, day, clock) then
      level_of(word)
      origin(file, line)
      return sub(s, behind)
    end
  end
  return s
end

-- time <tab> LEVEL file:line -- text (Ray), time - logger - LEVEL - text, time LEVEL text, time | LEVEL | text.
local function read_time(s)
  local stamp, zone, p = match(s, "^(" .. DATE .. ")([Zz+-]?[%d:]*)()")
  if not stamp or find(s, "^[^%s|]", p) or not take_time(stamp .. zone) then return s end
  local word, file, line, behind = match(s, "^[\t ](%u+) ([^%s:]+):(%d+) %-%- ()", p)
  if LEVELS[word] then
    level_of(word)
    origin(file, line)
    return sub(s, behind)
  end
  local logger
  logger, word, behind = match(s, "^ %- ([%w_.]+) %- (%u+) %- ()", p)
  if LEVELS[word] then
    level_of(word)
    h.logger = logger
    return sub(s, behind)
  end
  word, behind = match(s, "^[ |-]*(%u+)[ |:-]+()", p)
  if LEVELS[word] then
    level_of(word)
    return sub(s, behind)
  end
  return sub(s, match(s, "^%s*()", p))
end

-- W0612 12:11:10.123456 4103 torch/distributed/run.py:766] text (torchrun).
local function read_glog(s)
  local letter, month, day, clock, fraction, pid, file, line, behind =
    match(s, "^([DIWEF])(%d%d)(%d%d) (%d%d:%d%d:%d%d)%.(%d+) +(%d+) ([^%s:]+):(%d+)%] ?()")
  if not letter or not take_yearless(month, day, clock, fraction) then return s end
  h.level = LETTERS[letter]
  origin(file, line)
  h.pid = tonumber(pid)
  return sub(s, behind)
end

-- *** SIGTERM received at time=1795955125 on cpu 0 ***
local function read_signal(s)
  local seconds = tonumber(match(s, "^%*%*%* SIG%u+ received at time=(%d+)"))
  if seconds and seconds < 1e11 then h.seconds, h.nanos = seconds, 0 end
  return s
end

-- host:pid:tid [gpu] NCCL WARN text
local function read_nccl(s)
  local host, pid, gpu, where, word, behind = match(s, "^([%w_.-]+):(%d+):%d+ %[(%d+)%] ?(%S*) NCCL (%u+) ()")
  if not LEVELS[word] then return s end
  h.host = host
  h.pid = tonumber(pid)
  h.gpu = tonumber(gpu)
  h.level, h.logger = lower(word), "NCCL"
  local file, line = match(where, "^(.+):(%d+)$")
  if file then origin(file, line) end
  return sub(s, behind)
end

-- /path/x.py:25: UserWarning: text
local function read_warning(s)
  local file, line, behind = match(s, "^([^%s:]+%.py):(%d+): ()")
  if not file or not find(s, "^%u%w*Warning: ", behind) then return s end
  origin(file, line)
  h.level, h.logger = "warning", "py.warnings"
  return sub(s, behind)
end

local STAGES = { "rollout", "agent_loop", "reward", "critic", "actor", "trainer" } -- the first that a path names
local STAGE_OF = { agent_loop = "rollout" }
local stages, stage_count = {}, 0

-- Return the stage that a module's path names, or nil.
local function stage_of(path)
  if #path > 1024 then return nil end
  local stage = stages[path]
  if stage == nil then
    stage = false
    for i = 1, #STAGES do
      if find("/" .. path, "[/.]" .. STAGES[i]) then
        stage = STAGE_OF[STAGES[i]] or STAGES[i]
        break
      end
    end
    if stage_count >= 1024 then stages, stage_count = {}, 0 end
    stages[path], stage_count = stage, stage_count + 1
  end
  return stage or nil
end

-- Return what the head of a line says ({} for a line without one), and the text behind it; read_at: seconds of the
-- reading time, for heads without a year.
function head.read(s, read_at)
  h, now = {}, read_at
  local first = byte(s, 1)
  if first == 32 or first == 9 then return h, s end
  if first == 91 then
    s = read_brackets(s)
  elseif first >= 65 and first <= 90 then
    local rest = read_level(s)
    s = rest == s and read_glog(s) or rest
  elseif first >= 48 and first <= 57 then
    s = read_time(s)
  elseif first == 42 then
    s = read_signal(s)
  elseif find(s, "Warning: ", 1, true) then
    s = read_warning(s)
  end
  if find(s, " NCCL ", 1, true) then s = read_nccl(s) end
  return h, s
end

-- Put what a head says into the document.
function head.apply(said)
  document.field("log.level", said.level)
  if said.logger then document.keyword("log.logger", "logger", said.logger) end
  if said.file then
    document.keyword("log.origin.file.name", "file", said.file)
    document.integer("log.origin.file.line", "line", said.line)
  end
  local module = said.file or said.logger
  if module then document.field("stage", stage_of(module)) end
  if said.rank then document.integer("rank", "rank", said.rank, "rank_invalid") end
  if said.pid then document.integer("process.pid", "pid", said.pid) end
  if said.host then document.keyword("host.name", "host", said.host) end
  if said.gpu then document.integer("gpu.index", "gpu", said.gpu) end
  if said["function"] then document.extra("function", said["function"]) end
  if said.worker then document.extra("worker", said.worker) end
  if said.zone_assumed then document.flag("zone_assumed") end
  if said.year_assumed then document.flag("year_assumed") end
end

return head
