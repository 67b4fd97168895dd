-- A nil among the items of a list, as `condition and value or nil` leaves it: an error that names the call, the list
-- and the place, in every list that a public function takes.

local has = require("lua.support.message").has
local message = require("lua.support.fixture").message
local ms = require("moonshard")
local scratch = require("lua.support.scratch")

local folder = scratch.folder()
local function file(name, text)
  scratch.write(folder .. "/" .. name, text)
  return folder .. "/" .. name
end

local TEXT = file("text", ("words and words\n"):rep(99))
local CHAT = file("chat.jsonl", '{"prompt":"a","completion":"B"}\n')
local PAIRS = file("pairs.jsonl", '{"prompt":"a","chosen":"B","rejected":"C"}\n')
local ASKED = file("asked.jsonl", '{"context":"a","choices":["b","c"],"label":0}\n')

local X, GPT = ms.ones { 2, 2, 2 }, ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 16 }

local function linears()
  return ms.nn.sequential { ms.nn.linear(2, 2), ms.nn.linear(2, 2), ms.nn.linear(2, 2) }
end

local function sharded(o)
  o.mesh = ms.init_device_mesh("cpu", 1, { "shard" })
  return ms.fully_shard(linears(), o)
end

local function trainer(o)
  o.model, o.loss, o.optimizer = sharded {}, ms.loss.mse, o.optimizer or ms.optim.sgd { lr = 0.1 }
  return ms.trainer(o)
end

-- By what the message names: the call, and the list unless it is the only argument; then three items for a list, and
-- what takes it.
local LISTS = {
  ["ms.data.text | files"] = { TEXT, TEXT, TEXT,
    function(list) ms.data.text { files = list, seq = 8, batch = 1 } end },
  ["ms.data.chat | files"] = { CHAT, CHAT, CHAT,
    function(list) ms.data.chat { files = list, template = "plain", seq = 8, batch = 1 } end },
  ["ms.data.chat | ignore"] = { "tools", "a", "b",
    function(list) ms.data.chat { files = CHAT, ignore = list, template = "plain", seq = 8, batch = 1 } end },
  ["ms.data.preferences | files"] = { PAIRS, PAIRS, PAIRS,
    function(list) ms.data.preferences { files = list, template = "plain", seq = 16, batch = 1 } end },
  ["ms.data.mix"] = { {}, {}, {}, function(list) ms.data.mix(list) end },
  ["ms.evaluate.multiple_choice | files"] = { ASKED, ASKED, ASKED,
    function(list) ms.evaluate.multiple_choice(GPT, { files = list }) end },
  ["ms.evaluate.perplexity | tokens"] = { 1, 2, 3, function(list) ms.evaluate.perplexity(GPT, { tokens = list }) end },
  ["ms.generate | prompt"] = { "a", "b", "c", function(list) ms.generate(GPT, { prompt = list, tokens = 1 }) end },
  ["ms.generate | prompt[1]"] = { 1, 2, 3, function(list) ms.generate(GPT, { prompt = { list }, tokens = 1 }) end },
  ["ms.generate | stop"] = { 1, 2, 3, function(list) ms.generate(GPT, { prompt = "a", stop = list, tokens = 1 }) end },
  ["ms.ops.cat"] = { X, X, X, function(list) ms.ops.cat(list, 0) end },
  ["ms.ops.stack"] = { X, X, X, function(list) ms.ops.stack(list) end },
  ["ms.ops.reshape | shape"] = { 2, 2, 2, function(list) ms.ops.reshape(X, { shape = list }) end },
  ["x:reshape"] = { 2, 2, 2, function(list) X:reshape(list) end },
  ["x:permute"] = { 0, 1, 2, function(list) X:permute(list) end },
  ["x:expand"] = { 2, 2, 2, function(list) X:expand(list) end },
  ["x:split"] = { 1, 1, 1, function(list) X:split(list, 0) end },
  ["x:sum"] = { 0, 1, 2, function(list) X:sum(list) end },
  ["x:mean | axis"] = { 0, 1, 2, function(list) X:mean { axis = list } end },
  ["ms.tensor"] = { 1, 2, 3, function(list) ms.tensor(list) end },
  ["ms.tensor | item [1]"] = { 1, 2, 3, function(list) ms.tensor { list } end },
  ["ms.zeros"] = { 1, 2, 3, function(list) ms.zeros(list) end },
  ["ms.full"] = { 1, 2, 3, function(list) ms.full(list, 7) end },
  ["ms.parameter"] = { 1, 2, 3, function(list) ms.parameter(list) end },
  ["ms.parameter | shape"] = { 1, 2, 3, function(list) ms.parameter { shape = list } end },
  ["ms.new_group"] = { 0, 0, 0, function(list) ms.new_group(list) end },
  ["ms.init_device_mesh"] = { 1, 1, 1, function(list) ms.init_device_mesh("cpu", list) end },
  ["ms.nn.layer_norm"] = { 2, 2, 2, function(list) ms.nn.layer_norm(list) end },
  ["ms.nn.sequential"] = { ms.ops.relu, ms.ops.relu, ms.ops.relu, function(list) ms.nn.sequential(list) end },
  ["ms.fully_shard | units"] = { "0", "1", "2", function(list) sharded { units = list } end },
  ["ms.fully_shard | units[1]"] = { "0", "1", "2", function(list) sharded { units = { list } } end },
  ["ms.fully_shard | recompute"] = { "relu", "gelu", "layer_norm", function(list) sharded { recompute = list } end },
  ["ms.fully_shard | freeze"] = { "0", "1", "2", function(list) sharded { freeze = list } end },
  ["ms.trainer | freeze"] = { "0", "1", "2", function(list) trainer { freeze = list } end },
  ["ms.trainer | clip_norm"] = { { "0", 1 }, { "1", 1 }, { "2", 1 }, function(list) trainer { clip_norm = list } end },
  ["ms.optim.adamw | groups"] = { { "0", { lr = 1 } }, { "1", { lr = 1 } }, { "2", { lr = 1 } },
    function(list) ms.optim.adamw { lr = 0.1, groups = list } end },
  ["ms.set_rules | reshard_after_forward"] = { { "0", true }, { "1", true }, { "2", true },
    function(list) ms.set_rules(sharded {}, { reshard_after_forward = list }) end },
  ["ms.rules.join"] = { { "0", true }, { "1", true }, { "2", true }, function(list) ms.rules.join(list) end },
  ["ms.lora"] = { { "0", { rank = 1 } }, { "1", { rank = 1 } }, { "2", { rank = 1 } },
    function(list) ms.lora(linears(), list) end },
  ["model:unshard"] = { "0", "1", "2", function(list) sharded({}):unshard(list) end },
  ["model:set_parameter"] = { 1, 2, 3, function(list) sharded({}):set_parameter("0.bias", list) end },
  ["ms.loss.cross_entropy | weight"] = { 1, 2, 3, function(list) ms.loss.cross_entropy { weight = list } end },
  ["ms.args | sizes"] = { 1, 2, 3, function(list) ms.args { sizes = list } end },
}

-- Of three items: which are nil, by what the message says of their places.
local HOLES = { ["item 2 | item 3"] = { 2 }, ["item 1 | item 2"] = { 1 }, ["item 1 | item 3"] = { 1, 2 } }

-- A list of which only the items are read, with a field.
local FIELDS = {
  files = function() ms.data.text { files = { TEXT, key = 1 }, seq = 8, batch = 1 } end,
  stop = function() ms.generate(GPT, { prompt = "a", stop = { 1, key = 1 }, tokens = 1 }) end,
  concat = function() ms.ops.cat { X, X, key = 1 } end,
  add = function() ms.ops.add { X, X, key = 1 } end,
  axes = function() X:sum { 0, 1, key = 1 } end,
  sizes = function() X:reshape { 2, 4, key = 1 } end,
  expand = function() X:expand { 2, 2, 2, key = 1 } end,
  split = function() X:split({ 1, 1, key = 1 }, 0) end,
  ["ms.tensor"] = function() ms.tensor { { 1, 2, key = 1 } } end,
  ["ms.parameter"] = function() ms.parameter { shape = { 1, 2, key = 1 } } end,
  ["ms.new_group"] = function() ms.new_group { 0, key = 1 } end,
  shape = function() ms.init_device_mesh("cpu", { 1, 1, key = 1 }) end,
  names = function() ms.init_device_mesh("cpu", { 1 }, { "shard", key = 1 }) end,
  units = function() sharded { units = { "0", key = 1 } } end,
}

describe("a nil among the items of a list", function()
  for named, given in pairs(LISTS) do
    it("of " .. named .. " is refused", function()
      for places, without in pairs(HOLES) do
        local list = { given[1], given[2], given[3] }
        for _, at in ipairs(without) do list[at] = nil end
        local text = message(given[4], list)
        has(text, named .. " | nil | " .. places)
        has(text, "lists_spec.lua")
      end
    end)
  end
end)

describe("a field of a list that has only items", function()
  for named, call in pairs(FIELDS) do
    it("is refused in " .. named, function() has(message(call), named .. " | no field key | lists_spec.lua") end)
  end
end)

describe("a list", function()
  teardown(scratch.clear)

  it("in a file of rules has no nil", function()
    local path = file("rules.lua", 'return { units = { "0", nil, "2" } }')
    has(message(ms.rules.load, path), "rules.lua | units | item 2 | item 3")
  end)

  it("counts from 1", function()
    has(message(function() ms.ops.cat { [0] = X, X, X } end), "ms.ops.cat | item 0")
    has(message(function() ms.data.text { files = { [1.5] = TEXT, TEXT }, seq = 8, batch = 1 } end), "files | item 1.5")
  end)

  it("of what an object of the recipe's keeps is its own", function()
    local own = { kept = { 1, nil, 3 }, state = function() return { 1, nil, 3 } end }
    has(message(function() trainer { checkpoint = { dir = folder .. "/kept", data = own } } end), "load_state")
    local list = { "a", "b", at = 1, state = function() return {} end, load_state = function() end }
    assert(trainer { checkpoint = { dir = folder .. "/list", data = list } })
  end)

  it("of truth values has no numbers", function()
    for _, list in ipairs({ { true, false }, { false }, { { 1, true } } }) do
      has(message(function() ms.tensor(list) end), "ms.tensor | number | not")
    end
  end)

  it("of tensors says how to join them", function()
    for _, list in ipairs({ { ms.zeros(2), ms.zeros(2) }, { { ms.zeros(1) } } }) do
      has(message(function() ms.tensor(list) end), "ms.tensor | ms.ops.stack")
    end
  end)
end)
