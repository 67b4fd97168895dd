-- Runs tests/lua/recipes/parity.lua on real ranks, and compares what two runs did: losses, norms, what every step
-- changed of each parameter, the moments and the values that they ended with.
--
-- An update is a hundredth of a value, so that in bf16 a comparison of values finds hardly anything: updates and
-- moments are measured against their own norms, parameter by parameter.

local compare = require("moonshard.check.tolerance")
local json = require("cjson")
local optimizers = require("moonshard.engine.optimizers")
local breadth = require("lua.support.breadth")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local release = os.getenv("MOONSHARD_CONFIG") == "release"

local trained = {
  ---Ranks, and the sizes of (replicate, shard): where not all cases run, two that have all dimensions.
  MESHES = breadth.all and { { 2, "1x2" }, { 3, "1x3" }, { 4, "1x4" }, { 4, "2x2" }, { 2, "2x1" }, { 4, "4x1" } }
    or { { 3, "1x3" }, { 4, "2x2" } },
  ---One mesh of each kind, for settings that do not change how parameters are divided.
  KINDS = breadth.all and { { 3, "1x3" }, { 4, "2x2" }, { 2, "2x1" } } or { { 4, "2x2" } },
  ---Steps of a run whose settings name no number. Memory errors and races that a later step could add appear in the
  ---second, which reuses what the first allocated; what a step leaves to the next, in the second and third.
  STEPS = breadth.all and 10 or release and 4 or 3,
}

-- Settings that specs name although a run without them has them, too: with these, both are the same run.
local USUAL = {
  steps = trained.STEPS, layout = "rows", dtype = "f32", reshard = "default", micro = 1, optimizer = "adamw",
}

local runs = {}

---Runs that were made are made again when they are asked for.
function trained.forget() runs = {} end

---What a run wrote; equal settings run once.
---@param ranks integer
---@param settings table<string, any> of the recipe
---@param options string[]? of moonshard run
---@return table
function trained.run(ranks, settings, options)
  local words = {}
  for name, value in pairs(trained.with(USUAL, settings)) do
    words[#words + 1] = ("%s=%s"):format(name, tostring(value))
  end
  table.sort(words)
  for _, option in ipairs(options or {}) do words[#words + 1] = option end
  local key = ranks .. " " .. table.concat(words, " ")
  if runs[key] then return runs[key] end
  local out = os.tmpname()
  local ended = program.run({
    "run", "tests/lua/recipes/parity.lua", "-n", tostring(ranks), "out=" .. out, unpack(words),
  })
  assert(ended.status == 0, ended.err)
  runs[key] = json.decode(scratch.read(out))
  for _, updates in ipairs(runs[key].updates) do
    for name, text in pairs(updates) do
      local values = {}
      for number in text:gmatch("%S+") do values[#values + 1] = tonumber(number) end
      updates[name] = values
    end
  end
  os.remove(out)
  return runs[key]
end

---Settings and some more.
function trained.with(settings, more)
  local all = {}
  for name, value in pairs(settings) do all[name] = value end
  for name, value in pairs(more or {}) do all[name] = value end
  return all
end

---Fails where two lists differ by more than a tolerance, relative to the largest value.
function trained.assert_close(expected, got, tolerance, what)
  assert(#expected == #got, what)
  local worst = compare.arrays(expected, got, { count = #expected, tolerance = tolerance })
  if worst and worst.differs then
    error(("%s: %.9g beside %.9g, %g is allowed"):format(what, worst.got, worst.expected, worst.allowed), 0)
  end
end

local ROUNDING = 2 ^ -23 -- of a weight of 1 to 2, stored in f32 before and after a step

---Where two runs differ in what training did to parameters, the largest excess first.
---@param expected table
---@param got table
---@param tolerance number of losses; updates and moments may differ by multiples of it (moonshard.check.tolerance)
---@return { what: string, name: string, step: integer?, excess: number, text: string }[]
function trained.differences(expected, got, tolerance)
  local found = {}
  local function changes(what, name, step, a, b, factor, slack)
    local of = compare.changes(a, b, { count = #a, tolerance = factor * tolerance, rounding = slack })
    if not of.differs then return end
    found[#found + 1] = { what = what, name = name, step = step, excess = of.excess,
      -- prose: what a failure prints, not what is compared
      text = ("%s of %s%s: off by %.3g of a norm of %.3g, %.3g is allowed"):format(what, name,
        step and " in step " .. step or "", of.difference, of.norm, of.allowed) }
  end
  assert(#expected.updates == #got.updates, "another number of steps")
  local rounding, times = tolerance > 0 and ROUNDING or 0, optimizers.of(expected.optimizer).update_tolerance
  for step, updates in ipairs(expected.updates) do
    for name, values in pairs(updates) do
      changes("update", name, step, values, got.updates[step][name], times, rounding)
    end
  end
  for name, values in pairs(expected.moments) do
    changes("moments", name, nil, values, got.moments[name], compare.MOMENTS)
  end
  table.sort(found, function(a, b) return compare.is_worse(a.excess, b.excess) end)
  return found
end

---Fails where training did something else to a parameter.
---@param expected table
---@param got table
---@param tolerance number
function trained.assert_updates(expected, got, tolerance)
  local found, lines = trained.differences(expected, got, tolerance), {}
  for i = 1, math.min(5, #found) do lines[i] = found[i].text end
  if #found > 0 then error(("%d differences:\n%s"):format(#found, table.concat(lines, "\n")), 0) end
end

local function assert_parity(expected, got, tolerance)
  trained.assert_close(expected.losses, got.losses, tolerance, "losses")
  trained.assert_close(expected.norms, got.norms, tolerance, "norms")
  trained.assert_updates(expected, got, tolerance)
  for name, values in pairs(expected.params) do
    trained.assert_close(values, got.params[name], compare.PARAMETERS * tolerance, name)
  end
end
trained.assert_parity = assert_parity

---Bit for bit, without printing thousands of numbers when it is not so.
function trained.assert_same(expected, got) assert_parity(expected, got, 0) end

---Compares every mesh of a list, MESHES by default, with one rank.
---@param settings table<string, any>
---@param tolerance number
---@param meshes { [1]: integer, [2]: string }[]?
function trained.parity_on_all(settings, tolerance, meshes)
  local alone = trained.run(1, trained.with(settings, { mesh = "1x1" }))
  for _, mesh in ipairs(meshes or trained.MESHES) do
    assert_parity(alone, trained.run(mesh[1], trained.with(settings, { mesh = mesh[2] })), tolerance)
  end
end

return trained
