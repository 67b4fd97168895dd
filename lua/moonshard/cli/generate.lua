-- moonshard generate: continues a prompt with the model of a recipe and the weights of a checkpoint. The recipe runs up
-- to its first step, where the text is generated instead, and is left there.

local command_line = require("moonshard.cli.command_line")
local errors = require("moonshard.error")
local leave = require("moonshard.leave")
local nodes = require("moonshard.cli.nodes")
local recipe = require("moonshard.cli.recipe")
local run = require("moonshard.cli.run")
local status = require("moonshard.cli.status")
local refuse = status.refuse

local generate = {}

local OPTIONS = {
  ["-n"] = { name = "ranks", value = "count" },
  ["--prompt"] = { name = "prompt", value = "text", what = "a text" },
  ["--tokenizer"] = { name = "tokenizer", value = "text", what = "a tokenizer.json, or a folder that holds one" },
  ["--tokens"] = { name = "tokens", value = "count" },
  ["--temperature"] = { name = "temperature", value = "text", what = "a number" },
  ["--top-k"] = { name = "top_k", value = "index" },
  ["--top-p"] = { name = "top_p", value = "number" },
  ["--stop"] = { name = "stop", value = "text", what = "a token" },
  ["--seed"] = { name = "seed", value = "index" },
  ["--checkpoint"] = { name = "checkpoint", value = "text", what = "a checkpoint, or a folder of them" },
  ["--timeout"] = { name = "timeout", value = "seconds" },
}
for option, row in pairs(nodes.OPTIONS) do OPTIONS[option] = row end

-- What ms.generate is asked for.
local function asked(line)
  return {
    prompt = line.prompt, tokenizer = line.tokenizer, tokens = line.tokens, temperature = line.temperature,
    top_k = line.top_k, top_p = line.top_p, stop = line.stop, seed = line.seed,
  }
end

local function print_text(line, model)
  local text = require("moonshard.generate")(model, asked(line))
  if require("moonshard.world").rank == 0 then io.write(line.prompt or "\n", text, "\n") end
end

-- The program of a rank: the recipe up to its first step.
local function program_of(line)
  local chunk = recipe.load(line.recipe)
  return function()
    local watch = require("moonshard.check.watch")
    watch.active = {
      step = function(_, trainer)
        watch.active = nil -- under which checkpoints, the recipe's own among them, are left alone
        require("moonshard.checkpoint").load(trainer.model, line.checkpoint)
        print_text(line, trainer)
        leave.now()
      end,
    }
    local ok, raised, left = leave.run(chunk, errors.locate)
    watch.active = nil
    if not ok then error(raised, 0) end
    if not left then refuse("MS_EINVAL", "%s: it ended without a training step, so there is no model", line.recipe) end
  end
end

---@param arguments string[] without "generate"
---@return integer exit status
function generate.main(arguments)
  local line = command_line.parse("moonshard generate", arguments, { recipe = true, options = OPTIONS })
  if line.temperature then
    line.temperature = tonumber(line.temperature)
      or refuse("MS_EINVAL", "--temperature %s: it must be a number", line.temperature)
  end
  if not line.checkpoint then
    refuse("MS_EINVAL", "moonshard generate %s needs --checkpoint DIR: a recipe alone has no trained weights",
      line.recipe)
  end
  return run.launch(line, program_of(line))
end

return generate
