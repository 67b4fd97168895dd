-- The benchmark of matrix products for GPUs works without one: every product runs on the emulated device, in small, and
-- the table has a row for each. How fast anything is, it cannot tell.

local program = require("lua.program")

local FOLDER = os.getenv("MOONSHARD_BIN"):match("^(.*)/")

-- The lines of all products, under the names of both who are compared.
local function measure(path)
  local command = ("%s MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so NAME=timed "
    .. "MOONSHARD_EMULATE_STREAMS= %s/bench/gpu_matmul 8"):format(program.emulated_cuda(), FOLDER, FOLDER)
  local pipe, file = io.popen(command), assert(io.open(path, "w"))
  local lines = pipe:read("*a")
  pipe:close()
  file:write(lines, (lines:gsub('"timed"', '"torch"')))
  file:close()
end

describe("the benchmark of matrix products", function()
  it("runs every product of both models, and tells who was how fast", function()
    local lines, rows = os.tmpname(), 0
    measure(lines)
    local pipe = io.popen("luajit tests/gpu/matmul_table.lua " .. lines)
    local told = pipe:read("*a")
    pipe:close()
    os.remove(lines)
    for row in told:gmatch("[^\n]+") do
      rows = rows + 1
      if rows > 1 then assert.truthy(row:match("^%l+%d* %l+, [%l ]+ +[%d.]+ +[%d.]+ +1.00x$"), row) end
    end
    assert.equal(1 + 9 * 3, rows)
    assert.truthy(told:find("^TFLOP/s +timed +torch  of torch\n"))
  end)
end)
