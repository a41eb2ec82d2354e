-- Times: to seconds since 1970 (UTC) and nanoseconds.
local floor, match, sub, byte = math.floor, string.match, string.sub, string.byte

local time = {}
local MAX_SECONDS = 9214646400 -- 2262-01-01, the end of Elasticsearch's date_nanos

-- Return days since 1970-01-01 of a Gregorian date (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
local function days(year, month, day)
  if month <= 2 then year = year - 1 end
  local era = floor(year / 400)
  local yoe = year - era * 400
  local doy = floor((153 * (month + (month > 2 and -3 or 9)) + 2) / 5) + day - 1
  return era * 146097 + yoe * 365 + floor(yoe / 4) - floor(yoe / 100) + doy - 719468
end

local function civil(day)
  local z = day + 719468
  local era = floor(z / 146097)
  local doe = z - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local mp = floor((5 * doy + 2) / 153)
  local month = mp + (mp < 10 and 3 or -9)
  return yoe + era * 400 + (month <= 2 and 1 or 0), month, doy - floor((153 * mp + 2) / 5) + 1
end

-- Return the date of a time as "2026-03-01".
local last_day, last_date
function time.date(seconds)
  local day = floor(seconds / 86400)
  if day ~= last_day then
    last_day, last_date = day, string.format("%04d-%02d-%02d", civil(day))
  end
  return last_date
end

-- Return a time as RFC 3339 in UTC with nanoseconds.
function time.format(seconds, nanos)
  local second = seconds % 86400
  return string.format("%sT%02d:%02d:%02d.%09dZ", time.date(seconds), floor(second / 3600),
    floor(second / 60) % 60, second % 60, nanos)
end

local function month_length(year, month)
  return month == 12 and 31 or days(year, month + 1, 1) - days(year, month, 1)
end

time.LATEST = MAX_SECONDS - 1

local function in_range(seconds)
  return seconds >= 0 and seconds < MAX_SECONDS
end

-- Return whether a text is digits only; without a pattern, so that it is compiled.
function time.is_whole(digits)
  for i = 1, #digits do
    local c = byte(digits, i)
    if c < 48 or c > 57 then return false end
  end
  return true
end

-- Return seconds, nanoseconds of a whole number of nanoseconds; text, since doubles hold only 53 bits.
function time.from_nanos(digits)
  if #digits < 10 or #digits > 19 or not time.is_whole(digits) then return nil end
  local seconds = tonumber(sub(digits, 1, -10))
  if not in_range(seconds) then return nil end
  return seconds, tonumber(sub(digits, -9))
end

-- Return seconds, nanoseconds of a printed number whose size tells its unit (s, ms, us or ns).
function time.from_number(digits)
  local value = tonumber(digits)
  if not (value > 0) then return nil end
  local unit = value < 1e11 and 1 or value < 1e14 and 1e3 or value < 1e17 and 1e6 or 1e9
  local whole, fraction = match(digits, "^(%d+)%.(%d+)$")
  if unit == 1 and whole then -- by its digits, which say more than a double
    return in_range(tonumber(whole)) and tonumber(whole), tonumber(sub(fraction .. "000000000", 1, 9))
  end
  local seconds = floor(value / unit)
  if not in_range(seconds) then return nil end
  return seconds, floor((value - seconds * unit) * (1e9 / unit) + 0.5) % 1000000000
end

-- Return the UTC offset in seconds at a local wall-clock time, from the rendered transitions of the setting
-- `timezone`: {{local seconds from which it holds, offset}, ...}, ascending.
local function offset_at(wall, transitions)
  local offset = transitions[1][2]
  for i = 2, #transitions do
    if wall < transitions[i][1] then break end
    offset = transitions[i][2]
  end
  return offset
end

-- Return the UTC seconds of a local date, and whether the host's zone had to be assumed.
function time.from_local(transitions, year, month, day, hour, minute, second)
  if transitions then
    local wall = days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
    return wall - offset_at(wall, transitions), false
  end
  return os.time({ year = year, month = month, day = day, hour = hour, min = minute, sec = second }), true
end

local DAY = 86400 -- how far a clock or a zone may be ahead of the one that reads

-- Return the UTC seconds of a local date without a year, the last one not ahead of a moment, and whether the host's
-- zone was assumed; clock: "16:00:09". Nil where it is no date.
function time.without_year(transitions, moment, month, day, clock)
  local hour, minute, second = match(clock, "^(%d%d):(%d%d):(%d%d)$")
  hour, minute, second = tonumber(hour), tonumber(minute), tonumber(second)
  if month < 1 or month > 12 or day < 1 or hour > 23 or minute > 59 or second > 60 then return nil end
  local this_year = civil(floor(moment / 86400))
  for year = this_year + 1, math.max(this_year - 8, 1970), -1 do -- up to eight years from one 29 February to the next
    if day <= month_length(year, month) then
      local seconds, assumed = time.from_local(transitions, year, month, day, hour, minute, second)
      if seconds and seconds <= moment + DAY and in_range(seconds) then return seconds, assumed end
    end
  end
end

-- Return seconds, nanoseconds, zone_assumed of an ISO 8601 text ("2026-03-01T16:00:00.35Z"), or nil.
function time.from_iso(iso, transitions)
  local y, mo, d, h, mi, s, fraction, zone =
    match(iso, "^%s*(%d%d%d%d)-(%d%d)-(%d%d)[T ](%d%d):(%d%d):(%d%d)[.,]?(%d*)%s*([Zz+-]?[%d:]*)%s*$")
  if not y then return nil end
  y, mo, d, h, mi, s = tonumber(y), tonumber(mo), tonumber(d), tonumber(h), tonumber(mi), tonumber(s)
  if mo < 1 or mo > 12 or d < 1 or d > month_length(y, mo) or h > 23 or mi > 59 or s > 60 then return nil end
  local nanos = fraction == "" and 0 or tonumber(sub(fraction .. "000000000", 1, 9))
  local seconds, assumed = nil, false
  if zone == "" then
    if y < 1970 or y > 2261 then return nil end
    seconds, assumed = time.from_local(transitions, y, mo, d, h, mi, s)
    if not seconds then return nil end
  else
    seconds = days(y, mo, d) * 86400 + h * 3600 + mi * 60 + s
    if zone ~= "Z" and zone ~= "z" then
      local sign, zh, zm = match(zone, "^([+-])(%d%d):?(%d?%d?)$")
      if not sign then return nil end
      local shift = tonumber(zh) * 3600 + (tonumber(zm) or 0) * 60
      seconds = sign == "+" and seconds - shift or seconds + shift
    end
  end
  if not in_range(seconds) then return nil end
  return seconds, nanos, assumed
end

return time
