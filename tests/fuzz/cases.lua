-- Runs cases: all of one number of ranks in one launch, then all of them on one rank that stands in for those, and
-- compares. What a case must show: the plan verifies (it is refused otherwise), losses, norms and parameters equal
-- those of one rank, counts, bytes and arenas equal the plan's, and a plan made without launching is the last rank's.

local json = require("cjson")

local case = require("fuzz.case")
local files = require("moonshard.check.files")
local program = require("lua.support.program")
local recipe = require("fuzz.recipe")
local verdict = require("moonshard.check.report")

local cases = {}

---@class moonshard.FuzzFailure
---@field kind string what failed, without numbers: a smaller case fails the same way when it has the same kind
---@field text string

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  assert(file:close())
end

local function read(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

-- Names in a message change from case to case.
local function kind_of_error(text)
  -- Ranks are named once an earlier case of the launch has trained.
  text = text:gsub("^moonshard: rank %d+ failed: ", "moonshard: ")
  return (text:gsub("%b()", ""):gsub("[%w_./]*%d[%w_./]*", "N"):match("([^\n]*)"):sub(1, 90))
end

-- Ranks of one host, or per_host on each of several, which are this machine under other names.
local function place(ranks, per_host)
  if not per_host or ranks <= per_host then return { "-n", tostring(ranks) } end
  local hosts = {}
  for first = 0, ranks - 1, per_host do
    hosts[#hosts + 1] = ("h%d:%d"):format(#hosts, math.min(per_host, ranks - first))
  end
  return {
    "--hosts", table.concat(hosts, ","), "--agent", "tests/fuzz/agent.sh", "--rendezvous", "tcp://127.0.0.1",
  }
end

local function append(list, more)
  for _, word in ipairs(more) do list[#list + 1] = word end
  return list
end

-- Runs entries that share a launch; one that ends it has failed, and those after it get another launch.
local function launch(entries, placed, result, extra)
  while #entries > 0 do
    local list, lines = os.tmpname(), {}
    for i, entry in ipairs(entries) do lines[i] = ("%s %d\n"):format(entry.folder, case.ranks(entry.case)) end
    write(list, table.concat(lines))
    local ended = program.run(append({ "run", "tests/fuzz/ranks.lua", "--timeout", "120", "list=" .. list, extra },
      placed))
    os.remove(list)
    local rest, failed = {}, false
    for _, entry in ipairs(entries) do
      entry.refused = read(entry.folder .. "/refused")
      if failed then
        rest[#rest + 1] = entry
      elseif not entry.refused and not read(entry.folder .. "/" .. result) then
        failed = true
        local text = ended.err:gsub("moonshard: warning:[^\n]*\n", ""):gsub("^%s+", "")
        entry.failure = { kind = "error: " .. kind_of_error(text:gsub(entry.folder, "")), text = text }
      end
    end
    assert(failed or ended.status == 0, ended.err)
    entries = rest
  end
end

-- What the plan that `moonshard plan` makes for a rank differs in from the one that the rank stepped with.
local function compare_plan(entry, rank, stepped, wrong)
  local ranks = case.ranks(entry.case)
  local per_node = math.min(entry.per_host or ranks, ranks)
  if ranks % per_node > 0 then return end -- the command plans equal nodes
  local ended = program.run({
    "plan", entry.folder .. "/recipe.lua", "-n", tostring(ranks), "--rank", tostring(rank), "--json",
    "--ranks-per-node", tostring(per_node),
  })
  if ended.status ~= 0 then
    wrong[#wrong + 1] = "moonshard plan: " .. ended.err
    return
  end
  local planned = json.decode(ended.out)
  if planned.fingerprint ~= stepped.fingerprint then
    wrong[#wrong + 1] = ("the plan made without launching is %s, not %s"):format(planned.fingerprint,
      stepped.fingerprint)
  end
  for category, bytes in pairs(stepped.bytes) do
    if planned.bytes[category] ~= bytes then
      wrong[#wrong + 1] = ("%s of the plan made without launching: %.0f bytes, not %.0f"):format(category,
        planned.bytes[category], bytes)
    end
  end
end

local function compare(entry)
  local wrong = {}
  for rank = 0, case.ranks(entry.case) - 1 do
    for _, text in ipairs(files.read_result(("%s/%d"):format(entry.folder, rank), false).wrong) do
      wrong[#wrong + 1] = ("rank %d: %s"):format(rank, text)
    end
  end
  local last = case.ranks(entry.case) - 1
  local stepped = files.read_result(("%s/%d"):format(entry.folder, last), false).plan
  if stepped then compare_plan(entry, last, stepped, wrong) end
  local ranks, one = files.read_result(entry.folder .. "/0", true), files.read_result(entry.folder .. "/one", true)
  local found = verdict.of(ranks, one, { wrong = wrong })
  if found.same and found.steps == entry.case.steps then return end
  local lines = {}
  for i, finding in ipairs(found.findings) do lines[i] = verdict.text(finding) end
  local first = found.findings[1]
  entry.failure = { kind = first and first.what or "steps", text = table.concat(lines, "\n") }
end

---Runs cases.
---@param list table[]
---@param per_host integer? ranks of a host, where they are to be on several
---@return table[] failed those that fail: { case, failure, per_host }
---@return { case: table, text: string }[] refused those that the engine cannot divide, and says so
function cases.run(list, per_host)
  local folder, by_ranks, all = files.temporary_folder(), {}, {}
  for i, each in ipairs(list) do
    local ranks = case.ranks(each)
    local entry = { case = each, folder = ("%s/%d"):format(folder, i), per_host = per_host }
    by_ranks[ranks] = by_ranks[ranks] or {}
    all[i] = entry
    table.insert(by_ranks[ranks], entry)
    files.make_folder(entry.folder)
    write(entry.folder .. "/recipe.lua", recipe.of(each))
  end
  for ranks, entries in pairs(by_ranks) do launch(entries, place(ranks, per_host), "0.json") end
  local ran, failed, refused = {}, {}, {}
  for _, entry in ipairs(all) do
    if entry.refused then refused[#refused + 1] = { case = entry.case, text = entry.refused } end
    if not entry.failure and not entry.refused then ran[#ran + 1] = entry end
  end
  launch(ran, place(1), "one.json", "stand_in=true")
  for _, entry in ipairs(all) do
    if not entry.failure and not entry.refused then compare(entry) end
    if entry.failure then failed[#failed + 1] = { case = entry.case, failure = entry.failure, per_host = per_host } end
    os.remove(entry.folder .. "/recipe.lua")
    os.remove(entry.folder .. "/refused")
    files.remove(entry.folder, case.ranks(entry.case))
  end
  os.remove(folder)
  return failed, refused
end

return cases
