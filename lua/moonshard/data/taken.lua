-- Which batch a training step took. A recipe takes batches of the same data for other things, too: to evaluate, to look
-- at one, to compile. What a checkpoint keeps is where training is, so data notes each batch that it gives, and a step
-- says which of them it trains on.
--
-- A recipe can make a batch of its own from the arrays of one that it was given; then the step trains on the one that
-- was given last, but for those of an evaluation between.

local taken = {}

local marks = setmetatable({}, { __mode = "k" }) -- by batch
local last

---Notes a batch that a recipe gets.
---@param batch table
---@param mark fun() called when a training step takes it
function taken.note(batch, mark) marks[batch], last = mark, mark end

---A training step takes a batch, or what a recipe made of one.
---@param batch any
function taken.by_step(batch)
  local mark = type(batch) == "table" and marks[batch] or last
  if mark then mark() end
end

---Calls a function whose batches are not for training.
---@param call function
---@param ... any its arguments
---@return ... its results
function taken.beside_training(call, ...)
  local before = last
  local function after(...)
    last = before
    return ...
  end
  return after(call(...))
end

return taken
