#!/bin/bash
# Random cases against one build, for make fuzz-plans: tests/fuzz/run.sh BUILD [SEED [CASES]]
set -eu
cd "$(dirname "$0")/../.."
build=$(realpath "$1")
export MOONSHARD_BIN=$build/release/moonshard MOONSHARD_LIB=$build/release/libmoonshard.so
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$build/gen/?.lua;$PWD/tests/?.lua;;"
exec luajit tests/fuzz/main.lua "${2:-}" "${3:-}"
