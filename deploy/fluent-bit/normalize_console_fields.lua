-- Numbers in console lines: `PPO Step 128 | Epoch 0.02 | KL: 0.0124 | GPU Util: 82%`, `took 1.24s | tokens=512`.
-- Names are kept as printed; a unit that follows a number is left out, one that makes the name is joined to it.
local document, layout = ...
local find, match, sub = string.find, string.match, string.sub

local fields = {}

local PART_BYTES = 512 -- a longer part is prose
local NUMBER = "()([+-]?%.?%d[%d.eE+-]*)"
local NAMED = "^(.+)([:=])%s*" .. NUMBER .. "%s?[%a%%]?[%w/%%]*$" -- KL: 0.0124, GPU Util: 82%, avg_latency=2.4ms/token
local WORD = "^(.+)([:=])%s*()([+-]?%a+)$" -- KL: nan
local WRAPPED = "^(.+)([:=])%s*()(np%.%w+%([^()]*%))$" -- KL: np.float64(0.1)
local PLAIN = "^(%a.-)%s+" .. NUMBER .. "$" -- Epoch 0.02
local DURATION = "^(.+) in " .. NUMBER .. "(%a+)$" -- Rollout completed in 3.21s
local TOOK = "^ took " .. NUMBER .. "(%a+)$" -- Rollout for prompt_id=12345 took 1.24s

local LEADS = { sample = "^Reward for sample ()(%d+): ()", engine = "^Engine ()(%d+): ()" } -- ids before the first name

local STEP, GLOBAL_STEP, ID = 1, 2, 3 -- roles of numbers that are no metrics

local function role_of(name)
  if find(name, "^Global Steps?$") then return GLOBAL_STEP end
  if find(name, "^[%a ]*Step$") then return STEP end
  if LEADS[name] or find(name, "i[dx]x?$") then return ID end
end

-- Note a number that stands in a line at `from`, and whether it is written as one.
local function note(found, name, from, digits)
  local number = tonumber(digits)
  local n = found.n + 1
  found.n, found.from[n], found.to[n] = n, from, from + #digits - 1
  found.plain = found.plain and number ~= nil
  found.numbers[n] = number or document.spelled(digits)
  local role = role_of(name)
  found.names[n], found.roles[n] = role and name or found.prefix .. name, role
end

-- Note the numbers of a part that begins at p; return whether it has any. A part alone is prose sooner than a field.
local function read_part(found, part, p, alone)
  if #part > PART_BYTES then return false end
  local name, mark, from, digits = match(part, NAMED)
  if not tonumber(digits) then
    name, mark, from, digits = match(part, WORD)
    if not digits then name, mark, from, digits = match(part, WRAPPED) end
    if not digits or not document.spelled(digits) then name, digits = nil, nil end
  end
  if name then
    for lead, pattern in pairs(LEADS) do
      local at, id, behind = match(name, pattern)
      if at then
        note(found, lead, p + at - 1, id)
        name = sub(name, behind)
      end
    end
    if mark == "=" then name = match(name, "[^%s,:(]+$") end
    note(found, name, p + from - 1, digits)
    return true
  end
  local unit
  if find(part, " in ", 1, true) then name, from, digits, unit = match(part, DURATION) end
  if tonumber(digits) then
    note(found, name .. "_" .. unit, p + from - 1, digits)
    return true
  end
  local took = find(part, " took ", 1, true)
  if took then from, digits, unit = match(part, TOOK, took) end
  if tonumber(digits) then
    local id, at, value = match(sub(part, 1, took - 1), "([%w_]+)=()(%d+)$")
    if id then note(found, id, p + at - 1, value) end
    note(found, "took_" .. unit, p + from - 1, digits)
    return true
  end
  name, from, digits = match(part, PLAIN)
  if tonumber(digits) and not find(name, "[:=]$") and (not alone or role_of(name)) then
    note(found, name, p + from - 1, digits)
    return true
  end
  return false
end

-- Return the numbers of s from p on, which stands in parts.
local function read_parts(s, p, separator, prefix, learned)
  local known, numbers = layout.read(learned, s)
  if known then return known, numbers end
  local found = { names = {}, roles = {}, numbers = {}, from = {}, to = {}, n = 0, parts = 0, texts = 0,
    plain = true, prefix = prefix }
  local alone = not find(s, separator, p, true)
  while true do
    local mark, behind = find(s, separator, p, true)
    found.parts = found.parts + 1
    if not read_part(found, sub(s, p, (mark or #s + 1) - 1), p, alone) then found.texts = found.texts + 1 end
    if not mark then break end
    p = behind + 1
  end
  if found.n == 0 then return nil end
  if found.plain then layout.learn(learned, s, found) end
  return found, found.numbers
end

local BREAKDOWN = "Loss breakdown: "

-- Return the numbers of a line in the bracketed dialect, nil where it is prose. learned: the layouts of its file.
function fields.find(s, is_debug, learned)
  local is_breakdown = sub(s, 1, #BREAKDOWN) == BREAKDOWN
  local separator = find(s, " | ", 1, true) and " | " or ", "
  if separator == ", " and not is_debug and find(s, ", ", 1, true) then return nil end
  if is_breakdown then return read_parts(s, #BREAKDOWN + 1, separator, "Loss breakdown ", learned) end
  return read_parts(s, 1, separator, "", learned)
end

-- Tell whether a line without a head is of the dialect.
function fields.known(s)
  return sub(s, 1, #BREAKDOWN) == BREAKDOWN or find(s, "^%u[%a ]* ?Step %d+ | ") ~= nil
end

-- Return the numbers of vLLM's throughput line and of verl's memory line.
function fields.find_statistics(s, learned)
  local is_engine = find(s, "throughput: ", 1, true)
  if not (is_engine or find(s, "memory allocated (GB): ", 1, true)) then return nil end
  local found, numbers = read_parts(s, 1, ", ", "", learned)
  if found and is_engine then found.stage = "rollout" end
  return found, numbers
end

-- Put the numbers of a line into the document.
function fields.apply(found, numbers)
  if found.stage then document.field("stage", found.stage) end
  local names, roles = found.names, found.roles
  for i = 1, found.n do
    local role, name, number = roles[i], names[i], numbers[i]
    if not role then
      document.metric(name, number)
    elseif role == STEP then
      document.integer("step", name, number, "step_invalid")
    elseif role == GLOBAL_STEP then
      document.integer("global_step", name, number)
    else
      document.extra(name, number)
    end
  end
  if not document.get("step") and document.get("global_step") then
    document.field("step", document.get("global_step"))
    document.flag("step_from_global_step")
  end
end

return fields
