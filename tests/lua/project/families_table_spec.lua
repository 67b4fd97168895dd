-- The guide's table of families is what the rows of families say (recipes/guides/bring_your_model.md): all of them,
-- which layers take adapters, and which fields are refused.

local adapter_names = require("moonshard.huggingface.adapter_names")
local config = require("moonshard.huggingface.config")
local decode = require("moonshard.base.text.json").decode
local has = require("lua.support.message").has
local huggingface = require("lua.support.huggingface")
local scratch = require("lua.support.scratch")

local GUIDE = scratch.read("recipes/guides/bring_your_model.md")

-- The rows of a table by their model_types: its other cells.
local function table_under(heading)
  local rows, text = {}, GUIDE:match("\n| `model_type` | " .. heading .. " |\n|[-|]+\n(.-)\n\n")
  assert(text, heading)
  for line in text:gmatch("[^\n]+") do
    local cells = {}
    for cell in line:sub(2):gmatch("(.-)|") do cells[#cells + 1] = cell:match("^ ?(.-) ?$") end
    for name in cells[1]:gmatch("`([%w_]+)`") do
      assert(not rows[name], name .. " is twice in the table")
      rows[name] = { unpack(cells, 2) }
    end
  end
  return rows
end

local READ = table_under("models | adapters | refused")
local AROUND = table_under("models | decoder")
local MISSING = table_under("what is not built")

local function sorted_names(...)
  local names = {}
  for _, rows in ipairs({ ... }) do
    for name in pairs(rows) do names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

-- The fields of which some values are refused, in the order of their names.
local function refused_fields(name)
  local set = {}
  local row = require("moonshard.huggingface.families")[name] or require("moonshard.huggingface.encoders")[name]
    or { known = config.family(name).fields }
  for field, kind in pairs(row.known or {}) do
    if type(kind) == "table" and kind.only ~= nil then set[field] = true end
  end
  for _, limit in ipairs(row.limits or {}) do -- others are of what is saved
    if config.family(name).fields[limit.field] then set[limit.field] = true end
  end
  return sorted_names(set)
end

-- The model_types of the fixtures, with a config.json of each.
local function fixtures()
  local found = {}
  for path in assert(io.popen("ls -d " .. huggingface.FIXTURES .. "*/")):lines() do
    local whole = decode(scratch.read(path .. "config.json"))
    found[#found + 1] = { name = whole.model_type, config = whole }
  end
  return found
end

describe("the guide's table of families", function()
  it("G1 has every family once, those around a decoder, and those that are not read", function()
    assert.equal(config.supported(), (table.concat(sorted_names(READ, AROUND), ", "):gsub(", ([%w_]+)$", " and %1")))
    assert.same(sorted_names(require("moonshard.huggingface.families.missing")), sorted_names(MISSING))
  end)

  it("G1 names the fields of which values are refused, and no field that is not read", function()
    for name, cells in pairs(READ) do
      local fields = config.family(name).fields
      for _, field in ipairs(refused_fields(name)) do has(cells[3], "`" .. field .. "`") end
      for field in cells[3]:gmatch("`([%w_]+)`") do
        assert(fields[field], ("%s: the table names %s, which is no field of it"):format(name, field))
      end
    end
  end)

  it("G1 says which layers take no adapters", function()
    local seen = {}
    for _, fixture in ipairs(fixtures()) do
      local name = fixture.name
      if READ[name] then
        local but = {}
        for _, module in ipairs(adapter_names.modules(fixture.config)) do
          if module.by_head then but["`" .. module.short:match("[%w_]+$") .. "`"] = true end
        end
        local family, model = config.parse(config.noted(fixture.config), "config.json")
        for _, tensor in ipairs(family.tensors(model)) do
          if tensor.name:find("experts.", 1, true) and not tensor.name:find("shared_experts", 1, true) then
            but.experts = true
          end
        end
        but = table.concat(sorted_names(but), " and ")
        local expected = but == "" and "all" or "all but " .. but
        assert.equal(expected, READ[name][2], name)
        seen[name] = true
      end
    end
    for name in pairs(READ) do assert(seen[name], name .. " has no fixture") end
  end)
end)
