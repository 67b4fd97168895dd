-- One run of the executable in a folder of its own, struck while it runs or not, and what it came to. Campaigns
-- describe the run in shell words; a bash does the rest, which has a job's process to strike and then waits for its
-- status.

local leftovers = require("lua.support.leftovers")

local trial = {}

-- A run that has not ended so long after it was struck, or began, hangs. Launchers wait 5 s for their ranks.
trial.SECONDS = 15

---@class Trial
---@field run string words of `moonshard run` after it; $D is the folder of this trial
---@field shell string? words in front of the bash that does all of this: unshare
---@field before string? what is done first in the same shell: a pipe, a mount
---@field prefix string? words in front of the executable: prlimit
---@field redirect string? of the run; standard error goes to $D/err unless this says otherwise
---@field strike string? what is done to the run: $pid is the launcher
---@field after string? what is done when it has ended

---@class TrialEnded
---@field status integer 128 + N after signal N
---@field err string standard error
---@field hung boolean it had to be killed
---@field left string what is left of it: empty is right
---@field folder string

local SCRIPT = [==[
set -m # else bash starts its jobs with SIGINT ignored
D=%s
{ %s
} || exit 1
TMPDIR=$D/tmp MOONSHARD_SOAK_RUN=%s %s "$MOONSHARD_BIN" run %s 2>$D/err %s & pid=$!
trap 'kill -9 $pid; exit 1' INT TERM HUP
children() { cat /proc/$pid/task/$pid/children 2>/dev/null; }
{ %s
}
timeout %d tail -s 0.05 -f /dev/null --pid=$pid || { echo hung >$D/hung; kill -9 $pid; }
wait $pid 2>/dev/null
echo $? >$D/status
%s
true
]==]

local made = 0

local function read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end
trial.read = read

---Runs it and calls check with what it came to; its folder is there for so long. Gives what check gives.
---@param t Trial
---@param check fun(ended: TrialEnded): string?
---@return string? failure
function trial.run(t, check)
  made = made + 1
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute(("mkdir -p %s/tmp"):format(folder)) == 0)
  local mark = ("%s.%d"):format(folder:match("[^/]*$"), made)
  local script = folder .. "/script"
  local file = assert(io.open(script, "w"))
  file:write(SCRIPT:format(folder, t.before or ":", mark, t.prefix or "", t.run, t.redirect or ">/dev/null </dev/null",
    t.strike or ":", trial.SECONDS, t.after or ":"))
  file:close()
  os.execute(("%s bash %s 2>%s/bash"):format(t.shell or "", script, folder))
  local status = tonumber(read(folder .. "/status") or "")
  local failure
  if status then
    failure = check {
      status = status, err = read(folder .. "/err") or "", hung = read(folder .. "/hung") ~= nil, folder = folder,
      left = leftovers.of("MOONSHARD_SOAK_RUN=" .. mark, folder .. "/tmp"),
    }
  else
    failure = "the run was not started: " .. (read(folder .. "/bash") or "")
  end
  os.execute("rm -rf " .. folder)
  return failure
end

---What every run must be at its end, whatever was done to it.
---@param ended TrialEnded
---@param statuses integer[] those that are right
---@return string? failure
function trial.ended_well(ended, statuses)
  local told = ": " .. ended.err:sub(1, 2000)
  if ended.hung then return ("did not end within %d s"):format(trial.SECONDS) .. told end
  if ended.left ~= "" then return "left " .. ended.left .. told end
  for _, status in ipairs(statuses) do
    if ended.status == status then return nil end
  end
  return ("status %d, not %s%s"):format(ended.status, table.concat(statuses, " or "), told)
end

---Shell words that kill a rank as soon as there is one, by its place among the launcher's children.
---@param place integer from 1
---@param signal string
---@return string
function trial.kill_rank(place, signal)
  return ([[for i in {1..200}; do
    ranks=($(children))
    [ ${#ranks[@]} -ge %d ] && { kill -%s ${ranks[%d]}; break; }
    sleep 0.02
  done]]):format(place, signal, place - 1)
end

return trial
