-- Trains tests/lua/recipes/parity.lua on the CPU and on CUDA with the same settings, and compares the results.
--
--   luajit tests/gpu/parity.lua MOONSHARD FOLDER RANKS TOLERANCE SETTING...      exits with 1 if they differ

local compare = require("moonshard.check.tolerance")
local json = require("moonshard.base.text.json")

local binary, folder, ranks, tolerance = arg[1], arg[2], arg[3], tonumber(arg[4])

local function read(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return assert(json.decode(text))
end

local function train(device)
  local out = ("%s/%s.json"):format(folder, device)
  local words = { binary, "run", "tests/lua/recipes/parity.lua", "-n", ranks, "steps=6", "device=" .. device,
    "out=" .. out }
  for i = 5, #arg do
    if device == "cuda" or arg[i] ~= "--cuda-graph" then words[#words + 1] = arg[i] end
  end
  local status = os.execute("'" .. table.concat(words, "' '") .. "'")
  if status ~= 0 and status ~= true then
    print(("the run on %s exited with status %s"):format(device, tostring(status)))
    os.exit(1)
  end
  return read(out)
end

local cpu, cuda, wrong = train("cpu"), train("cuda"), 0

local function check(what, expected, got, allowed)
  local worst = compare.arrays(expected, got, { count = #expected, tolerance = allowed })
  if worst and worst.differs then
    print(("%s: %.9g on CUDA, %.9g on the CPU; the allowed difference is %g"):format(what, worst.got, worst.expected,
      worst.allowed))
    wrong = wrong + 1
  end
end

check("losses", cpu.losses, cuda.losses, tolerance)
check("gradient norms", cpu.norms, cuda.norms, 10 * tolerance)
check("evaluated loss", { cpu.evaluated }, { cuda.evaluated }, tolerance)
for name, values in pairs(cpu.params) do check(name, values, cuda.params[name], compare.PARAMETERS * tolerance) end
if cuda.peak_bytes ~= cuda.plan.peak_bytes then
  print(("the arenas use %d bytes; the plan predicted %d"):format(cuda.peak_bytes, cuda.plan.peak_bytes))
  wrong = wrong + 1
end
os.exit(wrong == 0 and 0 or 1)
