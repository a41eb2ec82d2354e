-- Noise rules of the setting `drop`: log lines that are left out, or of which one in n is kept. A rule looks at what a
-- line itself says and at its id, so that an audit counts the same lines.
local id, settings = ...
local find, sub = string.find, string.sub

local rules = settings.drop or {}
local noise = { any = rules[1] ~= nil }

local function below(name, logger)
  return name == logger or (name and sub(name, 1, #logger) == logger and find(name, "^[./]", #logger + 1) ~= nil)
end

local function holds(rule, level, logger, text)
  return (not rule.level or rule.level == level) and (not rule.logger or below(logger, rule.logger))
    and (not rule.contains or find(text, rule.contains, 1, true) ~= nil)
end

-- Return the name of the rule that drops a log line, or nil. The first rule that holds decides.
function noise.rule(level, logger, text, event_id)
  for i = 1, #rules do
    local rule = rules[i]
    if holds(rule, level, logger, text) then
      if rule.keep_one_in and id.remainder(event_id, rule.keep_one_in) == 0 then return nil end
      return rule.name
    end
  end
end

return noise
