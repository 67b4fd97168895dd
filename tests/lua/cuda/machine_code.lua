-- The instructions and registers of CUDA kernels, as nvcc compiled them for sm_90, read with NVIDIA's cuobjdump: on the
-- PATH, in the toolkit, or in build/disassembler, where `make disassembler` downloads it.

local machine_code = {}

local ARCH = "sm_90"
local PLACES = { "", (os.getenv("CUDA_HOME") or "/usr/local/cuda") .. "/bin/", "build/disassembler/bin/" }

local function output_of(command)
  local pipe = assert(io.popen(command .. " 2>/dev/null"))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

local function disassembler()
  for _, place in ipairs(PLACES) do
    if output_of(place .. "cuobjdump --version") ~= "" then return place .. "cuobjdump" end
  end
end

---What cuobjdump prints of an object, or nil and what is missing.
---@param object string path
---@param options string
---@return string|nil, string|nil
local function listing(object, options)
  if not exists(object) then return nil, ("not compiled: %s (make cuda)"):format(object) end
  local program = disassembler()
  if not program then return nil, "not found: cuobjdump (make disassembler)" end
  return output_of(("%s %s '%s' | c++filt"):format(program, options, object))
end

---@class KernelCode
---@field name string with template arguments, without namespaces
---@field registers integer per thread
---@field spills integer loads and stores of local memory
---@field loads table<integer, integer> of global memory, by bytes
---@field stores table<integer, integer> the same
---@field copies table<integer, integer> from global to shared memory

local WIDTHS = { ["128"] = 16, ["64"] = 8, ["U16"] = 2, ["S16"] = 2, ["U8"] = 1, ["S8"] = 1 }
local COUNTED = { LDG = "loads", STG = "stores", LDGSTS = "copies" }

local function width_of(modifiers)
  for modifier in modifiers:gmatch("[^.]+") do
    if WIDTHS[modifier] then return WIDTHS[modifier] end
  end
  return 4
end

local function count(kernel, instruction)
  local name, modifiers = instruction:match("^(%u+)(.*)$")
  if name == "LDL" or name == "STL" then kernel.spills = kernel.spills + 1 end
  local counted = kernel[COUNTED[name]]
  if not counted then return end
  local bytes = width_of(modifiers)
  counted[bytes] = (counted[bytes] or 0) + 1
end

local function name_of(signature)
  local plain = signature:gsub("%(anonymous namespace%)::", ""):gsub("^%s*void ", "")
  return (plain:match("^([^(]*)") or plain):gsub("[%s:]+$", "")
end

-- Registers and bytes of stack by name, as -res-usage lists them.
local function resources_in(text)
  local resources, name = {}, nil
  for line in text:gmatch("[^\n]+") do
    name = line:match("^%s*Function (.+):%s*$") or name
    local registers, stack = line:match("REG:(%d+) STACK:(%d+)")
    if registers and name then
      resources[name_of(name)] = { registers = tonumber(registers), stack = tonumber(stack) }
    end
  end
  return resources
end

---The kernels of listings: of instructions (-sass) and of resources (-res-usage), by name.
---@param instructions string
---@param resources string
---@return table<string, KernelCode>
function machine_code.parse(instructions, resources)
  local kernels, kernel = {}, nil
  for line in instructions:gmatch("[^\n]+") do
    local signature = line:match("Function : (.+)")
    local instruction = line:match("^%s+/%*%x+%*/%s+(.*)")
    instruction = instruction and instruction:gsub("^@!?%w+%s+", ""):match("^%u[%w.]*")
    if signature then
      local name = name_of(signature)
      kernel = { name = name, spills = 0, loads = {}, stores = {}, copies = {} }
      kernels[name] = kernel
    elseif instruction and kernel then
      count(kernel, instruction)
    end
  end
  for name, of in pairs(resources_in(resources)) do
    if kernels[name] then kernels[name].registers = of.registers end
  end
  return kernels
end

---Bytes of stack of an object's kernels by name, of which spills are a part; or nil and why they cannot be read. Empty
---without a kernel for this GPU.
---@param object string path
---@return table<string, integer>|nil, string|nil
function machine_code.stacks(object)
  local text, why_not = listing(object, "-res-usage -arch " .. ARCH)
  if not text then return nil, why_not end
  local stacks = {}
  for name, of in pairs(resources_in(text)) do stacks[name] = of.stack end
  return stacks
end

---The kernels of an object, or nil and why they cannot be read.
---@param object string path
---@return table<string, KernelCode>|nil, string|nil
function machine_code.kernels(object)
  local instructions, why_not = listing(object, "-sass -arch " .. ARCH)
  if not instructions then return nil, why_not end
  if not instructions:find("Function : ", 1, true) then return nil, ("not compiled for %s: %s"):format(ARCH, object) end
  return machine_code.parse(instructions, (listing(object, "-res-usage -arch " .. ARCH)))
end

---The PTX of an object, which later GPUs' code is made of, or nil and why it cannot be read.
---@param object string path
---@return string|nil, string|nil
function machine_code.ptx(object)
  local text, why_not = listing(object, "-ptx")
  if text and not text:find(".version", 1, true) then return nil, "no PTX: " .. object end
  return text, why_not
end

---The multiplications, additions and subtractions in PTX that may still be joined: those without a rounding.
---@param ptx string
---@return string[]
function machine_code.contractable(ptx)
  local found = {}
  for instruction in ptx:gmatch("%f[%w]%l%l%l%.[%w.]*f%d%d%f[^%w]") do
    local name, modifiers = instruction:match("^(%l+)(.*)$")
    if (name == "mul" or name == "add" or name == "sub") and not modifiers:find("%.r[nzmp]%.") then
      found[#found + 1] = instruction
    end
  end
  return found
end

return machine_code
