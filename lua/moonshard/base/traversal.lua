-- `pairs` and `next` that visit every item of a table. LuaJIT before August 2026, with Debian 12's among them, patches
-- a loop over `pairs` that it gives up compiling, and a loop that runs at that moment can end early: it skips items and
-- reports nothing (LuaJIT issues 827 and 1510). The patch concerns only LuaJIT's own instruction for `next`, which it
-- uses where the iterator is the built-in `next`. These two hand out another function that calls it, so loops use the
-- general instruction from their start, which is compiled too.

local next, built_in_pairs = next, pairs

local function following(t, key)
  return next(t, key)
end

---As Lua's, for every loop and every module that is loaded from here on.
function _G.pairs(t)
  if type(t) ~= "table" then return built_in_pairs(t) end -- as a tail call, so that an error names the caller's line
  local iterator, of, first = built_in_pairs(t)
  return iterator == next and following or iterator, of, first
end

_G.next = following
