#!/bin/bash
# Runs the C tests and the Lua specs of one build, and ends with one line: N passed, N failed.
#
#   tests/run.sh --build build/release --config release [--only WORD] [--timeout SECONDS]
#
# Every test file is a process of its own, so a crash or a hang costs that file alone. Both kinds print TAP (cmocka's and
# busted's own), of which this script shows the failures and counts the rest. What specs may rely on:
#   MOONSHARD_BIN, MOONSHARD_LIB   the executable and the library under test, absolute paths
#   MOONSHARD_CONFIG               release, address or thread: sanitized builds are several times slower
# Configuration gpu is the release build, of which the kernels' tests alone run, on the GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
root=$PWD

build=build/release config=release only= limit=300
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --config) config=$2 ;;
    --only) only=$2 ;;
    --timeout) limit=$2 ;;
    *) echo "tests/run.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done

export MOONSHARD_BIN=$root/$build/moonshard MOONSHARD_LIB=$root/$build/libmoonshard.so MOONSHARD_CONFIG=$config
export LUA_PATH="$root/lua/?.lua;$root/lua/?/init.lua;$root/${build%/*}/gen/?.lua;$root/tests/?.lua;;"
export CMOCKA_MESSAGE_OUTPUT=TAP

# LeakSanitizer cannot see the pointers that live in LuaJIT's own memory, so leaks are looked for in the C tests only.
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
esac

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0

# judge FILE STATUS: reads the TAP in $log and says how the test file went.
judge() {
  local skips fails oks
  skips=$(grep -cE '^(not )?ok [0-9]+ (- )?# SKIP' "$log")
  fails=$(grep -E '^not ok ' "$log" | grep -cvE '# SKIP')
  oks=$(($(grep -cE '^ok ' "$log") - $(grep -cE '^ok [0-9]+ (- )?# SKIP' "$log")))
  # A program that prints no TAP is one test; one that ends badly without saying why has failed once more.
  if [ "$2" -ne 0 ] && [ "$fails" -eq 0 ]; then fails=1; fi
  if [ "$2" -eq 0 ] && [ $((oks + fails + skips)) -eq 0 ]; then oks=1; fi
  passed=$((passed + oks)) failed=$((failed + fails)) skipped=$((skipped + skips))
  if [ "$fails" -eq 0 ]; then
    printf 'pass  %-44s %4d tests  %6.1f s\n' "$1" "$oks" "$3"
    return
  fi
  printf 'FAIL  %-44s %4d of %d failed\n' "$1" "$fails" "$((oks + fails))"
  [ "$2" -eq 124 ] && echo "      stopped after $limit seconds"
  [ "$2" -gt 128 ] && echo "      ended by signal $(($2 - 128))"
  grep -vE '^((not )?ok [0-9]+ (- )?# SKIP|ok [0-9]|1\.\.[0-9]|# not ok - )' "$log" | head -n 120 | sed 's/^/      /'
}

# is_left_out FILE: a sanitizer's list (tests/sanitizers/*.skip) names it, unless --only asks for it.
is_left_out() {
  local beginning list=tests/sanitizers/$config.skip
  [ -z "$only" ] && [ -e "$list" ] || return
  while read -r beginning _; do
    case $beginning in '' | '#') ;; *) [[ $1 == "$beginning"* ]] && return ;; esac
  done <"$list"
  return 1
}

# run_file FILE COMMAND...
run_file() {
  local file=$1 began status
  shift
  case $file in *"$only"*) ;; *) return ;; esac
  is_left_out "$file" && return
  began=$(date +%s.%N)
  # Braces, so that the shell's own word on a crash lands in the log too.
  { timeout -k 10 "$limit" "$@"; status=$?; } >"$log" 2>&1 </dev/null
  judge "$file" "$status" "$(echo "$(date +%s.%N) $began" | awk '{ print $1 - $2 }')"
}

# The kernels' tests as they were compiled for another device: DEVICE, the folder of the build that has them, is what it is.
run_kernels_on() { # run_kernels_on DEVICE
  local program
  for program in "$build/tests/$1"/test_*; do
    [ -x "$program" ] && run_file "$(basename "$program") ($1)" "$program"
  done
}

if [ "$config" = gpu ]; then
  run_kernels_on gpu
else
  for source in tests/c/*.c; do
    [ -e "$source" ] || continue
    run_file "$source" "$build/tests/$(basename "$source" .c)"
  done

  [ "$config" = thread ] || run_kernels_on emulated

  while IFS= read -r spec; do
    run_file "$spec" env "ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0" \
      "$luajit" /usr/bin/busted --ignore-lua -o TAP "$spec"
  done < <(find tests -name '*_spec.lua' | sort)
fi

[ "$skipped" -gt 0 ] && echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
