-- Pretty-printed blocks: the configuration (some 930 lines) and the validation metrics.
--
-- Which lines are dropped is told by each line's own shape, never by the lines before it, so that an audit finds the
-- same ones wherever it or a restarted agent begins to read. A block's first and last line have another shape and
-- stay; the last one becomes the event `config` with all that the block said. Validation metrics stand in the step
-- line too.
local find, match, sub, byte, gsub = string.find, string.match, string.sub, string.byte, string.gsub

local block = {}

local DEEP = "^         +" -- nine spaces or more: at least two dicts deep in verl's configuration, unlike code in samples
local CONFIG = {
  DEEP .. "(['\"])[^'\"]*%1: [%-'\"%d%[{(TFN<].*,$", -- 'lr': 1e-06,
  DEEP .. "(['\"])[^'\"]*%1: ?$", -- the value follows on the next line
  DEEP .. "(['\"]).*%1[%]})]*,$", -- an item of a list
  DEEP .. "{(['\"])[^'\"]*%1: .*,$",
}
local SECTION = "^ '[%w_]+': {'.*,$" -- of the configuration's top level

local function is_validation(s)
  if find(s, "^%(?['\"]%a+ validation metrics: ") then return true end
  local last = byte(s, -1)
  if last ~= 34 and last ~= 39 and last ~= 41 then return false end
  return find(s, "^ ['\"]np%.%w+%(") or find(s, "^ ['\"]{?'val[/-]") or find(s, "^ ['\"][+-]?[%dni][%w.+-]*[,}]")
end

-- Return the rule that drops a line for its shape, or nil.
function block.rule(s)
  local first = byte(s, 1)
  if first == 32 then
    local second = byte(s, 2)
    if second == 32 then
      for i = 1, #CONFIG do
        if find(s, CONFIG[i]) then return "config_block" end
      end
    elseif second == 39 or second == 34 then
      if find(s, SECTION) then return "config_block" end
      if is_validation(s) then return "validation_block" end
    end
  elseif (first == 40 or first == 39 or first == 34) and is_validation(s) then
    return "validation_block"
  end
end

local LEAVES = 900 -- of one configuration; verl 0.9 has 760
local LINES = 5000 -- a block that goes on is none
local DEPTH = 32
local VALUE_BYTES = 2048 -- of one value: `extra` keeps less

-- Return a new block where a line begins one.
function block.open(s)
  if find(s, "^{'[%w_]+': {") then return { depth = 0, kinds = {}, keys = {}, lines = 0, leaves = 0, values = {} } end
end

-- Return whether a line can stand in a block.
function block.has(s)
  return not find(s, "^%a") or find(s, "^[TFNin]%l+[,%]})]*$") ~= nil
end

local WORDS = { True = true, False = false }

local function take(b, value)
  local depth = b.depth
  if b.kinds[depth] ~= "{" then -- an item: lists are kept as one text, and texts in pieces stand in parentheses
    local items = b.items or ""
    if #items < VALUE_BYTES then
      local item = value == nil and "None" or tostring(value)
      b.items = items .. (b.items and b.kinds[depth] ~= "(" and ", " or "") .. item
    end
    return
  end
  local path = table.concat(b.keys, ".", 1, depth)
  if value == nil or b.keys[depth] == "_target_" then return end
  if b.leaves == LEAVES then b.cut = true else b.leaves, b.values[path] = b.leaves + 1, value end
end

local function close(b)
  b.depth = b.depth - 1
  local items = b.items
  if items and b.kinds[b.depth] == "{" then
    b.items = nil
    take(b, items)
  end
end

local function quoted_end(s, p, quote)
  local q = p + 1
  while true do
    q = find(s, quote == 39 and "['\\]" or '["\\]', q)
    if not q then return #s + 1 end
    if byte(s, q) == quote then return q end
    q = q + 2
  end
end

-- Read a line of a block; return true where it ends the block.
function block.feed(b, s)
  b.lines = b.lines + 1
  local p = match(s, "^%s*()")
  while p <= #s do
    local c = byte(s, p)
    if c == 123 or c == 91 or c == 40 then -- { [ (
      if b.depth == DEPTH then return true end
      b.depth = b.depth + 1
      b.kinds[b.depth], b.keys[b.depth] = sub(s, p, p), "[]"
      p = p + 1
    elseif c == 125 or c == 93 or c == 41 then
      close(b)
      if b.depth <= 0 then return true end
      p = p + 1
    elseif c == 44 or c == 58 then
      p = p + 1
    else
      local value
      if c == 39 or c == 34 then
        local q = quoted_end(s, p, c)
        value, p = sub(s, p + 1, math.min(q - 1, p + VALUE_BYTES)), q + 1
      else
        local word
        word, p = match(s, "^([^%s,:%]})]+)()", p)
        value = WORDS[word]
        if value == nil and word ~= "None" then value = tonumber(word) or sub(word, 1, VALUE_BYTES) end
      end
      if b.kinds[b.depth] == "{" and find(s, "^%s*:", p) then b.keys[b.depth] = tostring(value) else take(b, value) end
    end
    p = match(s, "^%s*()", p)
  end
  return b.lines >= LINES
end

-- Return what a finished block says, as `extra` of the event `config`; nil where it is no trainer's configuration.
function block.config(b)
  local values = b.values
  local nodes, gpus = values["trainer.nnodes"], values["trainer.n_gpus_per_node"]
  if b.depth > 0 or (nodes == nil and values["trainer.project_name"] == nil) then return nil end
  local size = type(nodes) == "number" and type(gpus) == "number" and nodes * gpus or nil
  return { config = values, world_size = size }, b.cut
end

-- Return {name = value} of a printed list of hydra overrides: ['data.train_batch_size=8', ...].
function block.overrides(s)
  local values, count, p = {}, 0, 1
  while count < LEAVES do
    local from = find(s, "['\"]", p)
    local to = from and find(s, sub(s, from, from) .. "[,%]]", from + 1)
    if not to then break end
    local item = sub(s, from + 1, to - 1)
    local equals = find(item, "=", 2, true)
    if equals then
      local name = gsub(sub(item, 1, equals - 1), "^%++", "")
      values[name], count = sub(item, equals + 1), count + 1
    end
    p = to + 1
  end
  return count > 0 and values or nil
end

return block
