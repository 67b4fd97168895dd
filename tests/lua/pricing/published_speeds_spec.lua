-- Published training speeds (tests/bench/price): which rows of a table a plan can stand for, the fit of constants, and
-- the descriptions that they became.

package.path = "tests/bench/price/?.lua;" .. package.path
local cluster = require("moonshard.price.cluster")
local errors = require("error_table")
local fitted_description = require("fitted_description")
local has = require("lua.support.message").has
local least_squares = require("least_squares")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
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
    local stack = training_model.stacks((read(RUN:format(16, "shard=8,replicate=2,tp=1,pp=1", "bf16"))))[1]
    local as_shipped = training_model.predict(stack.runs[1], stack.description:struct())
    local usual = training_model.predictions(stack.runs, stack.description, training_model.usual())[1]
    assert.is_true(as_shipped > usual.predicted and usual.predicted > 0)
    local fitted = training_model.predictions(stack.runs, stack.description,
      training_model.fit(stack.runs, stack.description))[1]
    assert.is_true(math.abs(fitted.predicted / 3700 - 1) < math.abs(usual.predicted / 3700 - 1))
  end)

  it("E8 pay for a loss that several kernels compute, whichever kernel the plan has for it", function()
    local stack = training_model.stacks((read(RUN:format(8, "shard=8,replicate=1", "bf16"))))[1]
    local function speed(loss)
      local constants = training_model.usual()
      constants.loss = loss
      return training_model.predictions(stack.runs, stack.description, constants)[1].predicted
    end
    assert.is_true(speed(10) < speed(1))
  end)

  it("of runs that torch.compile compiled are another stack than those of others", function()
    local rows = read(RUN:format(8, "shard=8,replicate=1", "bf16")
      .. (RUN:format(8, "shard=8,replicate=1", "bf16"):gsub(",full,no,", ",full,yes,")))
    assert.same({ "a b, A100-SXM-80GB", "a b, A100-SXM-80GB, compiled" }, { rows[1].stack, rows[2].stack })
  end)

  it("with a field too few are an error that names the line", function()
    assert.error_matches(function() read("a,b,c\n") end, ":2: 3 fields.* 26")
  end)
end)

describe("a description of what was fitted", function()
  teardown(scratch.clear)

  local function fit_of(document)
    local stack = training_model.stacks((read(RUN:format(16, "shard=8,replicate=2,tp=1,pp=1", "bf16"))))[1]
    return { description = stack.description, constants = training_model.fit(stack.runs, stack.description),
      before = training_model.usual(), before_source = "usual", runs = stack.runs, document = document }
  end

  it("E8 says what the fit says, where it is from, and how good it is", function()
    local fit = fit_of("a b")
    fit.accuracy = 0.083
    local read_again = fitted_description.load(fit)
    local by_fit = training_model.predictions(fit.runs, fit.description, fit.constants)[1].predicted
    assert.near(1, training_model.predict(fit.runs[1], read_again:struct()) / by_fit, 0.005)
    assert.near(0.083, read_again.accuracy, 1e-9)
    has(read_again:explain(), "1 run | a b | 8.3 %")
  end)

  it("gives no link more than its network carries", function()
    local fit = fit_of()
    fit.description, fit.constants.between = cluster.load("h100x8-3200g"), 1.1
    for _, link in ipairs({ "ring_simple", "tree_simple" }) do
      local text = fitted_description.text(fit):match(link .. " = {.-between = { \"(.-)\"")
      assert.is_true(tonumber(text:match("^(%S+) %%$")) <= 100, text)
    end
    assert.is_truthy(fitted_description.load(fit))
  end)

  it("extends the hardware's by a path that holds from anywhere", function()
    local fit, path = fit_of(), scratch.path() .. "/mine.lua"
    local hardware = "build/hardware_of_spec.lua"
    scratch.write(hardware, 'return { extends = "a100-80x8", device = { issue = { "9 us", "here" } } }')
    fit.description = cluster.load(hardware)
    fitted_description.write(fit, path)
    local written = cluster.load(path)
    os.remove(hardware)
    assert.is_nil(written.accuracy)
    assert.is_true(written:struct().issue > 9e-6)
  end)

  -- Shipped description, and the rows that fitted it.
  local SHIPPED = {
    ["h100x8-3200g-pytorch"] = "llm%-foundry.*H100", ["a100-80x8-pytorch"] = "llm%-foundry.*A100.*80GB",
    ["a100-40x8-pytorch"] = "llm%-foundry.*A100.*40GB", ["marenostrum5-pytorch"] = "scaling_mn5",
  }

  it("E8 that is shipped prices published runs within its accuracy, on average", function()
    local by_stack = {}
    for i, row in ipairs((training_rows.read("tests/bench/price/data/published_training_speed.csv"))) do
      if i % 9 == 0 then by_stack[#by_stack + 1] = row end
    end
    local stacks = training_model.stacks(by_stack)
    for name, pattern in pairs(SHIPPED) do
      local shipped, judged = cluster.load(name), 0
      assert.is_true(shipped.accuracy > 0.02 and shipped.accuracy < 0.1, name)
      for _, stack in ipairs(stacks) do
        if stack.name:find(pattern) then
          local summary = errors.summarize(training_model.priced(stack.runs, shipped:struct()))
          assert.is_true(summary.mean < 100 * shipped.accuracy, ("%s: mean %.1f %%"):format(name, summary.mean))
          judged = judged + summary.n
        end
      end
      assert.is_true(judged >= 4, name)
    end
  end)

  it("has its accuracy on the pages of prices and of scaling studies", function()
    local accuracy = ("%.0f %%"):format(100 * cluster.load("a100-40x8-pytorch").accuracy)
    local price = program.run({ "price", "recipes/llama.lua", "-n", "8", "--cluster", "a100-40x8-pytorch", "size=1B",
      "seq=512", "batch=1" })
    assert.equal(0, price.status, price.err)
    has(price.out, "ms +-" .. accuracy)
    local folder = scratch.folder()
    local study = program.run({ "sweep", "recipes/scaling.lua", "out=" .. folder, "models=1B", "size=1B", "seq=512",
      "cluster=a100-40x8-pytorch", "shapes=fsdp", "nodes=1,2" })
    assert.equal(0, study.status, study.err)
    has(study.out, "a100-40x8-pytorch +-" .. accuracy)
    has(scratch.read(folder .. "/index.html"), "Bars: ±" .. accuracy)
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
