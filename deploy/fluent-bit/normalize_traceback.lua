-- Tracebacks: the lines of one process put together on the line that closes them, the one that names the exception.
-- Every line stays a document of its own; all of one error carry the id of its first line as error.id.
local document, id, text = ...
local find, match, sub, byte, gsub = string.find, string.match, string.sub, string.byte, string.gsub

local traceback = {}

local LINE_BYTES = 1000 -- of one line of a stack
local STACK_BYTES = 65536
local KEPT_FIRST = 40 -- lines; what is over the limit is left out behind them, since the last calls tell most
local LINES = 1000 -- a stack that goes on is none
local FOREIGN = 16 -- lines of the same process between those of its stack

local OPENS = "Traceback (most recent call last):"
local CHAINS = {
  ["During handling of the above exception, another exception occurred:"] = true,
  ["The above exception was the direct cause of the following exception:"] = true,
}
local UNHANDLED = "Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): "

-- Return class and message of an exception's line; `loose`: its place says that it is one, whatever its name.
local function exception_of(s, loose)
  local class, rest = match(s, "^([%a_][%w_.]*)(.*)$")
  if not class or not (rest == "" or find(rest, "^:%s") or rest == ":") then return nil end
  local last = match(class, "[^.]*$")
  local usual = find(last, "%w+Error$") or find(last, "%w+Exception$") or find(last, "^KeyboardInterrupt$")
    or find(last, "^System%u%l+$") or find(last, "^Stop%w*Iteration$") or find(last, "%w+Group$")
  if usual or (loose and (find(last, "^%u") or find(class, ".", 1, true))) then
    return class, match(rest, "^:%s*(.*)$") or ""
  end
end

-- Ray wraps a remote exception and prints the remote stack behind: the real cause comes at its end.
local function is_wrapper(s)
  return find(s, "^[%w_.]*RayTaskError") ~= nil or find(s, "^ray::") ~= nil
end

-- Note where a wrapper says that the exception was raised.
local function note_origin(trace, s)
  local name, pid, ip = match(s, "ray::([%w_.]+)%b() %(pid=(%d+), ip=([^,)]+)")
  if name then trace.raised_in = { name = name, pid = tonumber(pid), ip = ip } end
end

local function add(trace, s)
  s = text.cut(s, LINE_BYTES)
  local lines = trace.lines
  lines[#lines + 1] = s
  trace.bytes, trace.count = trace.bytes + #s + 1, trace.count + 1
  while trace.bytes > STACK_BYTES and lines[KEPT_FIRST + 1] do
    trace.bytes = trace.bytes - #table.remove(lines, KEPT_FIRST + 1) - 1
    trace.cut = true
  end
  note_origin(trace, s)
end

local function put_stack(trace)
  local lines = trace.lines
  if trace.cut then
    document.flag("truncated", "error.stack_trace")
    document.field("error.stack_trace", table.concat(lines, "\n", 1, KEPT_FIRST) .. "\n  ...\n"
      .. table.concat(lines, "\n", KEPT_FIRST + 1))
  else
    document.field("error.stack_trace", table.concat(lines, "\n"))
  end
end

-- Return the hash that equal errors share: of class and message without paths and words that hold a digit; an empty
-- message says nothing, so there the function that raised it counts.
local function fingerprint(class, message, trace)
  local plain = gsub(gsub(sub(message, 1, LINE_BYTES), "%S*%d%S*", ""), "%S*/%S*", "")
  plain = gsub(plain, "%s+", " ")
  if not find(plain, "%a") and trace then
    for i = #trace.lines, 1, -1 do
      local name = match(trace.lines[i], '^%s+File ".*", line %d+, in (.+)$')
      if name then
        plain = plain .. name
        break
      end
    end
  end
  return id.hex(class .. "\0" .. plain)
end

local function put_error(class, message, trace)
  document.keyword("error.type", "error", class)
  if message ~= "" then document.text("error.message", message, 16384) end
  document.field("error.fingerprint", fingerprint(class, message, trace))
  if not document.get("log.level") then document.field("log.level", "error") end
end

local function open(process, event_id)
  process.trace = { id = event_id, lines = {}, bytes = 0, count = 0, foreign = 0, open = true }
  return process.trace
end

-- Return whether a line opens a stack; nearly no line does, so the callers keep no process for others.
function traceback.opens(s)
  local first = byte(s, 1)
  return (first == 84 or first == 32) and sub(s, -34) == OPENS or first == 85 and sub(s, 1, #UNHANDLED) == UNHANDLED
    or first == 42 and find(s, "^%*%*%* SIG%u+ received at time=%d+") ~= nil
    or first == 70 and sub(s, 1, 20) == "Fatal Python error: "
end

local function begin(process, s, event_id)
  local trace = open(process, event_id)
  document.field("error.id", event_id)
  local signal = match(s, "^%*%*%* (SIG%u+) received")
  local fatal = match(s, "^Fatal Python error: (.*)$")
  if signal or fatal then -- the first line says all; what follows is addresses and threads
    put_error(signal or "Fatal Python error", fatal or s)
    trace.open, trace.signal = false, true
  else
    add(trace, s)
  end
end

local function close(trace, s, class, message)
  add(trace, s)
  put_error(class, message, trace)
  put_stack(trace)
  if trace.raised_in then document.extra("raised_in", trace.raised_in) end
  trace.open, trace.inside = false, false
end

-- Read a line of a process that has a stack; return whether it belongs to it.
local function continue(process, s)
  local trace = process.trace
  local first = byte(s, 1)
  if first == 32 or first == 9 then
    if not trace.open then trace.open = find(s, '^ +File "') ~= nil and not trace.signal end
    if not trace.open then return true end
    local class, message = match(s, "^ +| ([%w_.]+Group): (.*)$")
    if class then
      close(trace, s, class, message)
      return true
    end
    add(trace, s)
    trace.inside = true
    if trace.count >= LINES then -- no stack is so long: say what there is, and forget it
      document.flag("stack_endless")
      document.field("log.level", "error")
      put_stack(trace)
      process.trace = nil
    end
    return true
  end
  if trace.signal then
    local belongs = find(s, "^PC: @") or find(s, "^%a* ?[Tt]hread 0x") or find(s, "^%[failure_signal")
    if not belongs then process.trace = nil end
    return belongs ~= nil
  end
  if CHAINS[s] or (s == OPENS and trace.open) then
    trace.open = true
    add(trace, s)
    return true
  end
  if trace.open then
    if is_wrapper(s) then
      add(trace, s)
      return true
    end
    local class, message = exception_of(s, trace.inside)
    if class then
      close(trace, s, class, message)
      return true
    end
    trace.inside = false
    trace.foreign = trace.foreign + 1
    if trace.foreign > FOREIGN then process.trace = nil end
    return false
  end
  if s == '"""' then return true end -- around a stack that another Python process handed over
  process.trace = nil
  return false
end

-- Note that a process printed a line with a head: the line behind it needs the name of an exception to close a stack.
function traceback.interrupt(process)
  process.trace.inside = false
end

-- Read a line of a process (a table that this module keeps its state in) into the document.
function traceback.read(process, s, event_id)
  local trace = process.trace
  if trace and continue(process, s) then
    document.field("error.id", trace.id)
  elseif traceback.opens(s) then
    begin(process, s, event_id)
  end
end

-- Name the exception of a line that stands alone: Ray leaves out lines that another process printed too, and prints
-- left-out ones late.
function traceback.read_alone(s)
  if not find(s, ": ", 1, true) then return end
  local class, message = exception_of(s, false)
  if class then put_error(class, message) end
end

return traceback
