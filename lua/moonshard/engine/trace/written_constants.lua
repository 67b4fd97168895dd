-- Eager tensors that a forward reads and that a recipe has written into since, such as an average of what it has seen.

local hash = require("moonshard.base.hash")
local same_constants = require("moonshard.engine.agreement.same_constants")
local values = require("moonshard.tensor.values")

local written_constants = {}

local first = setmetatable({}, { __mode = "k" }) -- a hash of each tensor when a plan that reads it was first bound

local function hash_of(eager) return hash.of_bytes(eager.data, values.bytes(eager)) end

---Called when a plan is bound.
---@param compiled moonshard.Plan
function written_constants.note(compiled)
  for _, constant in ipairs(compiled.graph.constants) do
    local eager = constant.tensor
    first[eager] = first[eager] or hash_of(eager)
  end
end

---The first tensor that the last step read and that has other values than it had first; nil: there is none.
---@param session moonshard.Session
---@return string? "model.mean f32 [8], which mul reads at a.lua:3,"
function written_constants.first_name(session)
  local compiled = session.train_exec and session.train_exec.plan
  for _, constant in ipairs(compiled and compiled.graph.constants or {}) do
    local before = first[constant.tensor]
    if before and before ~= hash_of(constant.tensor) then
      return same_constants.describe(session, compiled, constant)
    end
  end
end

return written_constants
