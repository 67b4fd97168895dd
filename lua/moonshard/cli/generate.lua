-- moonshard generate: continues a prompt with the model of a Hugging Face folder, or with a recipe's model and the
-- weights of a checkpoint. The recipe runs up to its first step; the text is generated there and the recipe is left.

local command_line = require("moonshard.cli.options.command_line")
local context = require("moonshard.base.context")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local early_exit = require("moonshard.recipe.early_exit")
local generation = require("moonshard.huggingface.generation")
local hosts = require("moonshard.cli.hosts.hosts")
local nodes = require("moonshard.cli.options.nodes")
local recipe = require("moonshard.recipe.file")
local run = require("moonshard.cli.run")
local status = require("moonshard.base.exit_status")
local text_lines = require("moonshard.base.text.text_lines")
local refuse = status.refuse

local generate = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--prompt"] = { name = "prompt", value = "text", what = "a text" },
  ["--tokenizer"] = { name = "tokenizer", value = "text", what = "a tokenizer.json, or a folder that holds one" },
  ["--no-special"] = { name = "no_special", value = "flag" },
  ["--tokens"] = { name = "tokens", value = "count" },
  ["--temperature"] = { name = "temperature", value = "text", what = "a number" },
  ["--top-k"] = { name = "top_k", value = "index" },
  ["--top-p"] = { name = "top_p", value = "number" },
  ["--stop"] = { name = "stop", value = "text", what = "a token" },
  ["--seed"] = { name = "seed", value = "index" },
  ["--checkpoint"] = { name = "checkpoint", value = "text", what = "a checkpoint, or a folder of them" },
  ["--ema"] = { name = "ema", value = "flag" },
  ["--timeout"] = { name = "timeout", value = "seconds" },
}
for option, row in pairs(nodes.OPTIONS) do OPTIONS[option] = row end
for option, row in pairs(hosts.OPTIONS) do OPTIONS[option] = row end

-- The options for ms.generate; a text ends at any of end_tokens, too.
local function asked(line, tokenizer, end_tokens)
  local stop = { line.stop }
  for _, id in ipairs(end_tokens) do stop[#stop + 1] = id end
  return {
    prompt = line.prompt, tokenizer = tokenizer, special = not line.no_special, tokens = line.tokens,
    temperature = line.temperature, top_k = line.top_k, top_p = line.top_p, stop = stop, seed = line.seed,
  }
end

-- Fills in what the command line leaves open, and says what comes from the folder.
local function take_sampling(line, folder)
  local sampling, taken = generation.sampling(folder), {}
  for _, name in ipairs({ "temperature", "top_k", "top_p" }) do
    local value = sampling.settings[name]
    if value and line[name] == nil then
      line[name] = value
      taken[#taken + 1] = ("%s %g"):format(name, value)
    end
  end
  local parts = {}
  if taken[1] then parts[1] = table.concat(taken, ", ") end
  if sampling.lacking[1] then
    parts[#parts + 1] = "left out, for Moonshard does not have them: " .. table.concat(sampling.lacking, ", ")
  end
  if parts[1] and require("moonshard.distributed.world").rank == 0 then
    io.stderr:write("moonshard: ", text_lines.escape(sampling.path), ": ", table.concat(parts, "; "), "\n")
  end
end

local function print_text(out, line, model, tokenizer, end_tokens)
  local own = {}
  for _, id in ipairs(end_tokens) do own[#own + 1] = id < model.config.vocab and id or nil end -- others never come
  local text = require("moonshard.train.generate")(model, asked(line, tokenizer, own))
  if require("moonshard.distributed.world").rank == 0 then out:write(line.prompt or "\n", text, "\n") end
end

-- The program of each rank for a Hugging Face folder; uses the folder's tokenizer and dtype by default.
local function for_folder(line)
  return function()
    local ms = require("moonshard")
    local cfg = ms.args { mesh = "1x-1", dtype = generation.dtype(line.recipe), ignore = {} }
    local end_tokens = generation.end_tokens(line.recipe)
    take_sampling(line, line.recipe)
    local model = ms.huggingface.model(line.recipe, { ignore = cfg.ignore })
    ms.fully_shard(model, {
      mesh = ms.init_device_mesh(cfg.device, cfg.mesh, { "replicate", "shard" }),
      units = { ms.re[[^layers\.\d+$]] },
      mp_policy = { param_dtype = cfg.dtype, reduce_dtype = "f32" },
    })
    print_text(io.stdout, line, model, line.tokenizer or ms.huggingface.tokenizer(line.recipe), end_tokens)
  end
end

-- The program of each rank for a recipe: runs it up to its first step.
local function for_recipe(line)
  local chunk = recipe.load(line.recipe)
  return function()
    local out = recipe.print_to_stderr()
    context.stepper = {
      step = function(_, trainer)
        context.stepper = nil -- while it is set, no checkpoint is saved or loaded, including the recipe's own
        require("moonshard.checkpoint").load(trainer.model, line.checkpoint, { ema = line.ema })
        print_text(out, line, trainer, line.tokenizer, {})
        early_exit.now()
      end,
    }
    local ok, raised, left = early_exit.run(chunk, errors.locate)
    context.stepper = nil
    if not ok then error(raised, 0) end
    if not left then refuse("MS_EINVAL", "%s: ended without a training step, so there is no model", line.recipe) end
  end
end

local function is_folder(path) return input_file.exists(path .. "/config.json") end

---@param arguments string[] without "generate"
---@return integer exit status
function generate.main(arguments)
  local line = command_line.parse("moonshard generate", arguments, {
    recipe = true, usage = "RECIPE.lua --checkpoint DIR, or a Hugging Face FOLDER", options = OPTIONS,
  })
  if line.temperature then
    local number = tonumber(line.temperature)
    if not (number and number >= 0 and number < math.huge) then
      refuse("MS_EINVAL", "--temperature %s: must be a number of at least 0", line.temperature)
    end
    line.temperature = number
  end
  if line.top_p and line.top_p > 1 then
    refuse("MS_EINVAL", "--top-p %g: must be above 0 and at most 1", line.top_p)
  end
  if line.ema and not line.checkpoint then
    refuse("MS_EINVAL", "--ema needs --checkpoint DIR: only checkpoints contain averages of the weights")
  end
  local program
  if is_folder(line.recipe) then
    if line.checkpoint then refuse("MS_EINVAL", "--checkpoint is for recipes: a model folder has its own weights") end
    program = for_folder(line)
  elseif not line.recipe:find("%.lua$") then
    refuse("MS_EINVAL", "%s: not a recipe, and not a model folder (no config.json); for a checkpoint, give its "
      .. "recipe too: moonshard generate RECIPE.lua --checkpoint %s", line.recipe, line.recipe)
  elseif not line.checkpoint then
    refuse("MS_EINVAL", "moonshard generate %s needs --checkpoint DIR: a recipe alone contains no trained weights",
      line.recipe)
  else
    program = for_recipe(line)
  end
  return run.launch(line, program)
end

return generate
