-- Descriptions of optimizers: the engine keeps the state of the owned chunks and updates a unit in one fused pass.
--
-- An optimizer has no parameters of its own, so it cannot be created too early, before sharding: the trainer binds it.

local dtypes = require("moonshard.base.dtypes")
local errors = require("moonshard.base.error")
local lists = require("moonshard.base.checks.lists")
local optimizers = require("moonshard.engine.optimizers")
local options = require("moonshard.base.checks.options")
local param_groups = require("moonshard.shard.param_groups")
local rules = require("moonshard.shard.rules")
local sealed = require("moonshard.base.checks.sealed")
local schedule = require("moonshard.train.schedule")

---@class moonshard.Optimizer
---@field kind "adamw"|"adam"|"lion"|"sgd"|"muon"|"adafactor" its row in engine/optimizers.lua
---@field lr moonshard.Schedule
---@field weight_decay number for parameters without one from a group
---@field moments "f32"|"bf16"|"i8"|nil only for AdamW, Adam and Lion
---@field groups table? a policy over parameter FQNs: list of { pattern, moonshard.GroupOptions }
local Optimizer = { POLICY = "optimizer groups", __name = "an optimizer" } -- POLICY: its row in policies.lua
Optimizer.__index = Optimizer

local RULES = "train:set_rules { %s = ... } changes it between steps"

sealed.class(Optimizer, {
  what = Optimizer.__name,
  answers = {
    lr = RULES:format("lr"), groups = RULES:format("groups"), weight_decay = RULES:format("weight_decay"),
    param_groups = RULES:format("groups"),
  },
  otherwise = "it is an option of the function of ms.optim that makes the optimizer, which keeps it",
  tables = { groups = 4, betas = 1, eps = 1 },
})

-- Schedules multiply a group's own rate, as torch.optim.lr_scheduler does: the group has a factor of the schedule.
local function scale_of(self, who, lr)
  local base = schedule.peak_of(self.lr)
  local scale = base and base > 0 and lr / base
  if scale and scale < math.huge then return scale end
  if scale then
    errors.invalid("%s: the group's lr %g is too many times the optimizer's %g for a number: give it lr_scale, or "
      .. "another optimizer by rules", who, lr, base)
  end
  if base then
    errors.invalid("%s: a group's lr is a factor of the optimizer's, which is 0: give the optimizer the group's lr, "
      .. "and groups with lr_scale = 0 for what is not to move", who)
  end
  errors.invalid("%s: a group's lr is relative to the optimizer's, which is a function of the recipe's whose peak is "
    .. "not known: give lr_scale, the factor", who)
end

local function reader_of(self)
  return function(value, rule)
    local who = self.POLICY .. ": " .. rule
    local group = optimizers.read_group(self, who, value)
    if group.lr then group.lr_scale, group.lr = scale_of(self, who, group.lr), nil end
    return group
  end
end

---Its groups.
---@return moonshard.Policy
function Optimizer:policy() return rules.policy(self.POLICY, self.groups or {}, { read = reader_of(self) }) end

---The group that decides each parameter.
---@param fqns string[]
---@param tied table<string, string>? FQNs by the other names of tied parameters
---@return moonshard.Decision[] decisions one per name; value: a moonshard.GroupOptions as written, lr as
---  lr_scale
---@return string[] warnings groups that match parameters but never decide
---@return moonshard.Rule[] unmatched optional groups that match no parameter
function Optimizer:decide(fqns, tied)
  return self:policy():resolve(fqns, {}, tied)
end

---Settings of every parameter: from the first group that matches; without a match the learning rate's factor is 1 and
---all others are the optimizer's.
---@param fqns string[]
---@param tied table<string, string>? as for decide
---@return table<string, moonshard.ParamGroup> groups parameters of one group share its settings
---@return string[] warnings as from decide
function Optimizer:param_groups(fqns, tied)
  local result, completed = {}, {}
  local decided, warnings = self:decide(fqns, tied)
  for i, fqn in ipairs(fqns) do
    local group = decided[i].value
    completed[group] = completed[group] or param_groups.complete(group, self.weight_decay)
    result[fqn] = completed[group]
  end
  return result, warnings
end

---The element type in which it keeps the moments of a parameter; nil: the parameter is frozen, or the optimizer keeps
---none.
---@param param { numel: number, frozen: boolean? }
---@return "f32"|"bf16"|"i8"|nil
function Optimizer:moments_of(param)
  if param.frozen or not self.moments then return nil end
  local records = dtypes.uses[self.moments].moment_records
  return records and param.numel < records.least and "f32" or self.moments
end

---The optimizer of a parameter: with rules (train/optimizer_rules.lua) one of several.
---@param _ string FQN
---@return moonshard.Optimizer
function Optimizer:part_of(_) return self end

-- What the recipe gave, by the copies that models have of it.
local given_as = setmetatable({}, { __mode = "k" })

---A copy for a model: ms.set_rules changes it, and neither the recipe's optimizer nor that of another model.
---@return moonshard.Optimizer
function Optimizer:for_model()
  local copy = {}
  for name, value in next, sealed.fields(self) do copy[name] = value end
  given_as[copy] = given_as[self] or self
  return sealed.seal(setmetatable(copy, Optimizer), sealed.sources(self))
end

---Whether a model's optimizer is this one, or its copy of this one: it has the same state.
---@param other moonshard.Optimizer
---@return boolean
function Optimizer:is_same(other) return rawequal(self, other) or rawequal(self, given_as[other]) end

---The rate of a step by a schedule of the library's; nil for a recipe's own function, which a step asks once, and which
---may say something else to who asks again.
---@param step integer
---@return number?
function Optimizer:planned_lr(step) return schedule.peak_of(self.lr) and self.lr(step) or nil end

---Its schedule for people.
---@return string
function Optimizer:schedule_text() return schedule.describe(self.lr) end

---The number by which parameters choose it (ms_param_config.optimizer); nil: it is that of all that choose none.
---@return integer?
function Optimizer:chosen_as()
  local row = optimizers.of(self.kind)
  return row.is_chosen and row.id or nil
end

---The optimizer that parameters choose, if there is one.
---@return moonshard.Optimizer?
function Optimizer:chosen_part() return self:chosen_as() and self or nil end

---Fills the optimizer's part of an ms_plan_config.
---@param config ffi.cdata* ms_plan_config
function Optimizer:configure(config)
  optimizers.configure(config, self.kind, self)
end

-- The classes of options are made from settings.def (repl/optimizer_classes.lua).
---@class moonshard.optim
local optim = {}

-- An optimizer of the table, with the user's options checked.
local function new(kind, given)
  local who, row = "ms.optim." .. kind, optimizers.of(kind)
  local specs = optimizers.options(kind)
  specs.lr, specs.groups = { "number|function", required = not row.lr, default = row.lr }, { "table" }
  local o = options.parse(who, given, specs)
  if type(o.lr) == "number" and not (o.lr >= 0 and o.lr < math.huge) then
    errors.invalid("%s: lr must be at least 0 and finite, not %g", who, o.lr)
  end
  optimizers.check(who, kind, o)
  o.kind, o.lr = kind, schedule.of(o.lr)
  return sealed.seal(setmetatable(o, Optimizer), given)
end

---AdamW (Loshchilov & Hutter 2019) as in PyTorch: decoupled weight decay, bias corrections.
---
---`moments = "bf16"` keeps both moments in bf16, 4 bytes per parameter instead of 8. A step computes in f32 and rounds
---the moments stochastically, so that changes smaller than a bf16 step are kept on average. The direction depends on
---the model's seed, the parameter's name, the element and the number of updates of the parameter: it is the same on
---every device, after resuming, and on every mesh, unless `tensor` divides the parameter along another axis than its
---first: there elements are numbered part by part, so other ones are rounded up, as often as on one rank.
---
---`moments = "i8"` keeps those of parameters of 4,096 elements and more in 8 bits, 2.03 bytes per parameter, by the
---dynamic maps of bitsandbytes and torchao (Dettmers et al. 2022): blocks of 256 elements have an f32 scale, and a step
---computes in f32 and rounds to nearest. Ranks never divide a block, so every mesh has the same ones, unless `tensor`
---divides the parameter: blocks are then those of each part. In layout `rows` chunks are rows that fill blocks;
---`ragged` divides parameters evenly whatever their rows are.
---@param o moonshard.optim.adamw
---@return moonshard.Optimizer
function optim.adamw(o) return new("adamw", o) end

---Adam (Kingma & Ba 2015) as torch.optim.Adam: as AdamW, but that weight decay is added to the gradient.
---@param o moonshard.optim.adam
---@return moonshard.Optimizer
function optim.adam(o) return new("adam", o) end

---Lion (Chen et al. 2023, algorithm 2): steps of the sign of beta1 m + (1 - beta1) g, where m is a moving average of
---gradients by beta2, its only state. Its learning rate is three to ten times smaller than AdamW's, and its weight
---decay as many times larger.
---@param o moonshard.optim.lion
---@return moonshard.Optimizer
function optim.lion(o) return new("lion", o) end

---SGD as in torch.optim.SGD: weight decay is added to the gradient; momentum, dampening and Nesterov work the same.
---@param o moonshard.optim.sgd
---@return moonshard.Optimizer
function optim.sgd(o) return new("sgd", o) end

---Adafactor (Shazeer & Stern 2018) as torch.optim.Adafactor. Instead of a second moment it keeps an average of squares
---for each row and each column of a matrix, `row_var` and `col_var`, and for each element of what has fewer than two
---axes, `variance`; it has no first moment. A step is relative to the root mean square of the weights.
---
---Averages are of whole matrices, and every rank keeps all of them: for [m,n] those are 4 (m + n) bytes, whatever the
---mesh. A step sums them over the ranks in one all-reduce, and squares of updates in another.
---@param o? moonshard.optim.adafactor
---@return moonshard.Optimizer
function optim.adafactor(o) return new("adafactor", o or {}) end

---Muon (Jordan et al. 2024) as in torch.optim.Muon: the momentum of a matrix, orthogonalised. It is for the matrices of
---hidden layers; give a trainer rules with another optimizer for the rest:
---`optimizer = { { re[[\.fc\d\.weight$]], ms.optim.muon { lr = 0.02 } }, { re".", ms.optim.adamw { lr = 3e-4 } } }`.
---Each matrix of a stack [matrices, rows, columns], as of experts, is orthogonalised by itself, and with `heads` the
---heads of a projection [heads * dim, model] are. Parameters with one axis, or more than three, are refused.
---
---A whole matrix is orthogonalised on one rank, its owner. The work is divided evenly over the ranks of shard,
---replicate and tensor, and directions are exchanged with the owners in f32. Numbers are those of one rank but for the
---order of sums. One moment is kept, in f32, sharded like the weights.
---@param o moonshard.optim.muon
---@return moonshard.Optimizer
function optim.muon(o) return new("muon", o) end

for kind in pairs(optim) do
  for name, spec in pairs(optimizers.of(kind) and optimizers.options(kind) or {}) do
    if spec.holes then lists.have_defaults("ms.optim." .. kind, name) end
  end
end

return require("moonshard.base.checks.strict").fields("ms.optim", optim)
