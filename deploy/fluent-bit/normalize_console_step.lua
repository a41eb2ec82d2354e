-- verl's step line, `step:N - key:value - key:value ...`: one line of 4 to 12 KB that holds a step's metrics.
local document = ...
local find, match, sub = string.find, string.match, string.sub

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
    if behind and behind <= #segment and not find(segment, "^[%s:]", colon + 1) then
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

-- Put the pairs of s from p on into the document; return their number and the text that belongs to none of them.
local function read_pairs(s, p)
  local count, head, rest = 0, "", nil -- head: begin of a name that has the separator in it
  while p <= #s do
    local mark = find(s, " - ", p, true)
    local segment = sub(s, p, (mark or #s + 1) - 1)
    local name, value = match(segment, "^(.+):([^:]*)$")
    local number = name and number_of(value)
    if number then
      document.metric(head .. name, number)
      count, head = count + 1, ""
    elseif value == "True" or value == "False" then
      document.extra(head .. name, value == "True")
      head = ""
    else
      local text
      name, number, text = split_glued(segment)
      if name then
        document.metric(head .. name, number)
        count, head = count + 1, ""
        rest = rest and rest .. " - " .. text or text
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
  return count, rest
end

-- Fill the document from a step line, which may stand behind other text; return its step, or nil for other lines.
return function(s)
  local at = find(s, "step:", 1, true)
  if not at then return nil end
  local digits, p = match(s, "^step:(%d+) %- ()", at)
  if not digits or (at > 1 and sub(s, at - 1, at - 1) == "_") or not find(s, ":[+-]?[%dni]", p) then return nil end
  local count, behind = read_pairs(s, p)
  if count == 0 then return nil end
  document.kind("metric")
  document.field("stage", "trainer")
  local step = tonumber(digits)
  document.integer("step", "step", step, "step_invalid")
  local before = at > 1 and find(s, "%S") < at and sub(s, 1, at - 1) or nil
  if before or behind then
    document.flag("glued")
    document.message(before and behind and before .. "\n" .. behind or before or behind)
  end
  return step
end
