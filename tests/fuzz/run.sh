#!/bin/bash
# Random cases against one build, for make fuzz-plans: tests/fuzz/run.sh BUILD [SEED [CASES]]
set -eu
cd "$(dirname "$0")/../.."
export MOONSHARD_BIN=$PWD/$1/release/moonshard MOONSHARD_LIB=$PWD/$1/release/libmoonshard.so
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/$1/gen/?.lua;$PWD/tests/?.lua;;"
exec luajit tests/fuzz/main.lua "${2:-}" "${3:-}"
