-- Rules: which pattern decides which name, and how a wrong one is told.

local ms = require("moonshard")
local rules = require("moonshard.shard.rules")
local fixture = require("lua.support.fixture")
local has = require("lua.support.message").has
local re = ms.re
local message = fixture.message

local NAMES = { "embed", "layers.0", "layers.0.attn", "layers.1", "layers.10", "layers.15", "layers.16", "head" }

local function resolve(list, default, names)
  local decisions, warnings = rules.policy("policy", list):resolve(names or NAMES, default)
  local values = {}
  for i, decision in ipairs(decisions) do values[i] = decision.value end
  return values, decisions, warnings
end

-- Which of NAMES a lone pattern takes.
local function taken(pattern)
  local found = {}
  for i, value in ipairs((resolve({ { pattern, true, optional = true } }, false))) do
    if value then found[#found + 1] = NAMES[i] end
  end
  return found
end

local function line_of(marker)
  local number = 0
  for line in io.lines("tests/lua/sharding/rules_spec.lua") do
    number = number + 1
    if line:find("-- here: " .. marker, 1, true) then return number end
  end
end

describe("R1", function()
  it("lets the first rule that matches decide", function()
    local values, decisions = resolve({ { "layers.0", "a" }, { re[[^layers]], "b" }, { re[[.]], "c" } }, "d")
    assert.same({ "c", "a", "a", "b", "b", "b", "b", "c" }, values)
    assert.same({ 3, 1, 1, 2, 2, 2, 2, 3 }, { decisions[1].rule, decisions[2].rule, decisions[3].rule,
      decisions[4].rule, decisions[5].rule, decisions[6].rule, decisions[7].rule, decisions[8].rule })
  end)

  it("gives names without a rule the default", function()
    local values, decisions = resolve({ { "head", 1 } }, "default")
    assert.equal("default", values[1])
    assert.is_nil(decisions[1].rule)
    assert.equal(1, values[8])
  end)

  it("gives the rule that decided, and where it was written", function()
    local _, decisions = resolve({ { "head", 1 }, { re[[^layers]], 2 } }) -- here: written
    local place = "tests/lua/sharding/rules_spec.lua:" .. line_of("written")
    assert.equal(2, decisions[2].rule)
    assert.equal("/^layers/", decisions[2].pattern)
    has(decisions[2].where, place)
    assert.equal("head", decisions[8].pattern)
  end)

  for title, case in pairs({
    ["a pattern searches"] = { re[[ayers\.1]], { "layers.1", "layers.10", "layers.15", "layers.16" } },
    ["anchors hold a pattern"] = { re[[^layers\.1$]], { "layers.1" } },
    ["alternation and classes"] = { re[[^layers\.(\d|1[0-5])$]], { "layers.0", "layers.1", "layers.10", "layers.15" } },
    ["negative lookahead"] = { re[[^layers\.(?!1)]], { "layers.0", "layers.0.attn" } },
    ["lookbehind"] = { re[[(?<=layers\.)0]], { "layers.0", "layers.0.attn" } },
    ["named groups of Python"] = { re[[^(?P<kind>e|h)\w+d$]], { "embed", "head" } },
    ["back references by name"] = { re[[(?P<d>1).*(?P=d)|^layers\.16]], { "layers.16" } },
    ["a string is an exact name"] = { "head", { "head" } },
    ["a string is a dotted prefix"] = { "layers.0", { "layers.0", "layers.0.attn" } },
    ["a string is no plain prefix"] = { "layers.1", { "layers.1" } },
  }) do
    it("search semantics: " .. title, function() assert.same(case[2], taken(case[1])) end)
  end
end)

describe("R2", function()
  it("refuses a rule that matches nothing, with the nearest names", function()
    local text = message(resolve, { { re[[^layer\.\d+$]], 1 } })
    assert.truthy(text:find("tests/lua/sharding/rules_spec.lua:%d+: "), text)
    has(text, "policy | /^layer\\.\\d+$/ | 8 names")
    has(text, "nearest: layers.")
    local _, raised = message(resolve, { { "haed", 1 } })
    assert.equal("MS_ERULE", raised.status)
    has(raised.message, "nearest: head")
  end)

  it("lets a rule that is marked optional match nothing", function()
    local values = resolve({ { re[[^nowhere]], 1, optional = true } }, 0)
    assert.same({ 0, 0, 0, 0, 0, 0, 0, 0 }, values)
  end)

  it("warns of a rule that never decides", function()
    local _, _, warnings = resolve({ { re[[^layers]], 1 }, { "layers.0", 2 } }, 0)
    assert.equal(1, #warnings)
    has(warnings[1], '"layers.0" | never')
    has(warnings[1], "/^layers/")
  end)

  it("refuses a bad pattern where it is written, with a caret under the place", function()
    local text = message(function()
      local _ = re[[^layers\.(\d+$]] -- here: bad
    end)
    local head, pattern, caret = text:match("^([^\n]*)\n([^\n]*)\n([^\n]*)$")
    has(head, "rules_spec.lua:" .. line_of("bad") .. ": ")
    has(head, "offset 14")
    assert.equal("^layers\\.(\\d+$", pattern:sub(3))
    assert.equal(14, caret:find("^", 1, true) - 3)
  end)

  it("stops a pattern that runs away", function()
    local text = message(resolve, { { re[[^(a+)+$]], 1 } }, 0, { ("a"):rep(60) .. "!" })
    has(text, "match limit")
  end)

  for title, case in pairs({
    ["a rule without a value"] = { { "head" }, "no value" },
    ["a rule without a pattern"] = { { { 3, true } }, "no pattern" },
    ["a rule with an unknown key"] = { { { "head", 1, maybe = true } }, "maybe" },
    ["something that is no list"] = { 5, "policy | list" },
  }) do
    it("refuses " .. title, function()
      has(message(resolve, case[1]), case[2])
    end)
  end
end)
