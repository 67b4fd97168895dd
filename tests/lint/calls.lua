-- Calls follow the floors: a file calls functions of its own folder and of folders below it, and the files of a folder
-- call each other in one direction.
--
--   luajit tests/lint/calls.lua FILE...      prints every call that looks up or sideways, and every circle of files
--
-- A function or a variable belongs to the file that defines it; who names it, in a call or a table, depends on that
-- file. Names that begin with ms_ are unique in the tree, so plain text shows it and no build is needed. What must look
-- up goes through a pointer that the upper floor hands down. Declaring, as the public header does, is not calling.

local findings = dofile((arg[0]:gsub("[^/]*$", "")) .. "findings.lua")
local floors = dofile((arg[0]:gsub("[^/]*$", "")) .. "floor_table.lua")

-- The text without comments and strings, with as many lines.
local function code_of(text)
  text = text:gsub("/%*.-%*/", function(comment) return (comment:gsub("[^\n]", " ")) end)
  text = text:gsub("//[^\n]*", "")
  text = text:gsub("%f[%w_]sizeof%b()", "")
  return (text:gsub('\\"', "  "):gsub('"[^"\n]*"', '""'))
end

local code, order = {}, {}
for _, path in ipairs(arg) do
  if floors.folder_of(path) and path:find("%.[ch]u?$") and not floors.is_public_header(path) then
    local file = assert(io.open(path))
    code[path] = code_of(file:read("*a"))
    file:close()
    order[#order + 1] = path
  end
end

-- Which files define which function. A definition begins a line and ends in "{"; on a CPU and a GPU a kernel may have
-- one name, so that a function can have several files.
local defined, private = {}, {}
for _, path in ipairs(order) do
  private[path] = {}
  for head in ("\n" .. code[path]):gmatch("\n([%a_][^\n;{}()]*[%s%*]ms_[%w_]+%b())[%s]*{") do
    local name = head:match("(ms_[%w_]+)%s*%(")
    if head:find("^static") and not path:find("%.h$") then
      private[path][name] = true
    else
      defined[name] = defined[name] or {}
      defined[name][path] = true
    end
  end
  -- Variables: a type, a name, its sizes, and a value or nothing. Headers only declare them.
  for head in ("\n" .. code[path]):gmatch("\n([%a_][%w_ %*]*[%s%*]ms_[%w_]+[^\n=;(){]*)[=;]") do
    local name = head:match("(ms_[%w_]+)%s*$") or head:match("(ms_[%w_]+)%s*%[.*%]%s*$")
    local kind = head:match("^%a+")
    local declares = kind == "static" or kind == "extern" or kind == "typedef" or path:find("%.h$")
      or head:find("^struct%s+ms_[%w_]+%s*$")
    if name and not declares then
      defined[name] = defined[name] or {}
      defined[name][path] = true
    end
  end
end

-- The files that define one name and that `path` may use; all of them where it may use none.
local function nearest(path, files)
  local all, allowed = {}, {}
  for other in pairs(files) do
    all[#all + 1] = other
    if floors.may_use(path, other) then allowed[#allowed + 1] = other end
  end
  return #allowed > 0 and allowed or all
end

-- uses[path][other] = "name:line" of the first function of `other` that `path` names.
local uses = {}
for _, path in ipairs(order) do
  local own, number = {}, 0
  for line in (code[path] .. "\n"):gmatch("(.-)\n") do
    number = number + 1
    for name, after in line:gmatch("%f[%w_](ms_[%w_]+)(.?.?)") do
      local files = defined[name]
      local is_type = after:find("^ ?[%a*]")
      local declares = path:find("%.h$") and (line:find("^extern ") or after:find("^%(") and not line:find("return"))
      if files and not files[path] and not private[path][name] and not is_type and not declares then
        for _, other in ipairs(nearest(path, files)) do
          own[other] = own[other] or ("%s, line %d"):format(name, number)
        end
      end
    end
  end
  uses[path] = own
end

for _, path in ipairs(order) do
  for other, where in pairs(uses[path]) do
    if not floors.may_use(path, other) then
      findings.report("%s (%s) calls %s of %s (%s)", path, floors.name_of(path), where, other, floors.name_of(other))
    end
  end
end

-- A header and the C file of its name are one.
local function stems(files)
  local seen, count = {}, 0
  for _, path in ipairs(files) do
    local stem = path:gsub("%.[ch]u?$", "")
    if not seen[stem] then seen[stem], count = true, count + 1 end
  end
  return count
end

-- Circles, by Tarjan's algorithm: every strongly connected set of more than one file.
local index, low, on_stack, stack, counter = {}, {}, {}, {}, 0
local function visit(path)
  counter = counter + 1
  index[path], low[path] = counter, counter
  stack[#stack + 1], on_stack[path] = path, true
  for other in pairs(uses[path]) do
    if not index[other] then
      visit(other)
      low[path] = math.min(low[path], low[other])
    elseif on_stack[other] then
      low[path] = math.min(low[path], index[other])
    end
  end
  if low[path] == index[path] then
    local circle = {}
    repeat
      local member = table.remove(stack)
      on_stack[member] = nil
      circle[#circle + 1] = member
    until member == path
    if stems(circle) > 1 then
      table.sort(circle)
      local among = {}
      for _, member in ipairs(circle) do among[member] = true end
      local lines = {}
      for _, member in ipairs(circle) do
        for other, where in pairs(uses[member]) do
          if among[other] then lines[#lines + 1] = ("    %s calls %s of %s"):format(member, where, other) end
        end
      end
      table.sort(lines)
      findings.report("a circle of %d files:\n%s", #circle, table.concat(lines, "\n"))
    end
  end
end
for _, path in ipairs(order) do
  if not index[path] then visit(path) end
end
findings.finish()
