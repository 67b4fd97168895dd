-- Writes the main program of a room of C tests: luajit test_room.lua OUT SOURCE...
--
-- The tests of a folder are one program, since linking each with the whole engine took longer than compiling it. It
-- stands under the name of each test (a link), and runs the test that it was called by. `main` of a test is compiled as
-- a function of the test's name.

local out = assert(io.open(assert(arg[1]), "w"))
out:write("/* Made by runtime/make/test_room.lua. */\n#include <stdio.h>\n#include <string.h>\n\n")
local calls = {}
for i = 2, #arg do
  local file = assert(io.open(arg[i]))
  local parameters = assert(file:read("*a"):match("\nint main(%b())"), arg[i] .. " has no main")
  file:close()
  local name = arg[i]:match("([^/]+)%.c$")
  out:write(("int %s%s;\n"):format(name, parameters))
  calls[#calls + 1] = ('  if (!strcmp(name, "%s")) return %s(%s);\n'):format(name, name,
    parameters == "(void)" and "" or "argc, argv")
end
out:write(([[

int main(int argc, char **argv) {
  char name[256];
  const char *slash = strrchr(argv[0], '/');
  snprintf(name, sizeof name, "%%s", slash ? slash + 1 : argv[0]);
  name[strcspn(name, ".")] = '\0'; /* a suffix says for which machine it was packed */
  (void)argc;
%s  fprintf(stderr, "%%s is not a test of this program: run it by the name of one\n", argv[0]);
  return 2;
}
]]):format(table.concat(calls)))
assert(out:close())
