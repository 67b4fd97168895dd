-- The names of the options that a function takes, for completion inside of its table: ms.trainer { mod<Tab>. Nothing is
-- called to find out: the function's source says what it hands to options.parse, here or in a table of its file.

local option_names = {}

-- The text of a table constructor that begins at `at`, an opening brace.
local function constructor_at(source, at)
  return source:match("^%b{}", at)
end

-- Keys of a constructor, not those of tables inside of it.
local function keys_of(constructor, names)
  local outer = constructor:sub(2, -2):gsub("%b{}", "{}"):gsub("%-%-[^\n]*", "")
  for name in outer:gmatch("([%a_][%w_]*)%s*=") do names[name] = true end
end

local function constant_named(source, name)
  local at = select(2, source:find("\nlocal " .. name .. " = {"))
  return at and constructor_at(source, at)
end

---Names of options that a function takes.
---@param func function
---@param lines_of fun(path: string): string[]? the lines of a source
---@return table<string, true>? names nil when it takes none
function option_names.of(func, lines_of)
  local info = debug.getinfo(func, "S")
  local lines = info.source:sub(1, 1) == "@" and lines_of(info.source:sub(2))
  if not lines then return nil end
  local body, names = table.concat(lines, "\n", info.linedefined, info.lastlinedefined), {}
  local _, after = body:find("options%.parse%(%s*[^,]+,[^,{]+,%s*")
  if not after then return nil end
  local constant = body:match("^[%u_]+", after + 1)
  local constructor = constant and constant_named(table.concat(lines, "\n"), constant)
    or constructor_at(body, after + 1)
  if not constructor then return nil end
  keys_of(constructor, names)
  return next(names) and names or nil
end

return option_names
