-- Settings of data that differ between ranks which share it: all ranks refuse the first step, and name both.

local has = require("lua.support.message").has
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

-- Rank 1 changes the options of data by one line, and `data` makes it of them.
local RECIPE = [[
local ms = require "moonshard"
local cfg = ms.args { change = "", data = "", chats = "", steps = 2 }
local mesh = ms.init_device_mesh("cpu", "1x2", { "replicate", "shard" })
local model = ms.models.gpt2 { vocab = 260, layers = 1, dim = 8, heads = 1, seq = 64 }
ms.fully_shard(model, { mesh = mesh })
local o = { seq = 32, batch = 2, mesh = mesh, files = "tests/lua/recipes/text.txt" }
local more = {}
if cfg.data == "chat" or cfg.data == "preferences" then o.files, o.seq = cfg.chats .. cfg.data .. ".jsonl", 64 end
if ms.world().rank == 1 then assert(loadstring("local o, more, mesh = ... " .. cfg.change))(o, more, mesh) end
local make = {
  text = ms.data.text, chat = ms.data.chat, preferences = ms.data.preferences,
  masked = function() return ms.data.masked { ms.data.text(o), mask = 256, vocab = 256, special = more.special } end,
  mix = function()
    return ms.data.mix { { ms.data.text(o) }, { ms.data.text(o) }, drop_last = more.drop_last, batch = more.batch,
      stopping_strategy = more.stopping_strategy }
  end,
}
local train = ms.trainer { model = model, optimizer = ms.optim.sgd { lr = 0.01 }, forward = function(net, batch)
  return ms.loss.cross_entropy(net(batch.tokens), batch.targets)
end }
for _, batch in make[cfg.data](o):batches(cfg.steps) do train:step(batch) end
if ms.world().rank == 0 then print("trained") end
]]

local NAMED = " | rank 0 | rank 1"

-- By kind of data: the line, and what the message has; nil: it is taken.
local CASES = {
  { "text", "o.drop_last = false", "drop_last = false" }, { "text", "o.seed = 3", "seed 0 | seed 3" },
  { "text", "o.shuffle = false", "in order" }, { "text", "o.valid_fraction = 0.06", "valid_fraction = 0.06" },
  { "text", "o.mesh = mesh['replicate']", "ranks 0-1 | ranks 1 | mesh" }, { "text", "o.mesh = nil", "ranks 0-1 | all" },
  { "text", "o.batch, o.global_batch = nil, 4" }, { "text", "o.raw = true" }, { "text", "" },
  { "chat", "o.drop_last = false", "drop_last = false" }, { "chat", "o.padding = 3", "padding = 3" },
  { "chat", "o.train_on = 'all'", "train_on" }, { "chat", "o.mesh = mesh['replicate']", "ranks 0-1 | ranks 1 | mesh" },
  { "preferences", "o.drop_last = false", "drop_last = false" },
  { "masked", "o.drop_last = false", "drop_last = false" }, { "masked", "o.mesh = nil", "ranks 0-1 | all" },
  { "masked", "more.special = { 1 }", "256 of 256 but" },
  { "mix", "o.drop_last = false", "source 1, drop_last = false" }, { "mix", "more.drop_last = false", "drop_last" },
  { "mix", "more.stopping_strategy = 'all_exhausted'", "all_exhausted" }, { "mix", "o.mesh = nil", "ranks 0-1 | all" },
  { "mix", "more.batch = 2" },
}

describe("data that ranks share", function()
  local path, ended

  setup(function()
    path = program.recipe(RECIPE)
    local folder, runs = scratch.folder(), {}
    local chat, pair = '{"messages": [{"role": "user", "content": "%d"}, {"role": "assistant", "content": "x"}]}\n',
      '{"prompt": "%d", "chosen": "yes", "rejected": "no"}\n'
    local chats, pairs_of = {}, {}
    for i = 1, 60 do chats[i], pairs_of[i] = chat:format(i), pair:format(i) end
    scratch.write(folder .. "/chat.jsonl", table.concat(chats))
    scratch.write(folder .. "/preferences.jsonl", table.concat(pairs_of))
    for i, case in ipairs(CASES) do
      runs[i] = { "run", path, "-n", "2", "--timeout", "60", "data=" .. case[1], "change=" .. case[2],
        "chats=" .. folder .. "/" }
    end
    ended = program.run_all(runs)
  end)
  teardown(function()
    os.remove(path)
    scratch.clear()
  end)

  it("U1 is refused where its settings differ, and they are named", function()
    for i, case in ipairs(CASES) do
      local name = case[1] .. ": " .. case[2]
      if case[3] then
        assert.not_equal(0, ended[i].status, name)
        has(ended[i].err, "data | " .. case[3] .. NAMED)
        assert.equal("", ended[i].out, name)
      else
        assert.equal(0, ended[i].status, name .. ": " .. ended[i].err)
        assert.equal("trained\n", ended[i].out, name)
      end
    end
  end)
end)
