-- Identity: event_id = base64url(file key, 6 bytes .. byte offset, 5 bytes big endian .. line key, 4 bytes).
-- File key: FNV-1a 64, xor-folded to 48 bits as its authors publish it, of run_id NUL path (NUL node).
-- Line key: CRC-32 (IEEE 802.3, as in zlib) of the first 32 KiB of the line.
local ffi = require("ffi")
local bit = require("bit")
local band, bxor, rshift, floor = bit.band, bit.bxor, bit.rshift, math.floor

local id = {}
local LINE_KEY_BYTES = 32768

local table_of_256 = ffi.typeof("uint32_t[256]")

-- Four tables, so that four bytes are taken at a step (M. Kounavis and F. Berry, "slicing-by-4").
local crc0, crc1, crc2, crc3 = table_of_256(), table_of_256(), table_of_256(), table_of_256()
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do
    c = band(c, 1) == 1 and bxor(rshift(c, 1), 0xEDB88320) or rshift(c, 1)
  end
  crc0[i] = c
end
for i = 0, 255 do
  crc1[i] = bxor(rshift(crc0[i], 8), crc0[band(crc0[i], 0xFF)])
  crc2[i] = bxor(rshift(crc1[i], 8), crc0[band(crc1[i], 0xFF)])
  crc3[i] = bxor(rshift(crc2[i], 8), crc0[band(crc2[i], 0xFF)])
end
local words = ffi.typeof("const uint32_t *")
local bytes = ffi.typeof("const uint8_t *")

-- Return the CRC-32 of the first `limit` bytes as a signed 32-bit number.
local function crc32(s, limit)
  local n, c = #s, -1
  if n > limit then n = limit end
  local word, byte = ffi.cast(words, s), ffi.cast(bytes, s)
  local whole = rshift(n, 2)
  for i = 0, whole - 1 do
    c = bxor(c, word[i])
    c = bxor(crc3[band(c, 0xFF)], crc2[band(rshift(c, 8), 0xFF)], crc1[band(rshift(c, 16), 0xFF)], crc0[rshift(c, 24)])
  end
  for i = whole * 4, n - 1 do c = bxor(rshift(c, 8), crc0[band(bxor(c, byte[i]), 0xFF)]) end
  return bit.bnot(c)
end

-- Return the FNV-1a 64 hash as uint64_t.
local function fnv64(s)
  local p, h = ffi.cast(bytes, s), 0xcbf29ce484222325ULL
  for i = 0, #s - 1 do h = bxor(h, p[i]) * 0x100000001b3ULL end
  return h
end

-- Return 16 hex digits that name a text.
function id.hex(s)
  return bit.tohex(fnv64(s))
end

-- Return the remainder by n of a text's hash.
function id.remainder(s, n)
  return tonumber(fnv64(s) % n)
end

local DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
local pair = {} -- 12 bits -> two base64url digits
for i = 0, 4095 do
  local high, low = floor(i / 64), i % 64
  pair[i] = DIGITS:sub(high + 1, high + 1) .. DIGITS:sub(low + 1, low + 1)
end

-- Return the file part (8 characters) of the ids of one file's lines.
function id.file(run_id, path, node)
  local h = fnv64(run_id .. "\0" .. path .. (node and ("\0" .. node) or ""))
  h = bxor(rshift(h, 48), band(h, 0xFFFFFFFFFFFFULL))
  local high, low = tonumber(rshift(h, 24)), tonumber(band(h, 0xFFFFFFULL))
  return pair[rshift(high, 12)] .. pair[band(high, 4095)] .. pair[rshift(low, 12)] .. pair[band(low, 4095)]
end

-- Return the whole id of the line at a byte offset (below 2^40) of that file.
function id.line(file, offset, line)
  local key = crc32(line, LINE_KEY_BYTES)
  local o1, o2 = floor(offset / 65536), offset % 65536 -- upper 24 bits, lower 16
  local k1, k2 = band(rshift(key, 24), 0xFF), band(key, 0xFFFFFF)
  local middle = o2 * 256 + k1 -- 24 bits: end of the offset, start of the line key
  return file .. pair[rshift(o1, 12)] .. pair[band(o1, 4095)] .. pair[rshift(middle, 12)] .. pair[band(middle, 4095)]
    .. pair[rshift(k2, 12)] .. pair[band(k2, 4095)]
end

return id
