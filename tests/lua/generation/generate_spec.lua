-- Texts that models continue: the same on every mesh, by seed, in bytes and in a tokenizer's tokens.

local breadth = require("lua.support.breadth")
local fixture = require("lua.support.fixture")
local message = fixture.message
local ms = require("moonshard")
local has = require("lua.support.message").has
local program = require("lua.support.program")

local TOKENIZER = "tests/fixtures/tokenizer/good/gpt2.json"

local function texts(ranks, ...)
  local out = os.tmpname()
  local ended = program.run({ "run", "tests/lua/generation/recipes/generate.lua", "-n", tostring(ranks), "out=" .. out,
    ... })
  assert.equal(0, ended.status, ended.err)
  local file = assert(io.open(out, "rb"))
  local content = file:read("*a")
  file:close()
  os.remove(out)
  local list = {}
  for part in (content .. "\0"):gmatch("(%Z*)%z") do list[#list + 1] = part end
  return list
end

describe("generate", function()
  it("gives the same tokens on every mesh, and others by another seed", function()
    local alone = texts(1)
    assert.equal(7, #alone)
    assert.are_not.equal(alone[1], alone[2])
    assert.same(alone, texts(1))
    assert.same(alone, texts(2, "mesh=1x2"))
    if breadth.all then assert.same(alone, texts(4, "mesh=2x2")) end
  end)

  it("speaks a tokenizer's tokens", function()
    local tokenizer = ms.tokenizer(TOKENIZER)
    local list = texts(1, "vocab=" .. tokenizer.vocab, "tokenizer=" .. TOKENIZER)
    for _, entry in ipairs(list) do
      local ids = {}
      for id in entry:match("^[%d ]+"):gmatch("%d+") do ids[#ids + 1] = tonumber(id) end
      assert.equal(tokenizer:decode(ids), entry:match("^[%d ]+|(.*)$"))
    end
  end)

  it("ends a text at a token, at a text that is one, or at an id", function()
    local tokenizer = ms.tokenizer(TOKENIZER)
    local model = ms.models.gpt2 { vocab = tokenizer.vocab, layers = 1, dim = 8, heads = 2, seq = 32 }
    local o = { prompt = " the", tokenizer = tokenizer, tokens = 24, temperature = 5, seed = 1 }
    local function generated(stop)
      o.stop = stop
      return ms.generate(model, o)
    end
    local whole, text, id = generated(nil), nil, nil
    for byte = 32, 126 do -- one that is a token, and ends the text
      local ids = text and {} or tokenizer:encode(string.char(byte))
      if #ids == 1 and generated(ids[1]) ~= whole then text, id = string.char(byte), ids[1] end
    end
    assert.is_string(text, whole)
    assert.equal(generated(id), generated(text))
    if #tokenizer:encode(tostring(id)) ~= 1 then assert.equal(generated(id), generated(tostring(id))) end
    has(message(generated, "the the"), "one token | " .. #tokenizer:encode("the the"))
  end)

  it("refuses settings that make no sense, and another model's tokenizer #release", function()
    local model = ms.models.gpt2 { vocab = 256, layers = 1, dim = 8, heads = 2, seq = 8 }
    for text, o in pairs({
      ["temperature=-1 | 0"] = { temperature = -1 },
      ["top_p=0 | above 0"] = { top_p = 0 },
      ["top_k=-1 | 0"] = { top_k = -1 },
      ["one token"] = { prompt = "" },
      ["stop | tokenizer"] = { stop = "<|endoftext|>" },
      ["stop | number 2 | 1.5"] = { stop = { 3, 1.5 } },
      ["tokens | bytes"] = { tokens = 3, bytes = 3 },
      ["stop | token 256 | 256 tokens"] = { stop = { 3, 256 } },
      ["256 tokens | " .. TOKENIZER .. " | tokenizer"] = { prompt = " the", tokenizer = TOKENIZER },
    }) do
      local got = message(function() ms.generate(model, o) end)
      has(got, text)
    end
    local o = { prompt = "a", tokens = 30, temperature = 9, top_k = 0 }
    local _, whole = ms.generate(model, o)
    o.stop = tostring(whole[5]) -- as the command line gives an id
    assert.equal(whole[5], whole[#select(2, ms.generate(model, o)) + 1])
    local of_tokens = ms.models.gpt2 { vocab = 257, layers = 1, dim = 8, heads = 2, seq = 8 }
    local got = message(function() ms.generate(of_tokens, { prompt = "a" }) end)
    has(got, "257 tokens | bytes | tokenizer")
  end)
end)
