#!/bin/bash
# Runs after `make install` into a running system: refreshes the loader's cache, or prints the command that does it, and
# prints what LuaJIT programs need if LuaJIT does not search the folder of the Lua files.
#
#   runtime/make/after_install.sh LIBDIR LUADIR
set -u
libdir=$1 luadir=$2
PATH=$PATH:/usr/sbin:/sbin

if ldconfig -N -v 2>/dev/null | grep -q "^$libdir:"; then
  { [ "$(id -u)" -eq 0 ] && ldconfig; } || echo "install: for programs linked with the library, run as root: ldconfig"
else
  echo "install: the loader does not search $libdir: link programs with -Wl,-rpath,$libdir, or add the folder to" \
    "/etc/ld.so.conf.d and run ldconfig; the command moonshard and Lua need neither"
fi

if ! luajit -e 'print(package.path)' | grep -qF "$luadir/?/init.lua"; then
  echo "install: LuaJIT does not search $luadir; begin LuaJIT programs with:"
  echo "  package.path = \"$luadir/?.lua;$luadir/?/init.lua;\" .. package.path"
fi
