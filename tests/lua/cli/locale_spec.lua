-- A program that embeds the engine, or os.setlocale in a recipe, can make the decimal point of C's functions a comma.
-- What the engine and the Lua layer read and write stays as it is.

local ffi = require("ffi")
local json = require("cjson")
local fixture = require("lua.support.fixture")
local message = require("lua.support.message")
local ms = require("moonshard")
local program = require("lua.support.program")
local scratch = require("lua.support.scratch")

ffi.cdef [[
int setenv(const char *name, const char *value, int overwrite);
int snprintf(char *out, size_t bytes, const char *format, ...);
]]

-- Only the numbers differ from the locale "C".
local SOURCE = [[
LC_NUMERIC
decimal_point "<U002C>"
thousands_sep "<U002E>"
grouping 3;3
END LC_NUMERIC
]]

local folder = scratch.folder()

local function with_comma(call)
  assert(os.setlocale("comma", "numeric"))
  local ok, raised = pcall(call)
  os.setlocale("C", "numeric")
  if not ok then error(raised, 0) end
  return raised
end

local function of_c(number)
  local text = ffi.new("char[32]")
  ffi.C.snprintf(text, 32, "%g", ffi.cast("double", number))
  return ffi.string(text)
end

local function make_locale()
  scratch.write(folder .. "/source", SOURCE)
  os.execute(("localedef -c --no-archive -i %s/source -f UTF-8 %s/comma >/dev/null 2>&1"):format(folder, folder))
  ffi.C.setenv("LOCPATH", folder, 1)
  if not os.setlocale("comma", "numeric") then return false end
  local written = of_c(0.5)
  os.setlocale("C", "numeric")
  assert.equal("0,5", written)
  return true
end

local made = make_locale()

teardown(scratch.clear)

local function with_locale(test)
  return function()
    if not made then return pending("localedef or its charmaps are missing (Debian: locales)") end
    test()
  end
end

describe("a locale with a decimal comma", function()
  it("leaves attributes of ops as they are", with_locale(function()
    local function scaled()
      return tostring(ms.ops.scale(ms.tensor { 1, 2.5 }, { alpha = 0.1, beta = 1 / 3 }):values())
    end
    assert.equal(scaled(), with_comma(scaled))
  end))

  it("leaves numbers in messages, in prices and in results as they are", with_locale(function()
    for _, call in ipairs({
      function() return ms.optim.adamw { lr = 0.5, betas = { 0.25, 1.5 } } end,
      function() return ms.data.text { files = "README.md", valid_fraction = 2.5 } end,
      function() return fixture.small_trainer { clip_grad_norm = -0.5 } end,
      function() return ms.ops.dropout(ms.tensor { 1.5 }, 1.75) end,
    }) do
      local plain = fixture.message(call)
      assert.equal(plain, with_comma(function() return fixture.message(call) end))
    end
    local function shown() return tostring(ms.tensor({ 0.125, 2.5 }):values()) end
    assert.equal(shown(), with_comma(shown))
  end))

  it("changes nothing of a run: settings, losses, metrics, traces, plans, checkpoints", with_locale(function()
    local recipe = program.recipe [[
      local ms = require "moonshard"
      local cfg = ms.args { locale = "C", lr = ms.args.real(0.5), folder = "" }
      assert(os.setlocale(cfg.locale))
      assert(os.setlocale(cfg.locale, "numeric"))
      local model = ms.nn.sequential { ms.nn.linear(3, 4), ms.nn.layer_norm { 4 }, ms.nn.linear(4, 2) }
      ms.fully_shard(model, { units = { ms.re[[^\d$]=] } })
      local train = ms.trainer {
        model = model, loss = ms.loss.mse, clip_grad_norm = 0.75,
        optimizer = ms.optim.adamw { lr = cfg.lr, betas = { 0.75, 0.875 }, eps = 1e-7 },
      }
      for step = 1, 4 do
        local m = train:step { inputs = ms.randn { 6, 3, seed = step }, targets = ms.randn { 6, 2, seed = 9 } }
        print(("%d %.9g %.9g"):format(step, m.loss, m.grad_norm), tostring(m.lr))
        ms.log(step, { loss = m.loss })
      end
      print(train:plan():text())
      local data = {}
      function data:state() return { rate = 0.125 } end
      function data:load_state(state) print("rate " .. state.rate) end
      ms.checkpoint.save(train, cfg.folder, { data = data })
      ms.checkpoint.load(train, cfg.folder, { data = data })
    ]]
    local text = scratch.read(recipe):gsub("%]=%]", "]]")
    scratch.write(recipe, text)
    local function run(locale)
      local out = folder .. "/" .. locale
      local ended = program.run({
        "run", recipe, "-n", "2", "locale=" .. locale, "lr=0.25", "folder=" .. out .. "/saved", "--metrics",
        out .. ".jsonl", "--trace", out .. ".json", "--timeout", "99.5", "--inject-delay", "gather:0.5ms",
      }, "MOONSHARD_TIMEOUT=98.5 LOCPATH=" .. folder)
      assert.equal(0, ended.status, ended.err .. ended.out)
      local events = json.decode(scratch.read(out .. ".json")).traceEvents
      local losses = {}
      for line in io.lines(out .. ".jsonl") do losses[#losses + 1] = json.decode(line).loss end
      return ended.out:gsub("[^\n]*" .. out:gsub("%p", "%%%0") .. "[^\n]*", ""), #events, losses
    end
    local plain, events, losses = run("C")
    message.has(plain, "0.25 | 0.125")
    local other, other_events, other_losses = run("comma")
    assert.equal(plain, other)
    assert.equal(events, other_events)
    assert.equal(4, #losses)
    assert.same(losses, other_losses)
    os.remove(recipe)
  end))
end)
