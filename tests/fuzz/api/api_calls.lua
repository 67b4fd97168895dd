-- Writes the calls of the API fuzzer: for each function of moonshard.h one that calls it with random arguments.
--
--   luajit tests/fuzz/api/api_calls.lua runtime/moonshard.h build/gen OUT
--
-- The second argument is the folder of the parts of the header that the build writes.
-- Arguments follow from types, with the functions of api_values.h, so a new function of the header is called without a
-- change here; a type that is new stops the build.

local header, generated, out_path = arg[1], arg[2], arg[3]

-- Handles, in the order of their pools. Handles end before those that they are made of.
local HANDLES = { "save", "profile", "exec", "state", "plan", "graph", "model", "mesh", "rules", "token_reader",
  "tokens", "tokenizer", "safetensors", "safetensors_writer", "world" }
-- They change how signals end the process, or take the result of another call.
local LEFT_OUT = { ms_file_text_free = true, ms_free = true, ms_set_log = true, ms_interrupt_set = true,
  ms_interrupt_defer = true,
  ms_interrupt_install = true, ms_world_catch_termination = true }
local VALUES = {
  ["int"] = "an_int()", ["int64_t"] = "a_long()", ["uint64_t"] = "(uint64_t)a_long()", ["double"] = "a_real()",
  ["const char *"] = "a_text()", ["const char *const *"] = "texts()", ["const int *"] = "ints()",
  ["const int64_t *"] = "longs()", ["const double *"] = "reals()",
  ["const ms_step_inputs *"] = "step_inputs()", ["const ms_save_piece *"] = "save_pieces()",
  ["const ms_safetensors_tensor *"] = "tensors()", ["const ms_safetensors_view *"] = "view()",
  ["const ms_model_dims *"] = "model_dims()", ["const ms_cluster *"] = "cluster()",
  ["const ms_kernel_work *"] = "kernel_work()", ["const ms_collective_work *"] = "collective_work()",
  ["const ms_saved_piece *"] = "saved_piece()", ["const ms_param_group *"] = "param_groups()",
  ["const void *"] = "input_bytes()",
  ["const float *"] = "input_bytes()", ["const int32_t *"] = "input_bytes()",
}
local FIELDS = {}
for _, kind in ipairs({ "int", "int64_t", "double", "const char *" }) do FIELDS[kind] = VALUES[kind] end

local kind_of = {}
for i, handle in ipairs(HANDLES) do kind_of["ms_" .. handle] = i - 1 end

local function read_all(path, other_path)
  local file = io.open(path, "rb") or assert(io.open(other_path or path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local folder, parts = header:match("^(.*/)") or "", {}
for path in read_all(header):gmatch("\n#include <(moonshard/[%w_]+%.h)>") do
  parts[#parts + 1] = read_all(folder .. path, generated .. "/" .. path):match("/%* ffi:begin %*/(.*)/%* ffi:end %*/")
end
local text = table.concat(parts):gsub("/%*.-%*/", " ")

local out = {}
local function emit(format, ...) out[#out + 1] = format:format(...) end

emit("/* Made from %s by the build. */", header)
emit("enum { KINDS = %d };", #HANDLES)
for i, handle in ipairs(HANDLES) do emit("enum { KIND_%s = %d };", handle, i - 1) end

-- The fields of structs in a struct, as fields of it: "double sgd.momentum".
local function flattened(body)
  return (body:gsub("struct (%b{}) ([%w_]+)", function(inner, group)
    return (inner:sub(2, -2):gsub("([%w_]+)%s*;", group .. ".%1;"):gsub(";%s*$", ""))
  end))
end

-- A field of a configuration at a time gets a random value; arrays keep NULL, whatever their count is.
local configs = {}
for body, name in text:gmatch("typedef struct ms_[%w_]+ (%b{}) (ms_[%w_]+_config);") do
  configs[name] = true
  emit("static void change_%s(void *config) {\n  %s *c = config;\n  switch (random_below(64)) {", name, name)
  local n = 0
  for declaration in flattened(body:sub(2, -2)):gmatch("[^;]+") do
    local kind, names = declaration:gsub("%s+", " "):match("^ ?(.-[%s%*])([%w_., ]+) ?$")
    local value = kind and FIELDS[(kind:gsub(" $", ""))]
    for field in (value and names or ""):gmatch("[%w_.]+") do
      if field ~= "struct_size" then
        emit("    case %d: c->%s = %s; break;", n, field, value)
        n = n + 1
      end
    end
  end
  emit("  }\n}\n")
end

-- The expression of an argument; statements before the call and after it. before: the kind of the argument before it,
-- if this is the size of a struct.
local function argument(kind, i, name, before)
  if before then
    local struct = before:match("(ms_[%w_]+) %*$")
    local size = struct and ("sizeof(%s)"):format(struct) or "ANY_STRUCT"
    return ("%s(%s)"):format(before:find("^const") and "read_size" or "filled_size", size)
  end
  local base = kind:gsub("^const ", ""):match("^(ms_[%w_]+) %*$")
  local made = kind:match("^(ms_[%w_]+) %*%*$")
  if made and kind_of[made] then
    return ("(void *)made_%d"):format(i),
      ("void *slot_%d = NULL, **made_%d = chance(8) ? NULL : &slot_%d;"):format(i, i, i),
      ("if (slot_%d) keep(%d, slot_%d);"):format(i, kind_of[made], i)
  end
  if base and kind_of[base] then return ("a_handle(%d)"):format(kind_of[base]) end
  if base and configs[base] then
    return ('a_config("%s", change_%s, sizeof(%s))'):format(base, base, base)
  end
  if VALUES[kind] then return VALUES[kind] end
  if kind:find("%*%*$") then
    local frees = kind == "char **" and ("ms_file_text_free(slot_%d);"):format(i) or ""
    return ("chance(8) ? NULL : (void *)&slot_%d"):format(i), ("void *slot_%d = NULL;"):format(i), frees
  end
  if kind:find("%*$") and not kind:find("^const") then return "output_bytes()" end
  error(("%s: no values of the type %s"):format(name, kind), 0)
end

local names = {}
for result, name, list in text:gmatch("MS_API%s+([^;()]-)(ms_[%w_]+)(%b());") do
  if not LEFT_OUT[name] then
    local arguments, before, after, last = {}, {}, {}, nil
    for one in (list:sub(2, -2):gsub("%s+", " ")):gmatch("[^,]+") do
      local kind, own_name = one:match("^ ?(.-) ?([%w_]+) ?$")
      if kind ~= "" then
        local i = #arguments
        local of = own_name == "size" and last or nil
        arguments[i + 1], before[#before + 1], after[#after + 1] = argument(kind, i, name, of)
        last = kind
      end
    end
    local call = ("%s(%s)"):format(name, table.concat(arguments, ", "))
    if result:find("^int%s*$") then call = "int status = " .. call .. ";\n  record(status);"
    else call = "(void)" .. call .. ";" end
    emit("static void call_%s(void) {\n  %s\n  %s\n  %s\n}\n", name, table.concat(before, "\n  "), call,
      table.concat(after, "\n  "))
    names[#names + 1] = name
  end
end
assert(#names > 100, header .. ": no functions were found")

-- A call that ends one of the handles.
emit("static void call_ms_free(void) {\n  ms_free(a_handle_to_end(random_below(KINDS)));\n}\n")
names[#names + 1] = "ms_free"

emit("static const struct {\n  const char *name;\n  void (*call)(void);\n} calls[] = {")
for _, name in ipairs(names) do emit('  {"%s", call_%s},', name, name) end
emit("};")

local file = assert(io.open(out_path, "wb"))
file:write(table.concat(out, "\n"), "\n")
file:close()
