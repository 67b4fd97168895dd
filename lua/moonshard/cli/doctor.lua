-- moonshard doctor: what this machine has of what training uses, and what is missing.

local command_line = require("moonshard.cli.command_line")
local engine = require("moonshard.ffi")
local json = require("moonshard.json")
local progress = require("moonshard.progress")
local status = require("moonshard.cli.status")
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

local function inspect_gpu()
  local found = pcall(ffi.load, "libcuda.so.1")
  return { libcuda = found, device_in_build = false }
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
    { "gpu", (found.gpu.libcuda and "libcuda.so.1 found" or "libcuda.so.1 not found")
      .. "; the CUDA device is not in this build, training runs on the CPU" },
    { "limits", ("open files %s, locked memory %s"):format(tostring(found.limits.open_files),
      size_or_unlimited(found.limits.locked_memory_bytes)) },
  }
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
