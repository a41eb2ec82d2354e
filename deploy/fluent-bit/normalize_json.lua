-- JSON: reads the object of a log line, leniently where training code is lenient (NaN, Infinity, 1e400, raw control
-- characters, keys that come twice), and writes documents for the loader.
local text = ...
local ffi = require("ffi")
local find, match, sub, byte, gsub, lower =
  string.find, string.match, string.sub, string.byte, string.gsub, string.lower

ffi.cdef("int memcmp(const void *, const void *, size_t);")
local C = ffi.C
local bytes = ffi.typeof("const uint8_t *")

local json = {}

json.null = setmetatable({}, { __tostring = function() return "null" end })
local ARRAY = {} -- metatable of arrays: an empty one is not an object
local MAX_DEPTH = 64 -- deeper input is not an object of ours and is kept as text
local MAX_VALUES = 256 -- of a line whose layout is learned

local WORDS = { -- in whatever case
  ["true"] = true, ["false"] = false, null = json.null, none = json.null, nan = 0 / 0, ["-nan"] = 0 / 0,
  infinity = 1 / 0, inf = 1 / 0, ["-infinity"] = -1 / 0, ["-inf"] = -1 / 0,
}
local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }

-- Of the line in hand.
local half_pair -- a \u escape of half a surrogate pair was met
local repeated -- {key, value} of each value that a later one of the same key replaced

local function note_repeated(key, value)
  repeated = repeated or {}
  repeated[#repeated + 1] = { key, value }
end

-- Return the text of a string whose characters begin at p, and the position behind it; nil where it has no end.
local function escaped_string(s, p)
  local parts, n = {}, 0
  while true do
    local q = find(s, '["\\]', p)
    if not q then return nil end
    n = n + 1
    parts[n] = sub(s, p, q - 1)
    if byte(s, q) == 34 then return table.concat(parts), q + 1 end
    local letter = sub(s, q + 1, q + 1)
    local char = ESCAPES[letter]
    p = q + 2
    if letter == "u" then
      local code = tonumber(match(s, "^%x%x%x%x", p) or "", 16)
      if not code then return nil end
      p = p + 4
      if code >= 0xD800 and code <= 0xDBFF then
        local low = tonumber(match(s, "^\\u([dD][c-fC-F]%x%x)", p) or "", 16)
        if low then code, p = 0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00, p + 6 end
      end
      if code >= 0xD800 and code <= 0xDFFF then code, half_pair = 0xFFFD, true end
      char = text.char(code)
    end
    if not char then return nil end
    n = n + 1
    parts[n] = char
  end
end

local function string_at(s, p)
  local plain, behind = match(s, '^([^"\\]*)"()', p)
  if plain then return plain, behind end
  return escaped_string(s, p)
end

-- Return value, position behind it, digits of a number; no position where there is no value.
local value_at
local function array_at(s, p, depth)
  local array, n = setmetatable({}, ARRAY), 0
  p = match(s, "^%s*()", p)
  if byte(s, p) == 93 then return array, p + 1 end
  while true do
    local value, q = value_at(s, p, depth)
    if not q then return nil end
    n = n + 1
    array[n] = value
    local mark, behind = match(s, "^%s*([,%]])%s*()", q)
    if not mark then return nil end
    if mark == "]" then return array, match(s, "^%s*%]()", q) end
    p = behind
  end
end

local function key_at(s, p)
  if byte(s, p) ~= 34 then return nil end
  local key, q = string_at(s, p + 1)
  if not key then return nil end
  return key, match(s, "^%s*:%s*()", q)
end

local function object_at(s, p, depth)
  local object = {}
  p = match(s, "^%s*()", p)
  if byte(s, p) == 125 then return object, p + 1 end
  while true do
    local key, q = key_at(s, p)
    if not q then return nil end
    local value
    value, q = value_at(s, q, depth)
    if not q then return nil end
    if object[key] ~= nil then note_repeated(key, object[key]) end
    object[key] = value
    local mark, behind = match(s, "^%s*([,}])%s*()", q)
    if not mark then return nil end
    if mark == "}" then return object, match(s, "^%s*}()", q) end
    p = behind
  end
end

function value_at(s, p, depth)
  local c = byte(s, p)
  if c == 34 then return string_at(s, p + 1) end
  if c == 123 or c == 91 then
    if depth >= MAX_DEPTH then return nil end
    if c == 123 then return object_at(s, p + 1, depth + 1) end
    return array_at(s, p + 1, depth + 1)
  end
  local digits, behind = match(s, "^(-?%d+%.?%d*[eE]?[+-]?%d*)()", p)
  if digits then
    local number = tonumber(digits)
    if number then return number, behind, digits end
    return nil
  end
  local word
  word, behind = match(s, "^(-?%a+)()", p)
  local value = WORDS[lower(word or "")]
  if value ~= nil then return value, behind end
  word, behind = match(s, "^np%.%w+%(([^()]*)%)()", p)
  if not word then return nil end
  local number, last = value_at(word, 1, depth)
  if type(number) ~= "number" or last <= #word then return nil end
  return number, behind
end

-- Return {n, keys, values, digits, repeated} of the one object that a line is, or nil. `digits` has the numbers as
-- printed.
local function read(s)
  local p = match(s, "^%s*{%s*()")
  if not p then return nil end
  local keys, values, digits, n = {}, {}, {}, 0
  local place = {}
  local spans, flat = {}, true -- where each value stands, for the layout
  if byte(s, p) == 125 then
    p = p + 1
  else
    while true do
      local key, q = key_at(s, p)
      if not q then return nil end
      local value, behind, number = value_at(s, q, 0)
      if not behind then return nil end
      local at = place[key]
      if at then
        note_repeated(key, values[at])
      else
        n = n + 1
        at = n
        place[key], keys[n] = n, key
      end
      values[at], digits[at] = value, number
      if type(value) == "string" then
        spans[n], flat = { q + 1, behind - 2 }, flat and behind - 2 - q == #value
      else
        spans[n], flat = { q, behind - 1 }, flat and number ~= nil
      end
      local mark, after = match(s, "^%s*([,}])%s*()", behind)
      if not mark then return nil end
      p = after
      if mark == "}" then break end
    end
  end
  if p <= #s and not find(s, "^%s*$", p) then return nil end
  local object = { n = n, keys = keys, values = values, digits = digits, repeated = repeated, half_pair = half_pair }
  if flat and not repeated and n > 0 and n <= MAX_VALUES then object.spans = spans end
  return object
end

-- Lines of one file share few layouts: the text between the values stays, so a line is read by comparing that text and
-- taking what stands between.
local function layout_of(s, object)
  local literals, from, numeric = {}, 1, {}
  for i = 1, object.n do
    local span = object.spans[i]
    numeric[i] = object.digits[i] ~= nil
    literals[i] = sub(s, from, span[1] - 1)
    from = span[2] + 1
  end
  literals[object.n + 1] = sub(s, from)
  return { literals = literals, numeric = numeric, object = { n = object.n, keys = object.keys, values = {}, digits = {} } }
end

-- Return the position behind the characters that a number may have. Strings end in a NUL, so p[i] can be read.
local function number_end(p, i)
  local c = p[i]
  while (c >= 48 and c <= 57) or c == 46 or c == 45 or c == 43 or c == 101 or c == 69 do
    i = i + 1
    c = p[i]
  end
  return i
end
json.number_end = number_end

-- Return the position of the quote that ends a string, or nil where it has an escape.
local function string_end(p, i, n)
  while i < n do
    local c = p[i]
    if c == 34 then return i end
    if c == 92 then return nil end
    i = i + 1
  end
  return nil
end

-- The object is the layout's own and holds until the next line: nothing is allocated for it.
local function read_by_layout(s, layout)
  local p, n, at = ffi.cast(bytes, s), #s, 0
  local object, literals, numeric = layout.object, layout.literals, layout.numeric
  local values, digits, count = object.values, object.digits, object.n
  for i = 1, count do
    local literal = literals[i]
    local size = #literal
    if at + size > n or C.memcmp(p + at, literal, size) ~= 0 then return nil end
    at = at + size
    if numeric[i] then
      local behind = number_end(p, at)
      local text_of = sub(s, at + 1, behind)
      local number = tonumber(text_of)
      if not number then return nil end
      values[i], digits[i], at = number, text_of, behind
    else
      local behind = string_end(p, at, n)
      if not behind then return nil end
      values[i], at = sub(s, at + 1, behind), behind
    end
  end
  if sub(s, at + 1) ~= literals[count + 1] then return nil end
  return object
end

local LAYOUTS = 4 -- kept for one file
local LINE_BYTES = 131072 -- a longer line teaches nothing: what is learned stays in memory
local LEARNED = 64 -- layouts that one file may teach, so that a file without any costs no more than reading it

-- Read a line with the layouts learned from its file so far; `learned` is that file's own table.
function json.read(s, learned)
  for i = 1, #learned do
    local object = read_by_layout(s, learned[i])
    if object then
      if i > 1 then learned[1], learned[i] = learned[i], learned[1] end
      return object
    end
  end
  half_pair, repeated = nil, nil
  local object = read(s)
  if object and object.spans and (learned.taught or 0) < LEARNED and #s <= LINE_BYTES then
    learned.taught = (learned.taught or 0) + 1
    table.insert(learned, 1, layout_of(s, object))
    learned[LAYOUTS + 1] = nil
  end
  return object
end

function json.array(items)
  return setmetatable(items, ARRAY)
end

-- Return the keys of an object in order: Lua walks them in another order in each process.
function json.keys(object)
  local keys = {}
  for key in pairs(object) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

function json.is_array(value)
  return getmetatable(value) == ARRAY
end

local UNSAFE = '[%z\1-\31"\\\127]'
local function escape(c)
  if c == '"' or c == "\\" then return "\\" .. c end
  if c == "\n" then return "\\n" end
  return string.format("\\u%04x", byte(c))
end

local quoted, quoted_count = {}, 0 -- runs, stages, names: the same short texts in nearly every document

local function put_string(out, s)
  local known = quoted[s]
  if known then
    out:put(known)
    return
  end
  local safe = '"' .. (find(s, UNSAFE) and gsub(s, UNSAFE, escape) or s) .. '"'
  if #s <= 64 then
    if quoted_count >= 4096 then quoted, quoted_count = {}, 0 end
    quoted[s], quoted_count = safe, quoted_count + 1
  end
  out:put(safe)
end

-- 16 significant digits: what Fluent Bit prints, so that both ways in give the same number.
local function put_number(out, number)
  if number % 1 == 0 and number > -1e15 and number < 1e15 then
    out:putf("%d", number)
  else
    out:putf("%.16g", number)
  end
end

-- Append a value (text, number, boolean, table) as JSON to a string buffer.
local function put(out, value)
  local kind = type(value)
  if kind == "string" then
    put_string(out, value)
  elseif kind == "number" then
    put_number(out, value)
  elseif kind == "boolean" then
    out:put(value and "true" or "false")
  elseif value == json.null then
    out:put("null")
  elseif value[1] ~= nil or getmetatable(value) == ARRAY then
    out:put("[")
    for i = 1, #value do
      if i > 1 then out:put(",") end
      put(out, value[i])
    end
    out:put("]")
  else
    out:put("{")
    local first = true
    for key, item in pairs(value) do
      if not first then out:put(",") end
      first = false
      put_string(out, key)
      out:put(":")
      put(out, item)
    end
    out:put("}")
  end
end
json.put = put

return json
