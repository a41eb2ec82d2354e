-- Sources: what a file's path says about all of its lines.
local id, text, settings = ...
local match, gsub, find = string.match, string.gsub, string.find

local source = {}

-- Return the Lua pattern of a configured path (`*`, `?`, `[0-9]` within one folder), without {run}.
local function pattern_of(path)
  local pattern = gsub(path, "[%^%$%(%)%%%.%+%-]", "%%%0")
  pattern = gsub(pattern, "%[(.-)%]", function(set) return "[" .. gsub(set, "%%%-", "-") .. "]" end)
  pattern = gsub(pattern, "%*", "[^/]*")
  return (gsub(pattern, "%?", "[^/]"))
end

-- Return the pattern that takes run and rest of a path, the run being the folder that {run} names.
local function run_folder_pattern(path)
  local head, tail = match(path, "^(.-){run}([^/]*)")
  return "^" .. pattern_of(head) .. "([^/]+)" .. pattern_of(tail) .. "/(.+)$"
end

local patterns = {}
for i, path in ipairs(settings.run_paths) do patterns[i] = run_folder_pattern(path) end

-- Files whose paths mean others on every node: the node's name goes into their ids. An agent's is in its environment.
local node_patterns = {}
for i, path in ipairs(settings.node_paths or {}) do
  node_patterns[i] = path == "all" and "" or "^" .. gsub(pattern_of(path), "{run}", "[^/]+") .. "$"
end
local node = settings.node or os.getenv("VERL_INGEST_NODE")
assert(node or not node_patterns[1], "node_scope is set: give each agent its node's name in VERL_INGEST_NODE")

local function node_of(path)
  for i = 1, #node_patterns do
    if find(path, node_patterns[i]) then return node end
  end
end

-- Return the path without what rotation adds to it.
local function unrotated(path)
  local plain
  repeat
    plain = path
    path = gsub(path, "%.gz$", "")
    path = gsub(path, "%.%d+$", "")
    path = gsub(path, "%-%d%d%d%d%d%d%d%d$", "")
  until path == plain
  return path
end

local function split_of(folder)
  for part in string.gmatch(folder, "[^/]+") do
    if find(part, "^val") then return "val" end
  end
  return "train"
end

-- Return run_id and the path below the run folder, where a configured path matches.
function source.locate(path)
  for i = 1, #patterns do
    local run_id, relative = match(path, patterns[i])
    if run_id then return run_id, relative end
  end
end

-- Return the source of a file: absolute path, or run_id and relative path from a reader that knows them.
function source.open(path, run_id, relative)
  if not relative then run_id, relative = source.locate(path) end
  run_id, relative = run_id and text.utf8(run_id), text.utf8(relative or match(path, "([^/]+)$") or path)
  -- Ray's session folder has two names (session_latest is a link), so only the file's own counts.
  relative = unrotated(relative)
  local session = match("/" .. path, "/(session_[^/]+)/logs/")
  if session then relative = match(relative, "([^/]+)$") end
  local folder, name = match("/" .. relative, "^(.*)/([^/]*)$")
  local stage, rank = match(name, "^(.-)_?rank(%d+)%.jsonl$")
  if stage then stage = gsub(stage, "^verl_?", "") end
  local job, pid = match(name, "^worker%-%x+%-(%x+)%-(%d+)%.%l+$") -- Ray's file of one process
  return {
    run_id = run_id,
    folder = text.utf8(match(path, "([^/]+)/[^/]*$") or "unnamed"), -- the run's last name: it is never empty
    path = relative,
    node = node_of(path),
    file = {}, -- run_id -> file part of the ids
    stage = stage ~= "" and stage or nil,
    rank = rank and #rank < 10 and tonumber(rank) or nil, -- a longer number is none
    dump_step = tonumber(match(name, "^(%d+)%.jsonl$")),
    split = split_of(folder),
    layouts = {},
    is_console = not find(name, "%.jsonl$"),
    pid = pid and #pid < 16 and tonumber(pid) or nil,
    attempt = job and session and session ~= "session_latest" and session .. "/" .. job or nil,
  }
end

-- Return the event_id of a line.
function source.event_id(file, run_id, offset, line)
  local key = file.file[run_id]
  if not key then
    key = id.file(run_id, file.path, file.node)
    file.file = { [run_id] = key } -- one run a file, nearly always; never a list that grows
  end
  return id.line(key, offset, line)
end

return source
