-- Calls with handles that are none: every function of moonshard.h that takes one, as the header lists them, with NULL,
-- with a handle that was released, with one of another kind, and where what the handle works on was released. And every
-- function with NULL for each other pointer that must lead somewhere.

local engine = require("moonshard.base.ffi")
local has = require("lua.support.message").has
local C, ffi = engine.C, engine.ffi

-- What a function returns instead of a status; the message is recorded all the same.
local answers = {
  ms_world_terminating = 0, ms_mesh_copies = 0,
  ms_safetensors_find = -1,
  ms_tokenizer_find = -1,
  ms_save_running = 0,
}
-- The same of functions that take no handle.
local null_answers = { ms_op_find = -1 }

-- Every kind; ms_free releases them.
local kinds = {
  ms_world = true, ms_mesh = true, ms_rules = true, ms_model = true, ms_graph = true, ms_plan = true, ms_state = true,
  ms_exec = true, ms_profile = true, ms_safetensors = true, ms_safetensors_writer = true, ms_tokens = true,
  ms_token_reader = true, ms_tokenizer = true, ms_save = true,
}
local may_be_null = { ms_exec_set_profile = 2, ms_state_memory = 2 }

-- Other pointers that may be NULL, always or where their count is 0.
local optional = {
  ms_mesh_new = "names ranks", ms_mesh_unflatten = "names", ms_mesh_check_nodes = "names",
  ms_rules_new = "policy", ms_rules_add = "where", ms_rules_resolve = "names decided",
  ms_model_add_param = "dims", ms_model_set_reshard = "reshard_size",
  ms_model_set_prefetch = "units", ms_graph_set_scope = "path",
  ms_graph_set_recompute = "ops", ms_graph_op = "attrs inputs", ms_graph_input = "dims", ms_plan_list = "rows",
  ms_profile_items = "rows", ms_exec_run = "inputs outputs",
  ms_world_join = "config",
  ms_state_gather = "out", ms_state_scatter = "full", ms_state_read = "out", ms_state_write = "values",
  ms_safetensors_open = "tensors", ms_safetensors_read = "view out bytes", ms_safetensors_write = "view data",
  ms_tokens_open = "count", ms_safetensors_create = "tensors config", ms_tokens_read = "out",
  ms_tokenizer_encode = "text", ms_tokenizer_decode = "ids", ms_save_new = "pieces",
  ms_tokenize_files = "config bytes tokens width", -- prose: names of parameters
  ms_initial_values = "out",
  ms_mesh_slice = "names", ms_cluster_collective_time = "link",
  ms_plan_timeline = "cluster rows",
}
local function is_optional(f, name)
  return f.returns == "void" or (" " .. (optional[f.name] or "") .. " "):find(" " .. name .. " ", 1, true) ~= nil
end

-- ---- the header

-- Every function: { name =, returns =, parameters = { { type =, name =, handle = kind or nil } } }.
local function read_header()
  local functions = {}
  for declaration in require("moonshard.cdef"):gmatch("[^;{}]+;") do
    local returns, name, list = declaration:match("^%s*([%w_ ]+[ %*])(ms_[%w_]+)%((.*)%);$")
    local entry = { name = name, returns = returns and returns:gsub("%s+$", ""), parameters = {} }
    for parameter in (list or ""):gmatch("[^,]+") do
      local kind = parameter:match("^%s*([%w_ ]-)%s%*[%w_]+%s*$")
      kind = kind and kind:gsub("const ", "")
      if not kinds[kind] then kind = nil end
      local type_name, own_name = parameter:match("^%s*(.-)([%w_]+)%s*$")
      table.insert(entry.parameters, { type = type_name, name = own_name, handle = kind })
    end
    if name then table.insert(functions, entry) end
  end
  return functions
end

-- ---- one of each

local function must(status)
  if status ~= 0 then error(ffi.string(C.ms_error_message()), 2) end
end

-- They also say how much there is, after the handle.
local counted = { ms_safetensors_open = true, ms_tokens_open = true }

local function new(kind, call, ...)
  local out = ffi.new(kind .. " *[1]")
  local arguments, n = { ... }, select("#", ...)
  arguments[n + 1] = out
  must(C[call](unpack(arguments, 1, n + (counted[call] and 2 or 1))))
  return out[0]
end

local function write_file(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

local scratch_path = os.tmpname()

local function make_model(live)
  local config, param_config = ffi.new("ms_unit_config"), ffi.new("ms_param_config")
  local model, index = new("ms_model", "ms_model_new", 1), ffi.new("int[1]")
  must(C.ms_config_default("ms_unit_config", config, ffi.sizeof(config)))
  must(C.ms_config_default("ms_param_config", param_config, ffi.sizeof(param_config)))
  must(C.ms_model_add_unit(model, "root", config, index))
  must(C.ms_model_add_param(model, 0, "w", 1, ffi.new("int64_t[1]", 4), param_config, index))
  local dims = ffi.new("ms_model_dims")
  must(C.ms_config_default("ms_model_dims", dims, ffi.sizeof(dims)))
  must(C.ms_model_shard(model, live.ms_mesh, 0, dims))
  return model
end

local function make_graph(live)
  local graph, value = new("ms_graph", "ms_graph_new", live.ms_model), ffi.new("int[4]")
  must(C.ms_graph_param(graph, 0, value))
  must(C.ms_graph_op(graph, "mean", 1, ffi.new("int[1]", value[0]), nil, value))
  must(C.ms_graph_output(graph, "mean", value[0]))
  return graph
end

local function make_all()
  local live, config = {}, ffi.new("ms_plan_config")
  must(C.ms_config_default("ms_plan_config", config, ffi.sizeof(config)))
  config.train, config.optimizer = 0, C.MS_OPT_NONE
  write_file(scratch_path, ("x"):rep(64))
  local alone = ffi.new("ms_world_config")
  must(C.ms_config_default("ms_world_config", alone, ffi.sizeof(alone)))
  alone.alone = 1
  live.ms_world = new("ms_world", "ms_world_join", alone)
  live.ms_mesh = new("ms_mesh", "ms_mesh_new", C.MS_DEVICE_CPU, 1, ffi.new("int[1]", 1), nil, 1, 0, nil)
  live.ms_rules = new("ms_rules", "ms_rules_new", "test")
  live.ms_model = make_model(live)
  live.ms_graph = make_graph(live)
  live.ms_plan = new("ms_plan", "ms_plan_compile", live.ms_graph, config)
  live.ms_state = new("ms_state", "ms_state_new", live.ms_world, live.ms_model, config, 1)
  live.ms_exec = new("ms_exec", "ms_exec_new", live.ms_state, live.ms_plan)
  live.ms_profile = new("ms_profile", "ms_profile_new", live.ms_world)
  live.ms_save = new("ms_save", "ms_save_new", live.ms_state, 0, nil, 0)
  local paths = ffi.new("const char *[1]", { scratch_path })
  live.ms_tokens = new("ms_tokens", "ms_tokens_open", 1, paths, C.MS_TOKEN_BYTES)
  live.ms_token_reader = new("ms_token_reader", "ms_token_reader_new", live.ms_tokens, 1, 4, 2)
  live.ms_tokenizer = new("ms_tokenizer", "ms_tokenizer_open", "tests/fixtures/tokenizer/good/gpt2.json")
  local made = scratch_path .. ".made"
  must(C.ms_safetensors_finish(new("ms_safetensors_writer", "ms_safetensors_create", made, 0, nil, 0, nil)))
  live.ms_safetensors = new("ms_safetensors", "ms_safetensors_open", made)
  live.ms_safetensors_writer = new("ms_safetensors_writer", "ms_safetensors_create", made, 0, nil, 0, nil)
  return live
end

local function release_all(live)
  for _, handle in pairs(live) do C.ms_free(handle) end
end

-- ---- the calls

local memory = ffi.new("char[4096]")

-- Calls with `bad` as the argument at `place`; all other handles are good, numbers 0, and pointers lead to zeros.
local function call(f, place, bad, live)
  local arguments = {}
  for i, parameter in ipairs(f.parameters) do
    if i == place then arguments[i] = bad
    elseif parameter.handle then arguments[i] = live[parameter.handle]
    elseif parameter.type:find("%*") then arguments[i] = ffi.cast(parameter.type, memory)
    else arguments[i] = 0 end
  end
  ffi.fill(memory, ffi.sizeof(memory))
  C.ms_error_clear()
  return C[f.name](unpack(arguments, 1, #f.parameters))
end

local function check_refusal(f, place, bad, live, expected)
  local result = call(f, place, bad, live)
  local message = ffi.string(C.ms_error_message())
  assert.are.equal(C.MS_EINVAL, C.ms_error_code(), f.name .. ": " .. message)
  has(message, f.name .. ": ")
  has(message, expected)
  if answers[f.name] then assert.are.equal(answers[f.name], result, f.name)
  elseif f.returns == "int" then assert.are.equal(C.MS_EINVAL, result, f.name)
  elseif f.returns == "double" then assert.are.equal(0, result, f.name)
  elseif f.returns:find("%*") then assert.is_true(result == nil, f.name)
  else assert.is_nil(result, f.name) end
end

-- Every handle argument of every function that does more than release it.
local function each_argument(visit)
  local visited = 0
  for _, f in ipairs(read_header()) do
    for place, parameter in ipairs(f.parameters) do
      if parameter.handle then
        visit(f, place, parameter.handle)
        visited = visited + 1
      end
    end
  end
  assert.is_true(visited > 90, "the header was not understood")
end

describe("structs", function()
  -- One that begins with its size is a config; of every other one, and of the rows of a list, the call says it.
  it("go with their size", function()
    local is_config, found = {}, 0
    for name, body in require("moonshard.cdef"):gmatch("typedef struct (ms_[%w_]+) (%b{})") do
      is_config[name] = body:find("^{%s*int struct_size;") ~= nil
    end
    for _, f in ipairs(read_header()) do
      for i, parameter in ipairs(f.parameters) do
        local next_one, second = f.parameters[i + 1] or {}, f.parameters[i + 2] or {}
        if is_config[parameter.type:match("^%s*c?o?n?s?t? ?(ms_[%w_]+) %*$")] == false then
          assert.is_true(next_one.name == "size" or second.name == "size", f.name .. ": " .. parameter.name)
          found = found + 1
        end
      end
    end
    assert.is_true(found > 25, "the header was not understood: " .. found)
  end)
end)

describe("handles", function()
  local live

  before_each(function() live = make_all() end)
  after_each(function()
    release_all(live)
    os.remove(scratch_path)
    os.remove(scratch_path .. ".made")
    C.ms_error_clear()
  end)

  it("every handle of the header is made and released here", function()
    local found = 0
    for kind, again in require("moonshard.cdef"):gmatch("typedef struct (ms_[%w_]+) (ms_[%w_]+);") do
      assert.equal(kind, again)
      assert.truthy(kinds[kind], kind .. " has no entry in `kinds`")
      assert.truthy(live[kind], kind .. " is not made by make_all")
      found = found + 1
    end
    assert.is_true(found >= 15, "the header was not understood: " .. found)
  end)

  it("a call with NULL is a status", function()
    each_argument(function(f, place, kind)
      if may_be_null[f.name] ~= place then
        check_refusal(f, place, ffi.cast(kind .. " *", nil), live, "NULL")
      end
    end)
  end)

  it("a call with NULL where a pointer must lead somewhere is a status", function()
    local visited = 0
    for _, f in ipairs(read_header()) do
      for place, parameter in ipairs(f.parameters) do
        if not parameter.handle and parameter.type:find("%*") and not is_optional(f, parameter.name) then
          local result = call(f, place, nil, live)
          local message = ffi.string(C.ms_error_message())
          assert.are.equal(C.MS_EINVAL, C.ms_error_code(), f.name .. "(" .. parameter.name .. " = NULL): " .. message)
          assert.truthy(message:find("is NULL", 1, true), f.name .. ": " .. message)
          local expected = answers[f.name] or null_answers[f.name] or C.MS_EINVAL
          if f.returns == "int" then assert.are.equal(expected, result, f.name) end
          visited = visited + 1
        end
      end
    end
    assert.is_true(visited > 80, "the header was not understood: " .. visited)
  end)

  it("a call with a released handle is a status", function()
    local released = make_all()
    release_all(released)
    each_argument(function(f, place, kind) check_refusal(f, place, released[kind], live, "released") end)
  end)

  it("a call with a handle of another kind is a status", function()
    each_argument(function(f, place, kind)
      local other = kind == "ms_mesh" and "ms_model" or "ms_mesh"
      local expected = other == "ms_mesh" and "a mesh" or "a model | mesh"
      check_refusal(f, place, ffi.cast(kind .. " *", live[other]), live, expected)
    end)
  end)

  it("a call where the world was left, or the state released, is a status", function()
    local on = { ms_state = "world | state", ms_exec = "world | exec",
      ms_save = "world | save", ms_profile = "world | profile" }
    local left = make_all()
    C.ms_free(left.ms_world)
    each_argument(function(f, place, kind)
      if on[kind] then check_refusal(f, place, left[kind], live, on[kind] .. " | released") end
    end)
    release_all(left)
    left = make_all()
    C.ms_free(left.ms_state)
    each_argument(function(f, place, kind)
      if kind == "ms_exec" or kind == "ms_save" then
        check_refusal(f, place, left[kind], live, "state")
      end
    end)
    release_all(left)
  end)

  it("a release of NULL, and a second one, are left alone", function()
    local released = make_all()
    for _ = 1, 3 do release_all(released) end
    C.ms_free(nil)
    assert.are.equal(0, C.ms_error_code())
  end)

  it("a handle is refused however many were made since", function()
    local first = make_all()
    C.ms_free(first.ms_rules)
    for _ = 1, 500 do C.ms_free(new("ms_rules", "ms_rules_new", "test")) end
    local count = ffi.new("int[1]")
    assert.are.equal(C.MS_EINVAL, C.ms_rules_resolve(first.ms_rules, 0, nil, count))
    release_all(first)
  end)
end)
