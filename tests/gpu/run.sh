#!/bin/bash
# Runs the checks that need a GPU, and prints a table of the results. Exits with 2 if there is no GPU.
#
#   tests/gpu/run.sh --build build/release [--seconds 560] [--only WORD] [--each SECONDS] [--sanitizer] [--dry]
#
# Recipes: trains on the GPU, on streams and as captured graphs, and compares the results with the CPU's. NCCL: two
# ranks share the first GPU, each as a separate host over sockets; this checks order, sizes and numbers, not speed. NCCL
# does not promise that two ranks on one GPU make progress, so a check of these that does not end is inconclusive, which
# is no failure. --only: the checks whose names contain WORD. --each: the most seconds for each.
# --sanitizer: NVIDIA's compute-sanitizer instead, on a short training and on the tests of the kernels; this takes many
# minutes. It needs the driver, NCCL, and the results of `make all` and `make test-gpu`. Checks that have not finished
# after --seconds fail. --dry: uses the kernel tests of the emulated GPU.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=build/release seconds=560 each=600 only='' dry=0 sanitize=0
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --seconds) seconds=$2 ;;
    --only) only=$2 ;;
    --each) each=$2 ;;
    --dry) dry=1; shift; continue ;;
    --sanitizer) sanitize=1; shift; continue ;;
    *) echo "tests/gpu/run.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
. tests/gpu/libraries.sh
bin=$build/moonshard
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

need_gpu "$bin"

failed=0 inconclusive=0
table=()
# note NAME STATUS SECONDS: adds a line to the table, and prints the end of the log after a failure.
note() {
  if [ "$2" -eq 0 ]; then
    table+=("$(printf 'pass  %-52s %6.1f s' "$1" "$3")")
  elif [ -n "${may_hang:-}" ] && { [ "$2" -eq 124 ] || [ "$2" -eq 137 ]; }; then
    inconclusive=$((inconclusive + 1))
    table+=("$(printf 'open  %-52s %6.1f s  (inconclusive: it did not end)' "$1" "$3")")
  else
    failed=$((failed + 1))
    table+=("$(printf 'FAIL  %-52s %6.1f s  (status %d)' "$1" "$3" "$2")")
    tail -n 25 "$work/log" | sed 's/^/      /'
  fi
}
# try NAME LIMIT COMMAND...: runs a command for at most LIMIT seconds and notes the result.
try() {
  local name=$1 limit=$2 began status left=$((seconds - SECONDS))
  shift 2
  [[ $name == *"$only"* ]] || return 0
  : >"$work/log"
  [ "$left" -gt 0 ] || { may_hang='' note "$name" 124 0; return; }
  [ "$limit" -lt "$each" ] || limit=$each
  [ "$limit" -lt "$left" ] || limit=$left
  began=$(date +%s.%N)
  timeout -k 10 "$limit" "$@" >"$work/log" 2>&1 </dev/null
  status=$?
  note "$name" "$status" "$(echo "$(date +%s.%N) $began" | awk '{ print $1 - $2 }')"
}

# parity NAME LIMIT RANKS TOLERANCE ENVIRONMENT SETTING...: tries parity.lua with these arguments.
parity() {
  local name=$1 limit=$2 ranks=$3 tolerance=$4 environment=$5
  shift 5
  # shellcheck disable=SC2086 # one assignment per word
  try "$name" "$limit" env $environment luajit tests/gpu/parity.lua "$bin" "$work" "$ranks" "$tolerance" "$@"
}
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/${build%/*}/gen/?.lua;$PWD/tests/?.lua;;"
export MOONSHARD_LIB=$PWD/$build/libmoonshard.so
alone=CUDA_MODULE_LOADING=LAZY
shared="MOONSHARD_CUDA_SHARE=1 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_MAX_CTAS=1 NCCL_ALGO=Ring \
NCCL_PROTO=Simple CUDA_MODULE_LOADING=EAGER"
if [ "$sanitize" -eq 0 ]; then
  parity "training, f32" 120 1 1e-4 "$alone" mesh=1x1 micro=2 dropout=true
  parity "training, bf16" 120 1 2e-2 "$alone" mesh=1x1 dtype=bf16
  parity "training, recomputation" 120 1 1e-4 "$alone" mesh=1x1 recompute=blocks
  parity "training, captured as graphs" 120 1 1e-4 "$alone" mesh=1x1 micro=3 --cuda-graph
  few=
  [ "$dry" -eq 0 ] || few="updates, ad"
  try "recipes of the specs" 300 luajit tests/gpu/recipes.lua "$bin" "$work" "$few"
  may_hang=1
  parity "NCCL, two shards on one GPU" 180 2 1e-4 "$shared" mesh=1x2 micro=2
  parity "NCCL, two shards in bf16, ragged" 180 2 2e-2 "$shared" mesh=1x2 dtype=bf16 layout=ragged
  parity "NCCL, two replicas on one GPU" 180 2 1e-4 "$shared" mesh=2x1
  parity "NCCL, two shards, captured" 180 2 1e-4 "$shared" mesh=1x2 micro=3 --cuda-graph
else
  sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
  [ -x "$sanitizer" ] || { echo "tests/gpu: --sanitizer needs NVIDIA's compute-sanitizer on the PATH" >&2; exit 2; }
  try "compute-sanitizer, memory, a short training" 600 "$sanitizer" --tool memcheck --target-processes all \
    --error-exitcode 9 "$bin" run tests/lua/recipes/parity.lua device=cuda steps=2 "out=$work/sanitized.json"
  kernels=$build/tests/gpu
  [ "$dry" -eq 0 ] || kernels=$build/tests/emulated
  for tool in memcheck racecheck synccheck; do
    try "compute-sanitizer, $tool, the kernels' tests" 300 tests/gpu/sanitize.sh "$sanitizer" "$tool" "$kernels"
  done
fi

printf '\n'
[ "${#table[@]}" -gt 0 ] || { echo "tests/gpu: no check has \"$only\" in its name" >&2; exit 2; }
printf '%s\n' "${table[@]}"
[ "$inconclusive" -eq 0 ] || echo "$inconclusive inconclusive: run them on two GPUs"
[ "$failed" -eq 0 ]
