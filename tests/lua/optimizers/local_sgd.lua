-- For specs of local SGD: runs tests/lua/recipes/local_sgd.lua, and computes what it must train to by the formulas, in
-- plain loops over doubles that share nothing with the engine.

local json = require("cjson")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local local_sgd = {}

local USUAL = {
  mesh = "2x1", steps = 8, every = 4, fragments = 1, delay = 0, alpha = 0, outer_lr = 0.7, outer_momentum = 0.9,
  nesterov = true, momentum = 0.9, clip = 0, positions = 0,
}

---The sizes of a mesh: replicas, ranks of a replica that train on other rows, on other positions, on the same ones.
---@param mesh string "2x1", "2x1x3" (tensor) or "2x1x2x1" (context, tensor)
---@return integer replicas
---@return integer shards
---@return integer context
---@return integer tensor
function local_sgd.sizes_of(mesh)
  local sizes = {}
  for size in mesh:gmatch("%d+") do sizes[#sizes + 1] = tonumber(size) end
  if #sizes == 3 then table.insert(sizes, 3, 1) end
  return sizes[1], sizes[2], sizes[3] or 1, sizes[4] or 1
end

local function words_of(settings, out)
  local replicas, shards, context, tensor = local_sgd.sizes_of(settings.mesh or USUAL.mesh)
  local ranks = replicas * shards * context * tensor
  local words = { "run", "tests/lua/recipes/local_sgd.lua", "out=" .. out }
  local place = { "-n", tostring(ranks) }
  if settings.hosts then
    place = { "--hosts", settings.hosts, "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1" }
  end
  for _, word in ipairs(place) do words[#words + 1] = word end
  for name, value in pairs(settings) do
    if name ~= "environment" and name ~= "hosts" then words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  end
  return words, ranks
end

---Runs the recipe once for each list of settings, which name what differs from its usual ones, all at the same time.
---@param runs table<any, table<string, any>> also: environment; hosts ("a:2,b:2"), names under which this machine runs
---  the ranks
---@return table<any, table[]> what each rank wrote, from 1
function local_sgd.run_all(runs)
  local commands, outs, sizes, results = {}, {}, {}, {}
  for name, settings in pairs(runs) do
    outs[name] = scratch.path()
    commands[name], sizes[name] = words_of(settings, outs[name])
    commands[name].environment = settings.environment
  end
  for name, ended in pairs(program.run_all(commands)) do
    assert(ended.status == 0, ended.err)
    results[name] = {}
    for rank = 0, sizes[name] - 1 do
      local file = outs[name] .. "." .. rank
      results[name][rank + 1] = json.decode(scratch.read(file))
      os.remove(file)
    end
  end
  return results
end

---One run of it.
---@param settings table<string, any>
---@return table[] what each rank wrote, from 1
function local_sgd.run(settings) return local_sgd.run_all({ settings })[1] end

---How a run of it ended, for those that are refused.
---@param settings table<string, any>
---@return Ended
function local_sgd.ended(settings) return program.run((words_of(settings, scratch.path()))) end

-- ---- the model and its data -----------------------------------------------------------------------------------------

local LAYERS = { "layers.0.weight", "layers.1.weight", "layers.2.weight", "layers.3.weight" }
local NAMES = { "bias", unpack(LAYERS) }

-- Which parameters each fragment has: units in their order, cut into parts of about equal size.
local FRAGMENTS = {
  [1] = { NAMES },
  [2] = { { "bias", LAYERS[1], LAYERS[2] }, { LAYERS[3], LAYERS[4] } },
  [4] = { { "bias", LAYERS[1] }, { LAYERS[2] }, { LAYERS[3] }, { LAYERS[4] } },
}
local_sgd.FRAGMENTS = FRAGMENTS

local function random(step, row, column)
  local x = math.sin(step * 12.9898 + row * 78.233 + column * 37.719) * 43758.5453
  return math.floor(64 * (x - math.floor(x))) / 64
end

-- Loss and gradient of the rows of the rank with this place among those of other rows.
local function differentiate(w, step, rank, rows)
  local loss, gradient = 0, {}
  for name, values in pairs(w) do
    gradient[name] = {}
    for i = 1, #values do gradient[name][i] = 0 end
  end
  for row = rows * rank, rows * rank + rows - 1 do
    local x = {}
    for c = 1, 3 do x[c] = random(step, row, c - 1) - 0.5 end
    for o = 1, 5 do
      local y = w.bias[o]
      for k, name in ipairs(LAYERS) do
        for c = 1, 3 do y = y + (k == 1 and 1 or k / 2) * w[name][3 * (o - 1) + c] * x[c] end
      end
      local off = y - 4 * random(step, row, 10 + o - 1)
      loss = loss + off * off / (5 * rows)
      gradient.bias[o] = gradient.bias[o] + 2 * off / (5 * rows)
      for k, name in ipairs(LAYERS) do
        for c = 1, 3 do
          local at = 3 * (o - 1) + c
          gradient[name][at] = gradient[name][at] + (k == 1 and 1 or k / 2) * 2 * off / (5 * rows) * x[c]
        end
      end
    end
  end
  return loss, gradient
end

-- ---- the formulas ---------------------------------------------------------------------------------------------------

local function copy(w)
  local other = {}
  for name, values in pairs(w) do other[name] = { unpack(values) } end
  return other
end

local function zeros(w)
  local other = {}
  for name, values in pairs(w) do
    other[name] = {}
    for i = 1, #values do other[name][i] = 0 end
  end
  return other
end

-- The mean over a replica's ranks, and the norm of the gradient.
local function of_replica(w, step, replica, shards, rows)
  local loss, sum, squares = 0, zeros(w), 0
  for rank = replica * shards, replica * shards + shards - 1 do
    local own, gradient = differentiate(w, step, rank, rows)
    loss = loss + own / shards
    for name, values in pairs(gradient) do
      for i, value in ipairs(values) do sum[name][i] = sum[name][i] + value / shards end
    end
  end
  for _, values in pairs(sum) do
    for _, value in ipairs(values) do squares = squares + value * value end
  end
  return loss, sum, math.sqrt(squares)
end

-- torch.optim.SGD.
local function inner_step(o, w, moved, gradient, norm)
  local factor = o.clip > 0 and math.min(1, o.clip / (norm + 1e-6)) or 1
  for name, values in pairs(w) do
    for i = 1, #values do
      moved[name][i] = o.momentum * moved[name][i] + factor * gradient[name][i]
      values[i] = values[i] - 0.05 * moved[name][i]
    end
  end
end

local function mean_delta(names, synced, replicas)
  local delta = {}
  for _, name in ipairs(names) do
    delta[name] = {}
    for i, at in ipairs(synced[name]) do
      local sum = 0
      for _, replica in ipairs(replicas) do sum = sum + at - replica.w[name][i] end
      delta[name][i] = sum / #replicas
    end
  end
  return delta
end

local function outer_step(o, delta, synced, carried, replicas)
  for name, values in pairs(delta) do
    for i, g in ipairs(values) do
      carried[name][i] = o.outer_momentum * carried[name][i] + g
      local step = o.nesterov and g + o.outer_momentum * carried[name][i] or carried[name][i]
      synced[name][i] = synced[name][i] - o.outer_lr * step
      for _, replica in ipairs(replicas) do
        replica.w[name][i] = synced[name][i] + o.alpha * (replica.w[name][i] - synced[name][i])
      end
    end
  end
end

---Trains by the formulas.
---@param settings table<string, any> as those of a run
---@param initial table<string, number[]> values before the first step
---@return { replicas: table[], synced: table, momentum: table } replicas: { w, losses, norms }
function local_sgd.reference(settings, initial)
  local o = setmetatable(settings, { __index = USUAL })
  local count, shards = local_sgd.sizes_of(o.mesh)
  local rows = o.positions > 0 and o.positions or 2
  local synced, carried, replicas, waiting = copy(initial), zeros(initial), {}, {}
  for r = 1, count do replicas[r] = { w = copy(initial), moved = zeros(initial), losses = {}, norms = {} } end
  local turn = o.every / o.fragments
  for step = 1, o.steps do
    for r, replica in ipairs(replicas) do
      local loss, gradient, norm = of_replica(replica.w, step, r - 1, shards, rows)
      replica.losses[step], replica.norms[step] = loss, norm
      inner_step(o, replica.w, replica.moved, gradient, norm)
    end
    if step % turn == 0 then
      local fragment = (step / turn - 1) % o.fragments + 1
      waiting[step + o.delay] = mean_delta(FRAGMENTS[o.fragments][fragment], synced, replicas)
    end
    if waiting[step] then outer_step(o, waiting[step], synced, carried, replicas) end
  end
  return { replicas = replicas, synced = synced, momentum = carried }
end

return local_sgd
