-- Several sources of samples as one, each with a weight:
--
--   ms.data.mix { { web, weight = 3 }, { code, weight = 1 } }
--
-- The next sample is of the source that lacks most of its share so far, as in Megatron's blended datasets: after any
-- number of samples each source has had its share of them, but for one or two. Which source a position of the run has
-- depends on the weights alone, and which of its samples on its seed: both are the same on every mesh. A source that
-- has run out begins its next epoch, in another order.

local arguments = require("moonshard.base.checks.arguments")
local call = require("moonshard.data.call")
local errors = require("moonshard.base.error")
local joined_stream = require("moonshard.data.joined_stream")
local loader = require("moonshard.data.loader")
local options = require("moonshard.base.checks.options")
local saved = require("moonshard.data.saved")
local sealed = require("moonshard.base.checks.sealed")
local strict = require("moonshard.base.checks.strict")

local WHO = "ms.data.mix"
local STRATEGIES = { first_exhausted = true, all_exhausted = true }

local SPECS = {
  batch = { "positive" }, global_batch = { "positive" }, drop_last = { "boolean", default = true },
  stopping_strategy = { "string", default = "first_exhausted" },
}

---@class moonshard.MixOptions
---@field [integer] { [1]: moonshard.Loader, weight: number? } the sources; weight: its share of the samples relative to
---  the others', default 1
---@field batch? integer samples per rank and step; default: that of the sources
---@field global_batch? integer samples per step on all ranks, instead of batch
---@field drop_last? boolean as of ms.data.text; default true
---@field stopping_strategy? "first_exhausted"|"all_exhausted" what an epoch is, for calls of batches without a number:
---  until the first source has run out (default), or until all have, the others repeating

---@class moonshard.MixData: moonshard.Loader
---@field sources moonshard.Loader[]
---@field shares number[] of each source, 1 in all
local Mix = { __name = "a mix of data" }
strict.refuse_loops(Mix, "for step, batch in data:batches(steps) do")

function Mix:__index(name)
  if Mix[name] ~= nil then return Mix[name] end
  if name == "valid" then
    errors.raise("MS_ENAME", "a mix of data has no valid: evaluate on each source's, such as data.sources[1].valid")
  end
  return loader.method(name)
end

loader.seal_class(Mix)

function Mix:__tostring()
  local parts = {}
  for i, source in ipairs(self.sources) do parts[i] = ("%.4g of %d"):format(self.shares[i], source.n) end
  return ("mix of %d sources, %s samples: %d tokens a sample, %d samples per rank and step, position %d"):format(
    #self.sources, table.concat(parts, ", "), self.seq, self.batch, self.position)
end

-- ---- options ----------------------------------------------------------------------------------------------------

local function kind_of(source) return (source.rows or 1) > 1 and "pairs of answers" or "single rows" end

local function check_alike(i, source, first)
  if source.rows ~= first.rows then
    errors.invalid("%s: source %d has %s, but source 1 has %s: mix data of one kind", WHO, i, kind_of(source),
      kind_of(first))
  elseif source.seq ~= first.seq then
    errors.invalid("%s: source %d has seq=%d, but source 1 has seq=%d: create both with the same seq", WHO, i,
      source.seq, first.seq)
  end
  if source.share.name ~= first.share.name or source.share.ranks ~= first.share.ranks then
    errors.invalid("%s: source %d is divided over %d ranks (%s), but source 1 over %d (%s): create both with the same "
      .. "mesh", WHO, i, source.share.ranks, source.share.name, first.share.ranks, first.share.name)
  end
end

local function read_source(i, entry, first)
  if type(entry) ~= "table" or loader.is(entry) then
    errors.invalid("%s: source %d must be { data, weight = 1 }, not %s", WHO, i, options.describe(entry))
  end
  local o = options.parse(("%s: source %d"):format(WHO, i), entry, {
    { "any", required = "data" }, weight = { "number", default = 1 },
  })
  local source = o[1]
  if getmetatable(source) == Mix then
    errors.invalid("%s: source %d is a mix: list its sources here, with their weights", WHO, i)
  elseif type(source) == "table" and source.mask then
    errors.invalid("%s: source %d is masked: mix the sources first, and mask the mix, ms.data.masked { ms.data.mix "
      .. "{ ... }, ... }", WHO, i)
  elseif not loader.is(source) then
    errors.invalid("%s: source %d must be data of ms.data.text, tokens, chat or preferences, not %s", WHO, i,
      options.describe(source))
  elseif not (o.weight > 0 and o.weight < math.huge) then
    errors.invalid("%s: weight of source %d must be a number above 0, not %s: leave out a source that has no share",
      WHO, i, options.describe(o.weight))
  end
  check_alike(i, source, first or source)
  return source, o.weight
end

-- Samples per rank and step.
local function batch_of(o, sources)
  local first = sources[1]
  if o.batch or o.global_batch then return loader.batch_of_rank(WHO, first.share, o.batch, o.global_batch) end
  for i, source in ipairs(sources) do
    if source.lacks then errors.invalid("%s: source %d: %s", WHO, i, source.lacks) end
    if source.batch ~= first.batch then
      errors.invalid("%s: source %d has batch=%d, but source 1 has batch=%d: give the mix batch or global_batch",
        WHO, i, source.batch, first.batch)
    end
  end
  return first.batch
end

local function read(given)
  if type(given) ~= "table" or getmetatable(given) then
    errors.invalid("%s takes a list of { data, weight = 1 }, not %s", WHO, options.describe(given))
  end
  local sources, shares, named, sum = {}, {}, {}, 0
  for i = 1, #given do
    sources[i], shares[i] = read_source(i, given[i], sources[1])
    sum = sum + shares[i]
  end
  if not sources[1] then errors.invalid("%s: give at least one source: { { data, weight = 1 }, ... }", WHO) end
  for i, weight in ipairs(shares) do shares[i] = weight / sum end
  for name, value in pairs(given) do
    if type(name) ~= "number" then named[name] = value end
  end
  local o = options.parse(WHO, named, SPECS)
  if not STRATEGIES[o.stopping_strategy] then
    errors.invalid('%s: stopping_strategy must be "first_exhausted" or "all_exhausted", not %s', WHO,
      options.describe(o.stopping_strategy))
  end
  return sources, shares, o
end

-- ---- the order --------------------------------------------------------------------------------------------------

-- Samples until the first source has run out, or until all have.
local function samples_of(sources, shares, strategy)
  local least, most = math.huge, 0
  for i, source in ipairs(sources) do
    local samples = math.ceil(source.n / shares[i] - 1e-6) -- a share of 1/3 is no double: 100 / share is above 300
    least, most = math.min(least, samples), math.max(most, samples)
  end
  return strategy == "first_exhausted" and least or most
end

-- Counts how many samples of each source come before a position. Positions are usually asked for in order; one before
-- the last restarts the count where it began: at the first position, or at that of a loaded state.
---@class moonshard.MixCount
---@field shares number[]
---@field position number how many samples have been counted
---@field used number[] of each source
---@field began { position: number, used: number[] }
local Count = {}
Count.__index = Count

local function new_count(shares, began)
  local self = setmetatable({ shares = shares, began = began, position = began.position }, Count)
  self.used = { unpack(began.used) }
  return self
end

-- The source of the next sample: the one that lacks most of its share.
function Count:following()
  local source, most = nil, -math.huge
  for i, share in ipairs(self.shares) do
    local lacks = share * (self.position + 1) - self.used[i]
    if lacks > most then source, most = i, lacks end
  end
  return source
end

function Count:go_to(position)
  if position < self.position then
    local began = self.began
    if position < began.position then began = { position = 0, used = {} } end
    for i = 1, #self.shares do self.used[i] = began.used[i] or 0 end
    self.position = began.position
  end
  while self.position < position do
    local source = self:following()
    self.used[source], self.position = self.used[source] + 1, self.position + 1
  end
end

local function zeros(n)
  local list = {}
  for i = 1, n do list[i] = 0 end
  return list
end

-- Counts from a position on: `ahead` is that of the batches that are read ahead, `saved` that of states.
local function count_from(self, began)
  self.ahead, self.saved = new_count(self.shares, began), new_count(self.shares, began)
end

-- Where the sample at a position of the run begins in the joined stream.
local function locate(self, position)
  self.ahead:go_to(position)
  local source = self.ahead:following()
  return self.stream.first[source] + self.sources[source]:begin_of(self.ahead.used[source])
end

local function texts_of(self)
  local samples, seeds, shuffled, held_out = {}, {}, {}, {}
  for i, source in ipairs(self.sources) do
    samples[i], seeds[i], shuffled[i] = ("%d"):format(source.n), ("%d"):format(source.seed), tostring(source.shuffle)
    held_out[i] = ("%.6g"):format(source.held_out or 0)
  end
  local shares = {}
  for i, share in ipairs(self.shares) do shares[i] = ("%.6g"):format(share) end
  return {
    shares = table.concat(shares, " "), samples = table.concat(samples, " "), seed = table.concat(seeds, " "),
    shuffle = table.concat(shuffled, " "), valid_fraction = table.concat(held_out, " "), seq = self.seq,
  }
end

-- Those of the mix, and of each source that has any.
local function settings_of(sources, o)
  local list = { loader.settings(o, SPECS) }
  for i, source in ipairs(sources) do
    if source.settings ~= "" then list[#list + 1] = ("; source %d%s"):format(i, source.settings) end
  end
  return table.concat(list)
end

-- A hash of each source's contents.
local function contents_of(self)
  local list = {}
  for i, source in ipairs(self.sources) do list[i] = source:contents() end
  return list[1] and table.concat(list, " ") or nil
end

---@class moonshard.MixState
---@field position number samples that the run has used, on all ranks
---@field used string? of each source, so many of these; without it they are counted again
---@field shares string of each source
---@field samples string of each source
---@field seed string of each source
---@field shuffle string of each source
---@field contents string? a hash of each source's data
---@field seq integer? tokens of a sample
---@field valid_fraction string? of each source: that of its windows which are not samples
---@field call_steps integer? steps of the latest call of batches
---@field call_done integer? of them

---The position of the run, from which it can continue on any number of ranks.
---@return moonshard.MixState
function Mix:state()
  local state, used = texts_of(self), {}
  self.saved:go_to(self.position)
  for i, count in ipairs(self.saved.used) do used[i] = ("%.0f"):format(count) end
  state.position, state.used, state.contents = self.position, table.concat(used, " "), contents_of(self)
  local of = call.under_way(self) or {}
  state.call_steps, state.call_done = of.steps, of.done
  return state
end

-- The samples that each source has given before a state's position: near its share of them.
local function used_of(self, state, position)
  if state.used == nil then return nil end
  local used, sum = {}, 0
  for word in tostring(state.used):gmatch("%S+") do used[#used + 1] = tonumber(word) or 0 / 0 end
  local right = #used == #self.shares
  for i, count in ipairs(used) do
    local off = math.abs(count - (self.shares[i] or 0) * position)
    sum, right = sum + count, right and count % 1 == 0 and off <= #used + 1e-9 * position
  end
  if right and sum == position then return used end
  errors.invalid("data:load_state: used=%s says how many of %.0f samples each source has given, which does not fit the "
    .. "shares %s: give a state that data:state returned", tostring(state.used), position, texts_of(self).shares)
end

---Restores a state of the same sources and weights.
---@param state moonshard.MixState
function Mix:load_state(state)
  local own = texts_of(self)
  local later = { contents = function() return contents_of(self) end, seq = own.seq,
    valid_fraction = own.valid_fraction }
  own.seq, own.valid_fraction = nil, nil
  saved.check("data:load_state", state, own, later, "the same sources in the same order, with the same weights, "
    .. "files, seq, seed, shuffle and valid_fraction")
  local position = saved.count("data:load_state", state, "position")
  local used = used_of(self, state, position)
  count_from(self, used and { position = position, used = used } or { position = 0, used = zeros(#self.shares) })
  self.position = position
  call.load(self, state)
end

---Batches of several sources, which train alike: { data, weight } each, with the same seq and mesh. Each source's
---own `valid` is its validation data.
---@param given moonshard.MixOptions
---@return moonshard.MixData
local function mix(given, more)
  if more ~= nil then
    errors.invalid("%s takes one table, in which options follow the sources: { { data }, { data }, batch = 4 }", WHO)
  end
  local sources, shares, o = read(given)
  local first, streams = sources[1], {}
  for i, source in ipairs(sources) do streams[i] = source.stream end
  local self = {
    sources = sources, shares = shares, n = samples_of(sources, shares, o.stopping_strategy), position = 0,
    seq = first.seq, batch = batch_of(o, sources), rows = first.rows, share = first.share,
    shuffle = true, restart = false, drop_last = o.drop_last,
    settings = settings_of(sources, o),
  }
  local texts = texts_of(self)
  self.given_seed = texts.seed
  local stream = #streams == #sources and joined_stream.new(streams, ("%s; %s; %s"):format(texts.shares, texts.seed,
    texts.shuffle)) or nil
  self.stream = stream
  self.locate = stream and function(position) return locate(self, position) end
  count_from(self, { position = 0, used = zeros(#shares) })
  return sealed.seal(setmetatable(self, Mix))
end

arguments.exact_all("data", Mix)

return mix
