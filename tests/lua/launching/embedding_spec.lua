-- The program at the top of moonshard.h, on two ranks that nothing of ours launched.

local scratch = os.tmpname()

describe("embedding", function()
  it("the manual's program has at most 40 lines", function()
    local lines = 0
    for line in io.lines(os.getenv("MOONSHARD_LIB"):match("^(.*/)") .. "include/manual_program.h") do
      if line ~= "" then lines = lines + 1 end
    end
    assert.is_true(lines > 20 and lines <= 40, lines .. " lines")
  end)

  it("the manual's program trains over a mesh of two ranks", function()
    local program = os.getenv("MOONSHARD_LIB"):match("^(.*/)") .. "tests/embed_manual"
    os.remove(scratch)
    local each = "RANK=%d WORLD_SIZE=2 MOONSHARD_RENDEZVOUS=file://" .. scratch .. " " .. program .. " 2>&1"
    local both = ("(%s) & (%s); status=$?; wait $! && exit $status"):format(each:format(1), each:format(0))
    local out = assert(io.popen(both))
    local text = out:read("*a")
    assert.truthy(out:close(), text)
    assert.truthy(text:find("^loss 0%.%d+ on 2 ranks\n$"), text)
  end)
end)
