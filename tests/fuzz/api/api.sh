#!/bin/bash
# Runs a build's API fuzzer in a new folder that takes the files it writes: api.sh build/address SEED [CALLS]
set -u
cd "$(dirname "$0")/../../.." || exit 2
program=$(realpath "$1")/tests/fuzz_api fixtures=$PWD/tests/fixtures
export ASAN_OPTIONS=detect_stack_use_after_return=0:allocator_may_return_null=1:max_allocation_size_mb=512
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 OMP_NUM_THREADS=1
export LSAN_OPTIONS=suppressions=$PWD/tests/sanitizers/leak.supp:print_suppressions=0
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" && "$program" "$fixtures" "$2" "${3:-20000}"
