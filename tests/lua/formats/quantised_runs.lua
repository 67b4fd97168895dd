-- Runs of tests/lua/formats/recipes/quantised_sums.lua: real ranks, whose gradients, or weights, travel in few bits.

local assert = require("luassert")
local json = require("moonshard.base.text.json")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local runs = { RECIPE = "tests/lua/formats/recipes/quantised_sums.lua" }

local HOSTS = { "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1", "--hosts" }

---A list of words without what is nil.
---@param ranks integer|string their number, or hosts with theirs
---@return string[]
function runs.words_of(ranks, ...)
  local words = { "run", runs.RECIPE, "--log-ranks", "all", "--timeout", "60" }
  if type(ranks) == "number" then
    words[#words + 1], words[#words + 2] = "-n", tostring(ranks)
  else
    for _, word in ipairs(HOSTS) do words[#words + 1] = word end
    words[#words + 1] = ranks
  end
  for _, word in ipairs({ ... }) do words[#words + 1] = word end
  return words
end

---What every rank printed, which must be the same, and the number of replicas.
---@param environment string?
---@param ranks integer|string
---@return string line
---@return integer replicas
function runs.trained(environment, ranks, ...)
  local ended = program.run(runs.words_of(ranks, ...), environment)
  assert.equal(0, ended.status, ended.err)
  local found, replicas
  for replica, line in ended.out:gmatch("replica (%d+): ([^\n]*)") do
    assert.equal(found or line, line)
    found, replicas = line, math.max(replicas or 0, replica + 1)
  end
  assert.is_truthy(found, ended.out)
  return found, replicas
end

---The parameters alone, to the last bit: losses and norms are sums in f32, in the order of ranks.
---@param ranks integer|string
---@return string
function runs.parameters(ranks, ...) return (runs.trained(nil, ranks, ...):match("parameters %S+")) end

local made = {}

---What the first rank wrote; equal settings run once.
---@param ranks integer|string
---@return table
function runs.measured(ranks, ...)
  local key = table.concat({ ranks, ... }, " ")
  if made[key] then return made[key] end
  local out = os.tmpname()
  runs.trained(nil, ranks, "out=" .. out, ...)
  local read = json.decode(scratch.read(out))
  os.remove(out)
  made[key] = read
  return read
end

---Bytes of a piece of so many elements: codes, and an f32 for 256 of them.
---@param bits integer
---@param elements integer
---@return number
function runs.bytes_of(bits, elements)
  elements = math.ceil(elements / 8) * 8
  return elements * bits / 8 + 4 * math.ceil(elements / 256)
end

---Bytes of the pieces of n elements for so many replicas.
---@param bits integer
---@param n integer
---@param replicas integer
---@return number
function runs.bytes_of_piece(bits, n, replicas) return runs.bytes_of(bits, math.ceil(n / replicas)) end

---The shapes of the recipe's parameters.
---@param dim integer
---@return integer[][]
function runs.shapes(dim)
  local shapes = { { 41, dim }, { 9, dim }, { dim }, { dim }, { 41, dim } }
  local function add(...)
    for _, shape in ipairs({ ... }) do shapes[#shapes + 1] = shape end
  end
  for _ = 1, 2 do
    add({ dim }, { dim }, { dim }, { dim }, { 4 * dim, dim }, { 4 * dim }, { dim, 4 * dim }, { dim })
    for _ = 1, 4 do add({ dim, dim }, { dim }) end
  end
  return shapes
end

return runs
