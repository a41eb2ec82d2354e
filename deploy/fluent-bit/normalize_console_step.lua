-- verl's step line, `step:N - key:value - key:value ...`: one line of 4 to 12 KB that holds a step's metrics.
local document, layout = ...
local find, match, sub, byte = string.find, string.match, string.sub, string.byte

-- Return the number that verl prints as 1.5, 1e-06, np.float64(1.5), nan or -inf; nil where a text is none.
local function number_of(text)
  return tonumber(text) or document.spelled(text)
end

-- Return where the digits of a plain number stand in a value, nil where it is another number.
local function place_of(value)
  local from, behind = match(value, "^()[%d.eE+-]+()$")
  if not from then from, behind = match(value, "^np%.%w+%(()[%d.eE+-]+()%)$") end
  if from then return from, behind - 1 end
end

local NUMBERS = { "^np%.%w+%([^)]*%)()", "^[+-]?%d+%.?%d*[eE][+-]?%d+()", "^[+-]?%d+%.?%d*()", "^[+-]?nan()",
  "^[+-]?inf()" }

local function behind_number(s, p)
  for i = 1, #NUMBERS do
    local behind = match(s, NUMBERS[i], p)
    if behind then return behind end
  end
end

-- Return name, number and the text that another thread printed straight behind the number. Such a text mostly begins
-- with a capital or a bracket; a name goes on with other characters, so a first colon inside a name is passed over.
local function split_glued(segment)
  local name, number, text
  local colon = find(segment, ":", 2, true)
  while colon do
    local behind = behind_number(segment, colon + 1)
    if behind and behind <= #segment then
      local capital = find(segment, "^[%u%[({<%s\128-\255]", behind)
      if capital or not name then
        name, number, text = sub(segment, 1, colon - 1), number_of(sub(segment, colon + 1, behind - 1)),
          sub(segment, behind)
      end
      if capital then break end
    end
    colon = find(segment, ":", colon + 1, true)
  end
  if number then return name, number, text end
end

-- Put the pairs of s from p on into the document. Return what they taught: names, and where the plain numbers stand;
-- and the text that belongs to no pair.
local function read_pairs(s, p)
  local known = { names = {}, from = {}, to = {}, n = 0 }
  local plain, from_head, rest = true, p, {} -- from_head: where a name begins that has the separator in it
  while p <= #s do
    local mark = find(s, " - ", p, true)
    local segment, next_p = sub(s, p, (mark or #s + 1) - 1), mark and mark + 3 or #s + 1
    local name, value = match(segment, "^(.+):([^:]*)$")
    local number, text = name and number_of(value), nil
    if not number and (value == "True" or value == "False") then
      document.extra(sub(s, from_head, p - 1) .. name, value == "True")
      from_head, plain = next_p, false
    elseif not number and mark and find(value or "", "^[^%s]+$") and not find(value, "%d") then -- no number is printed so
      document.flag("not_a_number", name)
      document.extra(name, value)
      from_head, plain = next_p, false
    else
      if not number then
        name, number, text = split_glued(segment)
        plain = false
      end
      if number then
        name = sub(s, from_head, p - 1) .. name
        document.metric(name, number)
        local n, from, to = known.n + 1, nil, nil
        known.n, known.names[n] = n, name
        if plain then from, to = place_of(value) end
        if from then
          local before = p + #segment - #value - 1
          known.from[n], known.to[n] = before + from, before + to
        else
          plain = false
        end
        from_head = next_p
        if text then rest[#rest + 1] = text end
      elseif rest[1] then
        rest[#rest + 1] = segment
        from_head = next_p
      end
    end
    p = next_p
  end
  if from_head < p then rest[#rest + 1] = sub(s, from_head) end
  known.plain = plain and not rest[1]
  return known, rest[1] and table.concat(rest, " - ")
end

local function put_step(digits)
  document.kind("metric")
  document.field("stage", "trainer")
  document.integer("step", "step", tonumber(digits), "step_invalid")
  return true
end

-- Fill the document from a step line, which may stand behind other text; return whether the line is one.
-- learned: the layouts of its file.
return function(s, learned)
  local at = find(s, "step:", 1, true)
  if not at then return false end
  local digits, p = match(s, "^step:(%d+) %- ()", at)
  if not digits or byte(s, at - 1) == 95 or not find(s, ":[+-]?[%dni]", p) then return false end
  local pairs_only = at == 1 and sub(s, p)
  if pairs_only then
    local known, numbers = layout.read(learned, pairs_only)
    if known then
      for i = 1, known.n do document.metric(known.names[i], numbers[i]) end
      return put_step(digits)
    end
  end
  local known, behind = read_pairs(s, p)
  if known.n == 0 then return false end
  if pairs_only and known.plain then
    for i = 1, known.n do
      known.from[i], known.to[i] = known.from[i] - p + 1, known.to[i] - p + 1
    end
    layout.learn(learned, pairs_only, known)
  end
  local before = at > 1 and find(s, "%S") < at and sub(s, 1, at - 1) or nil
  if before or behind then
    document.flag("glued")
    document.message(before and behind and before .. "\n" .. behind or before or behind)
  end
  return put_step(digits)
end
