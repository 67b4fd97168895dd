-- What a run has written and where, for its last line: a person who comes back to a terminal looks for it.

local written = {}

local order, path_of = {}, {}

---Notes a file or folder, in place of an earlier one of its kind.
---@param what string "checkpoint", "metrics"
---@param path string
function written.note(what, path)
  if not path_of[what] then order[#order + 1] = what end
  path_of[what] = path
end

---@param what string
---@return string? path
function written.path(what) return path_of[what] end

---@return string "metrics build/train/metrics.jsonl, chart build/train/loss.svg"; "" if there is nothing
function written.text()
  local parts = {}
  for i, what in ipairs(order) do parts[i] = ("%s %s"):format(what, path_of[what]) end
  return table.concat(parts, ", ")
end

return written
