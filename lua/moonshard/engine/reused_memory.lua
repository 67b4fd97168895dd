-- Memory for arrays that are written in every step, such as padded fields: one buffer for each name and element type,
-- which only grows, since the sizes of batches that are padded to their longest row are thousands.

local dtypes = require("moonshard.base.dtypes")
local ffi = require("ffi")

local reused_memory = {}

---@class moonshard.ReusedMemory
---@field buffers table<string, { data: ffi.cdata*, numel: integer }> by name and type
local ReusedMemory = {}
ReusedMemory.__index = ReusedMemory

---@return moonshard.ReusedMemory
function reused_memory.new() return setmetatable({ buffers = {} }, ReusedMemory) end

---An array whose contents are what was last written, valid until the next call for the same name and type.
---@param name string
---@param dtype string short name
---@param numel integer least number of elements
---@return ffi.cdata*
function ReusedMemory:get(name, dtype, numel)
  local key = name .. " " .. dtype
  local buffer = self.buffers[key]
  if not buffer or buffer.numel < numel then
    buffer = { data = ffi.new(dtypes.ctypes[dtype] .. "[?]", numel), numel = numel }
    self.buffers[key] = buffer
  end
  return buffer.data
end

return reused_memory
