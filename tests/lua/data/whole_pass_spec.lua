-- A pass over data counts every sample once: the loss of an evaluation is the mean over samples, or over their targets,
-- whatever the batch and the mesh, for every source of data and for losses that count targets and that do not.

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")
local message = fixture.message

local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { folder = "", batch = 1, mesh = "1x1", over = "" }
local tensor = cfg.over == "tensor"
local dims = cfg.over ~= "" and { "shard", cfg.over } or { "replicate", "shard" }
local mesh = ms.init_device_mesh("cpu", cfg.mesh, dims)
local model = ms.models.gpt2 { vocab = 258, layers = 1, dim = 8, heads = 2, seq = 8 }
ms.fully_shard(model, { mesh = mesh, placements = tensor and ms.rules.tensor_parallel(model) or nil })
local sgd = ms.optim.sgd { lr = 0 }
local function with(o) o.model, o.optimizer = model, sgd return ms.trainer(o) end
local counting = with { forward = function(net, b) return ms.loss.cross_entropy(net(b.tokens), b.targets) end }
local plain = with { forward = function(net, b)
  local log_p = ms.ops.log_softmax(net(b.tokens))
  return -(log_p:slice(-1, 0, 1) * log_p:slice(-1, 3, 4)):mean()
end }
local smoothed = ms.loss.cross_entropy { label_smoothing = 0.1 }
local weights = {}
for class = 1, 258 do weights[class] = class % 3 + 1 end
local losses = {
  { "scaled", function(logits, targets) return 2 * ms.loss.cross_entropy(logits, targets) end },
  { "and squares", function(logits, targets) return smoothed(logits, targets) + (logits * logits):mean() end },
  { "weighed", ms.loss.cross_entropy { weight = weights } },
  { "mean of rows", function(logits) return (logits * logits):mean(2):sum(1):mean() end },
}
local dpo = with { forward = function(net, b)
  local logits = net(b.tokens)
  return ms.loss.dpo { beta = 2 } (logits, logits * 0.5, b.targets)
end }

local function source(make, more)
  local o = { files = cfg.folder .. "/a.txt", seq = 8, batch = cfg.batch, mesh = mesh, drop_last = false }
  for name, value in pairs(more or {}) do o[name] = value end
  return make(o)
end
local function text(more) return source(ms.data.text, more) end
local short = { default = { "", "." } }
local chats = { files = cfg.folder .. "/chats.jsonl", template = short }
local sources = {
  { "text", text { valid_fraction = 0 } }, { "held out", text { valid_fraction = 0.3, drop_last = true }.valid },
  { "chat", source(ms.data.chat, chats) },
  { "masked", ms.data.masked { text { valid_fraction = 0 }, mask = 256, vocab = 256 } },
  { "mix", ms.data.mix { { text { valid_fraction = 0 }, weight = 2 }, { source(ms.data.chat, chats) },
    drop_last = false, batch = cfg.batch } },
}
local function report(name, train, data)
  print(("%s %.9g"):format(name, train:evaluate(data:batches())))
end
for _, s in ipairs(sources) do
  report(s[1], counting, s[2])
  report(s[1] .. ", again", counting, s[2])
  if s[1] ~= "masked" then report(s[1] .. ", all rows", plain, s[2]) end
end
for _, loss in ipairs(losses) do
  local train = with { forward = function(net, b) return loss[2](net(b.tokens), b.targets) end }
  report("text, " .. loss[1], train, sources[1][2])
end
report("pairs", dpo, source(ms.data.preferences, { files = cfg.folder .. "/pairs.jsonl", template = short }))

if cfg.over == "context" then return end -- there is no axis of positions
local linear = ms.nn.linear(3, 2)
ms.fully_shard(linear, { mesh = mesh, placements = tensor and { { "weight", { tensor = "colwise" } } } or nil })
local fit = ms.trainer { model = linear, optimizer = sgd, loss = ms.loss.mse }
local data = ms.data.random { length = 11, inputs = 3, targets = 2 }
local sampler = ms.data.sampler { length = 11, mesh = mesh }
print(("random %.9g"):format(fit:evaluate(data:batches(sampler, cfg.batch, { drop_last = false }))))
]]

local PAIR = '{"prompt":"ab","chosen":"%s","rejected":"%s"}\n'

local function write_data()
  local folder = scratch.folder()
  local bytes, chats, pairs_of = {}, {}, {}
  for i = 1, 8 * 23 + 1 do bytes[i] = string.char(97 + i * i % 23) end
  for i = 1, 13 do
    chats[i] = ('{"prompt":"%s","completion":"%s"}\n'):format(("x"):rep(i % 3 + 1), ("yz"):rep(i % 2 + 1))
    pairs_of[i] = PAIR:format(string.char(96 + i), string.char(100 + i))
  end
  scratch.write(folder .. "/a.txt", table.concat(bytes))
  scratch.write(folder .. "/chats.jsonl", table.concat(chats))
  scratch.write(folder .. "/pairs.jsonl", table.concat(pairs_of))
  return folder
end

local function samples_of(data, steps)
  local found = {}
  for _, batch in data:batches(steps) do
    local columns = batch.tokens.shape[2]
    for row = 0, (batch.counted_rows or batch.tokens.shape[1]) - 1 do
      local ids = {}
      for i = 1, columns do ids[i] = batch.tokens.data[row * columns + i - 1] end
      found[#found + 1] = table.concat(ids, " ")
    end
    for i = (batch.counted_rows or batch.tokens.shape[1]) * columns, batch.tokens.shape[1] * columns - 1 do
      assert.equal(-100, batch.targets.data[i])
    end
  end
  return found
end

local function losses_of(text)
  local list = {}
  for loss in text:gmatch("(%-?[%d.]+)\n") do list[#list + 1] = tonumber(loss) end
  return list
end

describe("a pass over data", function()
  after_each(scratch.clear)

  it("U8 counts every sample once, whatever the batch and the mesh", function()
    local folder, path = write_data(), program.recipe(RECIPE)
    local runs = { reference = { "run", path, "-n", "1", "folder=" .. folder, "batch=1" } }
    for name, given in ipairs(breadth.few {
      { "1", "batch=5" }, { "2", "batch=4", "mesh=1x2" }, { "2", "batch=3", "mesh=2x1" },
      { "2", "batch=6", "mesh=1x2", "over=tensor" }, { "4", "batch=2", "mesh=2x2" },
      { "2", "batch=11", "mesh=1x2", "over=context" }, { "2", "batch=12", "mesh=1x2", "over=context" },
      { "4", "batch=3", "mesh=2x2", "over=context" }, { "4", "batch=2", "mesh=1x4", "over=context" },
    }) do
      runs[name] = { "run", path, "-n", given[1], "folder=" .. folder, unpack(given, 2) }
    end
    local ended = program.run_all(runs)
    os.remove(path)
    local wanted = ended.reference.out
    assert.equal(0, ended.reference.status, ended.reference.err)
    assert.equal(20, #losses_of(wanted), wanted)
    for name, run in pairs(ended) do
      local expected = runs[name][#runs[name]] == "over=context" and wanted:gsub("random [^\n]*\n", "") or wanted
      assert.equal(0, run.status, run.err)
      assert.equal(expected:gsub("%-?[%d.]+\n", "\n"), run.out:gsub("%-?[%d.]+\n", "\n"))
      fixture.assert_close(losses_of(expected), losses_of(run.out), 1e-5, run.out)
    end
  end)

  it("U8 of training data has every sample once an epoch, and goes on with the next epoch", function()
    local folder = write_data()
    local function open(more)
      local o = { files = folder .. "/a.txt", seq = 8, batch = 5, valid_fraction = 0, seed = 3 }
      for name, value in pairs(more or {}) do o[name] = value end
      return ms.data.text(o)
    end
    local all = samples_of(open { batch = 1, shuffle = false }, 23)
    table.sort(all)
    local data = open { drop_last = false }
    for _ = 1, 2 do
      local found = samples_of(data)
      table.sort(found)
      assert.same(all, found)
    end
    local twice = samples_of(open { drop_last = false }, 10)
    assert.equal(46, #twice)
    local resumed = open { drop_last = false }
    local first = samples_of(resumed, 4)
    local rest = open { drop_last = false, batch = 7 }
    rest:load_state(resumed:state())
    for _, sample in ipairs(samples_of(rest)) do first[#first + 1] = sample end
    table.sort(first)
    assert.same(all, first)
    assert.equal(20, #samples_of(open())) -- the rest begins the next epoch
    assert.equal(23, #samples_of(open { drop_last = false, batch = 100 }))
    assert.equal(23, #samples_of(open { drop_last = false, shuffle = false, batch = 22 }))
  end)

  it("U8 of validation data ends with its samples, however many steps are asked for", function()
    local folder = write_data()
    local data = ms.data.text { files = folder .. "/a.txt", seq = 8, batch = 4, valid_fraction = 0.3 }
    assert.equal(data.valid.n, #samples_of(data.valid))
    assert.equal(data.valid.n, #samples_of(data.valid, 100))
    assert.equal(4, #samples_of(data.valid, 1))
  end)

  it("U8 of a sampler says which samples the epoch has had", function()
    for length = 1, 9 do
      for ranks = 1, 4 do
        local counts, repeated = {}, 0
        for rank = 0, ranks - 1 do
          for _, sample, had in ms.data.sampler({ length = length, rank = rank, world = ranks }):samples() do
            if had then repeated = repeated + 1 else counts[sample] = (counts[sample] or 0) + 1 end
          end
        end
        for sample = 0, length - 1 do assert.equal(1, counts[sample]) end
        assert.equal(-length % ranks, repeated)
      end
    end
  end)

  it("U8 takes counted_rows of batches of one's own, and refuses what is no number of rows", function()
    local model = ms.nn.linear(1, 1, { bias = false, init = 1 })
    ms.fully_shard(model, { mesh = "1x1" })
    local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0 }, loss = ms.loss.mse }
    local function loss_of(...)
      local list, at = { ... }, 0
      return train:evaluate(function()
        at = at + 1
        if not list[at] then return nil end
        return at, { inputs = ms.tensor { { 1 }, { 2 }, { 3 } }, targets = ms.zeros { 3, 1 },
          counted_rows = list[at] >= 0 and list[at] or nil }
      end)
    end
    fixture.assert_close({ (1 + 4 + 9 + 1 + 4) / 5 }, { loss_of(-1, 2) }, 1e-6, "loss")
    assert.equal(1, loss_of(1, 0))
    for _, wrong in ipairs({ 4, 1.5 }) do
      has(message(loss_of, wrong), "batch.counted_rows | 3 rows | " .. wrong)
    end
    for _, wrong in ipairs({ 2, 0, -1, 1.5 }) do
      local one = { inputs = ms.ones(3, 1), targets = ms.zeros(3, 1), sample_rows = wrong }
      has(message(train.evaluate, train, coroutine.wrap(function() coroutine.yield(1, one) end)),
        "batch.sample_rows | 3 rows | " .. wrong)
    end
  end)

  it("U8 is not trained on where the loss would count padding", function()
    local folder = write_data()
    local data = ms.data.text { files = folder .. "/a.txt", seq = 8, batch = 20, valid_fraction = 0, drop_last = false }
    local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 8 }
    ms.fully_shard(model, { mesh = "1x1" })
    local sgd = ms.optim.sgd { lr = 0.1 }
    local plain = ms.trainer { model = model, optimizer = sgd, loss = ms.loss.cross_entropy { reduction = "mean" } }
    local counting = ms.trainer { model = model, optimizer = sgd, loss = ms.loss.cross_entropy }
    local batches = {}
    for step, batch in data:batches() do batches[step] = batch end
    for _, batch in ipairs(batches) do -- from the first on, although only the last is padded
      has(message(function() plain:step(batch) end), "train:step | padded | drop_last = true | reduction")
    end
    local three = { tokens = batches[2].tokens, targets = batches[2].targets }
    local function first_three(array) return { data = array.data, dtype = "i32", shape = { 3, 8 } } end
    three.tokens, three.targets = first_three(three.tokens), first_three(three.targets)
    local function evaluated(batch)
      return counting:evaluate(coroutine.wrap(function() coroutine.yield(1, batch) end))
    end
    fixture.assert_close({ evaluated(three) }, { counting:step(batches[2]).loss }, 1e-6, "loss")
  end)
end)
