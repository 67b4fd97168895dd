-- The device of a run: the CPU unless the command line, a setting or the recipe's mesh selects "cuda".

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local nearest = require("moonshard.base.names.nearest")
local world = require("moonshard.distributed.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local KINDS = { cpu = C.MS_DEVICE_CPU, cuda = C.MS_DEVICE_CUDA }

local device = {
  ---The default device of meshes; --device sets it.
  default = "cpu",
  ---Whether phases are captured as CUDA graphs and replayed; --cuda-graph sets it.
  graphs = false,
  ---How NCCL communicates: nil, "windows" or "copy_engines" (enum ms_nccl_option); --nccl-windows and
  ---`--nccl-copy-engines` set it.
  nccl = nil, ---@type string?
  ---Multiprocessors that products leave to collectives which can run at the same time (ms_plan_config.sm_carveout);
  ---`--sm-carveout` sets it.
  sm_carveout = 0,
  ---Threads of a rank of a described machine, which plans are compiled for; nil: as many as this machine gives it.
  threads = nil, ---@type integer?
}

local NCCL_OPTIONS = { windows = C.MS_NCCL_WINDOWS, copy_engines = C.MS_NCCL_COPY_ENGINES }

---The engine's number of a device. Refuses a device that this machine lacks, unless only a plan is compiled, which
---needs just the device's library.
---@param name string "cpu" or "cuda"
---@param what string? for messages: "setting device"
---@return integer
function device.kind(name, what)
  local kind = KINDS[name]
  if not kind then
    errors.raise("MS_ENAME", "%s %s: %s", what or "device", tostring(name), nearest.advice(tostring(name), KINDS))
  end
  if kind == C.MS_DEVICE_CPU or world.plan_only then return kind end
  local count = ffi.new("int[1]")
  check(C.ms_device_count(kind, count))
  if count[0] == 0 then
    errors.raise("MS_EUNSUPPORTED", "device %s: this machine shows no GPU (CUDA_VISIBLE_DEVICES can hide them)", name)
  end
  return kind
end

---The engine's NCCL option for a state on a device: none except on cuda.
---@param kind integer
---@return integer
function device.nccl_options(kind)
  return kind == C.MS_DEVICE_CUDA and NCCL_OPTIONS[device.nccl] or 0
end

---Applies --device, --cuda-graph, --nccl-windows, --nccl-copy-engines and --sm-carveout of a command line.
---@param line { device: string?, cuda_graph: boolean?, nccl_windows: boolean?, nccl_copy_engines: boolean?,
---sm_carveout: integer? }
function device.apply_options(line)
  if line.device and not KINDS[line.device] then device.kind(line.device, "--device") end
  device.default = line.device or device.default
  device.graphs = line.cuda_graph or device.graphs
  device.nccl = line.nccl_copy_engines and "copy_engines" or line.nccl_windows and "windows" or device.nccl
  device.sm_carveout = line.sm_carveout or device.sm_carveout
end

return device
