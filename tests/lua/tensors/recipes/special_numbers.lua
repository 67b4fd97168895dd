-- Writes what a plan gives for the cases of tests/lua/tensors/special_numbers.lua, as JSON of texts, which can be
-- infinite.

local ms = require "moonshard"
local json = require "moonshard.base.text.json"
local special_numbers = dofile "tests/lua/tensors/special_numbers.lua"

local cfg = ms.args { out = "", elements = "", numbers = "" }

local function list_of(text)
  local list = {}
  for word in text:gmatch "[^,]+" do list[#list + 1] = tonumber(word) end
  return list
end

local results = special_numbers.planned(cfg.device, list_of(cfg.elements), list_of(cfg.numbers))
for _, case in pairs(results) do
  for key, rows in pairs(case) do
    for i, row in ipairs(rows) do
      for j, value in ipairs(row) do row[j] = ("%.17g"):format(value) end
      rows[i] = row
    end
    case[key] = rows
  end
end
local file = assert(io.open(cfg.out, "w"))
assert(file:write(json.encode(results)))
assert(file:close())
