#!/bin/bash
# On a machine with a GPU: `make test-gpu` and `make bench-gpu`, with what tests/gpu/portable.sh packed beside this file.
#
#   build/gpu/run kernels [--only WORD]      the kernels' tests
#   build/gpu/run trainings                  trainings beside the CPU's, NCCL
#   build/gpu/run test                       both
#   build/gpu/run bench [options of tests/gpu/bench.sh]
#   build/gpu/run unpack                     nothing but that
#
# It lies in a folder of a folder of the tree of sources, unpacks itself into build/portable there, and needs bash, xz or python3.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
rm -rf build/portable
mkdir -p build/portable
if command -v xz >/dev/null; then
  tar -C build/portable -xJf "$here/files.tar.xz"
else
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$here/files.tar.xz" build/portable
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
  unpack) ;;
  *) echo "$0: kernels, trainings, test, bench or unpack" >&2; exit 2 ;;
esac
