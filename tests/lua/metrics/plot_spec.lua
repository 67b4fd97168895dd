-- ms.plot and ms.histogram: curves and distributions in the terminal, once from all ranks, at the prompt and in
-- recipes.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local function repl(ranks, lines)
  return program.run({ "repl", "-n", tostring(ranks) }, nil, table.concat(lines, "\n") .. "\n")
end

local function count(text, part) return select(2, text:gsub(part, "")) end

describe("ms.plot", function()
  it("I2 draws lists, pairs, tensors and several series by name, once from all ranks", function()
    local ended = repl(2, {
      "ms.plot({ 1, 2 }, { rows = 3 })",
      "print '-'",
      "ms.plot({ b = { { 1, 0 }, { 2, 4 } }, a = ms.tensor { 4, 4, 3 } }, { title = 'two', x = 'step' })",
      "print '-'",
      "@1 ms.plot({ 5, 5 + rank })",
    })
    assert.equal("", ended.err)
    local first, second, third = ended.out:match("^(.-)%-\n(.-)%-\n(.-)$")
    assert.equal(5, count(first, "\n"), first)
    has(first, "2 ┤ | ⠊⠉⠉⠉\n | 1 ┤⣀⣀⣀ | └┴ | ┴\n")
    has(second, "two   ⠤a a   ⠤b b\n | ┤ | a\n | ┴ | 2 | step\n")
    assert.equal(3, count(second, "%f[%w]b"), second) -- in the legend twice, and at the end of its line
    has(third, "rank 1 printed:\n | 6.0 ┤ | 5.0 ┤")
  end)

  it("I2 refuses what has no curve, and says what has one", function()
    local err = repl(1, {
      "ms.plot(ms.zeros(2, 2))", "ms.plot {}", "ms.plot { a = 3 }", "ms.plot { 1, 'x' }",
      "ms.histogram(ms.nn.linear(2, 2).weight)", "ms.plot({ 1 }, { colour = 1 })",
    }).err
    has(err, "ms.plot of a tensor [2,2] | ms.histogram(x)\n | an empty table\n | ms.plot: a takes | not 3\n")
    has(err, "item 2 must be | train:gradient(name)\n | unknown option colour")
  end)
end)

describe("ms.histogram", function()
  it("I2 draws how values are distributed, with their numbers, and what is not finite apart", function()
    local out = repl(2, { "ms.histogram({ 1, 2, 2, 3, 3, 3, 0/0, 1/0 }, { bins = 3, rows = 4 })" }).out
    local lines = {}
    for line in out:gmatch("[^\n]+") do lines[#lines + 1] = line end
    assert.equal("6 values, mean 2.333, std 0.8165, from 1 to 3; 1 NaN; 1 infinite", (lines[1]:gsub("^ +", "")))
    assert.equal(7, #lines)
    local widths = {}
    for i = 2, 5 do widths[i - 1] = count(lines[i], "\226[\160-\163].") end
    assert.is_true(widths[1] < widths[2] and widths[2] < widths[3] and widths[3] == widths[4], out)
    has(repl(1, { "ms.histogram(ms.zeros(5))" }).out, "tensor f32 [5]: 5 values, mean 0, std 0, from 0 to 0\n | ┤ | ⣿")
  end)

  it("I2 of a gradient gathers it on all ranks, and a recipe prints it once", function()
    local path = program.recipe [[
      local ms = require "moonshard"
      local mesh = ms.init_device_mesh("cpu", "2", { "shard" })
      local model = ms.nn.sequential { ms.nn.linear(6, 4), ms.nn.linear(4, 2) }
      ms.fully_shard(model, { mesh = mesh, units = { ms.re[=[^\d$]=] } })
      local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }
      local data = ms.data.random { inputs = 6, targets = 2 }
      local _, batch = data:batches(ms.data.sampler { length = data.length, mesh = mesh }, 4)()
      train:step(batch)
      ms.histogram(train:gradient("0.weight"))
      ms.histogram(train:parameter("0.weight"))
      ms.histogram(train:local_gradient("0.weight"))
    ]]
    local ended = program.run({ "run", path, "-n", "2" })
    os.remove(path)
    assert.equal("", ended.err)
    assert.equal(2, count(ended.out, "tensor f32 %[4,6%], replicated: 24 values"), ended.out)
    assert.equal(1, count(ended.out, "shard 0 of 2: rows 0 to 1 of %[4,6%]: 12 values"), ended.out)
  end)
end)
