-- Rows of a table that train while the table stays as it is, as PEFT's trainable_token_indices: the layer gets a
-- parameter trainable_tokens [n, dim], whose rows stand in place of those of n tokens. An embedding looks tokens up in
-- both and chooses; a linear layer, such as a head that shares the embedding's weight, multiplies with the weight in
-- which the rows are replaced.

local context = require("moonshard.base.context")
local create = require("moonshard.tensor.create")
local layer_options = require("moonshard.nn.layer_options")
local ops = require("moonshard.tensor.ops")
local parameter = require("moonshard.tensor.parameter")
local tree = require("moonshard.nn.tree")

local trainable_tokens = {}

-- With other tokens the same rows would stand for other texts.
local TOKENS = layer_options.declare("ms.lora: trainable_token_indices", {
  trainable_token_indices = { "string", resume = "refused" },
})

---@class moonshard.TrainableTokens
---@field indices integer[] tokens, from 0, in the order of the rows
---@field places number[] by row of the table: 0, or which row of the parameter is in its place, from 1

---Makes rows of a layer's weight trainable.
---@param layer moonshard.Module an embedding or a linear layer
---@param indices integer[]
---@param shared moonshard.Parameter? of the layer with which this one shares its weight
function trainable_tokens.attach(layer, indices, shared)
  local rows, dim = unpack(layer.weight.shape)
  local places, weight = {}, layer.weight.source
  for i = 1, rows do places[i] = 0 end
  for i, token in ipairs(indices) do places[token + 1] = i end
  local param = shared or parameter.new({ #indices, dim, init = "zeros" })
  param.factor = "tokens"
  if weight and not shared then
    local function read(first, count, out)
      local bytes, done = 0, 0
      while done < count do
        local column = (first + done) % dim
        local run, token = math.min(dim - column, count - done), indices[(first + done - column) / dim + 1]
        bytes = bytes + weight.read(token * dim + column, run, out + done)
        done = done + run
      end
      return bytes
    end
    param.source = { read = read, path = weight.path, paths = weight.paths, identity = weight.identity }
  end
  layer.trainable_tokens = param
  rawset(layer, "_tokens", { indices = indices, places = places })
  TOKENS:note(layer, { trainable_token_indices = table.concat(indices, ",") })
end

---@param layer moonshard.Module
function trainable_tokens.detach(layer)
  rawset(layer, "_tokens", nil)
  rawset(layer, "trainable_tokens", nil)
  TOKENS:forget(layer)
end

---@param module moonshard.Module
---@return moonshard.TrainableTokens?
function trainable_tokens.of(module)
  local found = rawget(module, "_tokens") -- no tail call of a built-in function: LuaJIT would not compile its callers
  return found
end

---The layers of a model that have such rows.
---@param model moonshard.Module
---@return { name: string, layer: moonshard.Module, tokens: moonshard.TrainableTokens }[]
function trainable_tokens.layers(model)
  local found = {}
  for _, entry in ipairs(tree.inventory(model).modules) do
    local tokens = trainable_tokens.of(entry.module)
    if tokens then found[#found + 1] = { name = entry.name, layer = entry.module, tokens = tokens } end
  end
  return found
end

---@class moonshard.TokensRecord rows of a weight that train, as checkpoints keep them
---@field layer string FQN
---@field weight string FQN of the weight, which several layers can share
---@field delta string FQN of the rows
---@field indices integer[]
---@field dim integer

---@param model moonshard.Module
---@return moonshard.TokensRecord[] one for each parameter
function trainable_tokens.records(model)
  local list, first_name, seen = {}, {}, {}
  for name, param in model:named_parameters() do first_name[param] = name end
  for _, found in ipairs(trainable_tokens.layers(model)) do
    local layer = found.layer
    if not seen[layer.trainable_tokens] then
      list[#list + 1] = { layer = found.name, weight = first_name[layer.weight],
        delta = first_name[layer.trainable_tokens], indices = found.tokens.indices, dim = layer.weight.shape[2] }
    end
    seen[layer.trainable_tokens] = true
  end
  return list
end

-- ---- in a trace -------------------------------------------------------------------------------------------------

-- For each of some places f32: the row of the parameter, and whether there is one.
local function choose(layer, places, shape)
  local delta = context.trace:parameter(layer.trainable_tokens)
  local index = (places - 1):clamp({ min = 0 }):cast("i32"):reshape(unpack(shape))
  return ops.embedding(delta, index), ops.less(places * 0 + 0.5, places)
end

---Rows of an embedding, with those that train in their places.
---@param layer moonshard.Module
---@param tokens moonshard.Tensor i32 [...]
---@param rows moonshard.Tensor [..., dim] of the table
---@return moonshard.Tensor
function trainable_tokens.look_up(layer, tokens, rows)
  local table_of_places = create.tensor(trainable_tokens.of(layer).places, { dtype = "f32" }):reshape(-1, 1)
  local places = ops.embedding(table_of_places, tokens) -- [..., 1]
  local own, is_own = choose(layer, places, tokens.shape)
  return ops.where(is_own, own:cast(rows.dtype), rows)
end

---A weight in which the rows that train replace others.
---@param layer moonshard.Module
---@param weight moonshard.Tensor [rows, dim]
---@return moonshard.Tensor
function trainable_tokens.weight(layer, weight)
  local places = create.tensor(trainable_tokens.of(layer).places, { dtype = "f32" }):reshape(-1, 1)
  local own, is_own = choose(layer, places, { weight.shape[1] })
  return ops.where(is_own, own:cast(weight.dtype), weight)
end

---Puts rows into elements of a weight.
---@param values ffi.cdata* float *, elements first to first + count - 1 of the flattened weight
---@param first number
---@param count number
---@param record moonshard.TokensRecord
---@param delta ffi.cdata* float [n, dim]
function trainable_tokens.put(values, first, count, record, delta)
  local dim = record.dim
  for i, token in ipairs(record.indices) do
    local begin, stop = math.max(first, token * dim), math.min(first + count, (token + 1) * dim)
    for at = begin, stop - 1 do values[at - first] = delta[(i - 1) * dim + at - token * dim] end
  end
end

return trainable_tokens
