-- The floors of the Lua layer: a module requires from folders below its own, or from its own, and no modules stand in a
-- circle.
--
--   luajit tests/lint/requires.lua FILE...       prints each require that looks up and each circle, and ends with 1 if
--                                                there are any; files that are not below lua/moonshard/ do not count
--
-- A require inside of a function counts, since laziness hides a circle and does not undo it, and so does a name of a
-- module in a table of names that are required later. Annotations and other comments do not count.

-- Lowest first. "" is moonshard/init.lua, the entry, which loads whatever a recipe asks of it.
local FLOORS = {
  "base", "jinja", "distributed", "metrics", "recipe", "tensor", "nn", "shard", "engine", "data", "models",
  "huggingface", "lora", "evaluate", "checkpoint", "train", "display", "check", "explain", "clusters", "page", "price",
  "tune", "sweep", "scaling", "", "repl", "calibrate", "cli",
}

local floor_of = {}
for floor, folder in ipairs(FLOORS) do floor_of[folder] = floor end

local function shown(folder) return folder == "" and "lua/moonshard" or "lua/moonshard/" .. folder end

-- "lua/moonshard/data/init.lua" -> "moonshard.data"
local function module_name(path)
  return (path:match("lua/(moonshard/.*)%.lua$"):gsub("/init$", ""):gsub("/", "."))
end

local function folder_of(path) return path:match("lua/moonshard/([%w_]+)/") or "" end

local modules, names = {}, {} -- name -> { path, folder, requires = { { name, line }, ... } }
for _, path in ipairs(arg) do
  if path:find("lua/moonshard/", 1, true) and path:find("%.lua$") then
    local name = module_name(path)
    modules[name] = { path = path, folder = folder_of(path), requires = {} }
    names[#names + 1] = name
  end
end
table.sort(names)

local function read_requires(name)
  local module, number = modules[name], 0
  for line in io.lines(module.path) do
    number = number + 1
    local code = line:gsub("^%s*%-%-.*", ""):gsub("%s%-%-%s.*", "")
    for before, target in code:gmatch("([%w_]*[%s(]*)[\"'](moonshard[%w_.]*)[\"']") do
      -- "moonshard" alone may be anything, such as the name of the program.
      local is_module = modules[target] and (target ~= "moonshard" or before:find("^require"))
      if is_module and target ~= name then table.insert(module.requires, { name = target, line = number }) end
    end
  end
end

local findings = dofile((arg[0]:gsub("[^/]*$", "")) .. "findings.lua")

local function check_floors(name)
  local module = modules[name]
  local floor = floor_of[module.folder]
  if not floor then
    findings.report("%s: folder %s has no floor: give it one in tests/lint/requires.lua", module.path,
      shown(module.folder))
    return
  end
  for _, required in ipairs(module.requires) do
    local below = modules[required.name].folder
    if (floor_of[below] or 0) > floor then
      findings.report("%s:%d: %s requires %s of %s, which is above it", module.path, required.line,
        shown(module.folder), required.name, shown(below))
    end
  end
end

-- ---- circles: what is still open on the way down from a module, and is met again -----------------------------------

local OPEN, DONE = 1, 2
local state, way = {}, {}

local function report_circle(first)
  local from = #way
  while way[from].name ~= first do from = from - 1 end
  local steps = {}
  for i = from, #way do
    steps[#steps + 1] = ("  %s:%d requires %s"):format(modules[way[i].name].path, way[i].line, way[i].required)
  end
  findings.report("a circle of %d modules:\n%s", #steps, table.concat(steps, "\n"))
end

local function visit(name)
  state[name] = OPEN
  local here = { name = name }
  way[#way + 1] = here
  for _, required in ipairs(modules[name].requires) do
    here.line, here.required = required.line, required.name
    if state[required.name] == OPEN then report_circle(required.name) end
    if not state[required.name] then visit(required.name) end
  end
  way[#way] = nil
  state[name] = DONE
end

for _, name in ipairs(names) do read_requires(name) end
for _, name in ipairs(names) do check_floors(name) end
for _, name in ipairs(names) do
  if not state[name] then visit(name) end
end
findings.finish()
