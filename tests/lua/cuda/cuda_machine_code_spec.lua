-- What nvcc made of the CUDA kernels, where it compiled them: memory is accessed 16 bytes at a time, nothing spills,
-- registers leave room for the blocks that NOTES.md counts on, and no rounding is left for a compiler to choose.

local machine_code = require("lua.cuda.machine_code")

local OBJECTS = assert(os.getenv("MOONSHARD_BIN")):match("^(.*)/") .. "/obj/"

-- By kernel whose name has the pattern: the most registers, and the least numbers of accesses of 16 bytes (of 8,
-- where a bf16 tensor goes with one in f32).
local limits = {
  norm = {
    { "held<float, float>", registers = 64, loads = 20, stores = 8 },
    { "held<float, ms_b16>", registers = 64, loads = 12, loads8 = 8, stores = 8 },
    { "held<ms_b16, float>", registers = 64, loads = 28, stores = 8 },
    { "held<ms_b16, ms_b16>", registers = 64, loads = 20, stores = 8 },
  },
  norm_backward = { { "held<", registers = 128, copies = 12, stores = 4 } }, -- two blocks of 256 threads
  activation_backward_bias = { { "ms_sum_columns<[48],", registers = 64, loads = 8, stores = 8 } },
  embedding_backward = {
    { "sum_runs<4, float, float>", registers = 64, loads = 5, stores = 10 },
    { "sum_runs<4, ms_b16, float>", registers = 64, loads8 = 4, stores = 10 },
    { "sum_runs<8, ms_b16, ms_b16>", registers = 64, loads = 5, stores = 5 },
    { "join_runs<4, float>", registers = 32, loads = 2, stores = 1 },
  },
  adamw = {
    { "ms_update<adamw, float>", registers = 64, loads = 8, stores = 3, stores8 = 1 },
    { "ms_update<adamw, ms_b16>", registers = 64, loads = 4, loads8 = 4, stores = 1, stores8 = 3 },
  },
  adamw_records = { { "adamw_records", registers = 64, loads = 4, stores = 2, stores8 = 2 } },
  lion = {
    { "ms_update<lion, float>", registers = 64, loads = 6, stores = 2, stores8 = 1 },
    { "ms_update<lion, ms_b16>", registers = 64, loads = 4, loads8 = 2, stores = 1, stores8 = 2 },
  },
  sgd = {
    { "ms_update<sgd<0>, float>", registers = 64, loads = 4, stores = 1, stores8 = 1 },
    { "ms_update<sgd<1>, float>", registers = 64, loads = 6, stores = 2, stores8 = 1 },
  },
  cross_entropy = {
    { "forward_rows<", registers = 32, loads = 4 },
    { "added_rows<", registers = 32, loads = 4 },
    { "backward_rows<", registers = 32, loads = 4, stores = 4 },
    { "both_rows<", registers = 32, copies = 1, stores = 4 },
    { "step_rows<", registers = 32, copies = 1, stores = 4 },
  },
  softmax = {
    { "held_forward<", registers = 64, loads = 4, stores = 4 },
    { "held_backward<", registers = 128, loads = 8, stores = 4 },
  },
  swiglu = {
    { "forward_of", registers = 64, loads = 4, stores = 2 },
    { "backward_of<false>", registers = 64, loads = 6, stores = 4 },
    { "backward_of<true>", registers = 64, loads = 6, stores = 6 },
  },
}

-- The most bytes of stack of a kernel: a few of scalar paths, tables that rope and quantise index, and what attention
-- spills at 255 registers.
local STACK = 8
local stacks = { attention_flash = 96, attention_flash_backward = 184, quantise = 64, rope = 40 }

-- Names of limits, and what they count.
local counters = {
  loads = { "loads", 16 },
  loads8 = { "loads", 8 },
  stores = { "stores", 16 },
  stores8 = { "stores", 8 },
  copies = { "copies", 16 },
}

-- What of a kernel is outside of its limits, e.g. "ms_update<lion, float>: registers 72 > 64".
local function findings_of(kernel, limit)
  local found = {}
  local function compare(what, there, relation, bound)
    found[#found + 1] = ("%s: %s %d %s %d"):format(kernel.name, what, there, relation, bound)
  end
  if kernel.spills > 0 then compare("spills", kernel.spills, ">", 0) end
  if kernel.registers > limit.registers then compare("registers", kernel.registers, ">", limit.registers) end
  for name, counter in pairs(counters) do
    local there, bound = kernel[counter[1]][counter[2]] or 0, limit[name] or 0
    if there < bound then compare(name, there, "<", bound) end
  end
  return found
end

local function check(kernels, object_limits)
  local found = {}
  for _, limit in ipairs(object_limits) do
    local matched = 0
    for name, kernel in pairs(kernels) do
      if name:find(limit[1]) then
        matched = matched + 1
        for _, finding in ipairs(findings_of(kernel, limit)) do found[#found + 1] = finding end
      end
    end
    if matched == 0 then found[#found + 1] = "missing: " .. limit[1] end
  end
  table.sort(found)
  return found
end

-- The compiled kernels by name.
local function objects()
  local paths = {}
  local pipe = assert(io.popen("ls kernels/cuda/*.cu kernels/cuda/*/*.cu"))
  for path in pipe:lines() do
    paths[path:match("([^/]+)%.cu$")] = OBJECTS .. path:gsub("%.cu$", ".cuda.o")
  end
  pipe:close()
  return paths
end

describe("the machine code of CUDA kernels", function()
  for object, object_limits in pairs(limits) do
    it("has vectors and no spills in " .. object, function()
      local kernels, why_not = machine_code.kernels(objects()[object])
      if not kernels then return pending(why_not) end
      assert.same({}, check(kernels, object_limits))
    end)
  end

  it("keeps registers out of memory", function()
    local kernels = 0
    for object, path in pairs(objects()) do
      local there, why_not = machine_code.stacks(path)
      if not there then return pending(why_not) end
      for name, bytes in pairs(there) do
        kernels = kernels + 1
        assert(bytes <= (stacks[object] or STACK), ("%s: %s has %d bytes of stack"):format(object, name, bytes))
      end
    end
    if kernels == 0 then return pending("not compiled for this GPU") end
  end)

  it("leaves no product and sum to be joined", function()
    for object, path in pairs(objects()) do
      local ptx, why_not = machine_code.ptx(path)
      if not ptx then return pending(why_not) end
      assert.same({}, machine_code.contractable(ptx), object)
    end
  end)
end)

describe("the check of machine code", function()
  local listing = [[
		Function : void (anonymous namespace)::held<float>((anonymous namespace)::arguments<float>)
        /*0000*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0010*/              @!P5 STG.E desc[UR8][R50.64], R4 ;
        /*0020*/              @P0  STG.E.64 desc[UR8][R50.64], R4 ;
        /*0030*/                   STL [R1], R4 ;
        /*0040*/                   LDGSTS.E.BYPASS.128 [R9], desc[UR14][R6.64], P0 ;
        /*0050*/             @!UP0 LDG.E.U16 R4, desc[UR4][R2.64] ;
]]
  local resources = [[
 Function void (anonymous namespace)::held<float>((anonymous namespace)::arguments<float>):
  REG:72 STACK:8 SHARED:1152 LOCAL:0 CONSTANT[0]:608 TEXTURE:0 SURFACE:0 SAMPLER:0
]]

  it("finds split stores, spills and registers", function()
    local kernels = machine_code.parse(listing, resources)
    assert.same({
      name = "held<float>",
      registers = 72,
      spills = 1,
      loads = { [16] = 1, [2] = 1 },
      stores = { [4] = 1, [8] = 1 },
      copies = { [16] = 1 },
    }, kernels["held<float>"])
    assert.same({ "held<float>: registers 72 > 64", "held<float>: spills 1 > 0", "held<float>: stores 0 < 1" },
      check(kernels, { { "held<", registers = 64, stores = 1 } }))
    assert.same({ "missing: streamed<" }, check(kernels, { { "streamed<", registers = 64 } }))
  end)

  it("finds what a compiler may join", function()
    assert.same({ "mul.f32", "add.ftz.f32", "sub.f64" }, machine_code.contractable(
      "mul.f32 %f1, %f2, %f3;\nmul.rn.f32 %f4, %f1, %f1;\nadd.ftz.f32 %f1, %f1, %f1;\nfma.rn.f32 %f1, %f1, %f1, %f1;\n"
      .. "add.s32 %r1, %r2, %r3;\nsub.f64 %fd1, %fd2, %fd3;\nadd.rn.ftz.f32 %f1, %f1, %f1;\nmul.wide.s32 %r;"))
  end)
end)
