-- Documentation at the prompt: ?name, help(name), the words that other prompts take.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local function repl(ranks, lines)
  return program.run({ "repl", "-n", tostring(ranks) }, nil, table.concat(lines, "\n") .. "\n")
end

local TRAINING = {
  'local model = ms.nn.sequential { ms.nn.linear(16, 32), ms.ops.relu, ms.nn.linear(32, 4) }',
  [[ms.fully_shard(model, { mesh = 1, units = { re"^\\d$" } });]],
  'local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 1e-2 }, loss = ms.loss.mse };',
}

local function training(lines)
  local all = { unpack(TRAINING) }
  for _, line in ipairs(lines) do all[#all + 1] = line end
  return all
end

describe("documentation at the prompt", function()
  it("I1 has functions, methods, modules and ops #release", function()
    local ended = repl(1, training({
      "?ms.optim.adamw", "?train:step", "?softmax", "?ms.nn", "?ms.trainr", "?train.optimizer", "function f(a, b) end",
      "?f", "?ms.trainer", "?zzzzzzzzzzzz", "?ms.schedule",
    }))
    assert.falsy(ended.out:find("peak_of"))
    has(ended.out, "ms.optim.adamw(o)\n | Loshchilov & Hutter 2019 | \n    betas?  number[] ")
    has(ended.out, "train:step(batch)\n | Collective | \n  batch table<")
    has(ended.out, "softmax | op | 1 input | layer_norm | Ba et al. 2016 | Half a cosine")
    has(ended.out, "configure | ms_plan_config")
    has(ended.out, "f  function (stdin:")
    has(ended.out, "  o moonshard.TrainerOptions\n    model  moonshard.Module\n")
    has(ended.out, '"last": only in the\n      last one (fewer') -- and what follows such a line
    has(ended.out, "\n    memory_limit? | number")
    has(ended.err, "ms.trainr | trainer?")
    has(ended.err, "zzzzzzzzzzzz | :vars | ?ms")
  end)

  it("I1 shows all of ms, and what ms has of a name, before any of it was used #release", function()
    local ended = repl(1, { "?ms", "?qwen3", "?cosine", "?module", "n = 3", "?n.x", "?7", "help(ms.data)" })
    has(ended.out, "\n  args | \n  models | \n  module | class | \n  optim | \n  version | 0.")
    has(ended.out, "ms.models.qwen3(given)\n | family | ms.schedule.cosine(o)\n | total | ms.module")
    assert.falsy(ended.out:find("@field", 1, true), ended.out)
    has(ended.err, "n.x | a number | 7 | ?ms.trainer")
  end)

  it("I1 takes the words of other prompts: help, help(name), exit and quit() #release", function()
    local ended = repl(2, {
      "help", "help(ms.optim.sgd)", "help('softmax')", ":help save", ":help time", "?clip_grad_norm", "?betas",
      ":help gather_dtype", "help(zzzzzzzzzzzz)", "exit = 3", "exit", "print('on')", "quit()", "print('off')",
    })
    has(ended.out, ":vars | ms.optim.sgd(o)\n | nesterov? | softmax | op | :save FILE | :time on")
    has(ended.out, "clip_grad_norm, an option of ms.trainer\n    clip_grad_norm? ")
    has(ended.out, "betas, an option of ms.optim.adam, ms.optim.adamw\n    betas? | ms.optim.lion\n")
    has(ended.out, "gather_dtype, an option of ms.fully_shard\n")
    assert.is_truthy(ended.out:find("\n3\non\n$"))
    has(ended.err, "zzzzzzzzzzzz | :vars")
    assert.same({ status = 0, out = "", err = "" }, repl(2, { "exit", "1" }))
    assert.same({ status = 0, out = "", err = "" }, repl(2, { "exit()", "1" }))
  end)

  it("I1 help(object) lists its methods, also those of its class, and for a tensor the ops #release", function()
    local ended = repl(1, {
      "model = ms.nn.sequential { ms.nn.linear(4, 2) }", "help(model)", "x = ms.tensor { 1, 2 }", "help(x)",
      "train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.1 }, loss = ms.loss.mse }", "help(train)",
      "ms.tensor({ 1, 2, dtype = 'i32' }):sum()",
    })
    has(ended.out, "forward | named_parameters | first name\n | parameter | f32 | state_dict")
    assert.falsy(ended.out:find("\n  init "), ended.out)
    has(ended.out, "x:expand(sizes ...) | x:view(sizes ...) | print(ms.ops.help()) | add, | softmax,")
    has(ended.out, "evaluate | forward only\n | step | One optimizer step")
    for line in ended.out:gmatch("[^\n]+") do assert.is_true(#line <= 140, line) end
    has(ended.err, "sum: x is i32; it must be f32 or bf16: cast it first")
  end)
end)
