-- The forward of a trainer that has a loss: the model's result for the tokens (or inputs) of a batch, and the loss of
-- it and the targets. What it would leave out of a batch, or train on the wrong targets, is refused.

local errors = require("moonshard.base.error")

local loss_forward = {}

local GIVE_FORWARD = "give ms.trainer a forward, such as function(net, b) return loss(net(b.tokens, ...), b.targets) "
  .. "end, in place of its loss"

local function names_of(batch)
  local names = {}
  for name in pairs(batch) do names[#names + 1] = tostring(name) end
  table.sort(names)
  return names
end

---@param loss fun(result: moonshard.Tensor, targets: moonshard.Tensor): moonshard.Tensor
---@return fun(model: moonshard.Module, batch: table<string, moonshard.Tensor>): moonshard.Tensor
function loss_forward.new(loss)
  return function(model, batch)
    local input = batch.tokens and "tokens" or "inputs"
    if not batch[input] or not batch.targets then
      errors.invalid("a batch needs tokens (or inputs) and targets, but this one has %s; for other fields give "
        .. "ms.trainer a forward function", table.concat(names_of(batch), ", "))
    end
    for _, name in ipairs(names_of(batch)) do
      if name ~= input and name ~= "targets" then
        errors.invalid("a batch has %s, but a trainer with a loss gives the model its %s alone: %s; or leave %s out of "
          .. "the batch", name, input, GIVE_FORWARD, name)
      end
    end
    local result, more = model(batch[input])
    if result == nil then errors.invalid("the forward of the model returned nothing; it must return a tensor") end
    if more ~= nil then
      errors.invalid("the forward of the model returned several values, and a loss is given the first alone: %s",
        GIVE_FORWARD)
    end
    return loss(result, batch.targets)
  end
end

---Refuses masked tokens for a model that predicts next tokens, and next tokens for one that sees them. Only models that
---say which of the two they are, and batches of loaders (`predicts`), are compared.
---@param model moonshard.Module
---@param batch { predicts: "next"|"masked"|nil }
function loss_forward.check(model, batch)
  local sees = model.sees_later_tokens
  if sees == true and batch.predicts == "next" then
    errors.invalid("the targets are the next tokens, which a %s sees, so it would learn to copy them: give it batches "
      .. 'of ms.data.masked; if you masked the tokens yourself, set batch.predicts = "masked"',
      getmetatable(model).name)
  elseif sees == false and batch.predicts == "masked" then
    errors.invalid("the tokens are masked, but a %s predicts next tokens and does not see later ones: train it on the "
      .. "data that ms.data.masked was given; or %s", getmetatable(model).name, GIVE_FORWARD)
  end
end

return loss_forward
