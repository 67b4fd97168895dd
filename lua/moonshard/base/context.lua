-- What is being traced right now, and in which module: the one piece of state that the Lua layer shares. Operators on
-- tensors, calls of modules and error messages read it; engine/capture.lua and nn/module.lua set it.

---@class moonshard.Stepper
---@field step fun(self, trainer: moonshard.Trainer, batch: table, step: function): moonshard.StepMetrics

---@class moonshard.Context
---@field trace moonshard.Trace? the trace that is being made, nil outside of one
---@field path string FQN of the module whose forward runs, "" at the root
---@field stepper moonshard.Stepper? makes the steps of trainers in their place, while nothing is saved or loaded:
---  `moonshard check` and `moonshard generate`
---@field on_step fun(trainer: moonshard.Trainer, metrics: moonshard.StepMetrics)? called after every step
---@field call_module function? what calls the forward of a module, by which error.lua knows it on the stack
local context = { trace = nil, path = "" }

return context
