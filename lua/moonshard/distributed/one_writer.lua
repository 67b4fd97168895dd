-- What one rank writes while all ranks read together. If writing fails, the others are in a collective read: the one
-- reads on with them and writes nothing more, until all ranks end with its error, or none does.

---@class moonshard.OneWriter
---@field writes boolean whether this rank writes, and has not failed to
---@field problem any the first error
---@field agree (fun(problem: any))? raises the error of a rank on all of them; nil: no other rank reads
local OneWriter = {}
OneWriter.__index = OneWriter

---@param source { writes: boolean?, agree: (fun(problem: any))? }
---@return moonshard.OneWriter
function OneWriter.new(source)
  local self = { writes = source.writes ~= false, agree = source.agree }
  setmetatable(self, OneWriter) -- no tail call of a built-in function: LuaJIT would not compile its callers
  return self
end

---Calls a function on the rank that writes.
---@param call function
---@param ... any arguments
---@return any result nil on the other ranks, and once it has failed
function OneWriter:try(call, ...)
  if not self.writes then return nil end
  if not self.agree then return call(...) end
  local ok, result = pcall(call, ...)
  if ok then return result end
  self.writes, self.problem = false, result
end

---Writes a file, while all ranks read what is in it together. What was begun is removed if a rank fails.
---@param create fun(...): table makes its writer, which has finish and abort
---@param fill fun(writer: table?) nil on the ranks that do not write
---@param ... any arguments of create
function OneWriter:file(create, fill, ...)
  local writer = self:try(create, ...)
  local ok, problem = pcall(function()
    fill(writer)
    if self.writes then self:try(writer.finish, writer) end
  end)
  if writer and (not ok or self.problem) then writer:abort() end
  if not ok then error(problem, 0) end
end

---Calls a function on every rank, such as one that reads what all of them need.
---@param call function
---@param ... any arguments
---@return any result nil once it has failed
function OneWriter:on_each(call, ...)
  if not self.agree then return call(...) end
  local ok, result = pcall(call, ...)
  if ok then return result end
  self.writes, self.problem = false, self.problem or result
end

---Ends on all ranks with the error of one of them, if it failed. Collective.
function OneWriter:meet()
  if self.agree then self.agree(self.problem) end
end

return OneWriter
