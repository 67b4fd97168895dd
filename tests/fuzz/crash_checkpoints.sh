#!/bin/bash
# Runs crash_checkpoints.lua: crash_checkpoints.sh BUILD POINTS SEED
set -u
cd "$(dirname "$0")/../.." || exit 2
export MOONSHARD_BIN=$PWD/$1/release/moonshard MOONSHARD_LIB=$PWD/$1/release/libmoonshard.so
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/$1/gen/?.lua;$PWD/tests/?.lua;;"
exec luajit tests/fuzz/crash_checkpoints.lua "$2" "$3"
