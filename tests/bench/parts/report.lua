-- What all parts of `make bench` share: commands that print figures, and the table and file in which figures end.

local json = require("moonshard.base.text.json")

local report = {}

---The folder of the build that is measured.
report.build = arg[1] or "build"

---PyTorch, if `make bench-peers` installed it.
report.peer_python = report.build .. "/peers/venv/bin/python"

local results = assert(io.open(report.build .. "/bench.jsonl", "w"))

---@param path string
---@return boolean
function report.exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

---Every line of JSON that a command prints. Reports on standard error that the command failed.
---@param command string
---@return table[] lines
---@return boolean ended well
function report.json_lines(command)
  local pipe = assert(io.popen(command .. "; echo status $?"))
  local lines, status = {}, nil
  for line in pipe:lines() do
    status = line:match("^status (%d+)$") or status
    if line:find("^{.*}$") then lines[#lines + 1] = json.decode(line) end
  end
  pipe:close()
  if status ~= "0" then io.stderr:write("bench: failed with status ", status or "?", ": ", command, "\n") end
  return lines, status == "0"
end

---What a command prints.
---@param command string
---@return string
function report.output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

local function number(value)
  return value and (value >= 1000 and "%.0f" or "%.4g"):format(value) or "null"
end

---A figure, and a peer's.
---@param name string
---@param unit string
---@param ours number?
---@param peer number?
---@param better "lower"|"higher" of the figure itself
function report.compare(name, unit, ours, peer, better)
  local ratio = ours and peer and (better == "lower" and peer / ours or ours / peer)
  results:write(('{"name":"%s","unit":"%s","ours":%s,"peer":%s,"ratio":%s}\n'):format(name, unit, number(ours),
    number(peer), number(ratio)))
  results:flush()
  print(("%-36s %10s %-9s peer %10s %9s"):format(name, number(ours), unit, number(peer),
    ratio and ("%.2fx"):format(ratio) or ""))
end

---A figure that is to stay at or below a target.
---@param name string
---@param unit string
---@param ours number
---@param target number
function report.target(name, unit, ours, target)
  results:write(('{"name":"%s","unit":"%s","ours":%s,"target":%g}\n'):format(name, unit, number(ours), target))
  results:flush()
  print(("%-36s %10s %-9s target %7g %9s"):format(name, number(ours), unit, target, ours <= target and "" or "missed"))
end

---After the last figure.
function report.close() results:close() end

return report
