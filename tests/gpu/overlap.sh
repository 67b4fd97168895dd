#!/bin/bash
# Measures on one GPU what a collective costs a matrix product that runs at the same time, and what it costs if the
# product leaves multiprocessors to it (--sm-carveout), with a kernel in place of the collective. Exits with 2 if there is
# no GPU.
#
#   tests/gpu/overlap.sh --build build/release [--dry] [BLOCKS...]
#
# It needs the driver and the results of `make all` and its target gpu-bench. BLOCKS: of the collective, and
# multiprocessors that are left to it (16 and 32). --dry: tiny products, to check that all runs, also on an emulated GPU.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=build/release tokens=0 blocks=()
while [ $# -gt 0 ]; do
  case $1 in
    --dry) tokens=8 ;;
    --build) build=$2; shift ;;
    [1-9]*) blocks+=("$1") ;;
    *) echo "tests/gpu/overlap.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
. tests/gpu/libraries.sh
need_gpu "$build/moonshard"
exec "$build/bench/gpu_overlap" "$tokens" "${blocks[@]}"
