-- Settings of recipes: types come from the defaults, unknown keys and wrong values are refused.

local args = require("moonshard.recipe.args")
local errors = require("moonshard.base.error")
local has = require("lua.support.message").has

local function parse(defaults, overrides)
  args.overrides = {}
  for _, override in ipairs(overrides or {}) do
    local key, text = override:match("^([^=]+)=(.*)$")
    table.insert(args.overrides, { key = key, text = text })
  end
  return args(defaults)
end

local function message_of(defaults, overrides)
  local ok, raised = pcall(parse, defaults, overrides)
  assert.is_false(ok)
  assert.is_true(errors.is(raised))
  return raised.message, raised
end

describe("ms.args", function()
  after_each(function() args.overrides, args.taken = {}, false end)

  it("gives the defaults, a device and files", function()
    local cfg = parse({ layers = 6, mesh = "2x2" })
    assert.same({ layers = 6, mesh = "2x2", device = "cpu", files = args.DEFAULT_FILES }, cfg)
  end)

  it("reads an override in the type of its default", function()
    local cfg = parse({ steps = 6, lr = 1e-3, mesh = "2x2", fast = false, betas = { 0.9, 0.95 } },
      { "steps=1e3", "lr=2", "mesh=4x1", "fast=yes", "betas=0.5,0.25" })
    assert.equal(1000, cfg.steps)
    assert.equal(2, cfg.lr)
    assert.equal("4x1", cfg.mesh)
    assert.is_true(cfg.fast)
    assert.same({ 0.5, 0.25 }, cfg.betas)
  end)

  it("refuses empty items of lists, and whole numbers that doubles do not have", function()
    for override, default in pairs({ ["names=a,,b"] = { "x" }, ["names=a,"] = { "x" }, ["names=,a"] = { "x" },
      ["names=9007199254740993"] = 1, ["names=-1e17"] = 1 }) do
      local ok, raised = pcall(parse, { names = default }, { override })
      assert.is_false(ok, override)
      has(tostring(raised), override)
    end
    assert.same({}, parse({ names = { "x" } }, { "names=" }).names)
    assert.equal(2 ^ 53 - 1, parse({ names = 1 }, { "names=9007199254740991" }).names)
  end)

  it("refuses a number that is too small to be another one than 0", function()
    for _, text in ipairs { "1e-400", "-2.5e-999", "0.001e-324" } do
      for _, default in ipairs { 0.5, args.real(1), args.any(1), 0 } do
        has(message_of({ lr = default }, { "lr=" .. text }), "lr=" .. text .. " | 5e-324")
      end
      has(message_of({ rates = { 0.5 } }, { "rates=1," .. text }), "5e-324")
    end
    for _, text in ipairs { "0", "0.0", "-0", "0e5", "0x0", ".0" } do
      assert.equal(0, parse({ lr = 0.5 }, { "lr=" .. text }).lr)
    end
    assert.equal(5e-324, parse({ lr = 0.5 }, { "lr=5e-324" }).lr)
  end)

  it("lets the last of two overrides win", function()
    assert.equal(3, parse({ steps = 1 }, { "steps=2", "steps=3" }).steps)
  end)

  it("takes fractions where a whole default is marked real", function()
    assert.equal(1, parse({ clip = args.real(1) }).clip)
    assert.equal(0.5, parse({ clip = args.real(1) }, { "clip=0.5" }).clip)
  end)

  it("takes true, false, numbers and text where a default is marked any", function()
    assert.equal("default", parse({ reshard = args.any("default") }).reshard)
    assert.is_false(parse({ reshard = args.any(false) }).reshard)
    local values = { ["true"] = true, ["false"] = false, ["2"] = 2, ["-0.5"] = -0.5, ["2x2"] = "2x2", nan = "nan" }
    for text, value in pairs(values) do
      assert.equal(value, parse({ reshard = args.any("default") }, { "reshard=" .. text }).reshard)
    end
  end)

  it("checks at once that a file which a recipe will write can be written", function()
    local function svg(given) return parse({ svg = args.output("") }, given and { "svg=" .. given } or {}).svg end
    assert.equal("", svg())
    assert.equal("", svg(""))
    local path = os.tmpname()
    assert.equal(path, svg(path))
    os.remove(path)
    local ok, raised = pcall(svg, "/dev/null/loss.svg")
    assert.is_false(ok)
    has(tostring(raised), "svg | /dev/null/loss.svg: | Not a directory")
  end)

  it("reads a list of numbers as a mesh is written", function()
    assert.same({ 1, 4 }, parse({ mesh = { 2, 2 } }, { "mesh=1x4" }).mesh)
    assert.same({ 1, -1 }, parse({ mesh = { 2, 2 } }, { "mesh=1,-1" }).mesh)
  end)

  it("keeps a default of files and takes any text for it", function()
    assert.equal("a.txt", parse({ files = "a.txt" }).files)
    assert.equal("b c", parse({ files = "a.txt" }, { "files=b c" }).files)
  end)

  it("refuses an unknown key and names the nearest", function()
    local message, raised = message_of({ layers = 6, steps = 1 }, { "laeyrs=3" })
    has(message, "laeyrs | layers")
    assert.equal("MS_ENAME", raised.status)
    assert.truthy(raised.where:match("args_spec.lua:%d+"))
  end)

  it("refuses a value of another type and names the type that it needs", function()
    has((message_of({ steps = 20 }, { "steps=x" })), "steps=x | 20")
    has((message_of({ steps = 20 }, { "steps=2.5" })), "steps=2.5 | 20")
    has((message_of({ lr = 1e-3 }, { "lr=inf" })), "lr=inf | 0.001")
    has((message_of({ lr = 1e-3 }, { "lr=nan" })), "lr=nan | 0.001")
    has((message_of({ fast = true }, { "fast=maybe" })), "fast=maybe | true | false")
    has((message_of({ mesh = { 2, 2 } }, { "mesh=2x" })), "mesh=2x | 2,2")
  end)

  it("refuses a device that is not there", function()
    local why = message_of({}, { "device=tpu" })
    has(why, "device | tpu")
  end)

  it("refuses settings that no recipe asked for", function()
    args.overrides = { { key = "steps", text = "3" } }
    local ok, raised = pcall(args.check_taken)
    assert.is_false(ok)
    has(tostring(raised), "settings | steps=3 | call ms.args")
    parse({ steps = 1 }, { "steps=3" })
    args.check_taken()
  end)
end)
