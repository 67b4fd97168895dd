-- The parts of a checkpoint whose hosts have folders of their own. Its manifest, equal on every host, names the host of
-- each part. A part is two files, rank-00003.safetensors and rank-00003.json (its tensors and checksums), which can be
-- copied from folder to folder; what is read is what lies in this one.

local engine = require("moonshard.base.ffi")
local errors = require("moonshard.base.error")
local input_file = require("moonshard.base.files.input_file")
local json = require("moonshard.base.text.json")
local C, ffi, check = engine.C, engine.ffi, engine.check

local host_parts = {}

---@class moonshard.MissingPart
---@field part string "rank-00003"
---@field host string where it was written

---What a part begins with.
---@param save number
---@param host string
---@return string
function host_parts.head(save, host) return ('"save":%s,"host":%s'):format(json.encode(save), json.encode(host)) end

local function read_part(read, path, writer, name)
  local out = ffi.new("char *[1]")
  check(C.ms_checkpoint_read(path, writer, out))
  local part = json.decode(ffi.string(out[0]))
  C.ms_file_text_free(out[0])
  if type(part) ~= "table" then errors.invalid("%s/%s.json: not JSON", path, name) end
  if part.save ~= read.save or part.file ~= name .. ".safetensors" then
    errors.invalid("%s/%s.json: belongs to another save than manifest.json: copy the files of one checkpoint", path,
      name)
  end
  return part
end

---Reads the parts in the checkpoint's folder. Raises MS_EIO if one is damaged, MS_EINVAL if it is of another save.
---@param read moonshard.Manifest receives files and missing
---@param path string folder
function host_parts.read(read, path)
  read.files, read.missing = {}, {}
  for i, host in ipairs(read.hosts) do
    local name = ("rank-%05d"):format(i - 1)
    local at = path .. "/" .. name
    if input_file.exists(at .. ".json") and input_file.exists(at .. ".safetensors") then
      read.files[#read.files + 1] = read_part(read, path, i - 1, name)
    else
      read.missing[#read.missing + 1] = { part = name, host = host }
    end
  end
end

---The end of an error about elements that no file in the folder contains: the parts that are missing, by host.
---@param missing moonshard.MissingPart[]?
---@return string "" if none is
function host_parts.describe_missing(missing)
  local hosts, of = {}, {}
  for _, one in ipairs(missing or {}) do
    if not of[one.host] then hosts[#hosts + 1] = one.host end
    of[one.host] = of[one.host] or {}
    table.insert(of[one.host], one.part)
  end
  if #hosts == 0 then return "" end
  for i, host in ipairs(hosts) do
    local names = of[host]
    hosts[i] = ("%s%s of host %s"):format(table.concat(names, ", ", 1, math.min(#names, 4)),
      #names > 4 and (" and %d more"):format(#names - 4) or "", host)
  end
  return (" of this folder, which lacks %s: copy these files (.json and .safetensors) from there into it"):format(
    table.concat(hosts, "; "))
end

return host_parts
