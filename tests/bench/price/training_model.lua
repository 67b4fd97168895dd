-- Predicts training speeds of published rows from their plans, and fits a stack's constants on some of them.

local cluster = require("moonshard.price.cluster")
local engine = require("moonshard.base.ffi")
local least_squares = require("least_squares")
local training_clusters = require("training_clusters")
local training_plans = require("training_plans")
local C, ffi, check = engine.C, engine.ffi, engine.check

local training_model = {}

-- The usual relative error of a prediction, which weighs rows against what is known of the constants beforehand.
local USUAL_ERROR = 0.025

---@class moonshard.bench.Run
---@field row moonshard.bench.TrainingRow
---@field plan moonshard.Plan

---@class moonshard.bench.Stack
---@field name string
---@field description moonshard.Cluster
---@field runs moonshard.bench.Run[]

---Compiles the rows' plans, by stack in order of appearance. Outliers are left out.
---@param rows moonshard.bench.TrainingRow[]
---@param hardware string? name or path of the description of all stacks' cluster; default: by the stack's name
---@return moonshard.bench.Stack[]
function training_model.stacks(rows, hardware)
  local stacks, by_name = {}, {}
  for _, row in ipairs(rows) do
    if not row.outlier then
      local stack = by_name[row.stack]
      if not stack then
        stack = { name = row.stack, runs = {} }
        by_name[row.stack], stacks[#stacks + 1] = stack, stack
      end
      stack.runs[#stack.runs + 1] = { row = row, plan = training_plans.compile(row) }
    end
  end
  for _, stack in ipairs(stacks) do
    stack.description = hardware and cluster.load(hardware) or training_clusters.described(stack.name)
  end
  return stacks
end

local price = ffi.new("ms_price")

---Tokens/s of a GPU.
---@param run moonshard.bench.Run
---@param struct ffi.cdata* ms_cluster
---@return number
function training_model.predict(run, struct)
  local row = run.row
  check(C.ms_plan_price(run.plan.handle, struct, row.grad_accum, 1, price, ffi.sizeof("ms_price")))
  return row.grad_accum * row.micro_batch * row.seq / row.tensor / price.step
end

---@param runs moonshard.bench.Run[]
---@param struct ffi.cdata* ms_cluster
---@return { predicted: number, measured: number, run: moonshard.bench.Run }[]
function training_model.priced(runs, struct)
  local list = {}
  for i, run in ipairs(runs) do
    list[i] = { predicted = training_model.predict(run, struct), measured = run.row.measured, run = run }
  end
  return list
end

---@param runs moonshard.bench.Run[] of one stack
---@param description moonshard.Cluster
---@param constants table<string, number>
---@return { predicted: number, measured: number, run: moonshard.bench.Run }[]
function training_model.predictions(runs, description, constants)
  return training_model.priced(runs, training_clusters.cluster(description, constants))
end

---What is usual, before any row.
---@return table<string, number>
function training_model.usual()
  local constants = {}
  for _, constant in ipairs(training_clusters.CONSTANTS) do constants[constant.name] = constant.start end
  return constants
end

---@param runs moonshard.bench.Run[]
---@param description moonshard.Cluster
---@param from table<string, number>? constants known beforehand; default: the usual ones
---@return table<string, number>
function training_model.fit(runs, description, from)
  from = from or training_model.usual()
  local unknowns = {}
  for i, constant in ipairs(training_clusters.CONSTANTS) do
    unknowns[i] = { start = from[constant.name], spread = constant.spread, low = constant.low, high = constant.high }
  end
  local function named(values)
    local constants = {}
    for i, constant in ipairs(training_clusters.CONSTANTS) do constants[constant.name] = values[i] end
    return constants
  end
  local values = least_squares.minimize(function(values)
    local residuals = {}
    for i, one in ipairs(training_model.predictions(runs, description, named(values))) do
      residuals[i] = math.log(one.predicted / one.measured) / USUAL_ERROR
    end
    return residuals
  end, unknowns)
  return named(values)
end

return training_model
