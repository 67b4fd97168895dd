-- Files and folders that a spec makes and takes away again, and whole files read and written.

local scratch = {}

local paths = {}

---A path where nothing is, removed by scratch.clear with all that lies there then.
---@return string
function scratch.path()
  local path = os.tmpname()
  os.remove(path)
  paths[#paths + 1] = path
  return path
end

---An empty folder, removed by scratch.clear.
---@return string
function scratch.folder()
  local path = scratch.path()
  assert(os.execute("mkdir " .. path) == 0, "no folder " .. path)
  return path
end

---For a spec's teardown.
function scratch.clear()
  for _, path in ipairs(paths) do os.execute("rm -rf " .. path) end
  paths = {}
end

---@param path string
---@return string
function scratch.read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

---@param path string
---@param text string
function scratch.write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

return scratch
