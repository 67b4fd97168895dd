-- Whether the specs of `make test` find faults that are put into the sources: luajit tests/mutants/run.lua BUILD [ONLY]
--
-- Builds a copy of the tree in BUILD/mutants, never in the tree itself, and in it makes one fault of mutants.lua after
-- the other. One is found if a test of its spec fails, and survives if all pass: then `make test` needs an assertion. A
-- spec that is stopped has shown nothing. Specs run as in `make test`, with one case of a kind, first all of them
-- without a fault. Ends with: N passed, N failed.

local mutants = require("mutants.mutants")

local build, only = arg[1], arg[2] or ""
local TREE = build .. "/mutants"
local SECONDS = 300 -- of a spec

local function output_of(command)
  local pipe = assert(io.popen(("( %s ) 2>&1; echo status $?"):format(command)))
  local text = pipe:read("*a")
  pipe:close()
  local said, status = text:match("^(.*)status (%d+)\n$")
  return said, tonumber(status)
end

local function must(command)
  local text, status = output_of(command)
  if status ~= 0 then error(("%s\nended with status %d:\n%s"):format(command, status, text), 0) end
  return text
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

-- Names the file with a fault while it is there, for the run after one that was stopped.
local FAULTY = TREE .. "/build/faulty"

-- The sources as they are, and what is built of them, with the times of both, so that little is built again: objects
-- know their tree by PREFIX_MAP alone. What was built of a fault is older than its source.
local here = must("pwd"):gsub("\n", "")
local function copy_tree()
  must(("mkdir -p %s/build"):format(TREE))
  must(("find %s -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +"):format(TREE))
  must(("git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - 2>/dev/null | "
    .. "tar -x -C %s"):format(TREE))
  must(("cp -a -u %s/gen %s/release %s/build/"):format(build, build, TREE))
  must(("if [ -e %s ]; then touch %s/$(cat %s) && rm %s; fi"):format(FAULTY, TREE, FAULTY, FAULTY))
end

local function make(...)
  local strict = read(TREE .. "/build/release/flags.list"):find("-Werror", 1, true)
  return output_of(("cd %s && env -u MAKEFLAGS -u MFLAGS -u WERROR make --no-print-directory -j$(nproc) "
    .. "-f runtime/make/build.mk BUILD=build NVCC= MPICC= PREFIX_MAP=-ffile-prefix-map=%s=. WERROR=%s %s"):format(TREE,
    here, strict and "1" or "", table.concat({ ... }, " ")))
end

-- What a spec runs besides the executable: a C test is a program of its own.
local function targets_of(spec)
  local name = spec:match("/(test_[%w_]+)$")
  return "all", name and ("build/release/tests/" .. name) or ""
end

---@return "found"|"SURVIVES"|"STOPPED" verdict
---@return string said
local function run(spec)
  local text, status = output_of(("cd %s && tests/run.sh --build build/release --config release --few --only %s "
    .. "--timeout %d"):format(TREE, spec, SECONDS))
  if not text:find("%d+ passed, %d+ failed") or text:find("\n0 passed, 0 failed") then
    error(("there is no spec %s: %s"):format(spec, text), 0)
  end
  if status == 0 then return "SURVIVES", text end
  local ended = text:find("\n +not ok ") or text:find("ended by signal", 1, true)
  return ended and "found" or "STOPPED", text
end

-- The text with the line replaced, in which it must be once; the rest of the line stays.
local function with_fault(path, line, instead)
  local text = read(path)
  local first, last = text:find(line, 1, true)
  assert(first, ("%s has no line %q"):format(path, line))
  assert(not text:find(line, last + 1, true), ("%s has more than one line %q"):format(path, line))
  return text:sub(1, first - 1) .. instead .. text:sub(last + 1), text
end

local chosen, specs, listed = {}, {}, {}
for _, mutant in ipairs(mutants) do
  local what, file, _, _, spec = unpack(mutant)
  if (what .. " " .. file .. " " .. spec):find(only, 1, true) then
    chosen[#chosen + 1] = mutant
    if not listed[spec] then specs[#specs + 1], listed[spec] = spec, true end
  end
end

copy_tree()
for _, spec in ipairs(specs) do
  local said, status = make(targets_of(spec))
  if status ~= 0 then error("the tree does not build:\n" .. said, 0) end
  local verdict, text = run(spec)
  if verdict ~= "SURVIVES" then error(("%s fails without a fault:\n%s"):format(spec, text), 0) end
end

local found, survived = 0, 0
for i, mutant in ipairs(chosen) do
  local what, file, line, instead, spec = unpack(mutant)
  local path, began = TREE .. "/" .. file, os.time()
  local faulty, right = with_fault(path, line, instead)
  write(FAULTY, file)
  write(path, faulty)
  local said, status = make(targets_of(spec))
  local verdict = status == 0 and run(spec) or "BROKEN"
  write(path, right)
  must("rm " .. FAULTY)
  found, survived = found + (verdict == "found" and 1 or 0), survived + (verdict == "found" and 0 or 1)
  print(("%-8s  %2d/%d  %s: %s (%d s)"):format(verdict, i, #chosen, spec, what, os.time() - began))
  if status ~= 0 then print(said:sub(-2000)) end
  io.stdout:flush()
end
make("all")
print(("%d passed, %d failed"):format(found, survived))
os.exit(survived == 0 and found > 0 and 0 or 1)
