-- Disks without room: one of the files of a run lies on /dev/full, or on a file system that is full after a random
-- number of bytes. The run ends with a message and a status that is not 0, or it had room for all; metrics are whole
-- lines. A file system is mounted in a namespace of the trial's own, which takes it away again; only root may do that.

local metrics = require("soak.metrics")
local trial = require("soak.trial")

local STEPS = 40

-- What a run can be asked to write: words of the run, or where its output goes. %s is the disk.
local FILES = {
  { name = "metrics", words = "--metrics %s", folder = "$D/disk/metrics" },
  { name = "trace", words = "--trace %s", folder = "$D/disk/trace.json" },
  { name = "output", redirect = ">%s </dev/null", folder = "$D/disk/output" },
  { name = "logs", words = "--log-dir $D/disk", folder = "$D/disk" },
}

local mounts = os.execute("unshare -m mount -t tmpfs -o size=64k tmpfs /mnt >/dev/null 2>&1") == 0

local function run(d)
  local file, ranks = d:one_of(FILES), d:integer(1, 4)
  local t = {}
  local disk
  if mounts and (file.name == "logs" or d:chance(0.6)) then
    local pages = d:integer(1, 40)
    t.shell = "unshare -m"
    t.before = ("mkdir $D/disk && mount -t tmpfs -o size=%dk tmpfs $D/disk"):format(4 * pages)
    -- What lies there is gone with the namespace.
    t.after = "mkdir $D/found; cp -r $D/disk/. $D/found/"
    disk = file.folder
  else
    t.before = file.name == "logs" and ("mkdir $D/disk && ln -s /dev/full $D/disk/rank-%d.log"):format(
      d:integer(0, ranks - 1)) or nil
    disk = "/dev/full"
  end
  t.run = ("tests/soak/recipe.lua -n %d steps=%d noise=%d"):format(ranks, STEPS, d:one_of { 3, 30, 300 })
  if file.words then t.run = t.run .. " " .. file.words:format(disk) end
  if file.redirect then t.redirect = file.redirect:format(disk) end
  if d:chance(0.4) then t.run = t.run .. " --log-ranks all" end
  return trial.run(t, function(ended)
    local wrong = trial.ended_well(ended, disk == "/dev/full" and { 3 } or { 0, 3 })
    if wrong then return wrong end
    if ended.status == 3 and not ended.err:find("No space left", 1, true) then
      return "does not say why: " .. ended.err
    end
    local everything = file.name == "metrics" and ended.status == 0
    return metrics.check(ended.folder .. "/found/metrics", everything and STEPS or nil)
  end), ("%s, %s on %s"):format(t.run, file.name, t.before or disk)
end

return { name = "full-disks", run = run, note = not mounts and "not root: /dev/full only, no small disks" or nil }
