#!/bin/bash
# Runs one test file for tests/run.sh and says how it went: tests/run_file.sh FILE
#
# A spec is run by busted, a C test by the program that was made of it, a program as it is. All print TAP, of which the
# failures are shown and the rest is counted. What is shown comes in one piece, since files run in parallel.
# run.sh sets:
#   TEST_BUILD, TEST_LUAJIT   the folder of the build, and its interpreter
#   TEST_SECONDS              after how long a file is stopped
#   TEST_COUNTS               the file that takes a line for each: passed, failed, skipped
#   TEST_TIMES                the file that takes a line for each: path, seconds, seconds of processors
#   TEST_FILES                how many files run
set -um # job control: else bash has a job ignore Ctrl-C's signal, and all that the test starts too
name=$1
case $1 in
  *.lua)
    program=("$TEST_LUAJIT" /usr/bin/busted --ignore-lua -o TAP "$1")
    if [ "$MOONSHARD_CASES" != all ]; then
      [ "$MOONSHARD_CONFIG" = release ] && program+=(--exclude-tags=all) || program+=(--exclude-tags=all,release)
    fi
    ;;
  *.c) program=("$TEST_BUILD/tests/$(basename "$1" .c)") ;;
  *) # the kernels' tests as they were compiled for another device, which the folder is named for
    program=("$1")
    name="$(basename "$1") ($(basename "$(dirname "$1")"))"
    ;;
esac
# LeakSanitizer cannot see the pointers that live in LuaJIT's own memory, so leaks are looked for in the C tests only.
[ "${program[0]}" != "$TEST_LUAJIT" ] || export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

log=$(mktemp)
trap 'rm -f "$log"' EXIT
began=$(date +%s.%N)
# Braces, so that the shell's own word on a crash lands in the log too.
{
  timeout -k 10 "$TEST_SECONDS" "${program[@]}" &
  trap 'kill $!' INT TERM
  wait -f $! # its end: a job that was stopped goes on
  status=$?
} >"$log" 2>&1 </dev/null
seconds=$(echo "$(date +%s.%N) $began" | awk '{ print $1 - $2 }')
# What processors did for it, which does not depend on what else runs: user and system, of all that it started.
busy=$(awk -v hz="$(getconf CLK_TCK)" '{ print ($16 + $17) / hz }' "/proc/$$/stat")

skips=$(grep -cE '^(not )?ok [0-9]+ (- )?# SKIP' "$log")
fails=$(grep -E '^not ok ' "$log" | grep -cvE '# SKIP')
oks=$(($(grep -cE '^ok ' "$log") - $(grep -cE '^ok [0-9]+ (- )?# SKIP' "$log")))
# A program that prints no TAP is one test; one that ends badly without saying why has failed once more.
if [ "$status" -ne 0 ] && [ "$fails" -eq 0 ]; then fails=1; fi
if [ "$status" -eq 0 ] && [ $((oks + fails + skips)) -eq 0 ]; then oks=1; fi
echo "$oks $fails $skips" >>"$TEST_COUNTS"
printf '%s\t%s\t%s\n' "$1" "$seconds" "$busy" >>"$TEST_TIMES"

report() {
  local place
  place=$(wc -l <"$TEST_COUNTS")/$TEST_FILES
  if [ "$fails" -eq 0 ]; then
    printf 'pass  %-44s %4d tests  %6.1f s %6.1f s busy  %s\n' "$name" "$oks" "$seconds" "$busy" "$place"
  else
    printf 'FAIL  %-44s %4d of %d failed  %s\n' "$name" "$fails" "$((oks + fails))" "$place"
  fi
  sed -nE 's/^(not )?ok [0-9]+ (- )?# SKIP *//p' "$log" | sort | uniq -c | while read -r times why; do
    echo "      $times skipped: $why"
  done
  [ "$fails" -gt 0 ] || return
  [ "$status" -eq 124 ] && echo "      stopped after $TEST_SECONDS seconds"
  [ "$status" -gt 128 ] && echo "      ended by signal $((status - 128))"
  grep -vE '^((not )?ok [0-9]+ (- )?# SKIP|ok [0-9]|1\.\.[0-9]|# not ok - )' "$log" | head -n 120 | sed 's/^/      /'
}

flock "$TEST_COUNTS" printf '%s\n' "$(report)"
