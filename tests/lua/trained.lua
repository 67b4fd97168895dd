-- Runs tests/lua/recipes/parity.lua on real ranks, and compares what two runs ended with: losses, norms and every
-- parameter.

local compare = require("moonshard.check.tolerance")
local json = require("cjson")
local program = require("lua.program")

local trained = {
  ---Ranks, and the sizes of (replicate, shard).
  MESHES = { { 2, "1x2" }, { 3, "1x3" }, { 4, "1x4" }, { 4, "2x2" }, { 2, "2x1" }, { 4, "4x1" } },
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
  for name, value in pairs(settings) do words[#words + 1] = ("%s=%s"):format(name, tostring(value)) end
  table.sort(words)
  for _, option in ipairs(options or {}) do words[#words + 1] = option end
  local key = ranks .. " " .. table.concat(words, " ")
  if runs[key] then return runs[key] end
  local out = os.tmpname()
  local ended = program.run({
    "run", "tests/lua/recipes/parity.lua", "-n", tostring(ranks), "out=" .. out, unpack(words),
  })
  assert(ended.status == 0, ended.err)
  local file = assert(io.open(out))
  local text = file:read("*a")
  file:close()
  os.remove(out)
  runs[key] = json.decode(text)
  return runs[key]
end

---A list of settings for a spec beside parity_spec. Sanitizers see there what they would see again here: under them the
---last stands for all.
---@generic T
---@param list T[]
---@return T[]
function trained.few(list)
  return os.getenv("MOONSHARD_CONFIG") == "release" and list or { list[#list] }
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

local function assert_parity(expected, got, tolerance)
  trained.assert_close(expected.losses, got.losses, tolerance, "losses")
  trained.assert_close(expected.norms, got.norms, tolerance, "norms")
  for name, values in pairs(expected.params) do
    trained.assert_close(values, got.params[name], compare.PARAMETERS * tolerance, name)
  end
end
trained.assert_parity = assert_parity

---Bit for bit, without printing thousands of numbers when it is not so.
function trained.assert_same(expected, got) assert_parity(expected, got, 0) end

---Every mesh beside one rank, with the same settings.
function trained.parity_on_all(settings, tolerance)
  local alone = trained.run(1, trained.with(settings, { mesh = "1x1" }))
  for _, mesh in ipairs(trained.MESHES) do
    assert_parity(alone, trained.run(mesh[1], trained.with(settings, { mesh = mesh[2] })), tolerance)
  end
end

return trained
