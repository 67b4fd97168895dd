-- Batches at the prompt: what every loader gives is tensors, which are indexed, printed and given to a model as any.

local has = require("lua.support.message").has
local program = require("lua.support.program")

local function repl(ranks, lines)
  local ended = program.run({ "repl", "-n", tostring(ranks) }, nil, table.concat(lines, "\n") .. "\n")
  assert.equal("", ended.err)
  assert.equal(0, ended.status)
  return ended.out
end

describe("a batch", function()
  it("I2 of any loader has tensors, for methods, models and ms.show", function()
    local path = program.recipe(("abcdefgh"):rep(20))
    local out = repl(1, {
      ("text = ms.data.text { files = %q, seq = 4, batch = 2, shuffle = false }"):format(path),
      "model = ms.models.gpt2 { vocab = 257, layers = 1, dim = 8, heads = 2, seq = 4 }",
      "masked = ms.data.masked { text, mask = 256, vocab = 256 }",
      "mix = ms.data.mix { { text, weight = 1 }, batch = 2 };",
      "random = ms.data.random { inputs = 4, targets = 2 }",
      "_, batch = text:batches(1)()",
      "batch.tokens", "batch.tokens[0]", "batch.targets[1][-1]:item()",
      "print(batch.tokens, 3)", "ms.show(batch.tokens)",
      "model(batch.tokens).shape",
      "ms.loss.cross_entropy(model(batch.tokens), batch.targets):item() > 0",
      "ms.tensor(batch.tokens, { dtype = 'f32' })",
      "_, batch = masked:batches(1)()", "model(batch.tokens).shape",
      "_, batch = mix:batches(1)()", "model(batch.tokens).shape",
      "_, batch = random:batches(ms.data.sampler { length = 8 }, 3)()",
      "(batch.inputs * batch.inputs):sum():item() > 0",
      "ms.nn.linear(4, 2)(batch.inputs).shape", "batch.targets:size()",
    })
    os.remove(path)
    local tokens = "[[97, 98, 99, 100],\n [101, 102, 103, 104]]"
    tokens = tokens:gsub("(%f[%d]9)", " %1")
    local shown = "tensor i32 [2,4]\n" .. tokens
    assert.equal(table.concat({
      shown, "tensor i32 [4]\n[ 97,  98,  99, 100]", "97", shown .. "\t3", shown, "{ 2, 4, 257 }", "true",
      (shown:gsub("i32", "f32")), "{ 2, 4, 257 }", "{ 2, 4, 257 }", "true", "{ 3, 2 }", "{ 3, 2 }", "",
    }, "\n"), out)
  end)

  it("I2 and other tables are printed by their fields, not by addresses that differ between ranks", function()
    local lines = {
      "data = ms.data.random { inputs = 2, targets = 1 }",
      "_, batch = data:batches(ms.data.sampler { length = 8 }, 2)();",
      "ms.show(batch)", "print({ 1, { 2 } }, {}, 'a', nil)", "ms.show { 'b' }",
    }
    local out = repl(2, lines)
    has(out, "{\n  batch_number = 1,\n | inputs = tensor f32 [2,2] | targets = tensor f32 [2,1]\n}\nrank 1 printed:")
    has(out, "\n{ 1, { 2 } }\t{}\ta\tnil\n{ \"b\" }\n")
    assert.falsy(out:find("0x", 1, true), out)
  end)
end)
