-- What others put in front of a process's line: the container runtime its time, Ray (with colour) and vLLM the
-- process, torch.distributed the rank. Ray marks behind it how many equal lines it left out.
local time = ...
local find, match, sub, byte, gsub = string.find, string.match, string.sub, string.byte, string.gsub

local prefix = {}

local NAMES = { raylet = true, autoscaler = true, gcs_server = true } -- they print without a pid

-- Return {key, name, pid, ip, rank} of the text in the parentheses, or false where it is something else.
local function process_of(text)
  local name, pid, more = match(text, "^%((.-) ?pid=(%d+)([^()]*)%)$")
  if not name then
    name, more = match(text, "^%(([%a_]+)([^()]*)%)$")
    if not NAMES[name] then return false end
  end
  return {
    key = text,
    name = name ~= "" and name or nil,
    pid = tonumber(pid),
    ip = match(more, "ip=([%w.:]+)"),
    elapsed = match(more, "^ %+(%w+)$"), -- the autoscaler's time since it began
  }
end

local processes, count = {}, 0 -- text -> process: a console has as many as its job has processes

local function known(text)
  if #text > 200 then return false end
  local process = processes[text]
  if process == nil then
    if count >= 4096 then processes, count = {}, 0 end
    process, count = process_of(text), count + 1
    processes[text] = process
  end
  return process
end

local COLOUR = "\27%[[0-?]*[ -/]*[@-~]"

local function uncoloured(s)
  return find(s, "\27", 1, true) and gsub(s, COLOUR, "") or s
end

-- Return the bare line, and the processes that its prefixes name: the one that wrote it, and the one that passed it on.
function prefix.processes(s)
  local text, p = match(s, "^\27%[[%d;]*m(%b())\27%[[%d;]*m ?()")
  if not text then
    s = uncoloured(s)
    text, p = match(s, "^(%b()) ?()")
  end
  local process = text and known(text)
  if not process then
    local rank, behind = match(s, "^%[rank(%d+)%]: ?()")
    if rank then return sub(s, behind), { key = "rank" .. rank, rank = tonumber(rank) } end
    return uncoloured(s)
  end
  s = uncoloured(sub(s, p))
  if byte(s, 1) == 40 then
    local inner, q = match(s, "^(%b()) ?()")
    local writer = inner and known(inner)
    if writer and writer.pid then return sub(s, q), writer, process end
  end
  return s, process
end

-- Return the line without the time that a container runtime put in front of it, seconds, nanoseconds.
function prefix.container_time(s)
  local stamp, p = match(s, "^(%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.?%d*[Z+-][%d:]*) ()")
  local seconds, nanos
  if stamp then seconds, nanos = time.from_iso(stamp) end
  if not seconds then return s end
  return sub(s, match(s, "^std%a%a%a [FP] ()", p) or p), seconds, nanos -- containerd names the stream too
end

-- Return the line without Ray's repeat mark, and how many equal lines it stands for.
function prefix.repeated(s)
  if not find(s, "[repeated ", 1, true) then return s end
  local text, mark = match(s, "^(.-) ?%[repeated (%d+)x across cluster%]")
  if text then return text, tonumber(mark) end
  return s
end

return prefix
