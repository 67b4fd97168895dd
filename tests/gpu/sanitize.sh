#!/bin/bash
# Runs the tests of the kernels under one tool of NVIDIA's compute-sanitizer: memcheck finds accesses out of bounds,
# racecheck finds races on shared memory, and synccheck finds barriers that not all threads reach.
#
#   tests/gpu/sanitize.sh SANITIZER TOOL FOLDER
#
# FOLDER contains the programs test_kernels_*. Cases of more than MOONSHARD_TEST_MAX elements are skipped, because they
# would take hours.
set -u
sanitizer=$1 tool=$2 folder=$3
export MOONSHARD_TEST_MAX=${MOONSHARD_TEST_MAX:-20000} CMOCKA_MESSAGE_OUTPUT=TAP
ran=0 failed=0
for program in "$folder"/test_kernels_*; do
  case $program in *.d | *.o | *.real) continue ;; esac
  [ -x "$program" ] || continue
  ran=$((ran + 1))
  if ! text=$("$sanitizer" --tool "$tool" --target-processes all --error-exitcode 9 "$program" 2>&1); then
    failed=$((failed + 1))
    printf '%s under %s:\n%s\n' "$(basename "$program")" "$tool" "$(tail -n 40 <<<"$text")"
  fi
done
[ "$ran" -gt 0 ] || echo "$folder contains no test_kernels_*"
echo "$tool: $ran programs, $failed failed"
[ "$ran" -gt 0 ] && [ "$failed" -eq 0 ]
