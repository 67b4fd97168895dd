-- What packagers ask of the build and of `make install`: their flags, folders that can be moved, names of libraries.

local has = require("lua.support.message").has
local scratch = require("lua.support.scratch")

local function output_of(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- What make would do with these settings in a folder where nothing is built.
local function making(settings)
  return output_of(("env -u MAKEFLAGS -u MFLAGS -u CFLAGS -u CPPFLAGS -u LDFLAGS -u WERROR make -n BUILD=%s " ..
    "CONFIG=release CUDA_HOME=/proc/nowhere %s -f runtime/make/build.mk all"):format(scratch.path(), settings))
end

-- The line of it that compiles a file.
local function compiling(file, text)
  for line in text:gmatch("[^\n]+") do
    if line:find((" -c %s -o "):format(file), 1, true) then return line end
  end
  error(file .. " is not compiled: " .. text)
end

describe("the build, for packagers", function()
  if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
  local library, binary = os.getenv("MOONSHARD_LIB"), os.getenv("MOONSHARD_BIN")

  teardown(scratch.clear)

  it("puts the caller's flags after its own, and makes errors of warnings only on request", function()
    local all, strict = making("CFLAGS='-O0 -DMINE' CPPFLAGS=-DBEFORE LDFLAGS=-Wl,-z,now CC=my-cc"), making("WERROR=1")
    for file, own in pairs({ ["runtime/engine.c"] = "-O2", ["kernels/cpu/reductions/reduce.c"] = "-O3",
      ["runtime/host/main.c"] = "-O2" }) do
      local line = compiling(file, all)
      assert.truthy(line:find("^my%-cc .*" .. own:gsub("%p", "%%%0") .. ".* %-DBEFORE %-O0 %-DMINE "), line)
      assert.falsy(line:find("-Werror", 1, true), line)
      has(compiling(file, strict), "-Werror")
    end
    assert.truthy(all:find("\n *my%-cc %-shared [^\n]*%-Wl,%-z,now"), all)
    assert.truthy(all:find("\n *my%-cc %-rdynamic [^\n]*%-Wl,%-z,now"), all)
  end)

  it("gives the library a name with its version, and no file knows the folder it was built in", function()
    local dynamic = output_of("readelf -d " .. library)
    assert.truthy(dynamic:find("soname: %[libmoonshard%.so%.%d+%]"), dynamic)
    assert.falsy((dynamic .. output_of("readelf -d " .. binary)):find("R[UN]*PATH"), dynamic)
    local tree = output_of("pwd"):gsub("\n", "")
    for _, file in ipairs({ library, binary }) do
      assert.falsy(scratch.read(file):find(tree .. "/", 1, true), file .. " names " .. tree)
      assert.falsy(output_of(("readelf --debug-dump=info %s | grep -m 1 comp_dir"):format(file)):find(tree, 1, true))
    end
  end)

  it("says for every C file how it is compiled", function()
    local text = output_of("env -u MAKEFLAGS -u MFLAGS make -nB -f runtime/make/build.mk all BUILD=" .. scratch.path())
    local lines, out = scratch.path(), scratch.path()
    scratch.write(lines, text)
    assert.equal("", output_of(("luajit runtime/make/compile_commands.lua /tree %s <%s"):format(out, lines)))
    local entries = require("moonshard.base.text.json").decode(scratch.read(out))
    local named = {}
    for _, entry in ipairs(entries) do
      assert.equal("/tree", entry.directory)
      has(entry.command, " -c " .. entry.file)
      named[entry.file] = true
    end
    for _, file in ipairs({
      "runtime/engine.c", "kernels/cpu/reductions/reduce.c", "runtime/host/launcher/launcher.c",
    }) do
      assert.truthy(named[file] or not io.open(file), file)
    end
  end)
end)

describe("an installation", function()
  if os.getenv("MOONSHARD_CONFIG") ~= "release" then return end
  local build = assert(os.getenv("MOONSHARD_BIN")):gsub("^" .. output_of("pwd"):gsub("%p", "%%%0"):gsub("\n", "/"), "")
    :match("^(.*)/release/")
  local stage, root = scratch.path(), nil

  setup(function()
    -- What is built is taken as it is (`-o all`): with other flags than the build's, make would compile and link the
    -- programs again that other specs are running.
    local strict = scratch.read(build .. "/release/flags.list"):find("-Werror", 1, true) and 1 or ""
    local text = output_of(("make --no-print-directory -f runtime/make/build.mk -o all BUILD=%s PREFIX=/opt/moon " ..
      "LIBDIR=/opt/moon/lib/some-machine DESTDIR=%s WERROR=%s install"):format(build, stage, strict))
    -- Moved, so that nothing can know where it is.
    root = scratch.path()
    assert.equal(0, os.execute(("mv %s/opt/moon %s"):format(stage, root)), text)
  end)
  teardown(scratch.clear)

  local function with_lua(interpreter, program)
    local path = ("%s/share/lua/5.1/?.lua;%s/share/lua/5.1/?/init.lua;;"):format(root, root)
    return output_of(("cd / && env -i PATH=$PATH LUA_PATH='%s' %s -e '%s'"):format(path, interpreter, program))
  end

  it("works from any folder without a variable", function()
    assert.truthy(with_lua("luajit", 'print(require("moonshard").version)'):find("^%d+%.%d+%.%d+\n$"))
    assert.truthy(with_lua("luajit", 'print(require("moonshard").zeros(2, 3):numel())'):find("^6\n$"))
    assert.truthy(output_of(("cd / && env -i %s/bin/moonshard --version"):format(root)):find("%d+%.%d+%.%d+"))
    local trained = output_of(("cd / && env -i %s/bin/moonshard run %s -n 4 steps=2"):format(root,
      root .. "/share/moonshard/recipes/toy_hsdp.lua"))
    assert.truthy(trained:find("step 2/2"), trained)
  end)

  it("has the whole header: a program and every part by itself compile, and the program runs", function()
    local command = "${CC:-cc} -std=c99 -pedantic -Wall -Werror -I" .. root .. "/include"
    local program, parts = scratch.path(), 0
    local compiled = output_of(("%s -I%s/release/include tests/c/api/embed_manual.c -o %s -L%s/lib/some-machine " ..
      "-lmoonshard -Wl,-rpath,%s/lib/some-machine"):format(command, build, program, root, root))
    assert.equal("", compiled)
    assert.truthy(output_of(program):find("^loss 0%.%d+ on 1 ranks\n$"))
    for part in output_of("ls " .. root .. "/include/moonshard"):gmatch("%S+") do
      local text = output_of(("echo '#include <moonshard/%s>' | %s -fsyntax-only -x c -"):format(part, command))
      assert.equal("", text, part)
      parts = parts + 1
    end
    assert.is_true(parts > 4)
  end)

  it("prints the settings for a folder where neither the loader nor LuaJIT looks", function()
    local said = output_of("runtime/make/after_install.sh /opt/moon/lib /opt/moon/share/lua/5.1")
    has(said, "/opt/moon/lib | -Wl,-rpath,")
    local line = assert(said:match("\n +(package.path = [^\n]*)"), said):gsub("/opt/moon", root)
    local path = with_lua("luajit", line .. " print(package.path)")
    has(path, root .. "/share/lua/5.1/?/init.lua;")
  end)

  it("refuses another Lua than LuaJIT by name", function()
    local said = with_lua("lua", 'print(require("moonshard").version)')
    has(said, "LuaJIT | moonshard")
  end)

  it("has the ops and the optimizers' options for editors", function()
    local ops = scratch.read(root .. "/share/lua/5.1/moonshard/meta/ops.lua")
    has(ops, "function ops.matmul(")
    local optimizers = scratch.read(root .. "/share/lua/5.1/moonshard/meta/optimizers.lua")
    has(optimizers, '---@field moments? "f32"|"bf16"|"i8" ')
  end)

  it("has a pkg-config file of the library that there is, a manual page of every command, and the guides", function()
    local pc = scratch.read(root .. "/lib/some-machine/pkgconfig/moonshard.pc")
    has(pc, "prefix=/opt/moon\nlibdir=/opt/moon/lib/some-machine\n")
    assert.falsy(pc:find("private", 1, true), "it promises a static library: " .. pc)
    local manual = scratch.read(root .. "/share/man/man1/moonshard.1")
    local _, commands = require("moonshard.cli.help").text:gsub("\n  moonshard ", "")
    local _, shown = manual:gsub("\n%.TP\n%.B moonshard ", "")
    assert.equal(commands, shown)
    for option in require("moonshard.cli.help").text:gmatch("\n      (%-%-[%w-]+)") do
      has(manual, option:gsub("%-", "\\-"))
    end
    local listing, guides = io.popen("ls LICENSE README.md */README.md runtime/comm/README.md */guides/*.md"), 0
    for guide in listing:lines() do
      assert.equal(scratch.read(guide), scratch.read(root .. "/share/doc/moonshard/" .. guide))
      guides = guides + 1
    end
    listing:close()
    assert.is_true(guides > 30)
  end)
end)
