-- The language of chat templates against Jinja's own renderings (tests/fixtures/templates/make.py), and what bounds a
-- rendering.

local errors = require("moonshard.base.error")
local has = require("lua.support.message").has
local jinja = require("moonshard.jinja")
local json = require("moonshard.base.text.json")
local message = require("lua.support.fixture").message

local FOLDER = "tests/fixtures/templates/"
local NOW = os.time { year = 2024, month = 7, day = 26, hour = 12 }

local function read(name)
  local file = assert(io.open(FOLDER .. name, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function compile(source) return jinja.compile(source, "x.jinja") end
local function render(source, variables, o) return compile(source):render(variables or {}, o or { now = NOW }) end

-- A rendering as the reference files have it. An error of Lua, which no template may cause, is raised.
local function outcome(render_it)
  local ok, text, spans = pcall(render_it)
  if not ok and not errors.is(text) then error(text, 0) end
  if not ok then return { error = true } end
  local list = {}
  for i, span in ipairs(spans) do list[i] = { span.first, span.last } end
  return { text = text, spans = list[1] and list or nil }
end

describe("Jinja templates", function()
  it("give what Jinja gives, for every part of the language", function()
    local battery = assert(json.decode(read("battery.json"), true))
    assert.is_true(#battery.cases > 800)
    for _, case in ipairs(battery.cases) do
      local got = outcome(function() return render(case.template, battery.values) end)
      assert.same({ text = case.text, spans = case.spans, error = case.error }, got, case.template)
    end
  end)

  it("give what Jinja gives, for whole chat templates in the manner of published ones", function()
    local families = assert(json.decode(read("families.json"), true))
    local compiled, refused = {}, 0
    for _, case in ipairs(families.cases) do
      local family = case.family
      compiled[family] = compiled[family] or jinja.compile(read("families/" .. family .. ".jinja"), family)
      local got = outcome(function()
        return compiled[family]:render(families.variables[case.conversation], { now = NOW })
      end)
      local expected = { text = case.text, spans = case.spans, error = case.error }
      assert.same(expected, got, family .. ": " .. case.conversation)
      refused = refused + (case.error and 1 or 0)
    end
    assert.is_true(#families.cases > 400 and refused < 40)
  end)

  it("fill fields of formats as Python does, with several flags at once", function()
    for field, expected in pairs({
      ["'%.3d' % 5"] = "005", ["'%+.2d' % -5"] = "-05", ["'%6.3d' % 5"] = "   005", ["'%.4x' % 255"] = "00ff",
      ["'%.2r' % 'abc'"] = "'a", ["'{:05}'.format('ab')"] = "ab000", ["'{:>05}'.format('ab')"] = "000ab",
      ["'{:<05}'.format(42)"] = "42000", ["'{:*<05}'.format(42)"] = "42***", ["'{:05}'.format(-3)"] = "-0003",
      ["'{:08,}'.format(1234)"] = "0,001,234", ["'{:010,}'.format(1234)"] = "00,001,234",
      ["'{: 07,.1f}'.format(1234.5)"] = " 1,234.5", ["'{: 06.1f}'.format(2.5)"] = " 002.5",
      ["'{:=6}'.format(-3)"] = "-    3", ["'{!s:>5}'.format(none)"] = " None",
    }) do
      assert.equal(expected, (render("{{ " .. field .. " }}")), field)
    end
    for _, field in ipairs({ "{:=6}'.format('a')", "{:5}'.format(none)", "{:.1d}'.format(3)", "{:x}'.format(2.5)",
      "{:i}'.format(3)" }) do
      has(message(render, "{{ '" .. field .. " }}"), "field | format | " .. field:match("{([^}]*)}"))
    end
  end)

  it("name the line at fault, what is wrong, and what is rendered", function()
    has(message(compile, "a\n{% if x %}\n{{ 1 + }}{% endif %}"), "x.jinja:3: | }}")
    has(message(compile, "\n\n{{ x | uper }}"), "x.jinja:3: | filter uper | upper")
    has(message(compile, "{{ x is defnd }}"), "x.jinja:1: | test defnd | defined")
    has(message(compile, "\n{% fro x in y %}"), "x.jinja:2: | tag fro | for")
    has(message(compile, "{% include 'y' %}"), "x.jinja:1: | tag include")
    has(message(compile, "{% if x %}"), "x.jinja:1: | {% endif %}")
    has(message(compile, "\n{{ '\255' }}"), "x.jinja:1: | byte 6 | UTF-8")
    local template = compile("{% if x %}\n\n{{ raise_exception('no ' ~ x) }}{% endif %}")
    local text = message(template.render, template, { x = "cats" }, { where = "chats.jsonl:7" })
    has(text, "chats.jsonl:7: | x.jinja:3: | no cats")
    has(message(render, "{{ a.b }}\n{{ a.b.c }}", { a = { x = 1 } }), "x.jinja:2: | dict | b | c")
    has(message(render, "{% if t %}{{ x | uper }}{% endif %}", { t = true }), "x.jinja:1: | filter uper | upper")
    has(message(render, "{{ a.append(1) }}", { a = { 1 } }), "append | list")
    has(message(render, "{{ 'a'.encode() }}"), "encode | str")
    has(message(render, "{{ strftime_now('%Y') }}", {}, {}), "strftime_now | now")
  end)

  it("end within limits, which are counts", function()
    local endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    has(message(render, endless, {}, { limits = { steps = 1e5 } }), "x.jinja:1: | limit | steps | 100000")
    has(message(render, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "x.jinja:1: | limit | depth")
    has(message(render, "{{ 'a' * 999999999 }}"), "limit | bytes")
    has(message(render, "{{ [1] * 99999999 }}"), "limit | items")
    has(message(render, "{{ range(999999) }}"), "range | 100000")
    local doubled = "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
    has(message(render, doubled), "limit | bytes")
    has(message(render, "{{ 'aaaa' }}{{ 'bbbb' }}", {}, { limits = { bytes = 6 } }), "limit | bytes | 6")
    has(message(compile, "{{ " .. ("("):rep(9999) .. "1" .. (")"):rep(9999) .. " }}"), "100 deep")
    has(message(compile, "{{ " .. ("- "):rep(9999) .. "1 }}"), "100 deep")
    has(message(compile, "{{ " .. ("not "):rep(9999) .. "1 }}"), "100 deep")
    has(message(compile, ("{% if x %}"):rep(9999)), "100 deep")
    has(message(render, "{{ 1" .. (" + 1"):rep(9999) .. " }}"), "limit | depth")
    assert.equal("9", (render("{{ 4 + 5 }}", {}, { limits = { steps = 9 } }))) -- one rendering's costs are its own
  end)

  it("say what they mention, so that fields that have no effect are refused", function()
    local template = compile("{% for m in messages %}{{ m.role }}{{ m['name'] }}{{ m.get('id') }}"
      .. "{{ ms | map(attribute='a.weight') }}{% endfor %}{% if tools is defined %}x{% endif %}")
    for _, name in ipairs({ "messages", "role", "name", "id", "weight", "tools" }) do
      assert.is_true(template:reads(name), name)
    end
    assert.is_false(template:reads("content"))
    assert.is_false(template:reads("x"))
  end)

  it("keep the order of keys, nulls and floats of JSON, and sort the keys of tables", function()
    local text = '{"z": 1.0, "a": null, "list": [1, 2.50, null], "big": 12345678901234567890, "e": {}}'
    assert.equal('{"z": 1.0, "a": null, "list": [1, 2.5, null], "big": 12345678901234567890, "e": {}}',
      (render("{{ v | tojson }}", { v = json.decode(text, true) })))
    assert.equal('{"a": [1, 2.5], "b": {"c": null}, "z": 1}',
      (render("{{ v | tojson }}", { v = { z = 1, a = { 1, 2.5 }, b = { c = json.null } } })))
    has(message(render, "", { v = { [3.5] = 1 } }), "key 3.5")
    has(message(render, "", { v = print }), "function")
  end)

  it("say where a generation has no place of its own", function()
    local function misplaced(source) return select(3, render(source)) end
    assert.is_nil(misplaced("{% generation %}a{% endgeneration %}"))
    assert.equal(2, misplaced("{% macro m() %}\n{% generation %}a{% endgeneration %}{% endmacro %}{{ m() }}"))
    assert.equal(1, misplaced("{% set x %}{% generation %}a{% endgeneration %}{% endset %}"))
  end)

  it("never fail in Lua, and never hang, however they are broken", function()
    local battery = assert(json.decode(read("battery.json"), true))
    local variables = assert(json.decode(read("families.json"), true)).variables
    local sources, names = {}, {}
    for _, case in ipairs(battery.cases) do sources[#sources + 1] = case.template end
    for name in pairs(variables) do names[#names + 1] = name end
    table.sort(names)
    for name in io.popen("ls " .. FOLDER .. "families"):lines() do sources[#sources + 1] = read("families/" .. name) end
    math.randomseed(20)
    local rendered = 0
    for _ = 1, 2000 do
      local source, other = sources[math.random(#sources)], sources[math.random(#sources)]
      local at, from = math.random(0, #source), math.random(0, #other)
      local broken = source:sub(1, at) .. other:sub(from, from + math.random(0, 12))
        .. source:sub(at + math.random(0, 5))
      local got = outcome(function()
        return render(broken, variables[names[math.random(#names)]], { limits = { steps = 1e5 } })
      end)
      rendered = rendered + (got.error and 0 or 1)
    end
    assert.is_true(rendered > 100)
  end)
end)
