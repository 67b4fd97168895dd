-- Plans for meshes of three and four dimensions: the collectives of a block and their bytes are those counted by hand,
-- for GPT-2 and Llama, and a plan made without launching is the one of each launched rank.

local json = require("moonshard.base.text.json")
local breadth = require("lua.support.breadth")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

local RECIPE = "tests/lua/recipes/tensor_parallel.lua"

local function read_json(text) return assert(json.decode(text)) end

-- ---- counts and bytes by hand ------------------------------------------------------------------------------------

local BATCH, SEQ, DIM, HIDDEN = 2, 16, 32, 48
local T = 4 -- ranks of tensor
local S = 2 -- ranks that own parts of weights

local counted = {}
for _, model in ipairs({ "gpt2", "llama" }) do
  for _, sequence in ipairs({ "false", "true" }) do
    counted[model .. " " .. sequence] = { "plan", RECIPE, "-n", tostring(S * T), "--json",
      ("mesh=1x%dx1x%d"):format(S, T),
      "dtype=bf16", "model=" .. model, "kv_heads=4", "sequence_parallel=" .. sequence }
  end
end
for rank = 0, 3 do
  counted["context " .. rank] = { "plan", RECIPE, "-n", "4", "--rank", tostring(rank), "--json", "mesh=1x1x4x1",
    "model=llama", "kv_heads=2" }
end

local planned

local function plan_of(name)
  planned = planned or program.run_all(counted)
  assert.equal(0, planned[name].status, planned[name].err)
  planned[name].plan = planned[name].plan or read_json(planned[name].out)
  return planned[name].plan
end

local function first_of(plan)
  for _, phase in ipairs(plan.phases) do
    if phase.name == "first" then return phase end
  end
end

-- The bytes of each collective of a kind over a dimension, of modules whose names match, before or after the first
-- kernel of the backward pass; nil for both.
local function bytes_of(plan, kind, dim, module, backward)
  local list, is_backward = {}, false
  for _, instr in ipairs(first_of(plan).instructions) do
    is_backward = is_backward or instr.backward == true
    if instr.kind == "collective" and instr.op == kind and instr.dim == dim and instr.scope:find(module)
      and (backward == nil or backward == is_backward) then
      list[#list + 1] = instr.bytes
    end
  end
  return list
end

-- n collectives of as many bytes each.
local function times(n, bytes)
  local list = {}
  for i = 1, n do list[i] = bytes end
  return list
end

-- What a collective of this many bytes in all moves on a ring.
local function ring(ranks, bytes) return (ranks - 1) / ranks * bytes end

local ACTIVATION = BATCH * SEQ * DIM * 2 -- bf16

-- Elements of a block: those that tensor divides, and the others.
local function elements_of(model)
  local square = DIM * DIM
  if model == "llama" then return 4 * square + 3 * DIM * HIDDEN, 2 * DIM end
  local mlp = 4 * DIM
  return 4 * square + 3 * DIM + 2 * DIM * mlp + mlp, 2 * DIM + 4 * DIM -- the biases of wo and fc2; two norms
end

describe("collectives of a block", function()
  it("T2 over tensor without sequence parallelism: two all-reduces each way", function()
    for _, model in ipairs({ "gpt2", "llama" }) do
      local plan, whole = plan_of(model .. " false"), 2 * ring(T, ACTIVATION)
      assert.same(times(2, whole), bytes_of(plan, "all_reduce", "tensor", "^layers%.1%.", false))
      assert.same({}, bytes_of(plan, "all_gather", "tensor", "^layers%.1%."))
      assert.same({}, bytes_of(plan, "reduce_scatter", "tensor", "^layers%.1%."))
      local backward, small = 0, 0
      for _, bytes in ipairs(bytes_of(plan, "all_reduce", "tensor", "^layers%.1%.", true)) do
        if bytes == whole then backward = backward + 1 else small = small + 1 end
      end
      assert.equal(2, backward, model)
      assert.is_true(small <= 1) -- gradients of what all ranks have, together
    end
  end)

  it("T2 over tensor with it: two all-gathers and two reduce-scatters forward, two reduce-scatters backward", function()
    for _, model in ipairs({ "gpt2", "llama" }) do
      local plan, half = plan_of(model .. " true"), ring(T, ACTIVATION)
      assert.same(times(2, half), bytes_of(plan, "all_gather", "tensor", "^layers%.1%.", false))
      assert.same(times(2, half), bytes_of(plan, "reduce_scatter", "tensor", "^layers%.1%.", false))
      assert.same({}, bytes_of(plan, "all_reduce", "tensor", "^layers%.1%.", false))
      assert.same(times(2, half), bytes_of(plan, "reduce_scatter", "tensor", "^layers%.1%.", true))
      local gathers = bytes_of(plan, "all_gather", "tensor", "^layers%.1%.", true)
      assert.is_true(#gathers == 2 or #gathers == 4) -- of gradients, and of inputs where they are not kept
      assert.same(times(#gathers, half), gathers)
      assert.is_true(#bytes_of(plan, "all_reduce", "tensor", "^layers%.1%.", true) <= 1)
    end
  end)

  it("T2 over tensor outside of blocks: the embedding's sum, the head's input, and two numbers a row", function()
    for _, model in ipairs({ "gpt2", "llama" }) do
      local numbers = ring(T, T * BATCH * SEQ * 2 * 4)
      local plan, half = plan_of(model .. " false"), ring(T, ACTIVATION)
      local function outside(kind, backward)
        local list = bytes_of(plan, kind, "tensor", "", backward)
        local inside = #bytes_of(plan, kind, "tensor", "^layers", backward)
        return #list - inside, list
      end
      assert.equal(1, (outside("all_reduce", false)))
      local gathers = select(2, outside("all_gather", false))
      assert.same({ numbers }, gathers)
      plan = plan_of(model .. " true")
      assert.equal(1, (outside("reduce_scatter", false)))
      assert.equal(2, (outside("all_gather", false)))
      assert.equal(1, #bytes_of(plan, "reduce_scatter", "tensor", "^head", true))
      assert.same(times(#bytes_of(plan, "reduce_scatter", "tensor", ""), half),
        bytes_of(plan, "reduce_scatter", "tensor", ""))
    end
  end)

  it("T2 over shard: the part of a rank of tensor, and all of what it does not divide", function()
    for _, model in ipairs({ "gpt2", "llama" }) do
      local divided, whole = elements_of(model)
      local gathered = ring(S, 2 * (divided / T + whole))
      for _, sequence in ipairs({ " false", " true" }) do
        local plan = plan_of(model .. sequence)
        assert.same({ gathered, gathered }, bytes_of(plan, "all_gather", "shard", "^layers%.0$"))
        assert.same({ gathered }, bytes_of(plan, "all_gather", "shard", "^layers%.1$"))
        assert.same({ 2 * gathered }, bytes_of(plan, "reduce_scatter", "shard", "^layers%.0$")) -- in f32
      end
    end
  end)

  it("C2 C3 over context: equal work on all ranks, two gathers of keys and values, two sums of gradients", function()
    local flops = first_of(plan_of("context 0")).flops
    local bytes = ring(4, BATCH * SEQ * 2 * (DIM / 4) * 4)
    for rank = 0, 3 do
      local plan = plan_of("context " .. rank)
      assert.equal(flops, first_of(plan).flops)
      assert.same(times(2, bytes), bytes_of(plan, "all_gather", "context", "^layers%.1", false))
      assert.same(times(2, bytes), bytes_of(plan, "reduce_scatter", "context", "^layers%.1", true))
      assert.same({}, bytes_of(plan, "reduce_scatter", "context", "^layers%.1", false))
    end
  end)
end)

-- ---- plans without ranks ------------------------------------------------------------------------------------------

local MESHES = breadth.few {
  { 8, "2x2x1x2", "dropout=0.1", "sequence_parallel=true", "layout=ragged" },
  { 8, "2x1x2x2", "documents=true", "tied=true", "dtype=bf16" },
  { 8, "1x2x2x2", "model=llama", "sequence_parallel=true", "dropout=0.1" },
}

local function settings(mesh, ...)
  local list = { "mesh=" .. mesh[2], "steps=2", unpack(mesh, 3) }
  for _, more in ipairs({ ... }) do list[#list + 1] = more end
  return unpack(list)
end

describe("plans without ranks", function()
  teardown(scratch.clear)

  it("T10 are those of every launched rank, which moves and keeps what they say", function()
    local runs, folder = {}, scratch.folder()
    for i, mesh in ipairs(MESHES) do
      runs["run " .. i] = { "run", RECIPE, "-n", tostring(mesh[1]), "--timeout", "120", settings(mesh,
        ("facts=%s/%d"):format(folder, i)) }
      for rank = 0, mesh[1] - 1 do
        runs[i .. "." .. rank] = { "plan", RECIPE, "-n", tostring(mesh[1]), "--rank", tostring(rank), "--json",
          "--summary", settings(mesh) }
      end
    end
    local ended = program.run_all(runs)
    for i, mesh in ipairs(MESHES) do
      assert.equal(0, ended["run " .. i].status, ended["run " .. i].err)
      for rank = 0, mesh[1] - 1 do
        local name = ("rank %d of %s"):format(rank, mesh[2])
        local facts, plan = read_json(scratch.read(("%s/%d.%d"):format(folder, i, rank))),
          read_json(ended[i .. "." .. rank].out)
        assert.equal(rank, plan.rank)
        assert.equal(facts.plan.fingerprint, plan.fingerprint, name)
        assert.equal(facts.plan.peak_bytes, plan.peak_bytes, name)
        assert.same(facts.plan.bytes, plan.bytes, name)
        assert.same(facts.plan.comm_bytes, plan.comm_bytes, name)
        for dim, bytes in pairs(plan.comm_bytes) do
          assert.is_true(math.abs(2 * bytes - facts.counted.comm_bytes[dim]) <= 1e-9 * bytes, name .. " over " .. dim)
        end
      end
    end
  end)

  it("T10 take 512 ranks in four dimensions, and divide gathers by the ranks of tensor", function()
    local function plan(rank, mesh)
      return { "plan", "recipes/llama.lua", "-n", "512", "--rank", rank, "--ranks-per-node", "8", "--json", "size=70B",
        "seq=8192", "batch=1", "files=README.md", "mesh=" .. mesh }
    end
    local ended = program.run_all({
      first = plan("0", "2x16x2x8"), last = plan("511", "2x16x2x8"), some = plan("137", "2x16x2x8"),
      whole = plan("0", "16x16x2x1"),
    })
    local function gathers(name)
      assert.equal(0, ended[name].status, ended[name].err)
      return bytes_of(read_json(ended[name].out), "all_gather", "shard", "^layers%.40$")
    end
    local dim, keys, hidden = 8192, 8 * 128, 28672
    local divided, whole = 2 * dim * dim + 2 * keys * dim + 3 * dim * hidden, 2 * dim
    local once = ring(32, 2 * (divided / 8 + whole))
    for _, name in ipairs({ "first", "last", "some" }) do assert.same({ once, once }, gathers(name)) end
    local norms = ring(32, 2 * whole)
    assert.equal(8 * (once - norms), gathers("whole")[1] - norms)
    assert.equal(read_json(ended.first.out).fingerprint, read_json(ended.last.out).fingerprint)
  end)
end)
