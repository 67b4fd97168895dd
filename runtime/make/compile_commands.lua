-- Converts make's dry run into compile_commands.json, from which clangd and similar tools learn each file's flags.
--
--   make -f runtime/make/build.mk -nB all tests | luajit runtime/make/compile_commands.lua FOLDER OUTPUT

local folder, output_path = arg[1], arg[2]

local function quoted(text) return '"' .. text:gsub('[\\"]', "\\%0") .. '"' end

local entries, seen = {}, {}
for line in io.lines() do
  local file = line:match(" %-c (%S+%.[ch]p*p*) %-o ") or line:match(" %-c (%S+%.cu) %-o ")
  if file and not seen[file] and not line:find("^echo") then
    seen[file] = true
    entries[#entries + 1] = ('  {"directory": %s, "file": %s, "command": %s}'):format(quoted(folder), quoted(file),
      quoted(line))
  end
end
assert(entries[1], "make would compile nothing")

local output = assert(io.open(output_path, "wb"))
output:write("[\n", table.concat(entries, ",\n"), "\n]\n")
output:close()
