-- The child of a sweep between its fork and its program: a request to end must not go to the handler that it inherited,
-- whose flag the program would never see.

local engine = require("moonshard.base.ffi")
local posix = require("moonshard.base.posix")
local process = require("moonshard.sweep.process")
local ffi, C = engine.ffi, engine.C

ffi.cdef "int raise(int signal);"

-- Runs a child that signals itself when it reads a name of `posix` for the first time: where that is, it chooses.
local function run_signalled(name)
  local parent, value = C.getpid(), posix[name]
  posix[name] = nil
  setmetatable(posix, { __index = function(self, key)
    if key ~= name then return nil end
    if C.getpid() ~= parent then
      rawset(self, name, value)
      C.raise(2)
    end
    return value
  end })
  local ended = process.run({ "-e", "" }, { output = "/dev/null" })
  setmetatable(posix, nil)
  posix[name] = value
  return ended
end

describe("the child of a sweep", function()
  setup(function() C.ms_interrupt_install() end)

  it("I5 is ended by Ctrl-C's signal wherever it comes", function()
    assert.equal(0, process.run({ "-e", "" }, { output = "/dev/null" }).status)
    -- In turn: held until the handler is gone, and after that.
    for _, name in ipairs({ "SIGINT", "PR_SET_PDEATHSIG", "O_WRONLY" }) do
      assert.equal(2, run_signalled(name).signal)
      assert.equal(0, C.ms_interrupted())
    end
  end)
end)
