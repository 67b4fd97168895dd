-- Makes a case that fails smaller while it still fails in the same way: it tries all cases that lack one thing, takes
-- the first that fails, and goes on from there.

local cases = require("fuzz.cases")

local shrink = {}

local function copy(value)
  if type(value) ~= "table" then return value end
  local result = {}
  for key, item in pairs(value) do result[key] = copy(item) end
  return result
end

local function sorted_keys(from)
  local names = {}
  for name in pairs(from) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- Cases that lack one thing of this one.
local function smaller(self)
  local list = {}
  local function try(change)
    local other = copy(self)
    change(other)
    list[#list + 1] = other
  end
  for i = #self.layers, 1, -1 do
    try(function(c)
      table.remove(c.layers, i)
      if c.tie and (c.tie[1] == i or c.tie[2] == i) then c.tie = nil end
      for k, j in ipairs(c.tie or {}) do
        if j > i then c.tie[k] = j - 1 end
      end
    end)
  end
  for _, holder in ipairs({ "sharding", "trainer" }) do
    for _, name in ipairs(sorted_keys(self[holder])) do try(function(c) c[holder][name] = nil end) end
  end
  for _, name in ipairs({ "muon", "adapters", "tie", "tied_head", "micro", "evaluate", "edit", "stages", "new_rules",
    "ignored", "chunk", "classes", "seq", "context", "tensor", "preset" }) do
    if self[name] ~= nil then try(function(c) c[name] = nil end) end
  end
  for _, name in ipairs(self.preset and { "tied", "dropout", "pad_vocab_to_multiple_of", "document_start" } or {}) do
    if self.preset.options[name] then try(function(c) c.preset.options[name] = nil end) end
  end
  for i = #(self.placements or {}), 1, -1 do try(function(c) table.remove(c.placements, i) end) end
  for i, layer in ipairs(self.layers) do
    for _, name in ipairs({ "times", "late", "hint" }) do
      if layer[name] then try(function(c) c.layers[i][name] = nil end) end
    end
  end
  for name, least in pairs({ steps = 1, rows = 1, inputs = 2, width = 2, targets = 2 }) do
    if self[name] > least then try(function(c) c[name] = least end) end
  end
  local meshes = (self.context or self.tensor) and { { 1, 1 } } or { { 1, 2 }, { 2, 1 } }
  for _, mesh in ipairs(meshes) do
    if self.replicate * self.shard > mesh[1] * mesh[2] then
      try(function(c) c.replicate, c.shard = mesh[1], mesh[2] end)
    end
  end
  return list
end

---@param failing { case: table, failure: moonshard.FuzzFailure, per_host: integer? }
---@return { case: table, failure: moonshard.FuzzFailure, per_host: integer? } minimal
function shrink.minimal(failing)
  local went_on = true
  while went_on do
    went_on = false
    for _, each in ipairs(cases.run(smaller(failing.case), failing.per_host)) do
      if each.failure.kind == failing.failure.kind then
        failing, went_on = each, true
        break
      end
    end
  end
  return failing
end

return shrink
