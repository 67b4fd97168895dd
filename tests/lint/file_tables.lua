-- Compares documents with the tree: a file that a document names is there, and a table of files leaves none out.
--
--   luajit tests/lint/file_tables.lua FILE...      all files of the project; prints what is missing, and ends with 1 if
--                                                  anything is
--
-- A name is text between backquotes that ends as a source does; it may begin with folders, and `*` stands for any
-- characters. What links name is there, too, and so is a heading after `#`. A table of files has a column "file" or
-- "files". Each folder of which that column names a file is listed: its document names every source of that folder, in
-- the table or in its text.

local findings = dofile((arg[0]:gsub("[^/]*$", "")) .. "findings.lua")

local SOURCES = { c = true, cpp = true, cu = true }
local NAMED = { c = true, cpp = true, cu = true, h = true, cuh = true, lua = true, sh = true, mk = true, def = true }

local function folder_of(path) return path:match("^(.*)/[^/]*$") or "" end

local function ending_of(path) return path:match("%.(%w+)$") end

-- The files that a name of a document can stand for: those below the document's folder, or else anywhere.
local function files_of(name, document)
  local pattern, here = "/" .. name:gsub("%p", "%%%0"):gsub("%%%*", "[^/]*") .. "$", {}
  local all = {}
  for _, path in ipairs(arg) do
    if ("/" .. path):find(pattern) then
      all[#all + 1] = path
      if path:sub(1, #folder_of(document)) == folder_of(document) then here[#here + 1] = path end
    end
  end
  return #here > 0 and here or all
end

local function names_in(line)
  local names = {}
  for name in line:gmatch("`([%w_.*/-]+)`") do
    if NAMED[ending_of(name) or ""] then names[#names + 1] = name end
  end
  return names
end

local function cells_of(line)
  local cells = {}
  for cell in line:gmatch("|([^|]+)") do cells[#cells + 1] = cell end
  return cells
end

-- The column of files, where the line is the head of a table that has one.
local function column_of(line)
  for column, cell in ipairs(cells_of(line)) do
    if cell:find("^ files? $") then return column end
  end
end

-- The path of a link, from the root; nil: it leads elsewhere.
local function linked(link, document)
  if link:find("^%a+:") then return nil end
  local parts = {}
  for part in (folder_of(document) .. "/" .. link):gmatch("[^/]+") do
    if part == ".." then parts[#parts] = nil elseif part ~= "." then parts[#parts + 1] = part end
  end
  return table.concat(parts, "/")
end

local function is_there(path)
  for _, other in ipairs(arg) do
    if other == path or other:sub(1, #path + 1) == path .. "/" then return true end
  end
  return false
end

-- The anchors of a document, as GitHub makes them of headings: lower case, without punctuation, hyphens for spaces.
-- Equal headings after the first are not distinguished.
local anchors = {}
local function anchors_of(document)
  if anchors[document] then return anchors[document] end
  local found, is_code = {}, false
  for line in io.lines(document) do
    if line:find("^%s*```") then is_code = not is_code end
    local heading = not is_code and line:match("^#+%s+(.-)%s*$")
    if heading then
      heading = heading:gsub("%[([^%]]*)%]%b()", "%1"):lower()
      found[(heading:gsub("[^%w_ %-\128-\255]", ""):gsub(" ", "-"))] = true
    end
  end
  anchors[document] = found
  return found
end

local function check_anchor(document, number, link, anchor)
  local target = link == "" and document or linked(link, document)
  if not target or not target:find("%.md$") or not is_there(target) or anchors_of(target)[anchor] then return end
  findings.report("%s:%d: a link leads to #%s of %s, which has no such heading", document, number, anchor, target)
end

local function check(document)
  local number, column, listed, named = 0, nil, {}, {}
  for line in io.lines(document) do
    number = number + 1
    for link in line:gmatch("%]%(([^)#%s]+)[^)]*%)") do
      local path = linked(link, document)
      if path and not is_there(path) then findings.report("%s:%d: a link leads to %s", document, number, path) end
    end
    for link, anchor in line:gmatch("%]%(([^)#%s]*)#([^)%s]+)%)") do check_anchor(document, number, link, anchor) end
    column = line:find("^|") and (column or column_of(line)) or nil
    for _, name in ipairs(names_in(line)) do
      local files = files_of(name, document)
      if #files == 0 then findings.report("%s:%d: there is no file %s", document, number, name) end
      for _, path in ipairs(files) do named[path] = true end
    end
    for _, name in ipairs(names_in(column and cells_of(line)[column] or "")) do
      local files = files_of(name, document)
      if #files == 1 then listed[folder_of(files[1])] = true end
    end
  end
  for _, path in ipairs(arg) do
    if listed[folder_of(path)] and SOURCES[ending_of(path) or ""] and not named[path] then
      findings.report("%s: it lists the files of %s, but not %s", document, folder_of(path), path)
    end
  end
end

for _, path in ipairs(arg) do
  if path:find("%.md$") then check(path) end
end
findings.finish()
