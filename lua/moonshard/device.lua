-- Which device a run is on: the CPU unless the command line, a setting or the recipe's mesh says "cuda".

local engine = require("moonshard.ffi")
local errors = require("moonshard.error")
local nearest = require("moonshard.nearest")
local world = require("moonshard.world")
local C, ffi, check = engine.C, engine.ffi, engine.check

local KINDS = { cpu = C.MS_DEVICE_CPU, cuda = C.MS_DEVICE_CUDA }

local device = {
  ---Of meshes that a recipe makes without saying where; --device sets it.
  default = "cpu",
  ---Phases are captured as CUDA graphs and replayed; --cuda-graph sets it.
  graphs = false,
}

---The engine's number of a device. Refuses one that this machine has not got, unless only a plan is made: that needs
---the device's library alone.
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
    errors.raise("MS_EUNSUPPORTED", "device %s: this machine shows no GPU (CUDA_VISIBLE_DEVICES says which there are)",
      name)
  end
  return kind
end

---Takes --device and --cuda-graph of a command line.
---@param line { device: string?, cuda_graph: boolean? }
function device.take(line)
  if line.device and not KINDS[line.device] then device.kind(line.device, "--device") end
  device.default = line.device or device.default
  device.graphs = line.cuda_graph or device.graphs
end

return device
