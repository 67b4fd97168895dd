-- The lint rule of calls between C files: what it must find, in trees that are wrong on purpose.

local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

-- Runs the rule over files (path below runtime/ -> text); returns what it printed and whether it found nothing.
local function lint(files)
  local root, paths = scratch.path(), {}
  for path, text in pairs(files) do
    path = "runtime/" .. path
    os.execute(("mkdir -p %s/%s"):format(root, path:match("^(.*)/")))
    scratch.write(root .. "/" .. path, text)
    paths[#paths + 1] = path
  end
  table.sort(paths)
  local command = 'rule=$PWD/tests/lint/calls.lua; cd %s && luajit "$rule" %s; echo status $?'
  local pipe = assert(io.popen(command:format(root, table.concat(paths, " "))))
  local out = pipe:read("*a")
  pipe:close()
  return out:match("^(.*)status %d+\n$"), out:find("status 0\n$") ~= nil
end

describe("calls between C files", function()
  after_each(scratch.clear)

  it("may look down, and within a folder in one direction", function()
    local out, fine = lint {
      ["base/text/text.c"] = "int ms_text_reserve(int n) {\n  return n;\n}",
      ["base/text/text.h"] = "static inline int ms_text_raw(void) {\n  return ms_text_reserve(1);\n}",
      ["plan/verify/verify.c"] = "int ms_plan_verify(void) {\n  return ms_text_raw();\n}",
      ["plan/compile.c"] = "/* ms_exec_run( */ int ms_plan_compile(void) {\n  return ms_plan_verify();\n}",
      ["exec/run.c"] = "static int ms_plan_verify(void) {\n  return 0;\n}\n"
        .. "int ms_exec_run(void) {\n  return ms_plan_verify();\n}",
    }
    assert.equal("", out)
    assert.is_true(fine)
  end)

  it("are refused when they look up, in a call or in a table of functions", function()
    local out, fine = lint {
      ["exec/run.c"] = "int ms_exec_run(void) {\n  return 0;\n}",
      ["plan/compile.c"] = "int ms_plan_compile(void) {\n  return ms_exec_run();\n}",
      ["mesh/mesh.c"] = "static const table t = { .run = ms_exec_run };",
    }
    assert.is_false(fine)
    has(out, "runtime/plan/compile.c | ms_exec_run, line 2 | runtime/exec/run.c")
    has(out, "runtime/mesh/mesh.c | ms_exec_run, line 1 | runtime/exec/run.c")
  end)

  it("are refused in a circle, with each step of it", function()
    local out, fine = lint {
      ["exec/a.c"] = "int ms_a(void) {\n  return ms_b();\n}",
      ["exec/b.c"] = "int ms_b(void) {\n  return ms_c();\n}",
      ["exec/c.c"] = "int ms_c(void) {\n  return ms_a();\n}",
    }
    assert.is_false(fine)
    has(out, "circle | 3 files | runtime/exec/a.c | ms_b | runtime/exec/b.c | ms_c | runtime/exec/c.c | ms_a")
  end)
end)
