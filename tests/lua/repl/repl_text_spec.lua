-- What the prompt does with text alone: Lua's words, values as text, and what Tab offers.

local fixture = require("lua.support.fixture")
local ms = require("moonshard")
local completion = require("moonshard.repl.completion")
local lexer = require("moonshard.repl.lexer")
local results = require("moonshard.repl.results")
local show = require("moonshard.display.values")
local has = require("lua.support.message").has

local function words(source)
  local texts = {}
  for i, token in ipairs(lexer.tokens(source)) do texts[i] = token.text end
  return texts
end

describe("the words of Lua", function()
  it("I4 are cut where LuaJIT cuts them", function()
    assert.same({ "x", "=", "0x1p-3", "+", "1e+5", "-", ".5", "..", '"a\\"b"', "y" },
      words('x = 0x1p-3 + 1e+5 - .5 .. "a\\"b" --[[ c\n ]] y --c\n'))
    assert.same({ "a", "[", "[==[ ] ]] ]==]", "]", "...", "::", "b", "::", "~=" },
      words("a[ [==[ ] ]] ]==] ] ... ::b:: ~="))
    local open = lexer.tokens("f('layers.0")
    assert.is_true(open[3].open)
    assert.equal("layers.0", ("f('layers.0"):sub(open[3].content))
    assert.is_true(lexer.tokens("x = [[ a")[3].open)
    assert.same({}, words("-- [[ nothing"))
  end)

  it("I1 turn outermost locals into variables of the session, and no others", function()
    local function kept(source) return (lexer.keep_locals(source):gsub("^%s+", "")) end
    assert.equal("x = 1", kept("local x = 1"))
    assert.equal("x, y = nil", kept("local x, y"))
    assert.equal("function f() local z = 1 end", kept("local function f() local z = 1 end"))
    assert.equal("do local a = 1 end       b = 2", kept("do local a = 1 end local b = 2"))
    local untouched = "for i = 1, 2 do local a end while x do local b end repeat local c until d if e then local g "
      .. "elseif h then local i else local j end f(function() local k end) s = 'local z'"
    assert.equal(untouched, kept(untouched))
    assert.equal("a = nil;       b = nil", kept("local a; local b"))
    local source = "local x = 1\n-- local y\nlocal z\n"
    assert.equal(select(2, source:gsub("\n", "")), select(2, lexer.keep_locals(source):gsub("\n", "")))
  end)

  it("I4 give the position of a syntax error", function()
    local function mistake(source) return source:sub(lexer.find_mistake(source)) end
    assert.equal("= 3", mistake("x = = 3"))
    assert.equal("end", mistake("x = 1\ny = (2\nend"))
    assert.equal("", mistake("x = {1, 2"))
    assert.equal("'open", mistake("x = 'open"))
  end)

  it("I4 have a semicolon at the end, or none", function()
    assert.same({ "x + 1", true }, { lexer.strip_semicolon("x + 1;") })
    assert.same({ "x -- y;", false }, { lexer.strip_semicolon("x -- y;") })
    assert.same({ "';'", false }, { lexer.strip_semicolon("';'") })
  end)
end)

describe("values at the prompt", function()
  it("I2 are shown without addresses, tables by what they hold", function()
    assert.equal("text", show.value("text"))
    assert.equal('{ 1, "a\\n", b = { true }, [0] = 2 }', show.value({ 1, "a\n", b = { true }, [0] = 2 }))
    assert.equal("{}", show.value({}))
    assert.equal("function (built in)", show.value(string.rep))
    assert.is_truthy(show.value(fixture.gpt2):match("^function %(.*fixture%.lua:%d+%)$"))
    assert.is_nil(show.value(coroutine.create(print)):find("0x"))
    local loop = {}
    loop.me = loop
    assert.equal("{ me = { itself } }", show.value(loop))
    assert.equal("{ { { { 1 } } } }", show.value({ { { { 1 } } } }))
    assert.equal("{ { { { { ... } } } } }", show.value({ { { { { 1 } } } } }))
    local many = {}
    for i = 1, 100 do many[i] = i end
    has(show.value(many), "1, 2, 3, | 64, ... 36 | \n}")
    assert.is_true(#show.value(many) < 300, show.value(many)) -- several in a line
    assert.equal("1\tnil\tx", show.values({ n = 3, 1, nil, "x" }))
  end)

  it("I2 are shown as they show themselves: models as trees", function()
    local model = fixture.gpt2()
    assert.equal(tostring(model), show.value(model))
    assert.is_truthy(show.value({ model }):match("^{ GPT2.* %.%.%. }$"))
  end)

  it("I1 are printed once, or by rank, with causes before consequences", function()
    local function ok(text, output) return { kind = "ok", text = text, output = output or "" } end
    local function failed(text) return { kind = "error", text = text, output = "" } end
    local stopped = { kind = "stopped", text = "rank 1 gave up: x", output = "" }
    local interrupted = { kind = "interrupted", text = "interrupted", output = "" }
    assert.same({ "1" }, results.summarize({ ok("1"), ok("1") }).lines)
    assert.same({ "rank 0: 1", "rank 1: 1" }, results.summarize({ ok("1"), ok("1") }, true).lines)
    assert.same({ "ranks 0, 2: 1", "rank 1: 2" }, results.summarize({ ok("1"), ok("2"), ok("1") }).lines)
    assert.same({ "rank 1 printed: b" }, results.summarize({ ok("", "a\n"), ok("", "b\n"), ok("", "a\n") }).lines)
    assert.same({ "bad" }, results.summarize({ failed("bad"), failed("bad") }).failures)
    local failures = results.summarize({ stopped, failed("x"), stopped }).failures
    assert.equal(2, #failures)
    assert.equal("rank 1: x", failures[1])
    has(failures[2], "ranks 0, 2")
    assert.same({ "interrupted" }, results.summarize({ stopped, interrupted }).failures)
    local outcome = { kind = "quit", code = 3, digest = 2 ^ 52 - 1, text = "a\0b\n", output = "c\nd" }
    assert.same({ kind = "quit", code = 3, digest = 2 ^ 52 - 1, text = "a\\0b\n", output = "c\nd" },
      results.decode(results.encode(outcome)))
  end)
end)

describe("what ranks compare of a value", function()
  local digest = require("moonshard.repl.digest")
  local function of(value) return digest.of({ n = 1, value }) end

  -- Where a table has its entries depends on how it came about.
  it("does not depend on the order in which a table is visited", function()
    local function made(first, last, by)
      local shared, value = { 1, 2 }, {}
      for i = first, last, by do value["key" .. i] = shared end
      return value
    end
    assert.equal(of(made(1, 40, 1)), of(made(40, 1, -1)))
    assert.not_equal(of(made(1, 40, 1)), of(made(1, 39, 1)))
    local inside = {}
    inside.own = inside
    assert.equal(of(inside), of(inside))
  end)

  it("is what it shows if there are too many entries", function()
    local long = {}
    for i = 1, 60000 do long[i] = i end
    assert.not_equal(0, of(long))
    assert.equal(0, of({ long, long }))
  end)
end)

describe("completion", function()
  local model = fixture.gpt2()
  local session = { ms = ms, model = model, train = { model = model, lr = 1 }, list = { { alpha = 1 } }, _private = 1 }

  local function offers(text, ...)
    local list = completion.candidates(session, text, { "time", "help" })
    for _, name in ipairs({ ... }) do
      local found = false
      for _, candidate in ipairs(list) do found = found or candidate == name end
      assert.is_true(found, name .. " is not offered for " .. text .. ", but " .. table.concat(list, " "))
    end
    return list
  end

  it("I1 offers no functions that are for the layer itself", function()
    assert.same({ "constant", "cosine", "linear", "wsd" }, offers("ms.schedule."))
    assert.same({ "curve", "expect", "print", "spikes" }, offers("ms.log."))
    assert.same({ "finish", "latest", "list", "load", "open", "save" }, offers("ms.checkpoint."))
  end)

  it("I1 offers names, fields and methods", function()
    assert.same({ "trace", "trainer" }, offers("x = ms.tra"))
    assert.same({ "train", "true" }, offers("tr"))
    offers("ms.optim.", "adamw", "sgd")
    offers("ms.", "init_device_mesh", "world")
    assert.same({ "alpha" }, offers("list[1].al"))
    offers("('x'):re")
    offers("model:", "named_parameters", "num_parameters")
    assert.same({}, offers("train:lr"))
    offers("?ms.op", "ops", "optim")
    offers("@2 mod", "model", "module")
    assert.same({}, offers("nothing.here"))
    assert.same({}, offers("f().x"))
    assert.same({ "time" }, offers(":t"))
    offers("_p", "_private")
    for _, name in ipairs(offers("")) do assert.is_nil(name:match("^_")) end
  end)

  it("I1 offers the options of a call inside of its table", function()
    assert.same({ "memory_limit", "micro_batches", "model" }, offers("t = ms.trainer { loss = ms.loss.mse, m"))
    assert.same({ "memory", "mesh", "mp_policy" }, offers("ms.fully_shard(model, { m"))
    offers("ms.optim.adamw {", "betas", "lr", "weight_decay")
    offers("ms.optim.adamw { lr = { 1, 2 }, ", "betas", "eps")
    assert.same({ "model", "module" }, offers("x = { mod"))
    assert.same({ "model", "module" }, offers("ms.trainer { model = mod"))
  end)

  it("I1 offers parameters and modules inside of a string", function()
    assert.same({ "layers.1.attn.wq", "layers.1.attn.wq.bias", "layers.1.attn.wq.weight" },
      offers("train:parameter('layers.1.attn.wq"))
    assert.same({}, offers('x = "nowhere'))
  end)

  it("I1 inserts the common part, and lists the rest", function()
    assert.same({ "edule" }, { completion.complete(session, "ms.sch", {}, 80) })
    local insertion, listing = completion.complete(session, "ms.tra", {}, 80)
    assert.same({ "", "trace    trainer" }, { insertion, listing })
    assert.same({ "", "trace\ntrainer" }, { completion.complete(session, "ms.tra", {}, 10) })
    assert.same({ "" }, { completion.complete(session, "ms.zzz", {}, 80) })
  end)
end)
