-- moonshard doctor: reports the hardware and libraries that training uses, and what is missing.

local command_line = require("moonshard.cli.options.command_line")
local json = require("moonshard.base.text.json")
local machine = require("moonshard.base.machine")
local progress = require("moonshard.base.text.progress")
local status = require("moonshard.base.exit_status")

local doctor = {}

local OPTIONS = { ["--json"] = { name = "json", value = "flag" } }

local function yes(value) return value and "yes" or "no" end

local function bf16_support(isa)
  if isa.amx_bf16 then return "bf16 products run on the tile unit (AMX), and f32 products as three bf16 parts" end
  if isa.avx512_bf16 then return "bf16 products are native (AVX512_BF16)" end
  return "no bf16 instructions: mixed precision \"auto\" stays with f32"
end

local function size_or_unlimited(value)
  return type(value) == "number" and progress.size(value) or tostring(value)
end

local function size_or_unknown(bytes) return bytes and progress.size(bytes) or "unknown" end

-- A plan that needs more is refused before anything is written.
local function limit_of(memory)
  if not memory.limit_bytes then return "no control group limits it" end
  return ("a control group allows %s: %s"):format(progress.size(memory.limit_bytes), memory.limit_file)
end

-- The default core assignment of `moonshard run` (--pin auto).
local function pinning(cpu)
  if cpu.core_quota < cpu.cores then
    return ("cores %s, of which a quota pays for %.3g: ranks are not pinned"):format(cpu.core_list, cpu.core_quota)
  end
  return ("cores %s: up to %d ranks are pinned to cores of their own, more are not pinned")
    :format(cpu.core_list, cpu.cores)
end

-- "0: NVIDIA H200, compute capability 9.0, 132 multiprocessors, 139.8 GiB; reads the memory of GPU 1 2 3 directly"
local function gpu_rows(gpu, rows)
  for i, one in ipairs(gpu.devices) do
    local peers = #one.peers > 0 and "; reads the memory of GPU " .. table.concat(one.peers, " ") .. " directly" or ""
    local text = ("%d: %s, compute capability %s, %d multiprocessors, %s%s"):format(i - 1, one.name, one.capability,
      one.processors, progress.size(one.memory_bytes), peers)
    rows[#rows + 1] = { i == 1 and "gpu" or "", text }
    if one.why then rows[#rows + 1] = { "", one.why } end
  end
  if gpu.why then
    rows[#rows + 1] = { "gpu", ("libcuda.so.1 %sfound; %s"):format(gpu.libcuda and "" or "not ", gpu.why) }
  end
  local versions = {}
  for _, name in ipairs(machine.CUDA_LIBRARIES) do
    if gpu.libraries[name] then versions[#versions + 1] = name .. " " .. gpu.libraries[name] end
  end
  if #versions == 0 then return end
  if gpu.nccl_options and #gpu.nccl_options > 0 then
    versions[#versions] = ("%s (%s)"):format(versions[#versions], table.concat(gpu.nccl_options, ", "))
  end
  rows[#rows + 1] = { "", "CUDA: " .. table.concat(versions, ", ") }
  if not gpu.libraries.cublasLt then
    rows[#rows + 1] = { "", "cuBLASLt not found: built-in kernels compute matrix products, without tensor cores "
      .. "(set MOONSHARD_CUBLASLT_LIBRARY to its path)" }
  end
  if not gpu.libraries.cudnn then
    rows[#rows + 1] = { "", "cuDNN not found: built-in kernels compute attention "
      .. "(set MOONSHARD_CUDNN_LIBRARY to its path)" }
  end
end

local function print_text(found)
  local cpu, isa = found.cpu, {}
  for _, flag in ipairs(machine.ISA_FLAGS) do
    if cpu.isa[flag] then isa[#isa + 1] = flag end
  end
  local rows = {
    { "cpu", ("%s, %s usable core%s"):format(cpu.model, cpu.cores or "?", cpu.cores == 1 and "" or "s") },
    { "", pinning(cpu) },
    { "instructions", #isa > 0 and table.concat(isa, " ") or "none of " .. table.concat(machine.ISA_FLAGS, " ") },
    { "", bf16_support(cpu.isa) },
    { "memory", ("%s, %s available"):format(size_or_unknown(found.memory.total_bytes),
      size_or_unknown(found.memory.available_bytes)) },
    { "", limit_of(found.memory) },
    { "shared memory", "memfd: " .. yes(found.shared_memory.memfd)
      .. (found.shared_memory.memfd and "" or " (ranks cannot share memory: run with 1 rank)") },
    { "libraries", ("moonshard %s, %s, oneDNN %s, PCRE2 %s"):format(found.libraries.moonshard, found.libraries.luajit,
      found.libraries.onednn or "not visible", found.libraries.pcre2 or "not visible") },
  }
  gpu_rows(found.gpu, rows)
  rows[#rows + 1] = { "between hosts", found.transport.chosen or found.transport.why }
  rows[#rows + 1] = { "", found.transport.ucx and "UCX " .. found.transport.ucx or found.transport.ucx_why }
  rows[#rows + 1] = { "limits", ("open files %s, locked memory %s"):format(tostring(found.limits.open_files),
    size_or_unlimited(found.limits.locked_memory_bytes)) }
  for _, row in ipairs(rows) do
    io.write(("%-14s  %s\n"):format(row[1], row[2]))
  end
end

---@param arguments string[] without "doctor"
---@return integer exit status
function doctor.main(arguments)
  local line = command_line.parse("moonshard doctor", arguments, { options = OPTIONS })
  local found = machine.inspect()
  if line.json then
    io.write(json.encode(found), "\n")
  else
    print_text(found)
  end
  return status.OK
end

return doctor
