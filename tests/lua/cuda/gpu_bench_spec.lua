-- The benchmarks of kernels for GPUs work without one: every product and every attention runs on the emulated device,
-- in small, and the tables have a row for each. How fast anything is, they cannot tell.

local json = require("cjson")
local program = require("lua.support.program")

local FOLDER = os.getenv("MOONSHARD_BIN"):match("^(.*)/")
local DEVICE = "MOONSHARD_CUDA_LIBRARY=%s/tests/emulated/libmoonshard_cuda_emulated.so MOONSHARD_EMULATE_STREAMS= "

-- The lines of a benchmark, under the names of both who are compared.
local function measure(path, bench, size, ours, theirs)
  local command = ("%s %sNAME=%s %s/bench/gpu_%s %d"):format(program.emulated_cuda(), DEVICE:format(FOLDER), ours,
    FOLDER, bench, size)
  local pipe, file = io.popen(command), assert(io.open(path, "w"))
  local lines = pipe:read("*a")
  pipe:close()
  file:write(lines, (lines:gsub(('"%s"'):format(ours), ('"%s"'):format(theirs))))
  file:close()
end

-- The head of the table, and how many rows follow, each with two figures and how they compare.
local function table_of(bench, size, ours, theirs)
  local lines, rows = os.tmpname(), 0
  measure(lines, bench, size, ours, theirs)
  local pipe = io.popen(("luajit tests/gpu/matmul_table.lua %s '%s' '%s'"):format(lines, ours, theirs))
  local told = pipe:read("*a")
  pipe:close()
  os.remove(lines)
  for row in told:gmatch("[^\n]+") do
    rows = rows + 1
    if rows > 1 then assert.truthy(row:match("^[%l%d ]+, [%l ,]+ +[%d.]+ +[%d.]+ +1.00x$"), row) end
  end
  return told:match("^[^\n]*"), rows - 1
end

describe("the benchmarks of kernels", function()
  it("run every product of both models, and print how fast each library was", function()
    local head, rows = table_of("matmul", 8, "timed", "torch")
    assert.truthy(head:find("^TFLOP/s +timed +torch  vs torch$"), head)
    assert.equal(9 * 3 + 3, rows) -- and gelu within its products
  end)

  it("run products next to a kernel in place of a collective's, on all multiprocessors and on fewer", function()
    local settings = ("MOONSHARD_EMULATE_PROCESSORS=132 MOONSHARD_STAND_IN_LIBRARY=%s/tests/emulated/%s"):format(FOLDER,
      "libstand_in_emulated.so")
    local command = "%s %s%s %s/bench/gpu_overlap 8 16 32"
    local pipe = io.popen(command:format(program.emulated_cuda(), DEVICE:format(FOLDER), settings, FOLDER))
    local text = pipe:read("*a")
    pipe:close()
    local lines, measured = {}, 0
    for line in text:gmatch("({[^\n]*})\n") do
      local row = json.decode(line)
      assert.truthy(row.alone_us > 0 and row.alone_fewer_us > 0, line)
      assert.truthy(row.overlapped_us > 0 and row.overlapped_fewer_us > 0 and row.copied_gbs > 0, line)
      measured = measured + 1
    end
    assert.equal(7 * 2, measured)
    for row in text:match("\nus +blocks [^\n]*\n(.*)$"):gmatch("[^\n]+") do
      assert.truthy(row:match("^%l[%l%d, ]+ [13][62] +[%d.]+ +[%d.]+x +[%d.]+x +[%d.]+x +[%d.]+x"), row)
      lines[#lines + 1] = row
    end
    assert.equal(measured, #lines)
  end)

  it("run attention of both models, and of heads of 128", function()
    local head, rows = table_of("attention", 20, "auto", "torch cuDNN")
    assert.truthy(head:find("^TFLOP/s +auto +torch cuDNN  vs torch cuDNN$"), head)
    assert.equal(3 * 2, rows)
  end)

  -- One expert with enough rows for the large tiles, and eight that share them.
  it("run products of experts, of many rows and of few", function()
    local head, rows = table_of("experts", 97, "timed", "torch")
    assert.truthy(head:find("^TFLOP/s +timed +torch  vs torch$"), head)
    assert.equal(6 * 3, rows)
  end)

  it("run kernels that memory bounds, and print a rate of each", function()
    local lines = os.tmpname()
    measure(lines, "memory", 2, "a", "b")
    local kernels = {}
    for line in io.lines(lines) do
      local kernel, rate = line:match('^{"kernel":"([%l_]+)",.*"gb_per_s":([%d.]+)}$')
      assert.truthy(tonumber(rate) >= 0, line)
      kernels[kernel] = true
    end
    os.remove(lines)
    assert.same({ add = true, sum_to = true, activation_backward_bias_recompute = true, cross_entropy_step = true },
      kernels)
  end)
end)
