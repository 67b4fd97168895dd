-- What one rendering may cost. A template comes with a model, from anyone: whatever it says, a rendering ends. Costs
-- are counts, never times, so a template that is refused is refused on every machine.

local faults = require("moonshard.jinja.faults")

local limits = {}

---@class moonshard.jinja.Limits
---@field steps integer? expressions, statements and items that may be evaluated; 64 bytes of a text that is made count
---  as one
---@field depth integer? how deep expressions, statements and calls of macros may nest
---@field bytes integer? the longest text, and the whole output
---@field items integer? the longest list

---@type table<string, integer>
local DEFAULTS = { steps = 2e7, depth = 400, bytes = 2 ^ 26, items = 1e6 }

local BYTES_A_STEP = 64

-- One rendering at a time has a budget: nothing in a template waits.
local steps, depth, most = 0, 0, DEFAULTS

---Begins a rendering.
---@param given moonshard.jinja.Limits?
function limits.begin(given)
  steps, depth, most = 0, 0, {}
  for name, default in pairs(DEFAULTS) do most[name] = given and given[name] or default end
end

---Counts steps.
---@param count number
function limits.step(count)
  steps = steps + count
  if steps > most.steps then
    faults.raise("the limit of %d steps of a rendering is passed: a loop of the template is too long", most.steps)
  end
end

---Enters what nests: an expression, a statement, a call.
function limits.enter()
  depth = depth + 1
  if depth > most.depth then
    faults.raise("the limit of depth, %d, is passed: expressions or calls of the template nest deeper", most.depth)
  end
end

---Leaves it. After a fault the rendering has ended, so nothing is left.
function limits.leave() depth = depth - 1 end

---Checks how much is written.
---@param bytes number
function limits.output(bytes)
  if bytes <= most.bytes then return end
  faults.raise("the limit of bytes of a text or of the output, %d, is passed", most.bytes)
end

---Counts a text that is about to be made.
---@param bytes number
function limits.text(bytes)
  limits.output(bytes)
  limits.step(bytes / BYTES_A_STEP)
end

---Counts a list that is about to be made.
---@param items number
function limits.list(items)
  if items > most.items then faults.raise("the limit of items of a list, %d, is passed", most.items) end
  limits.step(items)
end

return limits
