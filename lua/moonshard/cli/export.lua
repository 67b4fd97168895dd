-- moonshard export: writes the parameters of a checkpoint as a safetensors file for other programs, as a folder in
-- Hugging Face's layout with adapters merged, or its adapters alone as a folder of PEFT's. Holds a few megabytes of
-- them in memory at a time.

local checkpoint = require("moonshard.checkpoint")
local command_line = require("moonshard.cli.options.command_line")
local export_optimizer = require("moonshard.cli.export.export_optimizer")
local ffi = require("ffi")
local progress = require("moonshard.base.text.progress")
local safetensors = require("moonshard.base.files.safetensors")
local status = require("moonshard.base.exit_status")
local text_lines = require("moonshard.base.text.text_lines")
local refuse = status.refuse

local export = {}

local OPTIONS = {
  ["--no-checksums"] = { name = "no_checksums", value = "flag" },
  ["--ema"] = { name = "ema", value = "flag" },
  ["--huggingface"] = { name = "huggingface", value = "flag" },
  ["--adapters"] = { name = "adapters", value = "flag" },
  ["--optimizer"] = { name = "optimizer", value = "flag" },
  ["--tokenizer"] = { name = "tokenizer", value = "text", what = "a folder" },
}

local AT_ONCE = 2 ^ 21 -- elements per read

local function numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

local function kind_of(source, name, averages) return averages and source:kind_of_average(name) or "param" end

-- The contents of config.json; nil for a model without a layout of Hugging Face's library.
local function layout_of(source)
  local noted = source.manifest.model and source.manifest.model.huggingface
  return noted and require("moonshard.huggingface.config").noted(noted)
end

-- Parameters as exported: without the padding rows at the end of a padded vocabulary.
local function exported(source)
  local layout = layout_of(source)
  local shapes = layout and require("moonshard.huggingface.write").vocabulary_shapes(layout) or {}
  local list = {}
  for i, param in ipairs(source.parameters) do
    list[i] = { name = param.name, dtype = "F32", shape = shapes[param.name] or param.shape }
  end
  return list
end

-- name: of the parameter
local function copy(source, writer, buffer, tensor, kind, name)
  local elements = numel(tensor.shape)
  for first = 0, elements - 1, AT_ONCE do
    local count = math.min(AT_ONCE, elements - first)
    source:read(kind, name, first, count, buffer)
    writer:put(tensor.name, buffer, 4 * count, 4 * first)
  end
end

---Writes the full parameters of a checkpoint as F32 under their own names, without the padding rows of a vocabulary.
---Raises MS_EIO when the checkpoint is damaged.
---@param source moonshard.Checkpoint
---@param folder string created; receives model.safetensors; must not already contain a model
---@param averages boolean? write the averages of the weights instead of the weights
---@return string path
---@return number bytes
---@return integer tensors
function export.run(source, folder, averages)
  require("moonshard.huggingface.write").check_folder(folder)
  local declared, buffer, bytes = exported(source), ffi.new("float[?]", AT_ONCE), 0
  for _, param in ipairs(declared) do bytes = bytes + 4 * numel(param.shape) end
  local path = folder .. "/model.safetensors"
  local writer = safetensors.create(path, declared, { metadata = { format = "pt" }, sync = true })
  local ok, problem = pcall(function()
    for _, param in ipairs(declared) do
      copy(source, writer, buffer, param, kind_of(source, param.name, averages), param.name)
    end
    writer:finish()
  end)
  if ok then return path, bytes, #declared end
  writer:abort()
  error(problem, 0)
end

-- Reads elements of parameters of a checkpoint; the values are valid until the next read.
local function reader(source, averages)
  local buffer, room = nil, 0
  return function(name, first, count)
    if count > room then buffer, room = ffi.new("float[?]", count), count end
    source:read(kind_of(source, name, averages), name, first, count, buffer)
    return buffer
  end
end

---Writes them in Hugging Face's layout, with adapters merged. Raises MS_EUNSUPPORTED when the model has no such layout.
---@param source moonshard.Checkpoint
---@param folder string created
---@param averages boolean? write the averages of the weights instead of the weights
---@param companions string? folder whose tokenizer, chat template and generation_config.json are copied
---@return string path
---@return number bytes
---@return integer tensors
function export.run_huggingface(source, folder, averages, companions)
  local noted = source.manifest.model or {}
  local layout = layout_of(source)
  if not layout then
    refuse("MS_EUNSUPPORTED", "%s: its model has no Hugging Face layout; omit --huggingface to export it "
      .. "under its own names", source.path)
  end
  local i, read = 0, reader(source, averages)
  local function parameters()
    i = i + 1
    local param = source.parameters[i]
    if not param then return nil end
    return param.name, param.shape, function(first, count) return read(param.name, first, count) end
  end
  local merged = require("moonshard.huggingface.merged")(parameters, noted.lora or {}, noted.tokens or {})
  local written = require("moonshard.huggingface.write").write(folder, {
    config = layout, parameters = merged, folder = companions,
  })
  return folder, written.bytes, written.tensors
end

---Writes its adapters as a folder that PEFT reads. Raises MS_EINVAL when it has none.
---@param source moonshard.Checkpoint
---@param folder string created
---@param averages boolean? write the averages of the weights instead of the weights
---@return string path
---@return number bytes
---@return integer tensors
function export.run_adapters(source, folder, averages)
  local noted = source.manifest.model or {}
  if not noted.lora then
    refuse("MS_EINVAL", "%s: its model has no adapters (ms.lora); omit --adapters to export its parameters",
      source.path)
  end
  local parameters = {}
  for i, param in ipairs(source.manifest.parameters) do
    parameters[i] = { name = param.name, shape = param.shape, trained = not param.frozen }
  end
  local written, warning = require("moonshard.huggingface.adapter_writer").write(folder, {
    records = noted.lora, tokens = noted.tokens, parameters = parameters, layout = layout_of(source),
    read = reader(source, averages),
  })
  if warning then io.stderr:write("moonshard: warning: ", warning, "\n") end
  return folder, written.bytes, written.tensors
end

-- Writes the optimizer's state next to them. Returns what to say of it.
local function run_optimizer(source, folder)
  local buffer = ffi.new("float[?]", AT_ONCE)
  local path, tensors = export_optimizer.write(source, folder, exported(source), function(writer, tensor)
    copy(source, writer, buffer, tensor, tensor.kind, tensor.parameter)
  end)
  return ("%s: %d tensors of %s"):format(path, tensors, source.manifest.optimizer.kind)
end

---@param arguments string[] without "export"
---@return integer exit status
function export.main(arguments)
  local line = command_line.parse("moonshard export", arguments, { files = true, options = OPTIONS })
  if #line.files ~= 2 then
    refuse("MS_EINVAL", "moonshard export takes a checkpoint and a folder: moonshard export CHECKPOINT OUT")
  end
  if line.huggingface and line.adapters then
    refuse("MS_EINVAL", "moonshard export: --huggingface writes the whole model and --adapters only its adapters: give "
      .. "one of them")
  end
  if line.optimizer and line.ema then
    refuse("MS_EINVAL", "moonshard export: --optimizer writes what belongs to the weights, not to their averages: "
      .. "omit --ema")
  end
  if line.tokenizer and not line.huggingface then
    refuse("MS_EINVAL", "moonshard export: --tokenizer copies files into a folder of Hugging Face's layout: add "
      .. "--huggingface")
  end
  if line.tokenizer then require("moonshard.huggingface.write").check_companions(line.tokenizer) end
  local source = checkpoint.open(line.files[1])
  if line.ema then source:check_averages() end
  if line.optimizer then export_optimizer.check(source) end
  if not line.no_checksums then source:verify() end
  local to_folder = line.huggingface and export.run_huggingface or line.adapters and export.run_adapters or export.run
  local path, bytes, tensors = to_folder(source, line.files[2], line.ema, line.tokenizer)
  local state = line.optimizer and run_optimizer(source, line.files[2])
  source:close()
  print(("%s: %d tensors, %s, of %s%s, step %d"):format(text_lines.escape(path), tensors, progress.size(bytes),
    line.ema and "the averages of " or "", text_lines.escape(source.path), source.manifest.step))
  if state then print(text_lines.escape(state)) end
  return status.OK
end

return export
