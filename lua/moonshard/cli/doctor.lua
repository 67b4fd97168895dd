-- moonshard doctor: what this machine has of what training uses, and what is missing.

local command_line = require("moonshard.cli.command_line")
local engine = require("moonshard.base.ffi")
local json = require("moonshard.base.json")
local progress = require("moonshard.base.progress")
local status = require("moonshard.base.exit_status")
local ffi, C = engine.ffi, engine.C

local doctor = {}

local OPTIONS = { ["--json"] = { name = "json", value = "flag" } }

ffi.cdef [[
typedef struct { int major, minor, patch; const char *hash; unsigned cpu_runtime, gpu_runtime; } ms_lua_dnnl_version;
const ms_lua_dnnl_version *dnnl_version(void);
int pcre2_config_8(uint32_t what, void *where);
typedef struct { unsigned long current, maximum; } ms_lua_rlimit;
int getrlimit(int resource, ms_lua_rlimit *limit);
int memfd_create(const char *name, unsigned flags);
int close(int descriptor);
]]

-- Instruction sets that decide how fast matrix products are, by their names in /proc/cpuinfo.
local ISA_FLAGS = { "avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16", "amx_tile" }
local RLIMIT_NOFILE, RLIMIT_MEMLOCK = 7, 8 -- Linux
local UNLIMITED = 2 ^ 63
local PCRE2_CONFIG_VERSION = 11
local PCRE2_VERSION_BYTES = 64

local function read_file(path)
  local file = io.open(path, "r")
  if not file then return "" end
  local text = file:read("*a") or ""
  file:close()
  return text
end

local function inspect_cpu()
  local text = read_file("/proc/cpuinfo")
  local there, isa = {}, {}
  for flag in (text:match("flags%s*:([^\n]*)") or ""):gmatch("%S+") do
    there[flag] = true
  end
  for _, flag in ipairs(ISA_FLAGS) do
    isa[flag] = there[flag] or false
  end
  local cores = require("moonshard.host").cores()
  return {
    model = text:match("model name%s*:%s*([^\n]*)") or "unknown", cores = cores.count, core_list = cores.list,
    physical_cores = cores.physical, core_quota = cores.quota, isa = isa,
  }
end

local function inspect_memory()
  local text = read_file("/proc/meminfo")
  local function kib(name)
    return 1024 * (tonumber(text:match(name .. ":%s*(%d+) kB")) or 0)
  end
  return { total_bytes = kib("MemTotal"), available_bytes = kib("MemAvailable") }
end

local function has_memfd()
  local descriptor = C.memfd_create("moonshard-doctor", 0)
  if descriptor < 0 then return false end
  C.close(descriptor)
  return true
end

local function limit(resource)
  local l = ffi.new("ms_lua_rlimit")
  if C.getrlimit(resource, l) ~= 0 then return nil end
  local current = tonumber(l.current)
  return current < UNLIMITED and current or "unlimited"
end

-- The executable has these libraries; a plain luajit may see them through libmoonshard.so alone.
local function library_versions()
  local versions = { luajit = jit.version, moonshard = ffi.string(C.ms_version()) }
  pcall(function()
    local v = C.dnnl_version()
    versions.onednn = ("%d.%d.%d"):format(v.major, v.minor, v.patch)
  end)
  pcall(function()
    local text = ffi.new("char[?]", PCRE2_VERSION_BYTES)
    if C.pcre2_config_8(PCRE2_CONFIG_VERSION, text) > 0 then versions.pcre2 = ffi.string(text) end
  end)
  return versions
end

local CUDA_LIBRARIES = { "driver", "runtime", "cublasLt", "cudnn", "nccl" }
local NCCL_OPTIONS = { "windows", "copy_engines" }

-- What of NCCL can be asked for: { "windows" }.
local function nccl_options()
  local options, text = {}, ffi.new("char[64]")
  for _, name in ipairs(NCCL_OPTIONS) do
    engine.check(C.ms_device_library(C.MS_DEVICE_CUDA, "nccl_" .. name, text, 64))
    if text[0] ~= 0 then options[#options + 1] = name end
  end
  return options
end

local function cuda_versions()
  local versions, text = {}, ffi.new("char[64]")
  for _, name in ipairs(CUDA_LIBRARIES) do
    engine.check(C.ms_device_library(C.MS_DEVICE_CUDA, name, text, 64))
    if text[0] ~= 0 then versions[name] = ffi.string(text) end
  end
  return versions
end

local function inspect_gpus()
  local count, info, gpus = ffi.new("int[1]"), ffi.new("ms_device_info"), {}
  engine.check(C.ms_device_count(C.MS_DEVICE_CUDA, count))
  for i = 0, count[0] - 1 do
    engine.check(C.ms_device_describe(C.MS_DEVICE_CUDA, i, info))
    local peers = {}
    for peer = 0, count[0] - 1 do
      if info.peer[peer] == 1 then peers[#peers + 1] = peer end
    end
    gpus[i + 1] = {
      name = ffi.string(info.name), capability = ("%d.%d"):format(info.major, info.minor),
      processors = info.processors, memory_bytes = info.memory_bytes, peers = peers,
    }
  end
  return gpus
end

-- why: what keeps training from running on GPUs here; nil: nothing.
local function inspect_gpu()
  local found = { libcuda = (pcall(ffi.load, "libcuda.so.1")), libraries = {}, devices = {} }
  local ok, raised = pcall(function()
    found.libraries = cuda_versions()
    found.nccl_options = nccl_options()
    found.devices = inspect_gpus()
  end)
  if not ok then found.why = tostring(raised.message or raised)
  elseif #found.devices == 0 then found.why = "device cuda: this machine shows no GPU" end
  return found
end

---Everything that doctor tells, as a table.
---@return table
function doctor.inspect()
  return {
    cpu = inspect_cpu(),
    memory = inspect_memory(),
    shared_memory = { memfd = has_memfd() },
    libraries = library_versions(),
    gpu = inspect_gpu(),
    limits = { open_files = limit(RLIMIT_NOFILE), locked_memory_bytes = limit(RLIMIT_MEMLOCK) },
  }
end

local function yes(value) return value and "yes" or "no" end

local function bf16_verdict(isa)
  if isa.amx_bf16 then return "bf16 products run on the tile unit (AMX), and f32 ones in three bf16 parts" end
  if isa.avx512_bf16 then return "bf16 products are native (AVX512_BF16)" end
  return "no bf16 instructions: mixed precision \"auto\" stays with f32"
end

local function size_or_unlimited(value)
  return type(value) == "number" and progress.size(value) or tostring(value)
end

-- What `moonshard run` does with the cores unless --pin says otherwise.
local function pinning_verdict(cpu)
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
  end
  if gpu.why then
    rows[#rows + 1] = { "gpu", ("libcuda.so.1 %sfound; %s"):format(gpu.libcuda and "" or "not ", gpu.why) }
  end
  local versions = {}
  for _, name in ipairs(CUDA_LIBRARIES) do
    if gpu.libraries[name] then versions[#versions + 1] = name .. " " .. gpu.libraries[name] end
  end
  if #versions == 0 then return end
  if gpu.nccl_options and #gpu.nccl_options > 0 then
    versions[#versions] = ("%s (%s)"):format(versions[#versions], table.concat(gpu.nccl_options, ", "))
  end
  rows[#rows + 1] = { "", "CUDA: " .. table.concat(versions, ", ") }
  if not gpu.libraries.cublasLt then
    rows[#rows + 1] = { "", "cuBLASLt is not found: own kernels compute matrix products, without tensor cores "
      .. "(MOONSHARD_CUBLASLT_LIBRARY may name it)" }
  end
  if not gpu.libraries.cudnn then
    rows[#rows + 1] = { "", "cuDNN is not found: own kernels compute attention (MOONSHARD_CUDNN_LIBRARY may name it)" }
  end
end

local function print_text(found)
  local cpu, isa = found.cpu, {}
  for _, flag in ipairs(ISA_FLAGS) do
    if cpu.isa[flag] then isa[#isa + 1] = flag end
  end
  local rows = {
    { "cpu", ("%s, %s usable core%s"):format(cpu.model, cpu.cores or "?", cpu.cores == 1 and "" or "s") },
    { "", pinning_verdict(cpu) },
    { "instructions", #isa > 0 and table.concat(isa, " ") or "none of " .. table.concat(ISA_FLAGS, " ") },
    { "", bf16_verdict(cpu.isa) },
    { "memory", ("%s, %s available"):format(progress.size(found.memory.total_bytes),
      progress.size(found.memory.available_bytes)) },
    { "shared memory", "memfd: " .. yes(found.shared_memory.memfd)
      .. (found.shared_memory.memfd and "" or " (ranks cannot share memory: run with 1 rank)") },
    { "libraries", ("moonshard %s, %s, oneDNN %s, PCRE2 %s"):format(found.libraries.moonshard, found.libraries.luajit,
      found.libraries.onednn or "not visible", found.libraries.pcre2 or "not visible") },
  }
  gpu_rows(found.gpu, rows)
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
  local found = doctor.inspect()
  if line.json then
    io.write(json.encode(found), "\n")
  else
    print_text(found)
  end
  return status.OK
end

return doctor
