-- All filters by their names.

local arguments = require("moonshard.jinja.arguments")

local filters = {}

local rows = {}
for _, part in ipairs({ "texts", "numbers", "sequences", "mapping" }) do
  for name, row in pairs(require("moonshard.jinja.filters." .. part)) do rows[name] = row end
end

---@type table<string, moonshard.jinja.Callable>
filters.ALL = arguments.callables("the filter", rows)

return filters
