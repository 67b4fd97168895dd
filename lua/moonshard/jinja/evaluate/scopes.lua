-- Where names are looked up: a scope for the template, for each round of a loop, and for each body that keeps its names
-- to itself. What is set in a scope is gone with it, and hides the same name of outer ones.

local scopes = {}

---@class moonshard.jinja.Scope
---@field names table<string, moonshard.jinja.Value>
---@field outer moonshard.jinja.Scope?

---@param outer moonshard.jinja.Scope?
---@return moonshard.jinja.Scope
function scopes.new(outer) return { names = {}, outer = outer } end

---@param scope moonshard.jinja.Scope
---@param name string
---@return moonshard.jinja.Value? nil if no scope has it
function scopes.find(scope, name)
  while scope do
    local value = scope.names[name]
    if value ~= nil then return value end
    scope = scope.outer
  end
end

return scopes
