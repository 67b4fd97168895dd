#!/bin/bash
# Whether two builds make the same plans, for changes that only move, rename or reshape code: compares what `moonshard
# plan` prints for each line of cases.list, every instruction and byte of it.
#
#   tests/plans/compare.sh BEFORE AFTER [WORD]     two programs, such as that of a work tree of an older commit and
#                                                  build/release/moonshard; WORD: only lines that contain it
#
# Prints the lines whose plans differ, with the first lines that do, and ends with: N equal, N differ.
set -u
before=$(realpath "$1") after=$(realpath "$2") word=${3:-}
cd "$(dirname "$0")/../.." || exit 2
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT

equal=0 differ=0
while read -r line; do
  [[ -z $line || $line == \#* || $line != *"$word"* ]] && continue
  read -ra arguments <<<"$line"
  for which in before after; do
    "${!which}" plan "${arguments[@]}" >"$here/$which" 2>"$here/$which.errors" </dev/null
    echo "status $?" >>"$here/$which"
  done
  if ! grep -q '^status 0$' "$here/after"; then
    differ=$((differ + 1))
    printf 'FAIL  %s\n' "$line"
    head -n 3 "$here/after.errors" | sed 's/^/      /'
  elif cmp -s "$here/before" "$here/after"; then
    equal=$((equal + 1))
  else
    differ=$((differ + 1))
    printf 'DIFF  %s\n' "$line"
    diff "$here/before" "$here/after" | head -n 6 | cut -c1-160 | sed 's/^/      /'
  fi
done <tests/plans/cases.list
echo "$equal equal, $differ differ"
[ "$differ" -eq 0 ] && [ "$equal" -gt 0 ]
