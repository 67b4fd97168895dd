-- Which batch a training step took. A recipe takes batches of the same data for other things, too: to evaluate, to look
-- at one, to compile. What a checkpoint keeps is where training is, so data notes each batch that it gives, and a step
-- says which of them it trains on.
--
-- A recipe can make a batch of its own: it is the one whose arrays it has or, where it has none of them, the one that
-- was given last, but for those of train:evaluate.

local taken = {}

local marks = setmetatable({}, { __mode = "k" }) -- by batch, and by each of its arrays
local last

---Notes a batch that a recipe gets.
---@param batch table
---@param mark fun() called when a training step takes it
function taken.note(batch, mark)
  marks[batch], last = mark, mark
  for _, array in pairs(batch) do
    if type(array) == "table" then marks[array] = mark end
  end
end

-- The mark of the batch whose arrays a table has.
local function mark_of(batch)
  if marks[batch] then return marks[batch] end
  for _, array in pairs(batch) do
    if type(array) == "table" and marks[array] then return marks[array] end
  end
end

---A training step takes a batch, or what a recipe made of one.
---@param batch any
function taken.by_step(batch)
  local mark = type(batch) == "table" and mark_of(batch) or last
  if mark then mark() end
end

---Calls a function whose batches are not for training.
---@param call function
---@param ... any its arguments
---@return ... its results
function taken.beside_training(call, ...)
  local before = last
  local function after(ok, ...)
    last = before
    if not ok then error((...), 0) end
    return ...
  end
  return after(pcall(call, ...))
end

return taken
