-- Runs cases: all of one number of ranks in one launch, then all of them on one rank that stands in for those, and
-- compares. What a case must show: the plan verifies (it is refused otherwise), losses, norms and parameters equal
-- those of one rank, counts, bytes and arenas equal the plan's, and a plan made without launching is the last rank's.

local json = require("cjson")

local case = require("fuzz.case")
local files = require("moonshard.check.files")
local program = require("lua.program")
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

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- Names in a message change from case to case.
local function kind_of_error(text)
  -- Ranks are named once an earlier case of the launch has trained.
  text = text:gsub("^moonshard: rank %d+ failed: ", "moonshard: ")
  return (text:gsub("%b()", ""):gsub("[%w_./]*%d[%w_./]*", "N"):match("([^\n]*)"):sub(1, 90))
end

-- Runs entries that share a launch; one that ends it has failed, and those after it get another launch.
local function launch(entries, ranks, result, extra)
  while #entries > 0 do
    local list, lines = os.tmpname(), {}
    for i, entry in ipairs(entries) do lines[i] = ("%s %d\n"):format(entry.folder, case.ranks(entry.case)) end
    write(list, table.concat(lines))
    local ended = program.run({
      "run", "tests/fuzz/ranks.lua", "-n", tostring(ranks), "--timeout", "120", "list=" .. list, extra,
    })
    os.remove(list)
    local rest, failed = {}, false
    for _, entry in ipairs(entries) do
      if failed then
        rest[#rest + 1] = entry
      elseif not exists(entry.folder .. "/" .. result) then
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
  local ended = program.run({
    "plan", entry.folder .. "/recipe.lua", "-n", tostring(case.ranks(entry.case)), "--rank", tostring(rank), "--json",
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
---@return table[] failed those that fail: { case, failure }
function cases.run(list)
  local folder, by_ranks, all = files.temporary_folder(), {}, {}
  for i, each in ipairs(list) do
    local entry, ranks = { case = each, folder = ("%s/%d"):format(folder, i) }, case.ranks(each)
    by_ranks[ranks] = by_ranks[ranks] or {}
    all[i] = entry
    table.insert(by_ranks[ranks], entry)
    files.make_folder(entry.folder)
    write(entry.folder .. "/recipe.lua", recipe.of(each))
  end
  for ranks, entries in pairs(by_ranks) do launch(entries, ranks, "0.json") end
  local ran, failed = {}, {}
  for _, entry in ipairs(all) do
    if not entry.failure then ran[#ran + 1] = entry end
  end
  launch(ran, 1, "one.json", "stand_in=true")
  for _, entry in ipairs(all) do
    if not entry.failure then compare(entry) end
    if entry.failure then failed[#failed + 1] = { case = entry.case, failure = entry.failure } end
    os.remove(entry.folder .. "/recipe.lua")
    files.remove(entry.folder, case.ranks(entry.case))
  end
  os.remove(folder)
  return failed
end

return cases
