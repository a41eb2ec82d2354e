-- Layouts: console lines of one kind share their words and differ in their numbers, so what one line taught reads the
-- next without looking for names.
local json = ...
local ffi = require("ffi")
local sub, number_end, memcmp = string.sub, json.number_end, ffi.C.memcmp
local bytes = ffi.typeof("const uint8_t *")

local layout = {}

local KEPT = 6 -- layouts of one file
local LINE_BYTES = 131072 -- a longer line teaches nothing: what is learned stays in memory
local LEARNED = 64 -- layouts that one file may teach, so that a file without any costs no more than reading it

local numbers = {} -- of the line in hand

local function fits(s, known)
  local p, size, at = ffi.cast(bytes, s), #s, 0
  local words = known.words
  for i = 1, known.n do
    local word = words[i]
    local length = #word
    if at + length > size or memcmp(p + at, word, length) ~= 0 then return false end
    at = at + length
    local behind = number_end(p, at)
    local number = tonumber(sub(s, at + 1, behind))
    if not number then return false end
    numbers[i], at = number, behind
  end
  return sub(s, at + 1) == words[known.n + 1]
end

-- Return what a line of the same layout taught, and this line's numbers; nil for a new layout.
function layout.read(learned, s)
  for i = 1, #learned do
    local known = learned[i]
    if fits(s, known) then
      if i > 1 then learned[1], learned[i] = known, learned[1] end
      return known, numbers
    end
  end
end

-- Learn the layout of a line that has known.n numbers, at known.from[i] .. known.to[i].
function layout.learn(learned, s, known)
  if (learned.taught or 0) >= LEARNED or #s > LINE_BYTES then return end
  learned.taught = (learned.taught or 0) + 1
  local words, p = {}, 1
  for i = 1, known.n do
    words[i], p = sub(s, p, known.from[i] - 1), known.to[i] + 1
  end
  words[known.n + 1] = sub(s, p)
  known.words = words
  table.insert(learned, 1, known)
  learned[KEPT + 1] = nil
end

return layout
