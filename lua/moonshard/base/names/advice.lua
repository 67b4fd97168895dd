-- Suggestions for unknown names: PyTorch's names and their counterparts here, and explanations of Lua's own messages
-- about a missing method. It raises no errors, so error.lua can call it.

local nearest = require("moonshard.base.names.nearest")

local advice = {
  ---The rows of the op table by name, and tables whose keys are methods. They belong to higher layers, so
  ---moonshard/init.lua, the top layer, sets them.
  ---@type fun(): table<string, any>
  ops = function() return {} end,
  ---@type fun(): table<string, any>[]
  methods = function() return {} end,
}

-- Long tables, which only a mistake needs.
local function other_names() return require("moonshard.base.names.other_names") end

local STEP = "train:step(batch) does forward, backward, clipping and the update"
local MODE = "a model has no mode: train:step trains, train:evaluate evaluates"
local DEVICE = "the mesh or --device chooses the device"
local MADE = "a module is made by a call of its class, Net(...), which runs function Net:init(...)"
local INHERITED = 'ms.module("Net", Base) inherits, and Base.init(self, ...) is the other init'
local DTYPE = "parameters stay f32 masters; mp_policy of ms.fully_shard sets the compute type"

local SHARDED = "it is ms.fully_shard(model, { mesh = ... })"
local REPLICATED = "a model on a mesh that only has replicate is replicated"
local LOADED = "ms.data.text and others shuffle, divide and batch: for step, batch in data:batches(steps) do"
local SEEDED = "ms.fully_shard, ms.trainer and the data each take a seed; ms.manual_seed is for ms.rand and ms.randn"

local RANKS = "`moonshard run -n N` starts the ranks; ms.world() has rank and size"
local GROUPS = "groups of ms.optim are rules over parameters, { { pattern, { lr_scale = 0.1 } } }, and train:set_rules "
  .. "{ groups = ... } changes them"
local NO_GRAD = "train:evaluate and calling a model on tensors compute no gradients"

local PLACEMENTS = 'it is the option placements of ms.fully_shard, as in { { "fc1", { tensor = "colwise" } } }'

-- By method name, for any receiver.
local METHODS = {
  full_tensor = 'redistribute { tensor = "replicate" }', distribute_tensor = "redistribute { tensor = ms.Shard(axis) }",
  all_gather_tensor = 'all_gather("tensor", axis)', all_gather_into_tensor = 'all_gather("tensor", axis)',
  reduce_scatter_tensor = 'reduce_scatter("tensor", axis)', all_reduce_coalesced = 'all_reduce("tensor")',
  all_to_all_single = 'all_to_all("tensor", split_axis, concat_axis)', ppermute = 'shift("tensor", n)',
  numpy = "tolist", long = 'cast("i32")', int = 'cast("i32")', bool = "ne(0)",
  mul_ = "mul", add_ = "add", masked_fill_ = "masked_fill", clamp_ = "clamp", sub_ = "sub", div_ = "div",
  bmm = "matmul", ["repeat"] = "broadcast_to", select = "index", narrow = "slice", clip = "clamp",
  parameters = "named_parameters", modules = "named_modules", children = "named_modules",
}
-- Megatron's regions.
local REGIONS = {
  copy_to_tensor_model_parallel_region = 'copy_to("tensor")',
  reduce_from_tensor_model_parallel_region = 'all_reduce("tensor")',
  gather_from_tensor_model_parallel_region = 'all_gather("tensor", -1)',
  scatter_to_tensor_model_parallel_region = "to_local { tensor = ms.Shard(axis) }",
  gather_from_sequence_parallel_region = 'all_gather("tensor", 0)',
  reduce_scatter_to_sequence_parallel_region = 'reduce_scatter("tensor", 0)',
}
local EXPLAINED = {
  backward = STEP, zero_grad = STEP, step = STEP, train = MODE, eval = MODE,
  to = DEVICE, cuda = DEVICE, cpu = DEVICE, half = DTYPE, bfloat16 = DTYPE,
  requires_grad_ = "the freeze option of ms.fully_shard freezes parameters",
  clip_grad_norm_ = "it is the option clip_grad_norm of ms.trainer",
  clip_grad_value_ = "it is the option clip_grad_value of ms.trainer",
  contiguous = "tensors are always contiguous",
  save = "it is ms.checkpoint.save(train, folder), or checkpoint = { dir = folder, every = 100 } of ms.trainer",
  save_pretrained = "it is ms.huggingface.save(model, folder)", save_model = "it is ms.huggingface.save(model, folder)",
  load = "it is ms.checkpoint.load(train, folder)", fit = "write a loop: for step, batch in data:batches(steps) do "
    .. "train:step(batch) end",
  compile = "every step is compiled when it first runs", no_sync = "micro_batches of ms.trainer accumulates gradients",
  fully_shard = "it is ms.fully_shard(model, { mesh = ... })",
  apply = "give layers init, or assign model:set_parameter(name, values)",
  add_module = "assign it: self.name = layer", register_module = "assign it: self.name = layer",
  register_parameter = "assign it: self.name = ms.parameter { 4 }",
  register_buffer = "assign a tensor to a field, self.name = ms.zeros(4): it is a constant of the forward",
  new = MADE, __init__ = MADE, super = INHERITED,
  register_forward_hook = "call what you want in the forward", add_param_group = GROUPS, param_groups = GROUPS,
  no_grad = NO_GRAD, DataLoader = LOADED, grad = "train:gradient(name) returns the gradient of a parameter",
}
local DTYPE_NAME = 'element types are texts: x:cast("bf16"), ms.zeros { 2, 3, dtype = "i32" }'

-- Fields, such as "ms.nn.Parameter".
local FIELDS = {
  float32 = DTYPE_NAME, f32 = DTYPE_NAME, float = DTYPE_NAME, bfloat16 = DTYPE_NAME, int32 = DTYPE_NAME,
  int64 = "tokens are i32: " .. DTYPE_NAME, long = "tokens are i32: " .. DTYPE_NAME, int8 = DTYPE_NAME,
  uint8 = DTYPE_NAME, dtype = DTYPE_NAME, device = DEVICE, cuda = DEVICE, cpu = DEVICE,
  cross_entropy = "it is ms.loss.cross_entropy", mse_loss = "it is ms.loss.mse", l1_loss = "it is ms.loss.l1",
  L1Loss = "it is ms.loss.l1", HuberLoss = "it is ms.loss.huber",
  BCEWithLogitsLoss = "it is ms.loss.binary_cross_entropy",
  linspace = "it is ms.arange(5) * 0.25", eye = 'it is ms.ops.one_hot(ms.arange(3, { dtype = "i32" }), 3)',
  zeros_like = "it is ms.zeros(x.shape)", ones_like = "it is ms.ones(x.shape)", full_like = "it is ms.full(x.shape, 7)",
  rand_like = "it is ms.rand(x.shape)", randn_like = "it is ms.randn(x.shape)", empty = "it is ms.zeros(2, 3)",
  empty_like = "it is ms.zeros(x.shape)", as_tensor = "it is ms.tensor", from_numpy = "it is ms.tensor, of a Lua list",
  randint = 'it is (ms.rand(8) * 10):cast("i32")', randperm = "ms.data.sampler shuffles samples",
  Parameter = "it is ms.parameter", Module = 'it is ms.module "Name"', ModuleList = "use a Lua list of modules",
  cat = "it is ms.ops.cat", stack = "it is ms.ops.stack",
  functional = "ops are in ms.ops", no_grad = NO_GRAD,
  dist = RANKS, distributed = RANKS,
  rank = RANKS, get_rank = RANKS, local_rank = RANKS, world_size = RANKS, get_world_size = RANKS,
  is_main_process = RANKS,
  barrier = "not needed: steps, saves and evaluations synchronise the ranks",
  FSDP = SHARDED, FullyShardedDataParallel = SHARDED, fully_sharded_data_parallel = SHARDED,
  DDP = REPLICATED, DistributedDataParallel = REPLICATED, DataParallel = REPLICATED,
  DataLoader = LOADED, Dataset = LOADED, DistributedSampler = "it is ms.data.sampler",
  autocast = DTYPE, amp = DTYPE, GradScaler = "bf16 needs no scaling of the loss; " .. DTYPE,
  compile = "every step is compiled when it first runs", no_sync = "micro_batches of ms.trainer accumulates gradients",
  Accelerator = "`moonshard run -n N` starts the ranks, and ms.trainer trains", Trainer = "it is ms.trainer { ... }",
  set_seed = SEEDED, seed_everything = SEEDED, seed = SEEDED,
  lr_scheduler = "lr takes a schedule: ms.schedule.cosine { peak, total, warmup }", parallel = SHARDED,
  MSELoss = "it is ms.loss.mse", CrossEntropyLoss = "it is ms.loss.cross_entropy",
  ColwiseParallel = PLACEMENTS, RowwiseParallel = PLACEMENTS, SequenceParallel = PLACEMENTS,
  parallelize_module = PLACEMENTS, distribute_tensor = PLACEMENTS,
  DTensor = PLACEMENTS .. "; in a forward, x:to_local and y:from_local",
  Partial = 'it is "partial", in x:to_local and x:from_local; parameters are never summands',
  PrepareModuleInput = "the engine places every value; x:redistribute { tensor = ms.Shard(axis) } overrides it",
  load = "it is ms.checkpoint.load, and for a Hugging Face folder ms.huggingface.model(folder)",
  from_pretrained = "it is ms.huggingface.model(folder)", save_pretrained = "it is ms.huggingface.save(model, folder)",
  context_parallel = "give the mesh a dimension context", loss_parallel = "the loss reads divided logits as they are",
  save = "it is ms.checkpoint.save", DeviceMesh = "it is ms.init_device_mesh",
}

---Suggests what to write instead of an unknown field.
---@param name string
---@param valid table<string, any> keys: the fields that exist
---@return string
function advice.for_field(name, valid)
  local text = FIELDS[name] or other_names().of_option(name)
  if text then return text end
  if rawget(valid, name:lower()) ~= nil then return ("did you mean %s?"):format(name:lower()) end
  local rows = advice.ops()
  if rawget(rows, name) or rawget(rows, name:lower()) then return "ops are in ms.ops: ms.ops." .. name:lower() end
  return nearest.advice(name, valid)
end

-- A PyTorch name: its counterpart here, or why there is none.
local function of_pytorch(name)
  local here = METHODS[name]
  if here then return ("PyTorch's %s is %s here"):format(name, here) end
  return REGIONS[name] and ("Megatron's %s is x:%s here"):format(name, REGIONS[name]) or EXPLAINED[name]
    or other_names().of_function(name)
end

---Suggests what to write instead of an unknown method.
---@param name string
---@param valid table<string, any> keys: the methods that exist
---@return string
function advice.for_method(name, valid)
  return of_pytorch(name) or ("did you mean %s?"):format(nearest.several(name, valid, 3))
end

-- Methods of tensors (including ops) and of modules.
local function method_names()
  local names, known = {}, {}
  for _, methods in ipairs(advice.methods()) do
    for name in pairs(methods) do
      if not name:find("^_") and not known[name] then
        known[name], names[#names + 1] = true, name
      end
    end
  end
  return names
end

-- The fields of the module whose method raised Lua's own error: the first `self` on the stack that is a module.
local function fields_of_module()
  for level = 4, 16 do
    local info = debug.getinfo(level, "f")
    if not info then return nil end
    local name, value = debug.getlocal(level, 1)
    local meta = name == "self" and type(value) == "table" and getmetatable(value)
    if meta and rawget(meta, "moonshard_module") then
      local fields = {}
      for _, key in ipairs(rawget(value, "_order")) do fields[key] = true end
      return fields
    end
  end
end

-- A field that a module does not have, as in self.fc3(x), or has, as in fc2(x).
local function for_missing_field(message)
  local global = message:match("attempt to %l+ global '([%w_]+)' %(a nil value%)$")
  local of_module = global and fields_of_module()
  if of_module and of_module[global] then
    return ("%s: it is a field of the module: self.%s"):format(message, global)
  end
  local name = message:match("attempt to %l+ field '([%w_]+)' %(a nil value%)$")
  local fields = name and fields_of_module()
  if not fields or fields[name] then return nil end
  local names = {}
  for field in pairs(fields) do names[#names + 1] = field end
  if not nearest.name(name, names) then return nil end -- it was a field of something else
  return ("%s: the module has no field %s: did you mean %s?"):format(message, name, nearest.several(name, fields, 3))
end

local SLASHES = "a whole quotient is math.floor(x / y), and comments begin with --"
local LOOP = "a loop is written for ... do ... end, or while ... do ... end"
local CHOICE = "a choice between values is written condition and x or y"
local INCREMENT = "Lua has no += and ++: write x = x + 1"

-- What the syntax of Python and C is in Lua, by the end of LuaJIT's message.
local SYNTAX = {
  ["near '!'$"] = "Lua writes ~= for not equal",
  ["unexpected symbol near '#'$"] = "comments begin with --, not with #",
  ["near '@'$"] = "a product of matrices is x:matmul(w)",
  ["'do' expected near ':'$"] = LOOP,
  ["'then' expected near ':'$"] = "a condition is written if ... then ... end",
  ["'%]' expected near ':'$"] = "a part of a tensor is x:slice(axis, start, stop)",
  ["'%]' expected near ','$"] = "an element of a tensor is x[0][1], and a part is x:slice(axis, start, stop)",
  ["'}' expected near ':'$"] = "fields of a table are written { name = value }",
  ["near 'is'$"] = "Lua writes == for is, and ~= for is not", ["near '&'$"] = "Lua writes and",
  ["near '|'$"] = "Lua writes or", ["'then' expected near 'else'$"] = CHOICE, ["near '%?'$"] = CHOICE,
  ["unexpected symbol near '/'$"] = SLASHES, ["unexpected symbol near '%+'$"] = INCREMENT,
  ["'=' expected near '[-+/]'$"] = INCREMENT,
}
-- The same by the line, which ends with a space here.
local LINES = {
  ["[}\"']%["] = "a list or a text without a name is indexed in brackets: ({ 1, 2 })[1]",
  ["^%s*for%s.+:%s"] = LOOP, ["^%s*while%s.+:%s"] = LOOP,
  ["^%s*if%s.+:%s"] = "a condition is written if ... then ... end",
  ["%[:"] = "a part of a tensor is x:slice(axis, start, stop)", ["[%w_)]%s*//%s*[%w_(]"] = SLASHES,
  ["%f[%w_]lambda%s"] = "a function is written function(x) return x end",
  ["%*%*"] = "a power is written x ^ 2", ["[%w_]%s*[-+*/]="] = INCREMENT,
}
-- What the end of a message says if the line has nothing to add.
local OTHERWISE = { ["unexpected symbol near '%['$"] = "lists are written { 1, 2 }" }
local STATEMENTS = {
  import = "Lua has no import: ms holds all that a recipe needs",
  def = "functions are written function name(x) ... end", class = 'a module is a class: local Net = ms.module "Net"',
  with = "there are no contexts: train:evaluate and calls of a model compute no gradients",
  elif = "Lua writes elseif", except = "errors are caught by pcall(f)", try = "errors are caught by pcall(f)",
  raise = "errors are raised by error(text)", assert = "it is a function: assert(x, text)",
  pass = "an empty block needs nothing", del = "it is x = nil", print = "it is a function: print(x)",
  let = "a variable is written local x = 1", var = "a variable is written local x = 1",
}
STATEMENTS.from = STATEMENTS.import
local CALLS = { ["("] = true, ["."] = true, ["="] = true } -- what follows a word that is no statement of Python's

---Extends LuaJIT's message about a syntax error with a suggestion where one is known.
---@param message string "recipe.lua:3: 'then' expected near '!'"
---@param source string what was parsed
---@return string
function advice.explain_syntax(message, source)
  for pattern, text in pairs(SYNTAX) do
    if message:find(pattern) then return message .. ": " .. text end
  end
  local number, at = tonumber(message:match(":(%d+): ")) or 0, 1
  for line in (source .. "\n"):gmatch("([^\n]*)\n") do
    local word, after = line:match("^%s*(%l+)%f[^%l_]%s*(.?)")
    local text = at == number and not CALLS[after] and STATEMENTS[word]
    for pattern, advised in pairs(at == number and LINES or {}) do
      if not text and (line .. " "):find(pattern) then text = advised end
    end
    if text then return message .. ": " .. text end
    at = at + 1
  end
  for pattern, text in pairs(OTHERWISE) do
    if message:find(pattern) then return message .. ": " .. text end
  end
  return message
end

-- Names that a recipe is likely to give to the results of train:step.
local MEASURED = { loss = true, grad_norm = true, lr = true, valid_loss = true }

local TORCH = "this is Moonshard: layers are in ms.nn, ops in ms.ops, optimizers in ms.optim, data in ms.data"
-- Python's names of modules and classes that a recipe takes for globals.
local GLOBALS = { torch = TORCH, nn = TORCH, F = TORCH, np = TORCH, dist = FIELDS.dist, DataLoader = LOADED,
  optim = TORCH, transformers = TORCH, DistributedDataParallel = REPLICATED, FSDP = SHARDED, DDP = REPLICATED,
  fully_shard = "it is ms.fully_shard", optimizer = STEP, scheduler = FIELDS.lr_scheduler, loss = STEP,
  enumerate = "it is for i, item in ipairs(list) do", range = "it is for i = 1, n do",
  len = "it is #list, or x:size(0)",
  exit = "a recipe ends with its last line, and the prompt with :quit", quit = "the prompt ends with :quit",
  help = "the prompt explains ?ms.trainer, and :help lists what else it takes",
  dir = "the prompt lists the names of ?ms.nn, and Tab completes them",
  isinstance = "it is type(value)", float = "it is tonumber(text)", int = "it is math.floor(x)",
  str = "it is tostring(value)", zip = "it is for i = 1, #list do", f = 'texts are formatted by ("%d"):format(i)',
}

-- Fields that are called like methods.
local CALLED = { shape = "it is a list, x.shape; x:size(0) is its first size",
  dtype = "it is a text, x.dtype" }

-- What was called or indexed and is none: a method without its call, an object, a name of Python's.
local function for_value(message)
  local global = message:match("attempt to %l+ global '([%w_]+)' %(a nil value%)$")
  if global and GLOBALS[global] then return GLOBALS[global] end
  local called = message:match("attempt to call %l+ '([%w_]+)' %(a %l+ value%)$")
  if called and CALLED[called] then return CALLED[called] end
  local method = message:match("attempt to index %l+ '([%w_]+)' %(a function value%)$")
  if message:find("attempt to index field 'valid' %(a nil value%)$") then
    return "the data has no validation samples: give it a valid_fraction above 0, or valid_files, and enough samples"
  end
  if method == "lr" then return "lr is a function of the step: train:set_rules { lr = ... } changes it" end
  if method and EXPLAINED[method] then return EXPLAINED[method] end
  if method == "world" then return FIELDS.rank end
  if message:find("attempt to call %l+ 'evaluate' %(a table value%)$") then
    return "it has ms.evaluate.perplexity and ms.evaluate.multiple_choice; train:evaluate(batches) is the mean loss"
  end
end

---Extends one of Lua's own messages, about an unknown method or the missing receiver of a method, with a suggestion
---where one is known.
---@param message string "recipe.lua:3: attempt to call method 'view' (a nil value)"
---@return string
function advice.explain(message)
  if message:find("attempt to index %l+ 'self' %(a nil value%)$") then
    return message .. ": methods are defined and called with a colon: function Net:forward(x), net:forward(x)"
  end
  local known_value = for_value(message)
  if known_value then return message .. ": " .. known_value end
  if message:find("stack overflow", 1, true) then
    return message .. ": a function calls itself without end; in a forward, call the layers that init made, "
      .. "self.fc(x), not the module itself"
  end
  local library = message:match("attempt to index global '(%l+)' %(a nil value%)$")
  if library == "ms" or library == "re" then
    local line = library == "re" and "local re = ms.re" or ("local ms = require %q"):format("moonshard")
    return ("%s: begin the file with %s"):format(message, line)
  end
  if message:find("attempt to compare ", 1, true) then
    return message .. ": compare tensors with methods, which return a mask: x:lt(y), x:le(y), x:gt(0), x:eq(0)"
  end
  if message:find("%(number expected, got table%)$") then
    return message .. ": functions of a tensor are its methods: x:sqrt(), x:exp(), x:abs(), x:maximum(0); x:item() is "
      .. "a number, outside of a forward"
  end
  if message:find("attempt to [%l ]+ a nil value$") or message:find("attempt to %l+ field '%?' %(a nil value%)$") then
    return message .. ": if it is an item of a list, lists begin at [1] in Lua: model.layers[1] is layers.0"
  end
  if MEASURED[message:match("attempt to index %l+ '([%w_]+)' %(a number value%)$")] then
    return message .. ": train:step(batch) returns the numbers of a finished step; it does forward, backward, "
      .. "clipping and the update"
  end
  local name = message:match("attempt to call %l+ '([%w_]+)' %(a nil value%)$")
  local known = name and of_pytorch(name)
  if known then return message .. ": " .. known end
  if name == "item" then return message .. ": train:step(batch) returns a table of numbers: m.loss" end
  local missing = for_missing_field(message)
  if missing then return missing end
  local method = message:match("attempt to call method '([%w_]+)' %(a nil value%)$")
  for _, methods in ipairs({ advice.ops(), advice.methods()[2] }) do
    if method and methods[method] then
      return ("%s: tensors have this method, but this value is not a tensor (a layer is called first: layer(x):%s())")
        :format(message, method)
    end
  end
  local near = method and #method > 2 and nearest.name(method, method_names(), math.min(2, #method / 3))
  return near and ("%s: did you mean %s?"):format(message, near) or message
end

return advice
