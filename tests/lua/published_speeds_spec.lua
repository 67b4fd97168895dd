-- Published training speeds (tests/bench/price): which rows of a table a plan can stand for, and the fit of constants.

package.path = "tests/bench/price/?.lua;" .. package.path
local least_squares = require("least_squares")
local training_model = require("training_model")
local training_rows = require("training_rows")

local HEAD = "source,model,params_B,n_layers,d_model,n_heads,n_kv,d_ff,vocab,seq,gpus,gpu_type,gpus_per_node,"
  .. "intra_bw_GBps,inter_bw_Gbps,parallel,micro_batch,grad_accum,precision,act_ckpt,compile,tokens_per_s_per_gpu,"
  .. "tflops_per_gpu,mfu,peak_mem_GB,notes\n"

local function read(lines)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:write(HEAD, lines)
  file:close()
  local rows, refused = training_rows.read(path)
  os.remove(path)
  return rows, refused
end

local RUN = 'a b @1 [x],Llama,7,32,4096,32,8,11008,32000,4096,%s,A100-SXM-80GB,8,300,1600,"%s",2,3,%s,full,no,'
  .. '3700,,,,"a ""note"", of two parts"\n'

describe("rows of published training speeds", function()
  it("E8 are read with their mesh, batch and stack", function()
    local rows = read(RUN:format(16, "shard=8,replicate=2,tp=1,pp=1", "bf16"))
    assert.equal(1, #rows)
    local row = rows[1]
    assert.same({ 8, 2, 1, 2, 3, "full", 3700 },
      { row.shard, row.replicate, row.tensor, row.micro_batch, row.grad_accum, row.recompute, row.measured })
    assert.equal("a b, A100-SXM-80GB", row.stack)
  end)

  it("that no plan can stand for are counted by reason", function()
    local rows, refused = read(RUN:format(16, "shard=8,replicate=2,tp=1,pp=1", "float8")
      .. RUN:format(16, "shard=1,replicate=2,tp=1,pp=8", "bf16") .. RUN:format(16, "shard=2,replicate=1,tp=1", "bf16")
      .. RUN:format("", "shard=8,replicate=2", "bf16") .. RUN:format(16, "shard=16,replicate=1", "fp8"))
    assert.equal(0, #rows)
    assert.same({ why = "fp8", rows = 2 }, refused[1])
    assert.equal(4, #refused)
  end)

  it("E8 have a price on the described cluster, and one by the constants of a stack, which can be fitted", function()
    local stack = training_model.stacks(read(RUN:format(16, "shard=8,replicate=2,tp=1,pp=1", "bf16")))[1]
    local as_shipped = training_model.predict(stack.runs[1], stack.description:struct())
    local usual = training_model.predictions(stack.runs, stack.description, training_model.usual())[1]
    assert.is_true(as_shipped > usual.predicted and usual.predicted > 0)
    local fitted = training_model.predictions(stack.runs, stack.description,
      training_model.fit(stack.runs, stack.description))[1]
    assert.is_true(math.abs(fitted.predicted / 3700 - 1) < math.abs(usual.predicted / 3700 - 1))
  end)

  it("with a field too few are an error that names the line", function()
    assert.error_matches(function() read("a,b,c\n") end, ":2: 3 fields.* 26")
  end)
end)

describe("the fit of constants", function()
  local unknowns = {
    { start = 1, spread = 2, low = 0.01, high = 100 }, { start = 1, spread = 2, low = 0.01, high = 100 },
  }

  local function residuals_of(disturbed)
    return function(values)
      local list = {}
      for x = 1, 20 do
        local measured = 3 * x + 0.5 * (x == disturbed and 100 or 1)
        list[x] = math.log((values[1] * x + values[2]) / measured) / 0.01
      end
      return list
    end
  end

  it("finds them", function()
    local values = least_squares.minimize(residuals_of(), unknowns)
    assert.near(3, values[1], 0.01)
    assert.near(0.5, values[2], 0.01)
  end)

  it("is hardly moved by one disturbed measurement", function()
    local values = least_squares.minimize(residuals_of(7), unknowns)
    assert.near(3, values[1], 0.05)
  end)

  it("stays between the bounds", function()
    local narrow = { { start = 1, spread = 2, low = 0.5, high = 2 }, unknowns[2] }
    assert.near(2, least_squares.minimize(residuals_of(), narrow)[1], 1e-6)
  end)
end)
