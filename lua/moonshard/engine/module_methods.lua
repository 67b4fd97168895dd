-- Methods of modules that need the engine: values of parameters, in full or this rank's shards, and calls on eager
-- tensors. They are added here, before a recipe creates its first module, so that nn/module.lua does not depend on
-- sessions and plans. Each method loads its implementation at the first call.

local agreement = require("moonshard.distributed.agreement")
local arguments = require("moonshard.base.checks.arguments")
local module = require("moonshard.nn.module")

---@class moonshard.Module
local Module = module.base

---A parameter in full, f32. Collective if the model is sharded.
---@param name string its FQN in this module
---@return moonshard.Tensor
function Module:parameter(name) return require("moonshard.engine.inspect").parameter(self, name) end

---The shard of a parameter that this rank owns.
---@param name string its FQN in this module
---@return moonshard.Tensor
function Module:local_parameter(name) return require("moonshard.engine.inspect").local_parameter(self, name) end

---The parameters by their names in this module: the shards that this rank owns, without communication; or with
---full = true all of them in full, on the first rank (collective; other ranks get an empty table).
---@param o { full: boolean? }?
---@return table<string, moonshard.Tensor>
function Module:state_dict(o) return require("moonshard.engine.state_dict").get(self, o) end

---Overwrites the parameters of this module: each rank's shards from its state_dict, or with full = true, on any mesh,
---from the first rank's. Missing, extra and misshapen entries raise an error that lists them, and so do shards that
---differ between ranks which have copies of them; then nothing changes. Collective.
---@param dict table<string, moonshard.Tensor>
---@param o { full: boolean? }?
function Module:load_state_dict(dict, o) require("moonshard.engine.state_dict").set(self, dict, o) end

---Overwrites a parameter. Collective: every rank gives the same values.
---@param name string its FQN in this module
---@param values moonshard.Tensor|table of its shape
function Module:set_parameter(name, values) require("moonshard.engine.inspect").set_parameter(self, name, values) end

---Keeps units in full, f32, on every rank, until they are resharded or a step runs: parameter() then needs no
---communication for them. These are copies, included in memory checks; writes to them are lost. Collective.
---@param which any? name, pattern or list of them over units; nil: the units of this module
---@return table<string, moonshard.Tensor> parameters by their FQNs in this module
function Module:unshard(which) return require("moonshard.engine.unshard").unshard(self, which) end

---Frees the copies that unshard keeps. Collective.
---@param which any? as for unshard
function Module:reshard(which) require("moonshard.engine.unshard").reshard(self, which) end

---The copies that unshard keeps on this rank.
---@return table<string, number> bytes by unit
function Module:unsharded() return require("moonshard.engine.unshard").bytes(self) end

---Calls a module on eager tensors, outside of a trace.
---@param self moonshard.Module
---@param ... any its arguments
---@return ... what its forward returns
function module.call_eagerly(self, ...) return require("moonshard.engine.trace.call")(self, ...) end

arguments.exact_all("model", Module)
agreement.collective(Module, "parameter set_parameter state_dict load_state_dict unshard reshard", "model:%s")
agreement.collective(module, "call_eagerly", "a call of the model")

return module
