#!/bin/bash
# Random campaigns against one build, for make soak: tests/soak/run.sh BUILD SECONDS [SEED [CASES [CAMPAIGN]]]
set -eu
cd "$(dirname "$0")/../.."
export MOONSHARD_BUILD=$1 MOONSHARD_BIN=$PWD/$1/release/moonshard MOONSHARD_LIB=$PWD/$1/release/libmoonshard.so
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/$1/gen/?.lua;$PWD/tests/?.lua;;"
exec luajit tests/soak/main.lua "${@:2}"
