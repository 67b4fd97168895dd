-- Runs recipes of the specs on the CPU and on the GPU, several at a time, and compares what they computed: losses,
-- norms, gradients, and what each step changed of each parameter.
--
--   luajit tests/gpu/recipes.lua MOONSHARD FOLDER [WORD]      exits with 1 if any differ; WORD: of some names only
--
-- Here is what parity.lua does not train: every optimizer, models of images, experts, attention in windows, encoders
-- and decoders from folders, products in 8 bits, stored weights, and generation.

local compare = require("moonshard.check.tolerance")
local json = require("moonshard.base.text.json")

local binary, folder, word = arg[1], arg[2], arg[3] or ""
local LANES, SECONDS = 8, 150

-- How far apart losses, norms and gradients may be, and what a step changes of a parameter, of its norm. Sums in
-- another order round an element of bf16 or of 8 bits to another one, and AdamW's first steps show the sign of a small
-- gradient.
local F32 = { losses = 1e-4, norms = 1e-4, gradients = 1e-4, changes = 1e-3 }
local BF16 = { losses = 2e-2, norms = 5e-2, gradients = 0.1, changes = 0.2 }
local FP8 = { losses = 2e-2, norms = 0.2, gradients = 0.2, changes = 0.4 }

-- A row: what it is called, the recipe, the tolerances, the settings, and the assignments of the GPU's run.
local rows = {}
local function row(name, recipe, tolerance, settings, environment)
  if not name:find(word, 1, true) then return end
  rows[#rows + 1] = { name = name, recipe = recipe, tolerance = tolerance, settings = settings,
    environment = environment or "" }
end

for _, optimizer in ipairs { "adamw", "adam", "lion", "sgd", "muon", "groups", "clipped", "momenta",
  "adafactor" } do
  row("updates, " .. optimizer, "updates", F32, { "optimizer=" .. optimizer })
end
row("updates, a fused loss", "updates", F32, { "optimizer=adamw", "chunk=7" })
row("moments in 8 bits", "parity", F32, { "moments=i8", "micro=2" })
row("moments in bf16", "parity", F32, { "moments=bf16" })
row("averages of weights", "parity", F32, { "ema=0.9", "ema_warmup=true" })
row("copies of weights", "parity", BF16, { "copy=true", "dtype=bf16", "micro=2" })
row("dtypes by layer", "parity", BF16, { "by_layer=true" })
row("muon in bf16", "parity", BF16, { "optimizer=muon", "dtype=bf16" })

row("attention, cuDNN", "attention", BF16, {}, "MOONSHARD_ATTENTION=auto")
row("attention, own kernels", "attention", BF16, {}, "MOONSHARD_ATTENTION=flash")
row("attention, f32", "attention", F32, { "dtype=f32" }, "MOONSHARD_CUDA_MATMUL_TF32=0")
row("attention, tf32", "attention", BF16, { "dtype=f32" }, "MOONSHARD_CUDA_MATMUL_TF32=1")
row("attention, documents", "attention", BF16, { "documents=true" })
row("attention, windows", "attention", BF16, { "window=20" })
row("attention, windows in f32", "attention", F32, { "window=20", "dtype=f32" })
row("attention, capped", "attention", BF16, { "softcap=1", "documents=true", "window=9" })
row("attention, capped in f32", "attention", F32, { "softcap=1", "dtype=f32" })

row("experts", "experts", F32, { "mesh=1x1x1", "aux=0.1" })
row("experts, bf16", "experts", BF16, { "mesh=1x1x1", "dtype=bf16" })
row("experts, own products", "experts", F32, { "mesh=1x1x1", "aux=0.1" }, "MOONSHARD_CUDA_MATMUL=plain")
row("places", "places", F32, { "mesh=1x1x1" })
row("places, bf16", "places", BF16, { "mesh=1x1x1", "dtype=bf16" })
for _, model in ipairs { "resnet", "unet" } do
  row("images, " .. model, "image_models", F32, { "model=" .. model })
  row("images, " .. model .. " in bf16", "image_models", BF16, { "model=" .. model, "dtype=bf16", "steps=3" })
end
row("products that add", "product_sums", BF16, { "micro_batches=2" })
row("products that add, f32", "product_sums", F32, { "dtype=f32" })
row("epilogues", "epilogues", BF16, {})
row("epilogues, apart", "epilogues", BF16, {}, "MOONSHARD_CUDA_EPILOGUES=apart")
row("results that are kept", "epilogues", BF16, { "rematerialize=false" })

for _, recipe in ipairs { "tensorwise", "rowwise", "rowwise_with_gw_hp" } do
  row("fp8, " .. recipe, "float8", FP8, { "fp8=" .. recipe, "steps=50" })
end
row("fp8, own products", "float8", FP8, { "fp8=rowwise" }, "MOONSHARD_CUDA_MATMUL=plain")
row("fp8, a Llama", "float8", FP8, { "fp8=rowwise", "model=llama", "micro=2" })
row("fp8, moments in 8 bits", "float8", FP8, { "fp8=tensorwise", "moments=i8" })
row("fp8, bf16", "float8", BF16, { "steps=50" })
for _, format in ipairs { "bf16", "nf4", "i8" } do
  row("stored weights, " .. format, "stored", F32, { "storage=" .. format, "micro_batches=2", "ema=true" })
end

for _, model in ipairs { "gpt2", "llama", "llama_biased", "gemma", "gemma2", "gemma3", "mistral", "mixtral",
  "mixtral_balanced", "olmo2", "phi3", "qwen2", "qwen2_moe", "qwen2_window", "qwen3", "qwen3_moe", "smollm3", "bert",
  "vit" } do
  local fixture = "tests/fixtures/huggingface/" .. model
  row("folder, " .. model, "huggingface", F32, { "folder=" .. fixture, "reference=" .. fixture .. ".safetensors" })
end
for _, family in ipairs { "gpt2", "documents", "llama", "qwen3", "smollm3", "qwen2_moe", "gemma2" } do
  row("generation, " .. family, "generate", F32, { "family=" .. family })
end

-- ---- running --------------------------------------------------------------------------------------------------------

-- Folders of recipes below tests/lua; those of several rooms are in recipes.
local ROOMS = { attention = "cuda", float8 = "formats", generate = "generation", huggingface = "huggingface",
  image_models = "models", places = "tensors", updates = "optimizers" }
local OUT = { stored = "facts", huggingface = "out" }

local function path_of(recipe)
  local room = ROOMS[recipe]
  return ("tests/lua/%srecipes/%s.lua"):format(room and room .. "/" or "", recipe)
end

local function quoted(text) return "'" .. text .. "'" end

-- Writes the script that runs a row on both devices, one after the other.
local function write_script(i, each)
  local base = ("%s/%d"):format(folder, i)
  local file, lines = assert(io.open(base .. ".sh", "w")), {}
  for _, device in ipairs { "cpu", "cuda" } do
    local out = ("%s.%s"):format(base, device)
    if each.recipe == "huggingface" then lines[#lines + 1] = "mkdir -p " .. quoted(out) end
    local words = { "timeout", SECONDS, quoted(binary), "run", path_of(each.recipe),
      "device=" .. device, quoted(("%s=%s"):format(OUT[each.recipe] or "out", out)) }
    for _, setting in ipairs(each.settings) do words[#words + 1] = quoted(setting) end
    lines[#lines + 1] = ("env %s %s >%s.log 2>&1 </dev/null || { echo %s: $? >%s.status; exit; }"):format(
      device == "cuda" and each.environment or "", table.concat(words, " "), out, device, base)
  end
  lines[#lines + 1] = ("echo ended >%s.status"):format(base)
  assert(file:write(table.concat(lines, "\n"), "\n"))
  assert(file:close())
end

local function read(path)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

-- ---- comparing ------------------------------------------------------------------------------------------------------

local function numbers_of(list)
  if type(list) ~= "string" then return list end
  local numbers = {}
  for text in list:gmatch("%S+") do numbers[#numbers + 1] = assert(tonumber(text)) end
  return numbers
end

local KINDS = { losses = "losses", logits = "losses", norms = "norms", group_norms = "norms" }

-- The lists of a result that are compared, by name, with the kind of tolerance: of numbers, and of what steps changed.
local function lists_of(result)
  local values, changes, kinds = {}, {}, {}
  for name, kind in pairs(KINDS) do values[name], kinds[name] = result[name], kind end
  for name, gradient in pairs(result.gradient or {}) do
    values["gradient of " .. name], kinds["gradient of " .. name] = gradient, "gradients"
  end
  for step, updates in ipairs(result.updates or {}) do
    for name, list in pairs(updates) do changes[("%s in step %d"):format(name, step)] = numbers_of(list) end
  end
  if not result.updates then
    for name, list in pairs(result.params or result.after or {}) do changes[name] = list end
  end
  return values, changes, kinds
end

-- Facts on lines: words that are equal, and numbers that are close.
local function compare_lines(each, cpu, cuda)
  if each.recipe == "generate" then return cpu ~= cuda and "the texts differ" or nil end
  local words, at = {}, 0
  for text in cuda:gmatch("%S+") do words[#words + 1] = text end
  for text in cpu:gmatch("%S+") do
    at = at + 1
    local expected, got = tonumber(text), tonumber(words[at])
    local allowed = each.tolerance.changes * math.max(1, math.abs(expected or 0))
    local close = expected and got and math.abs(expected - got) <= allowed
    if text ~= words[at] and not close then return ("%s instead of %s"):format(words[at], text) end
  end
  return at ~= #words and "the facts are not as many" or nil
end

local function compare_results(each, cpu, cuda)
  local values, changes, kinds = lists_of(cpu)
  local got_values, got_changes = lists_of(cuda)
  for name, expected in pairs(values) do
    local allowed = each.tolerance[kinds[name]]
    local worst = compare.arrays(expected, got_values[name], { count = #expected, tolerance = allowed })
    if worst and worst.differs then
      return ("%s: %.9g on CUDA, %.9g on the CPU, %.3g apart is allowed"):format(name, worst.got, worst.expected,
        worst.allowed)
    end
  end
  for name, expected in pairs(changes) do
    local found = compare.changes(expected, got_changes[name], { count = #expected, rounding = 2 ^ -23,
      tolerance = each.tolerance.changes })
    if found.differs then
      return ("%s: the difference has norm %.3g, that of the CPU %.3g"):format(name, found.difference, found.norm)
    end
  end
  return next(values) == nil and "the recipe wrote no losses" or nil
end

-- What is wrong with a row, or nil.
local function wrong(i, each)
  local base = ("%s/%d"):format(folder, i)
  local status = read(base .. ".status") or "it did not start"
  local device = status:match("^(%w+): ")
  if device then
    return ("on %s status %s\n%s"):format(device, status:match("%d+"), read(("%s.%s.log"):format(base, device)))
  end
  if status ~= "ended\n" then return status end
  local suffix = each.recipe == "huggingface" and "/result.json" or ""
  local cpu, cuda = read(base .. ".cpu" .. suffix), read(base .. ".cuda" .. suffix)
  if not (cpu and cuda) then return "the recipe wrote nothing" end
  if each.recipe == "stored" or each.recipe == "generate" then return compare_lines(each, cpu, cuda) end
  return compare_results(each, assert(json.decode(cpu)), assert(json.decode(cuda)))
end

if #rows == 0 then
  io.stderr:write(("tests/gpu/recipes.lua: no name contains %q\n"):format(word))
  os.exit(2)
end
local list = assert(io.open(folder .. "/list", "w"))
for i, each in ipairs(rows) do
  write_script(i, each)
  list:write(("%s/%d.sh\n"):format(folder, i))
end
list:close()
os.execute(("xargs -P %d -n 1 sh <%s/list"):format(LANES, quoted(folder)))
local failed = 0
for i, each in ipairs(rows) do
  local why = wrong(i, each)
  if why then
    failed = failed + 1
    print(("differs: %s: %s"):format(each.name, why))
  end
end
print(("%d recipes are as on the CPU, %d are not"):format(#rows - failed, failed))
os.exit(failed == 0 and 0 or 1)
