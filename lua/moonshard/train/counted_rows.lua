-- Batches of an evaluation of which only the first rows count (batch.counted_rows): the end of a pass, where the
-- samples that are left do not fill the rows of all ranks.
--
-- Where a loss leaves out targets and loaders have set those of other rows to be ignored, the batch runs as it is. Any
-- other loss is a mean over the batch's samples, so the batch runs sample by sample, each with the weight 1 or 0: every
-- loss counts every sample once, whatever the batch and the mesh.

local batch_of = require("moonshard.engine.batch")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local ops = require("moonshard.tensor.ops")
local options = require("moonshard.base.checks.options")
local reference = require("moonshard.shard.reference")
local tensor = require("moonshard.tensor.class")

local counted_rows = {}

local WEIGHT = "weight of the sample" -- an input, f32 []

-- Rows of a sample: pairs of answers have two.
local function sample_rows(batch) return batch.sample_rows or 1 end

---Samples of this rank's batch.
---@param batch table
---@return integer
function counted_rows.samples(batch)
  local of_sample, rows = sample_rows(batch), batch_of.rows(batch)
  if of_sample >= 1 and of_sample % 1 == 0 and rows % of_sample == 0 then return rows / of_sample end
  errors.invalid("batch.sample_rows must be how many rows a sample has, a number that divides the %d rows of the "
    .. "batch, not %s", rows, options.describe(of_sample))
end

local function check(batch)
  local counted, rows = batch.counted_rows, batch_of.rows(batch)
  if type(counted) == "number" and counted % 1 == 0 and counted >= 0 and counted <= rows
    and counted % sample_rows(batch) == 0 then
    return
  end
  errors.invalid("batch.counted_rows must be how many of the %d rows count, the first ones, not %s", rows,
    options.describe(counted))
end

-- Whether the loss of a graph is the mean over all its targets that are not ignored.
local function leaves_out(counts) return counts ~= nil and not counts.by_rank end

---Whether a batch runs sample by sample.
---@param batch table
---@param counts table? of the graph: its loss leaves out targets
---@return boolean
function counted_rows.runs_by_sample(batch, counts)
  if batch.counted_rows == nil then return false end
  check(batch)
  return not (batch.is_padded and leaves_out(counts))
end

-- The batch with a weight for each sample.
local function weighed(batch, weight)
  local copy = {}
  for name, value in pairs(batch) do copy[name] = value end
  copy[WEIGHT] = weight
  return copy
end

-- A function for capture.graph, as traced, of which the loss has the weight of the sample.
local function with_weight(traced)
  return function(inputs)
    local given, weight = {}, nil
    for name, value in pairs(inputs) do
      if name == WEIGHT then weight = value else given[name] = value end
    end
    local results = traced(given)
    if tensor.is(results.loss) then
      local weights, id = context.trace.weights, results.loss.id
      local known = weights[id]
      -- What the loss is of a sample that does not count can be NaN.
      local loss = known and known.mean or ops.where(ops.equal(weight, 0), 0, results.loss)
      results.loss = loss
      weights[loss.id] = { weight = known and known.weight * weight or weight, terms = known and known.terms or 1,
        mean = loss }
    end
    return results
  end
end

---Runs an evaluation of a batch sample by sample.
---@param batch table
---@param traced fun(inputs: table): table
---@param bind fun(specs: table[], traced: function): moonshard.Exec
---@param visit fun(exec: moonshard.Exec) called after each sample
function counted_rows.run(batch, traced, bind, visit)
  local samples = counted_rows.samples(batch)
  local counted = batch.counted_rows / sample_rows(batch)
  local specs = batch_of.specs(weighed(batch, 0), samples)
  local exec = bind(specs, with_weight(traced))
  for sample = 0, samples - 1 do
    batch_of.feed(exec, specs, weighed(batch, sample < counted and 1 or 0), sample)
    exec:run("evaluate")
    visit(exec)
  end
end

---Refuses to train on data whose epoch ends with what a trainer cannot train on: rows that do not count, with a loss
---that does not leave them out, or a number of rows that its micro-batches do not divide. From the first batch on, so
---that a run does not end after its first epoch.
---@param batch table
---@param counts table? of the graph
---@param micro_batches integer
function counted_rows.check_trains(batch, counts, micro_batches)
  if (batch.is_padded or batch.will_be_padded) and not leaves_out(counts) then
    errors.invalid("train:step: the last batch of the epoch is padded with rows whose targets are ignored (drop_last = "
      .. "false), but the loss counts all rows: use a loss that counts targets (ms.loss.cross_entropy with reduction = "
      .. "\"tokens\"), or data with drop_last = true")
  end
  local rows = not reference.active and batch.rows_of_last or 0 -- a reference has micro-batches of all ranks
  if rows % micro_batches ~= 0 then
    errors.invalid("train:step: the last batch of the epoch has %d rows on each rank (drop_last = false), which %d "
      .. "micro_batches do not divide: give data:batches drop_last = true, or another batch", rows, micro_batches)
  end
end

return counted_rows
