-- A file of models or functions that recipes share returns them, and trains nothing. Who runs it by mistake would see
-- nothing at all, or that a step is missing: commands say what it is instead.

local library = {}

-- The names of what a file returns, sorted; nil unless it returns a table of functions, classes and tables alone.
local function names_of(returned)
  if type(returned) ~= "table" or getmetatable(returned) or next(returned) == nil then return nil end
  local names = {}
  for name, value in pairs(returned) do
    if type(name) ~= "string" or type(value) ~= "function" and type(value) ~= "table" then return nil end
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

---What a file is that ran to its end without a training step, if it is no recipe.
---@param path string
---@param returned any what its chunk returned
---@return string? text for a message; nil: it may be a recipe
function library.describe(path, returned)
  local names = names_of(returned)
  if not names then return nil end
  return ('%s is a library: it trains nothing, and returns %s to the recipes that have require "%s"'):format(path,
    table.concat(names, ", "), (path:match("[^/]*$"):gsub("%.lua$", "")))
end

return library
