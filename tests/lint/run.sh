#!/bin/bash
# The checks that need no build; each counts as one, and the last line is: N passed, N failed. As many run at once as
# there are processors; their results come in the order below.
set -u
cd "$(dirname "$0")/../.." || exit 2

# The files of the project: what git knows or would add; the plain tree where there is no git.
list() { # list EXTENDED-REGEX
  { git ls-files --cached --others --exclude-standard 2>/dev/null || find . -path ./build -prune -o -type f -printf '%P\n'; } |
    grep -E "$1" | sort | while IFS= read -r file; do [ -f "$file" ] && printf '%s\n' "$file"; done
}
mapfile -t all < <(list '.')
mapfile -t c_files < <(list '\.(c|h|cu|cuh)$')
mapfile -t engine_files < <(list '^(runtime|kernels)/.*\.(c|h|cpp|cu|cuh)$')
mapfile -t lua_files < <(list '(\.lua|\.rockspec|^\.busted|^\.luacheckrc)$')
mapfile -t test_files < <(list '^tests/.*(_spec\.lua|/test_[^/]*\.(c|cpp)|/embed_[^/]*\.c)$')
mapfile -t compared < <(list '^tests/(lua|c)/.*\.(lua|c|h)$')
mapfile -t read_files < <(list '\.(md|lua|c|h|cpp|cu|cuh|def)$')
mapfile -t table_files < <(list '\.def$')
mapfile -t shell_files < <(list '(\.sh$|^\.ci/run$)')

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
lanes=$(nproc) checks=0

result_of() { # result_of NAME COMMAND...
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    printf 'pass  %s\n' "$name"
  else
    printf 'FAIL  %s\n' "$name"
    printf '%s\n' "$output" | head -n 80 | sed 's/^/      /'
  fi
}

check() { # check NAME COMMAND...
  [ "$checks" -lt "$lanes" ] || wait -n
  checks=$((checks + 1))
  result_of "$@" >"$results/$(printf %03d "$checks")" &
}

# The folder's files and features in numbers, which must not get worse.
shape() { printf '%s\n' "${all[@]}" | luajit tests/lint/shape.lua tests/lint/shape.list; }

every_script_parses() {
  local file wrong=0
  for file in "${shell_files[@]}"; do bash -n "$file" || wrong=1; done
  return $wrong
}

# What a pass asks of an op is a column of kernels/ops.def. Only what lowers a graph, and rewrites of one op, name ops.
# What is asked of a format in few bits is one of base/numbers/formats.def.
op_lists() {
  local found
  found=$(list '^runtime/.*\.[ch]$' | xargs -r grep -nE '(case |[!=]= ?)MS_(F8E4M3|F8E5M2|E8M0|I8|I4|NF4)\b' /dev/null)
  [ -z "$found" ] || { printf '%s\n' "$found" "a use of a format is a row of runtime/base/numbers/formats.def"; return 1; }
  found=$(list '^(runtime|kernels)/.*\.[ch]u?$' | grep -v '^runtime/shard/check_muon.c$' |
    xargs -r grep -nE '(case |[!=]= ?)MS_OPT_(SGD|ADAMW|MUON|ADAM|LION|ADAFACTOR)\b' /dev/null |
    grep -v 'ms_param_takes_muon(')
  [ -z "$found" ] || { printf '%s\n' "$found" "what the engine knows of an optimizer is in its row of settings.def"; return 1; }
  found=$(list '^runtime/.*\.c$' | grep -vE '^runtime/graph/|^runtime/plan/lower' |
    xargs -r grep -nE '(case |[!=]= ?)MS_OP_[a-z]' /dev/null)
  [ -z "$found" ] || { printf '%s\n' "$found" "a property of an op is a flag or a column of kernels/ops.def"; return 1; }
}

# clang-format leaves tables alone.
rows_fit() {
  local found
  found=$(awk 'length > 120 { print FILENAME ":" FNR ": " length " columns" }' "${table_files[@]}")
  [ -z "$found" ] || { printf '%s\n' "$found"; return 1; }
}

# Lists of test files (tests/sanitizers/*.skip, tests/waiting.list): every line names files that are there, and says why.
every_list_is_true() {
  local list path reason wrong=0
  for list in tests/sanitizers/*.skip tests/long.list tests/waiting.list; do
    while read -r path reason; do
      [[ -z $path || $path == \#* ]] && continue
      [ -n "$reason" ] || { echo "$list: $path without a reason"; wrong=1; }
      compgen -G "$path*" >/dev/null || { echo "$list: no file begins with $path"; wrong=1; }
    done <"$list"
  done
  return $wrong
}

check "luacheck" luacheck --quiet --no-color "${lua_files[@]}"
check "clang-format" clang-format --dry-run -Werror --ferror-limit=3 "${c_files[@]}"
check "rows of tables fit into 120 columns" rows_fit
check "floors between folders" luajit tests/lint/floors.lua "${c_files[@]}"
check "calls go down, in no circle" luajit tests/lint/calls.lua "${c_files[@]}"
check "floors of the Lua layer" luajit tests/lint/requires.lua "${lua_files[@]}"
check "behaviours and their tests" luajit tests/lint/behaviours.lua "${test_files[@]}"
check "no lists of ops outside of the op table" op_lists
check "numbers are read and formatted in every locale alike" luajit tests/lint/numbers.lua "${engine_files[@]}"
check "no prose in tests" luajit tests/lint/prose.lua "${compared[@]}"
check "plain English, and guides that say when to use them" luajit tests/lint/english.lua "${read_files[@]}"
check "documents name files that are there, and all of a table" luajit tests/lint/file_tables.lua "${all[@]}"
check "wording" bash tests/lint/wording.sh "${all[@]}"
check "shell scripts parse" every_script_parses
check "lists of test files" every_list_is_true
check "numbers that should fall" shape
wait
cat "$results"/*
passed=$(cat "$results"/* | grep -c '^pass  ')
failed=$((checks - passed))

# Not a failure: a long file may be one idea after all, but somebody should look.
wc -l "${c_files[@]}" "${lua_files[@]}" "${shell_files[@]}" | awk '$2 != "total" && $1 > 400 { print "note  " $2 " has " $1 " lines (400 is the aim)" }'
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
