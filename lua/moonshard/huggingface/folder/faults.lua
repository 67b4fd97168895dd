-- What a folder has in place of a model's files: files of another kind under their names, weights in another format,
-- and downloads that were not finished. The readers of these formats would only say which byte is wrong.

local errors = require("moonshard.base.error")
local file_kind = require("moonshard.data.files.file_kind")
local file_status = require("moonshard.base.files.file_status")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local listing = require("moonshard.data.files.listing")
local options = require("moonshard.base.checks.options")

local faults = {}

local HEAD_BYTES, LISTED, SHOWN = 512, 4, 60
local MARK = "\239\187\191" -- UTF-8's byte order mark
local FETCH = "fetch it again, as with hf download NAME --local-dir FOLDER"

-- The first bytes of a file; nil if it cannot be read, which its reader reports. A pipe would be waited for.
local function head_of(path)
  if file_status.of_path(path) ~= file_status.REGULAR then return nil end
  local file = io.open(path, "rb")
  local head = file and file:read(HEAD_BYTES)
  if file then file:close() end
  return head
end

local function is_web_page(head) return head:lower():find("^%s*<!doctype") or head:lower():find("^%s*<html") end

local TORCH = "what it holds is PyTorch's: name it pytorch_model.bin and convert the folder with the reference library"

-- What to do with a file of a kind, by the kind's name.
local INSTEAD = {
  ["a pointer of Git LFS to the data"] = "fetch the data with git lfs pull",
  ["a zip archive (torch.save makes such files)"] = TORCH, ["a pickle (older torch.save makes such files)"] = TORCH,
  ["a GGUF model"] = "get the folder in Hugging Face's layout that it was made from",
  ["UTF-16 text"] = "convert it to UTF-8 with iconv",
  zstd = "unpack it: zstd -d", gzip = "unpack it: gunzip", xz = "unpack it: unxz",
}

-- Raises for a file whose first bytes are not those of its format.
local function check_kind(path, head, format)
  local kind = file_kind.of(head)
  if is_web_page(head) then
    errors.invalid("%s: it is a web page (HTML), not %s: the address of a page was fetched in place of the file's; %s",
      path, format, FETCH)
  elseif kind then
    errors.raise("MS_EUNSUPPORTED", "%s: it is %s, not %s: %s", path, kind.name, format, INSTEAD[kind.name] or FETCH)
  end
end

---Raises for a text that is no JSON object from its beginning on.
---@param path string
---@param text string
function faults.check_json(path, text)
  check_kind(path, text:sub(1, HEAD_BYTES), "JSON")
  if text:sub(1, #MARK) == MARK then
    errors.invalid("%s: it begins with a byte order mark, which JSON does not have: save it as UTF-8 without one", path)
  elseif text:find("^%s*[^%s{]") then
    errors.invalid("%s: it must be a JSON object, and begins with %s; if that is the answer of a server, %s", path,
      options.describe(text:match("^%s*([^\r\n]*)"):sub(1, SHOWN)), FETCH)
  end
end

---Raises for a file under the name of safetensors that is of another kind. What cannot be read its reader reports.
---@param path string
function faults.check_safetensors(path)
  local head = head_of(path)
  if head then check_kind(path, head, "a safetensors file") end
end

-- ---- weights in other formats -----------------------------------------------------------------------------------

-- By the reference library, with the class of the model.
local function saved_by(more)
  return function(folder, family, name)
    return ("convert it with the reference library, python3 -c 'from transformers import %s as M; "
      .. "M.from_pretrained(\"%s\", torch_dtype=\"auto\"%s).save_pretrained(\"%s-safetensors\")', copy the files of "
      .. "the tokenizer there, and give the new folder"):format(family.architecture, folder, more:format(name), folder)
  end
end

-- Files of a folder without safetensors, by patterns of names, with what they are and what to do.
local OTHERS = {
  { "*.incomplete", "an unfinished download", FETCH }, { "*.crdownload", "an unfinished download", FETCH },
  { "*.part", "an unfinished download", FETCH }, { "*.aria2", "an unfinished download", FETCH },
  { "*.safetensors.*", "a packed or unfinished safetensors file", "unpack it (zstd -d, gunzip), or " .. FETCH },
  { "pytorch_model*.bin*", "weights that PyTorch pickled", saved_by("") },
  { "*.gguf", "a model of llama.cpp", saved_by(", gguf_file=\"%s\"") },
  { "*.pth", "weights in Meta's own layout", "get the folder of the same model in Hugging Face's layout, or convert it "
    .. "with the reference library's convert_llama_weights_to_hf.py" },
  { "*.h5", "weights of TensorFlow", saved_by(", from_tf=True") },
  { "*.msgpack", "weights of Flax", saved_by(", from_flax=True") },
  { "*.bin", "weights that PyTorch pickled, or another binary file", saved_by("") },
  { "*.pt", "weights that PyTorch pickled, or another binary file", saved_by("") },
  { "*.onnx", "a model of ONNX", "get the folder with the weights that it was made from" },
}

local function refuse_others(folder, family)
  for _, row in ipairs(OTHERS) do
    local pattern, what, advice = unpack(row)
    local paths = listing.match(listing.literal(folder) .. "/" .. pattern)
    if paths[1] then
      local name = paths[1]:match("[^/]*$")
      if type(advice) == "function" then advice = advice(folder, family, name) end
      errors.raise("MS_EUNSUPPORTED", "%s: the folder has no safetensors file but %s, %s, which is not read: %s",
        folder, name, what, advice)
    end
  end
end

-- ---- the files that are read ------------------------------------------------------------------------------------

-- The files that an index names, sorted; nil for an index that its reader refuses.
local function files_of(path)
  local text = input_file.read(path, "it names the files of the folder's tensors")
  faults.check_json(path, text)
  local index = json.decode(text)
  local map = type(index) == "table" and index.weight_map
  local names, known = {}, {}
  for _, name in pairs(type(map) == "table" and map or {}) do
    if type(name) == "string" and not known[name] then
      names[#names + 1], known[name] = name, true
    end
  end
  table.sort(names)
  return names
end

local function check_all_there(folder, index, names)
  local lacking = {}
  for _, name in ipairs(names) do
    if not input_file.exists(folder .. "/" .. name) then lacking[#lacking + 1] = name end
  end
  if not lacking[1] then return end
  local more = #lacking > LISTED and (" and %d more"):format(#lacking - LISTED) or ""
  errors.invalid("%s: %d of the %d files that it names are not in the folder: %s%s: the download is not complete; %s",
    index, #lacking, #names, table.concat(lacking, ", ", 1, math.min(LISTED, #lacking)), more, FETCH)
end

-- The paths of the weights as one file, and of the index of several.
local function places_of(folder)
  return folder .. "/model.safetensors", folder .. "/model.safetensors.index.json"
end

---What a user has to know of a folder that has weights twice, as one file and as several, which can differ.
---@param folder string
---@return string?
function faults.read_of_two(folder)
  local whole, index = places_of(folder)
  if not input_file.exists(whole) or not input_file.exists(index) then return nil end
  local ok, names = pcall(files_of, index) -- a broken index is no fault, as nothing reads it
  for _, name in ipairs(ok and names or {}) do
    if name ~= "model.safetensors" then
      return ("model.safetensors is read, as by the reference library, and not %s and the other files of "
        .. "model.safetensors.index.json: remove those that are not meant"):format(name)
    end
  end
end

---Raises for a folder whose weights are not safetensors files that can be opened, with what they are and what to do.
---Faults inside of files are left to their readers.
---@param folder string
---@param family moonshard.HuggingFaceFamily
function faults.check_weights(folder, family)
  folder = folder:gsub("(.)/+$", "%1")
  local whole, index = places_of(folder)
  local paths = { whole }
  if not input_file.exists(whole) and input_file.exists(index) then
    local names = files_of(index)
    check_all_there(folder, index, names)
    for i, name in ipairs(names) do paths[i] = folder .. "/" .. name end
  elseif not input_file.exists(whole) then
    paths = listing.match(listing.literal(folder) .. "/*.safetensors")
    if not paths[1] then refuse_others(folder, family) end
  end
  for _, path in ipairs(paths) do faults.check_safetensors(path) end
end

return faults
