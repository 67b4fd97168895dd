-- Pairs of answers: their rows, the loss of direct preference optimisation by PyTorch's numbers, and a policy that
-- trains against a frozen reference on several meshes.

local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local message = fixture.message
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

teardown(scratch.clear)

local function write(lines)
  local path = scratch.path() .. ".jsonl"
  scratch.write(path, table.concat(lines, "\n") .. "\n")
  return path
end

local TEMPLATE = { user = { "<", ">" }, assistant = { "[", "]" } }

local function with(lines, more)
  local o = { files = write(lines), seq = 16, batch = 1, shuffle = false, template = TEMPLATE }
  for key, value in pairs(more or {}) do o[key] = value end
  return ms.data.preferences(o)
end

-- The rows of the first batch: texts of tokens and of targets.
local function rows(data)
  local _, batch = data:batches(1)()
  local found, columns = {}, batch.tokens.shape[2]
  for row = 0, batch.tokens.shape[1] - 1 do
    local tokens, targets = {}, {}
    for i = 0, columns - 1 do
      local token, target = batch.tokens.data[row * columns + i], batch.targets.data[row * columns + i]
      tokens[i + 1] = token == 0 and "_" or string.char(token)
      targets[i + 1] = target == -100 and "." or string.char(target)
    end
    found[#found + 1] = table.concat(tokens):gsub("_+$", "") .. " " .. table.concat(targets):gsub("%.+$", "")
  end
  return found, batch
end

describe("ms.data.preferences", function()
  it("G5 has rows of chosen and rejected answers in turn, with targets on answers only", function()
    local expected = { "<Q>[yes] ...yes]", "<Q>[no] ...no]" }
    local found, batch = rows(with { '{"prompt": "Q", "chosen": "yes", "rejected": "no"}' })
    assert.same(expected, found)
    assert.same({ 2, 16 }, batch.tokens.shape)
    local function messages(...)
      local list = {}
      for i, text in ipairs({ ... }) do
        list[i] = ('{"role": "%s", "content": "%s"}'):format(i % 2 == 1 and "user" or "assistant", text)
      end
      return "[" .. table.concat(list, ", ") .. "]"
    end
    assert.same(expected, (rows(with { ('{"prompt": %s, "chosen": "yes", "rejected": "no"}'):format(messages "Q") })))
    assert.same(expected, (rows(with { ('{"chosen": %s, "rejected": %s}'):format(messages("Q", "yes"),
      messages("Q", "no")) })))
    assert.same({ "<Q>[a]<b>[yes] .........yes]", "<Q>[a]<b>[no] .........no]" },
      (rows(with { ('{"chosen": %s, "rejected": %s}'):format(messages("Q", "a", "b", "yes"),
        messages("Q", "a", "b", "no")) })))
    local repeated = { messages("Q", "a", "b"), messages("Q", "a", "b", "yes"), messages("Q", "a", "b", "no") }
    assert.same({ "<Q>[a]<b>[yes] .........yes]", "<Q>[a]<b>[no] .........no]" }, (rows(with {
      ('{"prompt": %s, "chosen": %s, "rejected": %s}'):format(unpack(repeated)) })))
    assert.same(expected, (rows(with { ('{"prompt": "Q", "chosen": %s, "rejected": %s}'):format(messages("Q", "yes"),
      messages("Q", "no")) })))
  end)

  local function pair(prompt, messages)
    local function list(answer)
      local texts = {}
      for role, content in (messages .. " " .. answer):gmatch("(%a+)=(%w+)") do
        texts[#texts + 1] = ('{"role": "%s", "content": "%s"}'):format(role, content)
      end
      return "[" .. table.concat(texts, ", ") .. "]"
    end
    return ('{"prompt": %s, "chosen": %s, "rejected": %s}'):format(prompt, list "assistant=yes", list "assistant=no")
  end

  it("G5 takes conversations that have the prompt as they are", function()
    local template = { user = { "<", ">" }, assistant = { "[", "]" }, system = { "{", "}" } }
    local function texts(...) return (rows(with({ pair(...) }, { template = template }))) end
    local expected = { "{S}<Q>[yes] ......yes]", "{S}<Q>[no] ......no]" }
    assert.same(expected, texts('"Q"', "system=S user=Q"))
    assert.same(expected, texts('"Q", "system": "S"', "system=S user=Q"))
    assert.same(expected, texts('"Q", "system": "S"', "user=Q"))
    assert.same(expected, texts('[{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]', "user=Q"))
    assert.same(expected, texts('[{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]', ""))
    assert.same(expected, texts('""', "system=S user=Q"))
    local longer = { "<O>[A]<Q>[yes] .........yes]", "<O>[A]<Q>[no] .........no]" }
    for _, prompt in ipairs({ '"O"', '"Q"', '[{"role": "user", "content": "Q"}]', "[]" }) do
      assert.same(longer, texts(prompt, "user=O assistant=A user=Q"))
    end
    assert.same({ "<O>[A]<Q>[yes] ...A]....yes]", "<O>[A]<Q>[no] ...A]....no]" }, texts('"O"', "assistant=A user=Q"))
  end)

  it("G5 refuses a prompt that conversations do not have, with both texts", function()
    local function refused(...) return message(with, { pair(...) }) end
    has(refused('"P"', "user=Q"), '.jsonl:1: | prompt | chosen | user "P" | user "Q" | ignore')
    has(refused('"Q "', "system=S user=Q"), '.jsonl:1: | user "Q " | user "Q"')
    has(refused('[{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, '
      .. '{"role": "user", "content": "R"}]', "user=Q"), '.jsonl:1: | assistant "A" | assistant "yes"')
    has(refused('"Q", "system": "T"', "system=S user=Q"), '.jsonl:1: | "S" by chosen | "T" by system')
    has(refused('[{"role": "system", "content": "T"}, {"role": "user", "content": "Q"}]', "system=S user=Q"),
      '.jsonl:1: | "S" by chosen | "T" by prompt')
    has(message(with, { '{"prompt": "q", "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", '
      .. '"content": "a"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}], '
      .. '"rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}]}' }),
      ".jsonl:1: | chosen | rejected | last messages | prompt")
  end)

  it("G5 leaves out pairs whose prompt fills the row, and counts what it cuts", function()
    local long = ("q"):rep(20)
    local data = with {
      '{"prompt": "Q", "chosen": "a very long answer", "rejected": "no"}',
      ('{"prompt": "%s", "chosen": "yes", "rejected": "no"}'):format(long),
      '{"prompt": "Q", "chosen": "yes", "rejected": "no"}',
      '{"prompt": "Q", "chosen": "a very long answer, good", "rejected": "a very long answer, bad"}',
    }
    assert.same({ 2, 1, 2 }, { data.pairs, data.cut, data.left_out })
    assert.equal(2, data.n)
  end)

  it("G5 says where a line is wrong", function()
    local function refused(line) return message(with, { line }) end
    has(refused '{"chosen": "a", "rejected": "b"}', ":1 | prompt")
    has(refused '{"prompt": "q", "chosen": "a"}', ":1 | rejected | text")
    has(refused '{"prompt": "q", "chosen": 1, "rejected": "b"}', ":1 | chosen | 1")
    has(refused '{"prompt": [], "chosen": "a", "rejected": "b"}', ":1 | prompt | list")
    has(refused '{"prompt": "q", "chosen": [{"role": "user", "content": "x"}], "rejected": "b"}',
      ":1 | chosen | assistant")
    has(refused '{"prompt": "q", "chosen": "", "rejected": "b"}', ":1 | chosen is empty | line")
    has(refused '{"prompt": "q", "chosen": "a", "rejected": " \\n"}', ":1 | rejected is empty")
    has(refused('{"chosen": [{"role": "assistant", "content": "x"}], '
      .. '"rejected": [{"role": "assistant", "content": ""}]}'), ":1 | rejected is empty")
    has(refused '{"prompt": "q", "chosen": "same", "rejected": "same"}', ":1 | chosen | rejected | the same")
    has(message(with, { '{"prompt": "q", "chosen": "a", "rejected": "b"}', "",
      '{"prompt": "q", "chosen": "a", "rejected": [{"role": "assistant", "content": "a"}]}' }),
      ":3 | chosen | rejected | the same")
    for _, other in ipairs({ '{"role": "user", "content": "r"}', '{"role": "system", "content": "q"}',
      '{"role": "user", "content": "q"}, {"role": "user", "content": "q"}' }) do
      has(refused(('{"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], '
        .. '"rejected": [%s, {"role": "assistant", "content": "b"}]}'):format(other)),
        ":1 | chosen | rejected | last messages | prompt")
    end
    has(message(with, {}), "no pair")
    has(message(with, { ('{"prompt": "%s", "chosen": "a", "rejected": "b"}'):format(("q"):rep(40)) }), "seq")
    has(message(with, { '{"prompt": "q", "chosen": "a", "rejected": "b"}' }, { batch = 2 }),
      "1 pairs | 2 pairs per step")
  end)
end)

-- ---- the loss ---------------------------------------------------------------------------------------------------

local file = ms.safetensors.open("tests/fixtures/dpo/dpo.safetensors")

local function nested(name, dtype)
  local shape, values = file:tensor(name).shape, huggingface.values_of(file, name)
  return ms.tensor(values, { dtype = dtype or "f32" }):reshape(unpack(shape))
end

local function targets_of()
  local data, memory = file:tensor("targets"), {}
  local bytes = require("ffi").new("int32_t[?]", data.elements)
  file:read("targets", 0, 4 * data.elements, bytes)
  for i = 1, data.elements do memory[i] = bytes[i - 1] end
  return ms.tensor(memory, { dtype = "i32" }):reshape(unpack(data.shape))
end

describe("ms.loss.dpo", function()
  it("G8 has PyTorch's loss and gradient, and none for the reference", function()
    local targets = targets_of()
    fixture.assert_close(huggingface.values_of(file, "log_likelihood"),
      ms.loss.log_likelihood(nested "policy", targets):tolist(), 1e-6, "log_likelihood")
    for i = 0, 2 do
      local case = huggingface.values_of(file, "case." .. i)
      local loss = ms.loss.dpo { beta = case[1], label_smoothing = case[2] }
      local model = ms.module {
        shift = ms.parameter { 6, 7, 11, init = "zeros" }, other = ms.parameter { 6, 7, 11, init = "zeros" },
        forward = function(self, x, y) return x + self.shift, y + self.other end,
      }
      ms.fully_shard(model)
      local train = ms.trainer {
        model = model, optimizer = ms.optim.sgd { lr = 0 },
        forward = function(whole, batch)
          local policy, reference = whole(batch.tokens, batch.reference)
          return loss(policy, reference, batch.targets)
        end,
      }
      local got = train:step({ tokens = nested "policy", reference = nested "reference", targets = targets }).loss
      fixture.assert_close(huggingface.values_of(file, "loss." .. i), { got }, 1e-6, "loss")
      fixture.assert_close(huggingface.values_of(file, "gradient." .. i),
        train:gradient("shift"):reshape(-1):tolist(), 1e-5, "gradient")
      assert.equal(0, train:optimizer_state("other", "step"):item())
    end
  end)

  it("G8 refuses what makes no sense", function()
    local x, y = ms.zeros(3, 2, 5), ms.zeros(3, 2, { dtype = "i32" })
    has(message(ms.loss.dpo, { beta = 0 }), "ms.loss.dpo | beta | 0")
    has(message(ms.loss.dpo, { label_smoothing = 0.5 }), "label_smoothing | 0.5")
    has(message(ms.loss.dpo, x), "options first")
    has(message(ms.loss.dpo(), x, x, y), "3 rows | pairs")
    has(message(ms.loss.dpo(), x, ms.zeros(2, 2, 5), y), "reference | [2,2,5] | [3,2]")
    has(message(ms.loss.log_likelihood, x, x), "[3,2,5] | [rows, length]")
    has(message(ms.loss.log_likelihood, x), "tensors")
  end)

  it("G8 refuses targets that are no class, eagerly and in a step", function()
    local logits = ms.zeros(2, 2, 5)
    for _, target in ipairs { 5, -1, -50, 2000000000 } do
      local targets = ms.tensor { { -100, 1 }, { 2, target }, dtype = "i32" }
      local facts = "target " .. target .. " | row 3 | [0,5)"
      has(message(ms.loss.log_likelihood, logits, targets), facts)
      has(message(ms.loss.dpo(), logits, logits, targets), facts)
      local model = ms.module {
        shift = ms.parameter { 2, 2, 5, init = "zeros" }, forward = function(self, x) return x + self.shift end,
      }
      ms.fully_shard(model)
      local train = ms.trainer {
        model = model, optimizer = ms.optim.sgd { lr = 0 },
        forward = function(net, b) return ms.loss.log_likelihood(net(b.x), b.targets):mean() end,
      }
      has(message(train.step, train, { x = logits, targets = targets }), facts)
    end
  end)
end)

-- ---- two models in one recipe -----------------------------------------------------------------------------------

describe("recipes/dpo.lua", function()
  local answers = {}
  for i = 1, 24 do
    local word = string.char(96 + i % 8 + 1):rep(3)
    answers[i] = ('{"prompt": "say %s", "chosen": "%s", "rejected": "never"}'):format(word, word:upper())
  end
  -- What the models contain before and after training, as bits.
  local watching = scratch.read("recipes/dpo.lua"):gsub("\nfor step, batch", [[

    local hash = require("moonshard.base.hash")
    local function bits(part)
      local texts = {}
      for name in part:named_parameters() do
        local value = part:parameter(name)
        texts[#texts + 1] = name .. ("%%x"):format(hash.of_bytes(value.data, 4 * value:numel()))
      end
      table.sort(texts)
      return table.concat(texts, " ")
    end
    local before, of_policy = bits(model.reference), bits(model.policy)
%0]]) .. [[
    ms.log.print(before == bits(model.reference) and "reference: same" or "reference: changed")
    ms.log.print(of_policy == bits(model.policy) and "policy: same" or "policy: changed")
  ]]

  it("G8 trains a policy against a frozen reference, on meshes as on one rank", function()
    local recipe, path = program.recipe(watching), write(answers)
    local function run(ranks, mesh, ...)
      local ended = program.run { "run", recipe, "-n", tostring(ranks), "mesh=" .. mesh, "files=" .. path, "steps=10",
        "seq=64", "dtype=f32", "batch=" .. 4 / ranks, ... }
      assert.equal(0, ended.status, ended.err)
      has(ended.out, "reference: same | policy: changed")
      local losses = {}
      for loss in ended.out:gmatch("loss ([%d.]+)") do losses[#losses + 1] = tonumber(loss) end
      return losses
    end
    local one = run(1, "1x1")
    assert.equal(10, #one)
    assert.equal(0.6931, one[1]) -- log 2: both are the same model
    assert.is_true(one[10] < 0.5)
    assert.same(one, run(2, "1x2"))
    assert.same(one, run(4, "2x2"))
    assert.same(one, run(1, "1x1", "micro_batches=2"))
    fixture.assert_close({ one[10] }, { run(2, "2x1", "reference=nf4")[10] }, 0.05, "loss")
    os.remove(recipe)
  end)

  it("G8 can be planned, checked and resumed", function()
    local path, folder = write(answers), scratch.path()
    local function run(command, ...)
      local ended = program.run { command, "recipes/dpo.lua", "-n", "2", "files=" .. path, "seq=64", "batch=2", ... }
      assert.equal(0, ended.status, ended.err)
      return ended.out
    end
    has(run("plan"), "peak")
    has(run("check"), "equal within tolerance | parameters")
    local whole = run("run", "steps=6", "checkpoint=" .. folder, "save_every=3")
    local resumed = run("run", "steps=6", "resume=" .. folder .. "/step-00000003", "mesh=2x1")
    local function loss_of(text) return text:match("step 6/6  (loss [%d.]+  grad norm [%d.]+)") end
    assert.is_truthy(loss_of(whole))
    assert.equal(loss_of(whole), loss_of(resumed))
  end)
end)
