-- What a person wants to know of a run without asking. Before the first step: the model, the mesh and what its
-- dimensions do, the types that were chosen, the memory that was planned, the data. After the last one: how long it
-- took, how fast it was, and what was written where.
--
-- Only rank 0 prints, and only in runs that show their steps with ms.log: otherwise the output is
-- the recipe's own. On a terminal the first part is there before step 1 of a run that says how many steps it
-- has (data:batches(n) or ms.log.expect), elsewhere before the line of the first step.

local clock = require("moonshard.base.clock")
local input_file = require("moonshard.base.files.input_file")
local output_file = require("moonshard.base.files.output_file")
local progress = require("moonshard.base.text.progress")
local terminal = require("moonshard.base.text.terminal")
local text_lines = require("moonshard.base.text.text_lines")
local world = require("moonshard.distributed.world")
local written = require("moonshard.base.files.written")

local run_summary = {}

local state = { pending = {}, data = nil, began = nil, steps = 0, done = 0, seconds = 0, last = nil }

-- "3.24M"
local function count(n)
  for _, unit in ipairs({ { 1e12, "T" }, { 1e9, "B" }, { 1e6, "M" }, { 1e4, "k" } }) do
    if n >= 0.9995 * unit[1] then return ("%.3g%s"):format(n / (unit[2] == "k" and 1e3 or unit[1]), unit[2]) end
  end
  return ("%d"):format(n)
end

local function plural(n, what) return ("%d %s%s"):format(n, what, n == 1 and "" or "s") end

local function model_line(train)
  local sharding = train.session.sharding
  local all, frozen = 0, 0
  for _, param in ipairs(sharding.params) do
    all = all + param.numel
    if param.frozen then frozen = frozen + param.numel end
  end
  local class = getmetatable(train.model)
  return ("%s, %s parameters%s, %s"):format(class and class.name or "model", count(all),
    frozen > 0 and (", %s of them trained"):format(count(all - frozen)) or "", plural(#sharding.units, "unit"))
end

-- What the ranks of each dimension share and divide.
local DOES = {
  replicate = "%d replicas", shard = "parameters over %d shards", context = "positions over %d ranks",
  tensor = "layers over %d ranks", pipe = "stages over %d ranks",
}

local function mesh_line(train)
  local sharding = train.session.sharding
  local mesh, parts, role_of = sharding.mesh, {}, {}
  -- A dimension's name can be another one for its role, such as dp_shard.
  for role in pairs(DOES) do role_of[sharding[role .. "_dim"] or -1] = role end
  for i, name in ipairs(mesh.names or {}) do
    local size = mesh.shape[i]
    if size > 1 then parts[#parts + 1] = (DOES[role_of[i - 1]] or name .. " of %d"):format(size) end
  end
  return ("%s on %s%s"):format(mesh:label(), mesh.device, parts[1] and ": " .. table.concat(parts, ", ") or "")
end

-- The distinct values of a field of units, in their order.
local function values_of(units, field)
  local list, known = {}, {}
  for _, unit in ipairs(units) do
    local value = unit[field]
    if value and not known[value] then list[#list + 1] = value end
    if value then known[value] = true end
  end
  return table.concat(list, " and ")
end

-- The types in which kernels read weights: those of units, and of parameters with a rule of their own.
local function weight_types(sharding)
  local list = {}
  for _, unit in ipairs(sharding.units) do list[#list + 1] = { dtype = unit.param_dtype } end
  for _, param in ipairs(sharding.params) do list[#list + 1] = { dtype = param.dtype } end
  return values_of(list, "dtype")
end

local function types_line(train)
  local units = train.session.sharding.units
  local over = {}
  for _, dimension in ipairs({ "shard", "replicate" }) do
    local types = values_of(units, dimension .. "_dtype")
    if types ~= "" then over[#over + 1] = (", over %s in %s"):format(dimension, types) end
  end
  return ("computes in %s, sums gradients in %s%s, updates in f32"):format(weight_types(train.session.sharding),
    values_of(units, "reduce_dtype"), table.concat(over))
end

local function memory_line(plan)
  local summary, parts = plan:summary(), {}
  for _, category in ipairs({ "parameters", "optimizer", "gradients", "gathered", "activations", "workspace",
    "communication" }) do
    local bytes = summary.bytes[category]
    if bytes and bytes > 0 then parts[#parts + 1] = ("%s %s"):format(category, progress.size(bytes)) end
  end
  return ("%s per rank: %s"):format(progress.size(summary.peak_bytes), table.concat(parts, ", "))
end

local COLUMNS, NAME = 120, 8 -- of a line, and of them for what it is about

-- Adds a text, whose lines are broken after commas.
local function add(lines, name, text)
  local line = ("%-" .. NAME .. "s"):format(name)
  local empty = #line
  for part in (text .. ", "):gmatch("(.-, )") do
    if #line > empty and #line + #part - 1 > COLUMNS then
      lines[#lines + 1] = line:sub(1, -2)
      line, empty = (" "):rep(NAME), NAME
    end
    line = line .. part
  end
  lines[#lines + 1] = line:sub(1, -3)
end

local function text_of(train, plan)
  local lines = {}
  add(lines, "model", model_line(train))
  add(lines, "mesh", mesh_line(train))
  add(lines, "types", types_line(train))
  add(lines, "memory", memory_line(plan))
  if state.data then add(lines, "data", state.data:summary()) end
  if train.steps_done > 0 then lines[#lines + 1] = ("resumed after step %d"):format(train.steps_done) end
  return table.concat(lines, "\n")
end

---Prints what waits for the first line of a step.
function run_summary.flush()
  if not state.pending[1] then return end
  local text = table.concat(state.pending, "\n")
  state.pending = {}
  progress.finish()
  output_file.print(text, "\n")
end

---A loop over batches of training begins.
---@param data moonshard.Loader
function run_summary.data(data) state.data = data end

-- A model from a folder with a tokenizer knows that one's tokens, and trains on bytes all the same.
local function note_bytes(train)
  local folder = rawget(train.model, "_huggingface_folder")
  local reads_bytes = folder and state.data and state.data.bytes
  if not (reads_bytes and input_file.exists(folder .. "/tokenizer.json")) then return end
  progress.finish()
  io.stderr:write(("moonshard: note: %s has a tokenizer, but the tokens of this run are bytes, which the model does "
    .. "not know: `moonshard tokenize --tokenizer %s` makes token files, for ms.data.tokens\n"):format(folder, folder))
end

---A trainer is about to run its first step.
---@param train moonshard.Trainer
---@param plan moonshard.Plan
function run_summary.before(train, plan)
  state.began = state.began or clock.now()
  if world.rank ~= 0 or world.plan_only then return end
  note_bytes(train)
  state.pending[#state.pending + 1] = text_of(train, plan)
  if progress.total() and terminal.interactive() then run_summary.flush() end
end

---A step was logged.
---@param step integer
---@param m moonshard.StepMetrics
function run_summary.step(step, m)
  run_summary.flush()
  state.began = state.began or clock.now() -- a recipe can log without a trainer
  state.steps, state.last = state.steps + 1, step
  local speed = progress.speed(m)
  if speed and m.step_ms then
    state.done, state.seconds = state.done + speed * m.step_ms / 1e3, state.seconds + m.step_ms / 1e3
    state.in_samples = m.samples_per_s ~= nil
  end
end

---Prints how the run went, if it showed steps.
function run_summary.finish()
  if world.rank ~= 0 or not state.last then return end
  local parts = { ("done: %s in %s"):format(plural(state.steps, "step"), progress.duration(clock.now() - state.began)) }
  if state.seconds > 0 then
    local mean = state.done / state.seconds
    local _, text = progress.speed { tokens_per_s = mean, samples_per_s = state.in_samples and mean or nil }
    parts[2] = ("%s on average"):format(text)
  end
  local files = text_lines.escape(written.text())
  output_file.print(table.concat(parts, ", "), files ~= "" and "; wrote " .. files or "", "\n")
end

---Says what is left of a run that Ctrl-C ends.
function run_summary.stopped()
  local checkpoint = written.path("checkpoint")
  if not (state.last or checkpoint) or world.rank ~= 0 then return end -- world.rank joins ranks that have not yet
  io.stderr:write(("moonshard: stopped after step %d; %s\n"):format(state.last or 0,
    checkpoint and "the last checkpoint is " .. checkpoint or "no checkpoint was saved"))
end

return run_summary
