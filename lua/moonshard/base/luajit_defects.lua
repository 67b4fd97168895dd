-- Keeps clear of defects of LuaJIT in which compiled code gives wrong results and reports nothing. The LuaJIT of Debian
-- 12, of March 2022, has all; requiring this module settles them for all code that is compiled from then on.
--
-- Forwarding of loads. A loop over a list that is written in place, as in `for _, name in ipairs({ "a", "b" })`, within
-- another loop can fail to store in the fields of that name (LuaJIT issues 980 and 994, fixed in 2023). The
-- optimization is turned off.
--
-- Fusing of loads. Where a compiled loop calls `next`, a variable that keeps the key of one round, as in `last = key`,
-- can have that of another after the loop: it is read from where `next` left it after the next call. The optimization,
-- which saves an instruction a load, is turned off.
--
-- Loops over `pairs`. LuaJIT before August 2026 patches a loop that it gives up compiling, and a loop that runs at that
-- moment can end early (issues 827 and 1510). The patch concerns only LuaJIT's own instruction for `next`, which it
-- uses where the iterator is the built-in `next`. `pairs` and `next` hand out another function that calls it, so loops
-- use the general instruction from their start, which is compiled too.

jit.opt.start("-fwd", "-fuse")

local next, built_in_pairs = next, pairs

local function following(t, key)
  local k, value = next(t, key) -- no tail call of a built-in function, with which LuaJIT would compile no loop
  if k == nil then return nil end -- one value, as Lua's
  return k, value
end

---As Lua's, for every loop and every module that is loaded from here on.
function _G.pairs(t)
  if type(t) ~= "table" then return built_in_pairs(t) end -- as a tail call, so that an error names the caller's line
  local iterator, of, first = built_in_pairs(t)
  return iterator == next and following or iterator, of, first
end

_G.next = following
