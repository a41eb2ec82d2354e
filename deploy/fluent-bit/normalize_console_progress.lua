-- Progress bars as tqdm draws them: one line on a terminal, in a file one after the other behind carriage returns.
local find, match, sub, gmatch = string.find, string.match, string.sub, string.gmatch

local BAR = "%d+%%|[^|]*| *%S+ %[[^%]]*%]" -- 78%|███▊ | 235/300 [05:57<01:28,  1.37s/it]
local COUNTER = "%d[%d.]*[kMG]? ?%a+ %[%d+:[%d:]+, [^%]]*%]" -- 7473 examples [00:00, 12345.67 examples/s]

-- Return what stands before a bar's title: the bar was drawn straight behind a text without a newline.
local function before_title(s)
  return match(s, "^(.-)%u[%w ()=_%-]*: *$") or match(s, "^(.-)%s*$")
end

local function strip_piece(piece, kept)
  local p = 1
  while true do
    local from, to = find(piece, BAR, p)
    if not from then from, to = find(piece, COUNTER, p) end
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
