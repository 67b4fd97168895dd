-- The line of a trainer: the checkpoints that led to where it is now. A run that goes back to an older checkpoint and
-- trains on leaves later ones behind, which are of another branch: same folder, same steps, other weights.
--
-- Every line has a number, which its checkpoints record. A line that leaves another one gets a new number, and records
-- from which step of which number on.

local ffi = require("ffi")
local clock = require("moonshard.base.clock")
local errors = require("moonshard.base.error")
local hash = require("moonshard.base.hash")

---@class moonshard.Line
---@field id number
---@field at integer? the step of its newest checkpoint, saved or loaded; nil: it has none
---@field saved_at string? when that was saved, if it was loaded
---@field forks { id: number, step: integer }[] the lines that it left, and their last steps that belong to it
---@field changed_at integer? the step whose checkpoint is left behind because the weights have changed since
---@field leaves boolean? it was resumed by a path, so its next checkpoints are of a line of their own
---@field arranged table<string, boolean> folders in which all other branches are set aside
local Line = {}
Line.__index = Line

local line = {}

local OLD = 0 -- of checkpoints from before there were lines

-- By number: the trainers of this process. They are not kept alive by this.
local owners = setmetatable({}, { __mode = "v" })

---A number that no other line has.
---@return number
function line.new_id()
  return 1 + hash.of_text(("%d %d %.9f %s"):format(ffi.C.getpid(), os.time(), clock.now(), tostring({})))
end

local function new(id, at, saved_at, forks)
  return setmetatable({ id = id, at = at, saved_at = saved_at, forks = forks, arranged = {} }, Line)
end

---The line of a trainer; a new one has no checkpoints.
---@param train moonshard.Trainer
---@return moonshard.Line
function line.of(train)
  local own = train.line
  if not own then
    own = new(nil, nil, nil, {})
    train.line = own
  end
  return own
end

---The line of which a checkpoint is the newest.
---@param read moonshard.Manifest
---@return moonshard.Line
function line.to(read)
  local forks = {}
  for i, fork in ipairs(read.line and read.line.forks or {}) do forks[i] = fork end
  return new(read.line and read.line.id or OLD, read.step, read.saved_at, forks)
end

---What the manifest records.
---@return table
function Line:describe() return { id = self.id, forks = self.forks[1] and self.forks or nil } end

---Whether a checkpoint is one of those that led here.
---@param read moonshard.Manifest
---@return boolean
function Line:has(read)
  if not self.at or read.step > self.at then return false end
  local id = read.line and read.line.id or OLD
  if id == self.id then return true end
  for _, fork in ipairs(self.forks) do
    if fork.id == id and read.step <= fork.step then return true end
  end
  return false
end

---Whether a checkpoint is the newest of this line.
---@param read moonshard.Manifest
---@return boolean
function Line:is_at(read)
  local id = read.line and read.line.id or OLD
  return id == self.id and read.step == self.at and (not self.saved_at or self.saved_at == read.saved_at)
end

---Whether a checkpoint goes on from the newest of this line under another number, or under the same.
---@param read moonshard.Manifest
---@return boolean under_another
---@return boolean under_the_same
function Line:is_left_by(read)
  if not self.at then return false, false end
  for _, fork in ipairs(read.line and read.line.forks or {}) do
    if fork.id == self.id and fork.step == self.at then return true, false end
  end
  return false, (read.line and read.line.id or OLD) == self.id and read.step > self.at
end

---Gives a new line its number, or a line that leaves another one a new number.
---@param id number
function Line:begin(id)
  if self.at then table.insert(self.forks, { id = self.id, step = self.at }) end
  self.id, self.saved_at, self.leaves, self.changed_at = id, nil, nil, nil
end

---Makes way for a checkpoint of a step: those of this line with that step or a later one are left behind.
---@param step integer
function Line:make_way(step)
  if not self.at or self.at < step then return end
  self.changed_at = self.at == step and step or nil
  self.at, self.saved_at, self.leaves = step > 0 and step - 1 or nil, nil, true
end

---Notes that a checkpoint of a step was begun.
---@param train moonshard.Trainer
---@param step integer
function Line:advance(train, step)
  self.at, self.saved_at = step, nil
  owners[self.id] = train
end

---Refuses a checkpoint that another trainer of this process saved: it is not left behind, it goes on.
---@param train moonshard.Trainer
---@param read moonshard.Manifest
---@param path string
function line.check_owner(train, read, path)
  local owner = read.line and owners[read.line.id]
  if owner == nil or owner == train then return end
  errors.invalid("checkpoint %s is of another trainer of this run: give each a folder of its own", path)
end

return line
