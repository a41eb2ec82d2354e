-- Progress bars as tqdm draws them: one line on a terminal, in a file one after the other behind carriage returns.
local find, match, sub, gmatch = string.find, string.match, string.sub, string.gmatch

-- Patterns see a window of the line only, and few lines have many marks that are no bars: no line costs much.
local BAR_BYTES = 1024
local TITLE_BYTES = 80
local MISSES = 64

-- Return where a bar with a percentage begins and ends: 78%|███▊ | 235/300 [05:57<01:28,  1.37s/it]
local function bar_at(s, p, mark)
  local digits = match(sub(s, math.max(p, mark - 3), mark - 1), "%d+$")
  local behind = digits and match(sub(s, mark, mark + BAR_BYTES), "^%%|[^|]*| *%S+ %[[^%]]*%]()")
  if behind then return mark - #digits, mark + behind - 2 end
end

-- Return where a bar without a total begins and ends: 7473 examples [00:00, 12345.67 examples/s]
local function counter_at(s, p, mark)
  local from = math.max(p, mark - BAR_BYTES / 8)
  local at = match(sub(s, from, mark + 2), "()%d[%d.]*[kMG]? ?%a+ %[%d+:[%d:]+, [^%]]*%]$")
  if at then return from + at - 1, mark + 2 end
end

local function next_bar(s, p, mark, at)
  local q = p
  for _ = 1, MISSES do
    local found = find(s, mark, q, true)
    if not found then return nil end
    local from, to = at(s, p, found)
    if from then return from, to end
    q = found + 1
  end
end

-- Return what stands before a bar's title: the bar was drawn straight behind a text without a newline.
local function before_title(s)
  local cut = math.max(#s - TITLE_BYTES, 0)
  local before = match(sub(s, cut + 1), "^(.-)%u[%w ()=_%-]*: *$")
  return before and sub(s, 1, cut) .. before or s
end

local function strip_piece(piece, kept)
  local p = 1
  while true do
    local from, to = next_bar(piece, p, "%|", bar_at)
    if not from then from, to = next_bar(piece, p, "/s]", counter_at) end
    if not from then break end
    local before = before_title(sub(piece, p, from - 1))
    if find(before, "%S") then kept[#kept + 1] = before end
    p = to + 1
  end
  local rest = sub(piece, p)
  if find(rest, "%S") then kept[#kept + 1] = rest end
end

-- Return the line without bars, nil where nothing else is left. What stood between carriage returns comes as lines.
return function(s)
  if not (find(s, "\r", 1, true) or find(s, "%|", 1, true) or find(s, "/s]", 1, true)) then return s end
  local kept = {}
  for piece in gmatch(s, "[^\r]+") do strip_piece(piece, kept) end
  if kept[1] then return table.concat(kept, "\n") end
end
