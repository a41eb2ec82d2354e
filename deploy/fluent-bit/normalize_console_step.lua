-- verl's step line, `step:N - key:value - key:value ...`: one line of 4 to 12 KB that holds a step's metrics.
local document, layout = ...
local find, match, sub, byte = string.find, string.match, string.sub, string.byte

-- Return the number that verl prints as 1.5, 1e-06, np.float64(1.5), nan or -inf; nil where a text is none.
local function number_of(text)
  return tonumber(text) or document.spelled(match(text, "^np%.%w+%((.*)%)$") or text)
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
  local plain, head, rest = true, "", nil -- head: begin of a name that has the separator in it
  while p <= #s do
    local mark = find(s, " - ", p, true)
    local segment = sub(s, p, (mark or #s + 1) - 1)
    local name, value = match(segment, "^(.+):([^:]*)$")
    local number, text = name and number_of(value), nil
    if not number and (value == "True" or value == "False") then
      document.extra(head .. name, value == "True")
      head, plain = "", false
    elseif not number and mark and find(value or "", "^[^%s]+$") and not find(value, "%d") then -- no number is printed so
      document.flag("not_a_number", name)
      document.extra(name, value)
      head, plain = "", false
    else
      if not number then
        name, number, text = split_glued(segment)
        plain = false
      end
      if number then
        name = head .. name
        document.metric(name, number)
        local n, from, digits = known.n + 1, match(segment, "()([%d.eE+-]+)%)?$")
        known.n, known.names[n] = n, name
        if from then
          known.from[n], known.to[n] = p + from - 1, p + from + #digits - 2
        else
          plain = false
        end
        head = ""
        if text then rest = rest and rest .. " - " .. text or text end
      elseif rest then
        rest = rest .. " - " .. segment
      else
        head = head .. segment .. " - "
      end
    end
    p = mark and mark + 3 or #s + 1
  end
  if head ~= "" then
    head = sub(head, 1, -4)
    rest = rest and rest .. " - " .. head or head
  end
  known.plain = plain and not rest
  return known, rest
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
