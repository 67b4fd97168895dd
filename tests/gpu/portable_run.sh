#!/bin/bash
# Runs `make test-gpu` and `make bench-gpu` on a machine with a GPU, from the package of tests/gpu/portable.sh.
#
#   build/gpu/run kernels [--only WORD]      the tests of the kernels
#   build/gpu/run trainings [--sanitizer]    trainings compared with the CPU's, NCCL
#   build/gpu/run test                       both
#   build/gpu/run bench [options of tests/gpu/bench.sh]
#   build/gpu/run overlap [BLOCKS...]        products while a collective's blocks take multiprocessors, in 30 s
#   build/gpu/run price                      calibrates the GPU, and compares prices with measured steps
#   build/gpu/run unpack                     only unpacks
#
# It must be two folders below the root of the source tree. It unpacks its package into build/portable there, and needs
# bash, and xz or python3.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
rm -rf build/portable
mkdir -p build/portable
if command -v xz >/dev/null; then
  tar -C build/portable -xJf "$here/files.tar.xz"
else
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
    "$here/files.tar.xz" build/portable
fi
export PATH=$PWD/build/portable/bin:$PATH
command=${1:-}
[ $# -gt 0 ] && shift
case $command in
  kernels) exec tests/run.sh --build build/portable/release --config gpu "$@" ;;
  trainings) exec tests/gpu/run.sh --build build/portable/release "$@" ;;
  test)
    status=0
    tests/run.sh --build build/portable/release --config gpu || status=1
    tests/gpu/run.sh --build build/portable/release || status=$?
    exit "$status"
    ;;
  bench) exec tests/gpu/bench.sh --build build/portable/release "$@" ;;
  overlap) exec tests/gpu/overlap.sh --build build/portable/release "$@" ;;
  price)
    . tests/gpu/libraries.sh
    export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/build/portable/gen/?.lua;;"
    MOONSHARD_LIB=$PWD/build/portable/release/libmoonshard.so DEVICE=cuda \
      exec tests/bench/price/measured.sh build/portable "$@"
    ;;
  unpack) ;;
  *) echo "$0: the command must be kernels, trainings, test, bench, overlap, price or unpack" >&2; exit 2 ;;
esac
