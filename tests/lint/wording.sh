#!/bin/bash
# What no file of the project may contain: wording.sh FILE...
#
# Paths of one machine, numbers of a tracker, marks of unfinished work, documents that are not in the tree, and, folder
# by folder, words that make a comment or a message hard to read. A plain word exists for each of them.
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

# Words that are gone from a folder and must not come back. FOLDERS is a pattern of paths.
gone() { # gone FOLDERS PATTERN
  local list=()
  for file in "${files[@]}"; do
    [[ $file =~ $1 ]] && list+=("$file")
  done
  [ ${#list[@]} -eq 0 ] || report "a word that a plainer one replaced" "$2" "${list[@]}"
}

gone '^(lua|recipes|runtime/[a-z]+)/.*\.(lua|c|h)$' '\b([Nn]obody|[Ww]hoever|[Aa]new|[Bb]eside|[Ss]hall|[Ii]n vain|[Tt]hereby)\b'
gone '^(lua|recipes)/.*\.lua$' '\b([Ss]omebody|is told|are told|tells|as it lies|stands)\b'
gone '^lua/moonshard/sweep/' '\b(have in common|go on with|is none)\b'

while IFS=: read -r file line name; do
  if ! find . -path ./build -prune -o -path ./.git -prune -o -name "$name" -print | grep -q .; then
    echo "a document that is not here: $file:$line: $name"
    wrong=1
  fi
done < <(grep -noIE '\b[A-Z]{4,}\.md\b' "${files[@]}" /dev/null)
exit $wrong
