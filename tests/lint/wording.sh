#!/bin/bash
# What no file of the project may say: wording.sh FILE...
#
# Paths of somebody's machine, numbers of somebody's tracker, marks of unfinished work, and documents that are not in the
# tree. The project speaks of itself alone.
set -u
wrong=0

report() { # report WHAT PATTERN FILE...
  local what=$1 pattern=$2
  shift 2
  local found
  found=$(grep -nIE "$pattern" "$@" /dev/null) || return
  wrong=1
  printf '%s\n' "$found" | sed "s|^|$what: |"
}

files=()
for file in "$@"; do
  [ "$file" = tests/lint/wording.sh ] || files+=("$file")
done

report "a path of one machine" '(^|[^A-Za-z0-9_.$}~-])/(home|root|Users|work|mnt|media)/' "${files[@]}"
report "a tracker's number" '\b(issue|ticket|bug|PR) ?#?[0-9]+\b' "${files[@]}"
report "unfinished" '\b(TODO|FIXME|XXX|HACK|WIP)\b' "${files[@]}"

while IFS=: read -r file line name; do
  if ! find . -path ./build -prune -o -path ./.git -prune -o -name "$name" -print | grep -q .; then
    echo "a document that is not here: $file:$line: $name"
    wrong=1
  fi
done < <(grep -noIE '\b[A-Z]{4,}\.md\b' "${files[@]}" /dev/null)
exit $wrong
