-- Rows of padding of a vocabulary (pad_vocab_to_multiple_of, used_rows of ms.nn.embedding) have gradients of 0, so most
-- optimizers update the other rows as without them. What some compute is of a whole parameter, with these rows: another
-- padding then trains another model, of which a warning says so.

local language = require("moonshard.models.language")
local optimizers = require("moonshard.engine.optimizers")

local padded_vocabulary = {}

-- The parameters with rows of padding, and how many.
local function padded(sharding)
  local rows = {}
  for _, entry in ipairs(sharding.modules) do
    local module = entry.module
    local used, config = rawget(module, "used_rows"), rawget(module, "config")
    if type(used) == "number" and used > 0 and module.weight.shape[1] > used then
      rows[module.weight] = module.weight.shape[1] - used
    end
    local head = type(config) == "table" and config.pad_vocab_to_multiple_of and rawget(module, "head")
    local more = head and language.padded(config) - config.vocab or 0
    if more > 0 then
      rows[head.weight] = more
      if head.bias then rows[head.bias] = more end
    end
  end
  return rows
end

---Warnings of parameters with rows of padding that change how the others are updated, one for each optimizer.
---@param optimizer moonshard.Optimizer|moonshard.OptimizerRules
---@param sharding moonshard.Sharding
---@return string[]
function padded_vocabulary.warnings(optimizer, sharding)
  local rows, named, kinds, warnings = padded(sharding), {}, {}, {}
  for _, param in ipairs(sharding.params) do
    local more = not param.frozen and rows[param.parameter]
    local kind = more and optimizer:part_of(param.fqn).kind
    if more and optimizers.of(kind).of_whole then
      if not named[kind] then
        named[kind] = {}
        kinds[#kinds + 1] = kind
      end
      table.insert(named[kind], ("%s (%d)"):format(param.fqn, more))
    end
  end
  for i, kind in ipairs(kinds) do
    warnings[i] = ("ms.trainer: the rows of padding of %s change updates by ms.optim.%s: %s; with "
      .. "pad_vocab_to_multiple_of = 1, or by another optimizer, padding changes nothing"):format(
      table.concat(named[kind], ", "), kind, optimizers.of(kind).of_whole)
  end
  return warnings
end

return padded_vocabulary
