-- The hardware and software of this machine that matter for training: cores, memory, libraries, GPUs, limits.

local engine = require("moonshard.base.ffi")
local host_memory = require("moonshard.base.host_memory")
local input_file = require("moonshard.base.files.input_file")
local ffi, C = engine.ffi, engine.C

local machine = {}

ffi.cdef [[
typedef struct { int major, minor, patch; const char *hash; unsigned cpu_runtime, gpu_runtime; } ms_lua_dnnl_version;
const ms_lua_dnnl_version *dnnl_version(void);
int pcre2_config_8(uint32_t what, void *where);
typedef struct { unsigned long current, maximum; } ms_lua_rlimit;
int getrlimit(int resource, ms_lua_rlimit *limit);
int memfd_create(const char *name, unsigned flags);
int close(int descriptor);
]]

-- Instruction sets that decide the speed of matrix products, by their names in /proc/cpuinfo.
machine.ISA_FLAGS = { "avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16", "amx_tile" }
local RLIMIT_NOFILE, RLIMIT_MEMLOCK = 7, 8 -- Linux
local UNLIMITED = 2 ^ 63
local PCRE2_CONFIG_VERSION = 11
local PCRE2_VERSION_BYTES = 64

---The processor, and the cores that this process can use. Only in the executable.
---@return table
function machine.cpu()
  local text = input_file.text("/proc/cpuinfo") or ""
  local there, isa = {}, {}
  for flag in (text:match("flags%s*:([^\n]*)") or ""):gmatch("%S+") do
    there[flag] = true
  end
  for _, flag in ipairs(machine.ISA_FLAGS) do
    isa[flag] = there[flag] or false
  end
  local cores = require("moonshard.host").cores()
  return {
    model = text:match("model name%s*:%s*([^\n]*)") or "unknown", cores = cores.count, core_list = cores.list,
    physical_cores = cores.physical, core_quota = cores.quota, isa = isa,
  }
end

local function inspect_memory()
  local found = host_memory.read()
  return { total_bytes = found.total, available_bytes = found.available, limit_bytes = found.limit,
    limit_file = found.limit_file }
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

-- The executable contains these libraries; a plain luajit can see them only through libmoonshard.so.
local function library_versions()
  local versions = { luajit = jit.version, moonshard = engine.version }
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

machine.CUDA_LIBRARIES = { "driver", "runtime", "cublasLt", "cudnn", "nccl" }
local NCCL_OPTIONS = { "windows", "copy_engines" }

-- The optional features of NCCL: { "windows" }.
local function nccl_options()
  local options, text = {}, ffi.new("char[64]")
  for _, name in ipairs(NCCL_OPTIONS) do
    engine.check(C.ms_device_library(C.MS_DEVICE_CUDA, C["MS_LIBRARY_NCCL_" .. name:upper()], text, 64))
    if text[0] ~= 0 then options[#options + 1] = name end
  end
  return options
end

local function cuda_versions()
  local versions, text = {}, ffi.new("char[64]")
  for _, name in ipairs(machine.CUDA_LIBRARIES) do
    engine.check(C.ms_device_library(C.MS_DEVICE_CUDA, C["MS_LIBRARY_" .. name:upper()], text, 64))
    if text[0] ~= 0 then versions[name] = ffi.string(text) end
  end
  return versions
end

-- The reason that no rank can open a GPU; nil if one can.
local function refusal_of(index)
  local ok, raised = pcall(function() engine.check(C.ms_device_check(C.MS_DEVICE_CUDA, index)) end)
  return not ok and tostring(raised.message or raised) or nil
end

local function inspect_gpus()
  local count, info, gpus = ffi.new("int[1]"), ffi.new("ms_device_info"), {}
  engine.check(C.ms_device_count(C.MS_DEVICE_CUDA, count))
  for i = 0, count[0] - 1 do
    engine.check(C.ms_device_describe(C.MS_DEVICE_CUDA, i, info, ffi.sizeof(info)))
    local peers = {}
    for peer = 0, count[0] - 1 do
      if info.peer[peer] == 1 then peers[#peers + 1] = peer end
    end
    gpus[i + 1] = {
      name = ffi.string(info.name), capability = ("%d.%d"):format(info.major, info.minor),
      processors = info.processors, memory_bytes = tonumber(info.memory_bytes), peers = peers, why = refusal_of(i),
    }
  end
  return gpus
end

-- why: the reason that training cannot use GPUs here, or one of them; nil if it can.
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

-- "1.13.1", or nil and why there is none.
local function transport_fact(fact)
  local text = ffi.new("char[256]")
  local ok, raised = pcall(function() engine.check(C.ms_transport_describe(fact, text, 256)) end)
  if ok then return ffi.string(text) end
  return nil, tostring(raised.message or raised)
end

-- How ranks of different hosts would move bytes. why, ucx_why: the reason that there is no transport, no UCX.
local function inspect_transport()
  local chosen, why = transport_fact(C.MS_TRANSPORT_CHOSEN)
  local ucx, ucx_why = transport_fact(C.MS_TRANSPORT_UCX)
  return { chosen = chosen, why = why, ucx = ucx, ucx_why = ucx_why }
end

---All of the above, as a table.
---@return table
function machine.inspect()
  return {
    cpu = machine.cpu(),
    memory = inspect_memory(),
    shared_memory = { memfd = has_memfd() },
    libraries = library_versions(),
    gpu = inspect_gpu(),
    transport = inspect_transport(),
    limits = { open_files = limit(RLIMIT_NOFILE), locked_memory_bytes = limit(RLIMIT_MEMLOCK) },
  }
end

return machine
