-- What editors read: every name of ms has a type, and the class of a table of options has the options that are checked,
-- no more and no fewer.

local ms = require("moonshard")
local optimizer_classes = require("moonshard.repl.optimizer_classes")
local options = require("moonshard.base.checks.options")
local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

-- Classes of LuaCATS comments: name -> { fields = { name = { type =, optional = } }, parent = name }.
local function read_classes(lines, classes)
  local class
  for line in lines do
    local name, parent = line:match("^%-%-%-@class ([%w_.]+)(:?%s*[%w_.]*)")
    local field, optional, kind = line:match("^%-%-%-@field ([%w_]+)(%??) (.*)$")
    if not field then field, optional, kind = line:match("^%-%-%-@field (%[%d%])(%??) (.*)$") end
    if name then
      class = classes[name] or { fields = {}, parent = parent:match("^: ([%w_.]+)$") }
      classes[name] = class
    elseif field and class then
      local typed = kind:match("^(fun%b().*)$") or kind:match("^(table%b<>%??)") or kind:match("^(%S+)")
      class.fields[field] = { type = typed, optional = optional == "?" or typed:sub(-1) == "?" }
    elseif line:sub(1, 3) ~= "---" then
      class = nil
    end
  end
end

local classes = {}
local list = assert(io.popen("find lua -name '*.lua'"))
for path in list:lines() do read_classes(io.lines(path), classes) end
list:close()
for _, class in ipairs(optimizer_classes.names()) do
  read_classes(table.concat(optimizer_classes.lines(class), "\n"):gmatch("[^\n]+"), classes)
end

local function fields_of(name)
  local class, all = assert(classes[name], "no class " .. name), {}
  while class do
    for field, what in pairs(class.fields) do all[field] = all[field] or what end
    class = class.parent and assert(classes[class.parent], class.parent)
  end
  return all
end

-- What a call gives to options.parse as the options that there are.
local function specs_of(call)
  local parse, found = options.parse, nil
  options.parse = function(_, _, specs)
    found = specs
    error("seen", 0)
  end
  pcall(call)
  options.parse = parse
  return found
end

-- Parts are loaded when they are first used, and some check options then.
for _, name in ipairs(ms.names()) do assert(ms[name]) end
local model, sharded = ms.nn.linear(2, 2), ms.fully_shard(ms.nn.linear(2, 2))

local TYPED = {
  ["optim.adafactor"] = function() ms.optim.adafactor {} end,
  ["optim.adam"] = function() ms.optim.adam {} end,
  ["optim.adamw"] = function() ms.optim.adamw {} end,
  ["optim.lion"] = function() ms.optim.lion {} end,
  ["optim.muon"] = function() ms.optim.muon {} end,
  ["optim.sgd"] = function() ms.optim.sgd {} end,
  ConstantOptions = function() ms.schedule.constant {} end,
  SpanOptions = function() ms.schedule.cosine {} end,
  WsdOptions = function() ms.schedule.wsd {} end,
  LinearOptions = function() ms.nn.linear(1, 1) end,
  EmbeddingOptions = function() ms.nn.embedding(1, 1) end,
  LayerNormOptions = function() ms.nn.layer_norm(1) end,
  RMSNormOptions = function() ms.nn.rms_norm(1) end,
  GPT2Options = function() ms.models.gpt2 {} end,
  DecoderOptions = function() ms.models.decoder {} end,
  LlamaOptions = function() ms.models.llama {} end,
  TrainerOptions = function() ms.trainer {} end,
  ShardOptions = function() ms.fully_shard(model, {}) end,
  NewRules = function() ms.set_rules(sharded, {}) end,
  GenerateOptions = function() ms.generate({ model = {} }, {}) end,
  TextOptions = function() ms.data.text {} end,
  TokenOptions = function() ms.data.tokens {} end,
  ChatOptions = function() ms.data.chat {} end,
  RandomOptions = function() ms.data.random {} end,
  SamplerOptions = function() ms.data.sampler {} end,
  HuggingFaceModelOptions = function() ms.huggingface.model("folder", {}) end,
  SafetensorsOptions = function() ms.safetensors.create("file", {}, {}) end,
  FullParamsOptions = function() ms.with_full_params(model, print, {}) end,
  FindLrOptions = function() ms.find_lr {} end,
  SpikeOptions = function() ms.log.spikes {} end,
  SaveOptions = function() ms.checkpoint.save({}, "folder", {}) end,
  LoadOptions = function() ms.checkpoint.load({}, "folder", {}) end,
}

-- What a kind of options.parse may be annotated as.
local KINDS = {
  number = { "number", "integer" }, integer = { "integer" }, positive = { "integer" }, seed = { "integer" },
  string = { "string", '"' }, boolean = { "boolean", "false" },
  table = { "table", "moonshard.", "%[%]", "%b{}" }, ["function"] = { "fun", "moonshard." },
}

local function agrees(kinds, annotated)
  if kinds == "any" then return true end
  for kind in kinds:gmatch("[^|]+") do
    for _, pattern in ipairs(KINDS[kind] or { kind }) do
      if annotated:find(pattern) then return true end
    end
  end
  return false
end

describe("for editors", function()
  teardown(scratch.clear)

  it("every name of ms has a type, and ms has every name that has one", function()
    local fields, names = fields_of("moonshard"), { names = true }
    for _, name in ipairs(ms.names()) do
      names[name] = true
      local typed = name == "world" or fields[name]
      assert.truthy(typed, "lua/moonshard/init.lua: no ---@field " .. name)
      assert.falsy(typed ~= true and typed.type == "table", name .. " is a table of anything")
      if typed ~= true and typed.type:find("^moonshard%.[%w_]+$") then
        assert.truthy(classes[typed.type], "no class " .. typed.type)
      end
    end
    for name in pairs(fields) do assert.truthy(names[name], "there is no ms." .. name) end
  end)

  for name, call in pairs(TYPED) do
    it("the class moonshard." .. name .. " has the options that are checked", function()
      local specs, fields = assert(specs_of(call), "no options were checked"), fields_of("moonshard." .. name)
      for option, spec in pairs(specs) do
        local key = type(option) == "number" and ("[%d]"):format(option) or option
        local field = assert(fields[key], ("moonshard.%s lacks %s"):format(name, key))
        assert.truthy(agrees(spec[1], field.type), ("%s is %s, annotated as %s"):format(key, spec[1], field.type))
        -- What stands before the table, or a published size fills in, is not always needed.
        if type(option) == "string" and not specs[1] then
          assert.equal(not spec.required, field.optional, ("moonshard.%s: %s"):format(name, key))
        end
      end
      for field in pairs(fields) do
        assert.truthy(specs[field] or specs[tonumber(field:match("%d+"))], ("there is no option %s"):format(field))
      end
    end)
  end

  it("defaults and words of an optimizer's options are the engine's", function()
    local text = table.concat(optimizer_classes.lines("moonshard.optim.adamw"), "\n")
    has(text, '---@field betas? number[] ')
    has(text, "; default { 0.9, 0.999 }")
    has(text, '---@field moments? "f32"|"bf16"|"i8" ')
    has(text, "---@field weight_decay? number default 0.01")
    assert.is_nil(optimizer_classes.lines("moonshard.optim.adamax"))
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
    local out = scratch.path()
    assert.equal(0, os.execute("luajit runtime/make/make_optimizers_meta.lua " .. out))
    assert(loadfile(out))
    has(scratch.read(out), text)
  end)

  it("the ops are a definition file with every op, as a function and as a method, and its attributes", function()
    if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
    local out = scratch.path()
    assert.equal(0, os.execute("luajit runtime/make/make_ops_meta.lua " .. out))
    assert(loadfile(out))
    local text, of_ops = scratch.read(out), {}
    read_classes(io.lines(out), of_ops)
    assert.equal("---@meta", text:match("^[^\n]*"))
    for name, row in pairs(ms.ops.rows) do
      -- Collectives are methods, annotated where they are.
      if not row.across then has(text, "\nfunction ops." .. name .. "(") end
      local declared = of_ops["moonshard.ops." .. name]
      for _, attributes in ipairs({ row.slots, row.lists }) do
        for attribute in pairs(row.across and {} or attributes) do
          assert.truthy(declared.fields[attribute], name .. ": " .. attribute)
        end
      end
    end
    has(text, "\nfunction Tensor:relu()")
    assert.falsy(text:find("\nfunction Tensor:reshape(", 1, true), "tensors' own methods are annotated where they are")
  end)
end)
