-- ms.evaluate: what a language model knows, beyond the loss on batches (train:evaluate).
---@class moonshard.evaluate
---@field perplexity fun(model: moonshard.Module|moonshard.Trainer, o: moonshard.PerplexityOptions):
---  moonshard.Perplexity
---@field multiple_choice fun(model: moonshard.Module|moonshard.Trainer, o: moonshard.MultipleChoiceOptions):
---  moonshard.MultipleChoice
return require("moonshard.base.checks.strict").fields("ms.evaluate", {
  perplexity = require("moonshard.evaluate.perplexity"),
  multiple_choice = require("moonshard.evaluate.multiple_choice"),
})
