-- What a run leaves when it has ended, however it ended: nothing. Its processes are known by a mark in their
-- environment, its files by the folder that was its TMPDIR.

local leftovers = {
  ---What is there for longer than this after a run has ended is left.
  SECONDS_TO_VANISH = 5,
}

local function output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

---Processes that have this text in their environment: those of one run.
---@param mark string
---@return string paths in /proc
local function processes_with(mark)
  return output_of(("grep -lsF '%s' /proc/[0-9]*/environ"):format(mark))
end

---What a run has left, a few seconds after its end: processes first, then files and shared memory.
---@param mark string what its environment contains, and no other run's
---@param folder string its TMPDIR
---@return string left empty where nothing is
function leftovers.of(mark, folder)
  local left = processes_with(mark)
  for _ = 1, 10 * leftovers.SECONDS_TO_VANISH do
    if left == "" then break end
    os.execute("sleep 0.1")
    left = processes_with(mark)
  end
  return left .. output_of("ls -A " .. folder) .. output_of("ls -A /dev/shm | grep -i moonshard")
end

return leftovers
