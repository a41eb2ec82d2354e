-- Text: UTF-8 repair, terminal codes, cuts at character borders.
local ffi = require("ffi")
local bit = require("bit")
local find, gsub, sub, byte = string.find, string.gsub, string.sub, string.byte

local text = {}
local REPLACEMENT = "\239\191\189" -- U+FFFD

-- Length in bytes of the UTF-8 sequence at p[i], or 0 and the number of bytes that belong to the broken one
-- (Unicode 3.9, "maximal subpart": what a decoder replaces by one U+FFFD).
local function sequence(p, i, n)
  local b = p[i]
  if b < 0x80 then return 1, 1 end
  local need, low, high
  if b >= 0xC2 and b <= 0xDF then need, low, high = 1, 0x80, 0xBF
  elseif b >= 0xE0 and b <= 0xEF then
    need, low, high = 2, b == 0xE0 and 0xA0 or 0x80, b == 0xED and 0x9F or 0xBF
  elseif b >= 0xF0 and b <= 0xF4 then
    need, low, high = 3, b == 0xF0 and 0x90 or 0x80, b == 0xF4 and 0x8F or 0xBF
  else return 0, 1 end
  for k = 1, need do
    if i + k >= n or p[i + k] < low or p[i + k] > high then return 0, k end
    low, high = 0x80, 0xBF
  end
  return need + 1, need + 1
end

local words = ffi.typeof("const uint32_t *")

-- Return whether s is ASCII; four bytes at a time, since every line is asked.
function text.is_ascii(s)
  local n, p = #s, ffi.cast(words, s)
  for i = 0, bit.rshift(n, 2) - 1 do
    if bit.band(p[i], 0x80808080) ~= 0 then return false end
  end
  for i = n - n % 4 + 1, n do
    if byte(s, i) >= 0x80 then return false end
  end
  return true
end

-- Return s with every byte that is not UTF-8 replaced, and whether there was one.
function text.utf8(s)
  if text.is_ascii(s) then return s, false end
  local n, p = #s, ffi.cast("const uint8_t *", s)
  local parts, from, i = nil, 0, 0
  while i < n do
    local good, width = sequence(p, i, n)
    if good == 0 then
      parts = parts or {}
      parts[#parts + 1] = sub(s, from + 1, i)
      parts[#parts + 1] = REPLACEMENT
      from = i + width
    end
    i = i + width
  end
  if not parts then return s, false end
  parts[#parts + 1] = sub(s, from + 1)
  return table.concat(parts), true
end

-- White space beyond ASCII (Unicode's category Z).
local WIDE_SPACES = { "\194[\133\160]", "\225\154\128", "\226\128[\128-\138\168\169\175]", "\226\129\159", "\227\128\128" }

-- Return whether a text is nothing but white space.
function text.is_blank(s)
  if find(s, "[!-\126]") then return false end
  for i = 1, #WIDE_SPACES do s = gsub(s, WIDE_SPACES[i], "") end
  return not find(s, "%S")
end

-- Return the code point as UTF-8.
function text.char(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + bit.rshift(code, 6), 0x80 + code % 0x40) end
  if code < 0x10000 then
    return string.char(0xE0 + bit.rshift(code, 12), 0x80 + bit.rshift(code, 6) % 0x40, 0x80 + code % 0x40)
  end
  return string.char(0xF0 + bit.rshift(code, 18), 0x80 + bit.rshift(code, 12) % 0x40,
    0x80 + bit.rshift(code, 6) % 0x40, 0x80 + code % 0x40)
end

-- Return the number of characters of valid UTF-8.
function text.length(s)
  local _, continuation = gsub(s, "[\128-\191]", "")
  return #s - continuation
end

-- Return s cut to at most limit bytes, at a character border, and whether it was cut.
function text.cut(s, limit)
  if #s <= limit then return s, false end
  while limit > 0 and byte(s, limit + 1) >= 0x80 and byte(s, limit + 1) < 0xC0 do limit = limit - 1 end
  return sub(s, 1, limit), true
end

-- Return s without terminal sequences (ECMA-48 CSI and OSC) and control characters other than tab and newline,
-- and whether there were any.
function text.plain(s)
  if not find(s, "[%z\1-\8\11-\31\127]") then return s, false end
  s = gsub(s, "\27%[[0-?]*[ -/]*[@-~]", "")
  s = gsub(s, "\27%][^\7\27]*\7", "")
  s = gsub(s, "\27%][^\7\27]*\27\\", "")
  return (gsub(s, "[%z\1-\8\11-\31\127]", "")), true
end

return text
