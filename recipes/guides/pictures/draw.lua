-- Draws the pictures of the guides by commands that a user has, too: charts of pages of `moonshard sweep` and
-- `moonshard price`, as their links download them, and a loss curve. `make pictures` runs it, and a spec compares what
-- is here with what it draws.
--
--   luajit recipes/guides/pictures/draw.lua build/release/moonshard recipes/guides/pictures

local program, out = arg[1], arg[2]
local folder = out .. "/pages"

local function run(command)
  local status = os.execute(("'%s' %s >/dev/null"):format(program, command))
  if status ~= 0 and status ~= true then error(program .. " " .. command .. " failed", 0) end
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  assert(file:close())
end

-- The file that a page's link downloads.
local function download(page, name)
  local data = page:match('download="' .. name:gsub("%p", "%%%0") .. '" href="data:[^,]*,([^"]*)"')
  if not data then error("the page has no " .. name, 0) end
  return (data:gsub("%%(%x%x)", function(code) return string.char(tonumber(code, 16)) end)) .. "\n"
end

assert(os.execute(("mkdir -p '%s'"):format(folder)))

run(("sweep recipes/guides/pictures/sweep.lua out='%s/sweep'"):format(folder))
write(out .. "/sweep.svg", download(read(folder .. "/sweep/index.html"), "speed.svg"))

run(("price recipes/llama.lua -n 16 --cluster h100x8-400g mesh=2x8 size=1B seq=1024 batch=4 files=recipes "
  .. "--page '%s/price.html'"):format(folder))
local price = read(folder .. "/price.html")
write(out .. "/timeline.svg", download(price, "timeline-of-a-step.svg"))
write(out .. "/memory.svg", download(price, "memory-over-a-step.svg"))
write(out .. "/mesh.svg", download(price, "the-mesh-and-its-groups.svg"))

run(("run recipes/guides/pictures/loss.lua svg='%s/loss.svg'"):format(out))

assert(os.execute(("rm -r '%s'"):format(folder)))
