-- Files of metrics that a run was writing when something happened to it: whole lines, with the steps in order.

local json = require("cjson")
local trial = require("soak.trial")

local metrics = {}

---@param path string
---@param steps integer? how many there must be, where all of them must be there
---@return string? wrong
function metrics.check(path, steps)
  local text, expected = trial.read(path) or "", 0
  if text ~= "" and text:sub(-1) ~= "\n" then return "metrics end within a line: " .. text:match("[^\n]*$") end
  for line in text:gmatch("([^\n]*)\n") do
    expected = expected + 1
    local ok, object = pcall(json.decode, line)
    if not ok or type(object) ~= "table" then return "metrics have a line that is no object: " .. line end
    if object.step ~= expected then return ("metrics have step %s in line %d"):format(object.step, expected) end
  end
  if steps and steps ~= expected then return ("metrics have %d steps, not %d"):format(expected, steps) end
end

return metrics
