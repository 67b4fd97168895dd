-- The current trace and the module being traced: the only state that the whole Lua layer shares. Operators on
-- tensors, calls of modules and error messages read it; engine/trace/capture.lua and nn/module.lua set it, and the
-- prompt clears it after a line that was stopped inside a trace.

---@class moonshard.Stepper
---@field step fun(self, trainer: moonshard.Trainer, batch: table, step: function): moonshard.StepMetrics

---@class moonshard.Context
---@field trace moonshard.Trace? the trace in progress, nil outside one
---@field path string FQN of the module whose forward runs, "" at the root
---@field stepper moonshard.Stepper? runs the steps of trainers instead of them, and nothing is saved or loaded; set by
---  `moonshard check` and `moonshard generate`
---@field on_step fun(trainer: moonshard.Trainer, metrics: moonshard.StepMetrics)? called after every step
---@field auto_policies fun(): table<string, moonshard.SearchedPolicy> the policies that are searched, of which rows say
---  whether they can be "auto"; set by moonshard/init.lua
---@field decide_auto fun(trainer: moonshard.Trainer, batch: table)? decides what ms.fully_shard was given as "auto";
---  set by moonshard/init.lua
---@field printed fun(value: any): string what print writes for a value: tables and tensors by what is in them; set by
---  moonshard/init.lua
---@field fused_loss boolean|"auto"|nil what losses do whatever they were asked (`fused` of ms.loss.cross_entropy); set
---  for the reference of `moonshard check`, and where `moonshard explain` tries what would change
---@field sampled { source: string, shared_by: string }? the pass of a sampler whose samples this rank took last, until
---  ranks have compared it (train/same_data.lua)
---@field alone boolean? this rank runs a line of the prompt that others do not: what only rank 0 prints, it prints
---@field in_data string? "data:state()" while this method of a recipe's data object runs
---@field call_module function? the function that calls a module's forward; error.lua recognises it on the stack
local context = { trace = nil, path = "", printed = tostring }

return context
