#!/bin/bash
# Runs crash_checkpoints.lua: crash_checkpoints.sh BUILD POINTS SEED
set -u
cd "$(dirname "$0")/../.." || exit 2
build=$(realpath "$1")
export MOONSHARD_BIN=$build/release/moonshard MOONSHARD_LIB=$build/release/libmoonshard.so
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$build/gen/?.lua;$PWD/tests/?.lua;;"
exec luajit tests/fuzz/crash_checkpoints.lua "$2" "$3"
