-- The files of a folder of PEFT's adapters, and what a folder without them is instead.

local errors = require("moonshard.base.error")
local faults = require("moonshard.huggingface.folder.faults")
local input_file = require("moonshard.base.files.input_file")
local listing = require("moonshard.data.files.listing")
local safetensors = require("moonshard.base.files.safetensors")

local CONVERT = [[python3 -c 'import torch; from safetensors.torch import save_file; save_file({k: v.contiguous() ]]
  .. [[for k, v in torch.load("%s/adapter_model.bin", weights_only=True).items()}, "%s/adapter_model.safetensors")']]

-- Folders in a folder that have adapters, as PEFT's subfolder names one.
local function subfolders(folder)
  local names = {}
  for _, path in ipairs(listing.match(listing.literal(folder) .. "/*/adapter_config.json")) do
    names[#names + 1] = path:match("([^/]*)/[^/]*$")
  end
  return names
end

-- What to do about a folder, by a file that it has; the first that is there counts.
local HINTS = {
  { "adapter_model.bin", function(folder)
    return "adapter_model.bin, PyTorch's pickle, is not read: convert it with " .. CONVERT:format(folder, folder)
  end },
  { "adapter_model.safetensors.index.json", function()
    return "its tensors are in several files: save them as one, with a larger max_shard_size"
  end },
  { "config.json", function() return "it is the folder of a whole model, which ms.huggingface.model reads" end },
}

---Opens the tensors of a folder of adapters, or says what the folder is.
---@param folder string without a slash at its end
---@return moonshard.Safetensors
return function(folder)
  local path = folder .. "/adapter_model.safetensors"
  if input_file.exists(path) then
    faults.check_safetensors(path)
    return safetensors.open(path)
  end
  local hint = ""
  for _, row in ipairs(HINTS) do
    if hint == "" and input_file.exists(folder .. "/" .. row[1]) then hint = "; " .. row[2](folder) end
  end
  local names = hint == "" and subfolders(folder) or {}
  if names[1] then
    hint = ("; it has several of them, in folders of their own: give one, such as %s/%s (%s)"):format(folder, names[1],
      table.concat(names, ", "))
  end
  errors.invalid("%s has no adapter_model.safetensors, so it is not a folder of adapters%s", folder, hint)
end
