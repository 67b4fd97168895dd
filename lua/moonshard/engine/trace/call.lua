-- Calls a module on eager tensors: traces its forward once per set of argument shapes, and evaluates it. A sharded
-- model computes on all ranks, so all must call it. A model that is not sharded yet computes only on this rank, with
-- its initial weights.

local errors = require("moonshard.base.error")
local options = require("moonshard.base.checks.options")
local same_rows = require("moonshard.engine.agreement.same_rows")
local session = require("moonshard.engine.session")
local tensor = require("moonshard.tensor")
local values = require("moonshard.tensor.values")

local PLAIN = { number = true, string = true, boolean = true, ["nil"] = true }

-- A number per module, for cache keys, which ranks compare: those of a model count its own modules, for a rank can call
-- other models alone. The tables are weak, so that they keep no module alive.
local numbers_of = setmetatable({}, { __mode = "k" }) -- by session

local function number_of(around, module)
  local of = numbers_of[around] or { last = 0, numbers = setmetatable({}, { __mode = "k" }) }
  numbers_of[around] = of
  if not of.numbers[module] then
    of.last = of.last + 1
    of.numbers[module] = of.last
  end
  return of.numbers[module]
end

-- Tensors become inputs, named by their position; other arguments become part of the cache key.
local function read_arguments(module, count, arguments)
  local specs, key = {}, {}
  for i = 1, count do
    local argument = arguments[i]
    if tensor.is_eager(argument) then
      specs[#specs + 1] = { name = "argument " .. i, dtype = argument.dtype, shape = argument.shape }
    elseif PLAIN[type(argument)] then
      key[#key + 1] = ("%d=%s %s"):format(i, type(argument), tostring(argument))
    else
      errors.invalid("%s: argument %d is %s; a module is called on eager tensors, numbers, strings and booleans",
        getmetatable(module).name, i, tensor.is(argument) and "a symbol of a trace" or options.describe(argument))
    end
  end
  return specs, table.concat(key, " ")
end

-- The results of forward: tensors become outputs, named by their position; other values stay as they are.
local function name_results(...)
  local outputs, plain, count = {}, {}, select("#", ...)
  for i = 1, count do
    local result = (select(i, ...))
    if tensor.is(result) then outputs["result " .. i] = result else plain[i] = result end
  end
  return { outputs = outputs, plain = plain, count = count }
end

local function read_results(exec)
  local graph, results = exec.plan.graph, {}
  local returned = graph.returned
  for i = 1, returned.count do
    local name = "result " .. i
    local symbol = graph.outputs[name]
    results[i] = returned.plain[i]
    if symbol then
      results[i] = values.copy(symbol.dtype, { unpack(symbol.shape) }, exec:output(name, symbol.dtype))
    end
  end
  return unpack(results, 1, returned.count)
end

---Evaluates a module. Collective when the model is sharded.
---@param module moonshard.Module
---@param ... any eager tensors, numbers, strings, booleans
---@return ... the results of forward, with eager tensors in place of symbols
return function(module, ...)
  local count, arguments = select("#", ...), { ... }
  local specs, key = read_arguments(module, count, arguments)
  if #specs == 0 then
    errors.invalid("%s was called outside a trace without eager tensors: call it on tensors of ms.tensor or "
      .. "ms.randn, or train it with ms.trainer, which traces it", getmetatable(module).name)
  end
  local around = session.around(module)
  local owner = ("module %d %s"):format(number_of(around, module), key)
  local exec = around:exec("call", specs, function(inputs)
    local symbols = {}
    for i = 1, count do
      symbols[i] = inputs["argument " .. i]
      if symbols[i] == nil then symbols[i] = arguments[i] end
    end
    return name_results(module(unpack(symbols, 1, count)))
  end, { train = false, owner = owner, who = getmetatable(module).name })
  local given = same_rows.new(around)
  for i = 1, count do
    local argument, name = arguments[i], "argument " .. i
    if tensor.is_eager(argument) then
      exec:write(name, argument, 0, argument:numel())
      if given then given:add(name, argument.dtype, argument.data, argument:numel()) end
    end
  end
  if given then given:compare(getmetatable(module).name, "a call") end
  exec:run("evaluate")
  return read_results(exec)
end
