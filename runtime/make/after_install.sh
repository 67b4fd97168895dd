#!/bin/bash
# What is left to do after `make install` into a running system: the loader's cache is refreshed, or it is said what does it;
# and what a program of LuaJIT needs is said where LuaJIT does not look into the folder of the Lua files.
#
#   runtime/make/after_install.sh LIBDIR LUADIR
set -u
libdir=$1 luadir=$2
PATH=$PATH:/usr/sbin:/sbin

if ldconfig -N -v 2>/dev/null | grep -q "^$libdir:"; then
  { [ "$(id -u)" -eq 0 ] && ldconfig; } || echo "install: for programs linked with the library, run as root: ldconfig"
else
  echo "install: the loader does not look into $libdir: link programs with -Wl,-rpath,$libdir, or name the folder in" \
    "/etc/ld.so.conf.d and run ldconfig; the command moonshard and Lua need neither"
fi

if ! luajit -e 'print(package.path)' | grep -qF "$luadir/?/init.lua"; then
  echo "install: LuaJIT does not look into $luadir; begin programs for luajit with:"
  echo "  package.path = \"$luadir/?.lua;$luadir/?/init.lua;\" .. package.path"
fi
