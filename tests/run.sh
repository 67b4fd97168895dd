#!/bin/bash
# Runs the C tests and the Lua specs of one build, and ends with one line: N passed, N failed.
#
#   tests/run.sh --build build/release --config release [--only WORD] [--all] [--few] [--timeout SECONDS]
#
# Without --all one case of each kind stands for the others (lua/support/breadth.lua), and tests whose name ends in #all
# are left out, under sanitizers also those that end in #release. --only asks for all cases of what it names, unless there is --few.
#
# Every test file is a process of its own (run_file.sh), so a crash or a hang costs that file alone; as many run at once
# as there are processors, and three more of those that wait (waiting.list). The longest start first, so that none of them
# runs alone at the end: a run leaves each file's seconds, and those of processors, in BUILD/times.tsv for the next one.
# What specs may rely on:
#   MOONSHARD_BIN, MOONSHARD_LIB   the executable and the library under test, absolute paths
#   MOONSHARD_CONFIG               release, address or thread: sanitized builds are several times slower
#   MOONSHARD_CASES                all, or few
# Configuration gpu is the release build, of which the kernels' tests alone run, on the GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
root=$PWD

build=build/release config=release only= limit=300 cases=
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --config) config=$2 ;;
    --only) only=$2 ;;
    --all | --few) cases=${1#--}; shift; continue ;;
    --timeout) limit=$2 ;;
    *) echo "tests/run.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done

[ -n "$cases" ] || cases=$([ -n "$only" ] && echo all || echo few)
export MOONSHARD_CASES=$cases
export MOONSHARD_BIN=$root/$build/moonshard MOONSHARD_LIB=$root/$build/libmoonshard.so MOONSHARD_CONFIG=$config
export LUA_PATH="$root/lua/?.lua;$root/lua/?/init.lua;$root/${build%/*}/gen/?.lua;$root/tests/?.lua;;"
export CMOCKA_MESSAGE_OUTPUT=TAP

luajit=luajit
[ "$config" = release ] || luajit=$build/luajit
case $config in
  address)
    # Frames on ASan's own stack are not aligned to 64 bytes in gcc 12, which AVX-512 locals need.
    export ASAN_OPTIONS=detect_stack_use_after_return=0
    export LSAN_OPTIONS=suppressions=$root/tests/sanitizers/leak.supp:print_suppressions=0
    export UBSAN_OPTIONS=print_stacktrace=1
    limit=$((limit * 4))
    ;;
  thread)
    # By default a process sleeps a second at its end; our programs have joined or ended what they started.
    export TSAN_OPTIONS=suppressions=$root/tests/sanitizers/thread.supp:halt_on_error=0:exitcode=66:report_thread_leaks=0:atexit_sleep_ms=20
    export OMP_NUM_THREADS=1 MOONSHARD_STREAMS=threads MOONSHARD_MATMUL=plain
    limit=$((limit * 4))
    ;;
  gpu) . tests/gpu/libraries.sh ;;
esac

export TEST_BUILD=$build TEST_LUAJIT=$luajit TEST_SECONDS=$limit
TEST_COUNTS=$(mktemp)
TEST_TIMES=$(mktemp)
export TEST_COUNTS TEST_TIMES
trap 'rm -f "$TEST_COUNTS" "$TEST_TIMES"' EXIT

files() {
  if [ "$config" != gpu ]; then
    ls tests/c/*/test_*.c tests/c/*/embed_*.c
    [ "$config" = thread ] || ls "$build"/tests/emulated/test_*
    find tests -name '*_spec.lua' | sort
  else
    ls "$build"/tests/gpu/test_* | grep -v '[.]real$' # what programs stand for that gpu/portable.sh packed
  fi 2>/dev/null | grep -F -e "$only"
}

# The paths at the beginning of a list's lines, as patterns.
listed() { sed -nE 's/^([^# ]+).*/^\1/p' "$1"; }

# A sanitizer leaves out what its list (tests/sanitizers/*.skip) names by how a path begins; without --all it runs, of
# the specs, those of its *.few alone. --only asks for what it names.
wanted() {
  local skipped=tests/sanitizers/$config.skip
  if [ -n "$only" ] || [ ! -e "$skipped" ]; then cat; return; fi
  grep -v -f <(listed "$skipped") |
    if [ "$cases" = all ]; then cat
    else grep -f <(printf '%s\n' '^tests/c/' /emulated/; listed "tests/sanitizers/$config.few"); fi
}

# By the seconds that each took in the last whole run (times.tsv), before any by long.list. New files come first.
longest_first() {
  local paths times=$build/times.tsv
  mapfile -t paths
  [ ${#paths[@]} -gt 0 ] || return 0
  if [ -s "$times" ]; then
    printf '%s\n' "${paths[@]}" | awk -F '\t' 'NR == FNR { took[$1] = $2; next }
      { print ($1 in took ? took[$1] : 1e9) "\t" $1 }' "$times" - | sort -rn | cut -f 2
    return
  fi
  printf '%s\n' "${paths[@]}" | grep -f <(listed tests/long.list)
  printf '%s\n' "${paths[@]}" | grep -v -f <(listed tests/long.list)
}

run_in_lanes() { xargs -r -d '\n' -n 1 -P "$1" tests/run_file.sh; }

# As many at once as there are processors, and at the same time those that wait; a GPU has one after the other.
lanes=$(env -u OMP_NUM_THREADS nproc) # which prints that variable instead where it is set, as for the thread sanitizer
[ "$config" = gpu ] && lanes=1
mapfile -t chosen < <(files | wanted)
export TEST_FILES=${#chosen[@]}
if [ ${#chosen[@]} -gt 0 ]; then
  if [ "$config" != gpu ]; then
    printf '%s\n' "${chosen[@]}" | grep -f <(listed tests/waiting.list) | longest_first | run_in_lanes 3 &
    printf '%s\n' "${chosen[@]}" | grep -v -f <(listed tests/waiting.list) | longest_first | run_in_lanes "$lanes"
    wait
  else
    printf '%s\n' "${chosen[@]}" | run_in_lanes "$lanes"
  fi
fi

read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$TEST_COUNTS")
if [ -z "$only" ]; then
  sort -t $'\t' -k 2,2 -rn "$TEST_TIMES" >"$build/times.tsv"
  # Of files that a person waits for longest somebody has thought: long.list has the reason.
  [ "$config/$cases" != release/few ] || awk -F '\t' '$3 > 10 { print $1 "\t" $3 }' "$TEST_TIMES" |
    grep -v -f <(listed tests/long.list) | awk -F '\t' '{ printf "long  %s: %.0f s busy, which tests/long.list does not explain\n", $1, $2 }'
fi
[ "$skipped" -gt 0 ] && echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
