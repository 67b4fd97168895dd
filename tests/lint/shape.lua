-- The shape of the code in numbers that should fall: how many files know of one feature, how large the public header
-- and the folders are. `make shape` prints them; as a check, with the list of what they may be, a larger number fails,
-- and so does a smaller one that the list does not have yet, so that no step back goes unseen.
--
--   luajit tests/lint/shape.lua [tests/lint/shape.list] < FILES

local MAX_FILES, MAX_LINES = 20, 400

-- A feature of each kind, by a word that its code has: how many files of the product (no tests, documents or recipes)
-- name it is what the next one of its kind would touch.
local FEATURES = {
  { "an optimizer (lion)", "%f[%w]lion%f[%W]", "%f[%w]LION%f[%W]" },
  { "a storage format (nf4)", "nf4", "NF4" },
  { "a format of sums (i4)", "%f[%w]i4%f[%W]", "%f[%w]I4%f[%W]" },
  { "a policy (param_copy)", "param_copy" },
  { "a setting (outer_alpha)", "outer_alpha" },
  { "a mesh dimension (context)", "MS_DIM_CONTEXT", '"context"' },
}

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local files = {}
for path in io.lines() do files[#files + 1] = path end

local function matching(pattern, ...)
  local list = {}
  for _, path in ipairs(files) do
    local excluded = false
    for _, other in ipairs({ ... }) do excluded = excluded or path:find(other) end
    if path:find(pattern) and not excluded then list[#list + 1] = path end
  end
  return list
end

local function lines_of(list)
  local lines = 0
  for _, path in ipairs(list) do lines = lines + select(2, read(path):gsub("\n", "")) end
  return lines
end

-- The lines of a file that are neither empty nor comment alone.
local function code_lines_of(path)
  local text = read(path)
  if path:find("%.lua$") then
    text = text:gsub("%-%-%[(=*)%[.-%]%1%]", ""):gsub("%f[^\n%z][ \t]*%-%-[^\n]*", "")
  else
    text = text:gsub("/%*.-%*/", "")
  end
  return select(2, text:gsub("[^\n]*%S[^\n]*", ""))
end

-- ---- the numbers -------------------------------------------------------------------------------------------------

local code = { "%.[ch]$", "%.cuh?$", "%.cpp$", "%.def$", "%.lua$" }
local function is_code(path)
  for _, pattern in ipairs(code) do
    if path:find(pattern) then return true end
  end
  return false
end

local function part(pattern, ...)
  local list = {}
  for _, path in ipairs(matching(pattern, ...)) do
    if is_code(path) then list[#list + 1] = path end
  end
  return list
end

local product = {}
for _, folder in ipairs({ "^runtime/", "^kernels/", "^lua/" }) do
  for _, path in ipairs(part(folder)) do product[#product + 1] = path end
end

local numbers = {}
local function number(name, value) numbers[#numbers + 1] = { name = name, value = value } end

local function files_with(patterns)
  local count = 0
  for _, path in ipairs(product) do
    local text, found = read(path), false
    for i = 2, #patterns do found = found or text:find(patterns[i]) ~= nil end
    count = count + (found and 1 or 0)
  end
  return count
end

for _, feature in ipairs(FEATURES) do number("files of the product that name " .. feature[1], files_with(feature)) end

local slots = 0
for _, path in ipairs(product) do slots = slots + select(2, read(path):gsub("attrs?[.>%-]+[if]%[", "")) end
number("attributes of ops read by number", slots)

local header = ""
for _, path in ipairs(matching("^runtime/moonshard[/.].*h$")) do header = header .. read(path) end
-- The build makes structs of these rows.
local settings = read("runtime/base/settings/settings.def")
header = header .. settings:gsub("\nMS_CONFIG%(([%w_]+)%)", "\ntypedef struct ms_%1 {")
number("functions of the public header", select(2, header:gsub("\nMS_API ", "")))
number("structs of the public header", select(2, header:gsub("\ntypedef struct [%w_]+ {", "")))

local per_folder, folders = {}, 0
for _, path in ipairs(matching(".", "^tests/fixtures/")) do
  local folder = path:match("^(.*)/[^/]*$")
  if folder then per_folder[folder] = (per_folder[folder] or 0) + 1 end
end
for _, count in pairs(per_folder) do folders = folders + (count > MAX_FILES and 1 or 0) end
number(("folders of more than %d files"):format(MAX_FILES), folders)

local long = 0
for _, path in ipairs(part(".")) do
  if not path:find("%.def$") then long = long + (lines_of({ path }) > MAX_LINES and 1 or 0) end
end
number(("files of more than %d lines"):format(MAX_LINES), long)

-- Whole thousands, and fewer than the list has are no fault: a limit by the line would make every step edit it.
local function thousands(name, list)
  number(name .. ", thousands of lines", math.ceil(lines_of(list) / 1000))
  numbers[#numbers].coarse = true
end
thousands("runtime", part("^runtime/"))
thousands("kernels", part("^kernels/"))
thousands("lua", part("^lua/"))
thousands("tests", part("^tests/", "^tests/fixtures/"))

local lines_of_code = 0
for _, path in ipairs(product) do lines_of_code = lines_of_code + code_lines_of(path) end
number("the product, thousands of lines of code without comments and empty lines", math.ceil(lines_of_code / 1000))
numbers[#numbers].coarse = true

-- ---- printed, or compared ----------------------------------------------------------------------------------------

local list = arg[1]
if not list then
  for _, entry in ipairs(numbers) do print(("%6d  %s"):format(entry.value, entry.name)) end
  return
end

local allowed, wrong = {}, false
for line in io.lines(list) do
  local most, name = line:match("^%s*(%d+)%s+(.+)$")
  if most then allowed[name] = tonumber(most) end
end
local function report(...)
  print((...):format(select(2, ...)))
  wrong = true
end
for _, entry in ipairs(numbers) do
  local name, value, most = entry.name, entry.value, allowed[entry.name]
  allowed[name] = nil
  if not most then
    report("%s: %d; %s has no limit for it", name, value, list)
  elseif value > most then
    report("%s: %d, and the limit is %d", name, value, most)
  elseif value < most and not entry.coarse then
    report("%s: %d is better than the limit %d: lower it in %s", name, value, most, list)
  end
end
for name in pairs(allowed) do report("%s: %s has a limit for what is not counted", name, list) end
if wrong then os.exit(1) end
