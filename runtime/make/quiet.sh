#!/bin/bash
# Runs a make of build.mk and shows in few lines what it does: how many of how many files are compiled, as one line that
# is redrawn on a terminal, and as a line for each tenth elsewhere. Warnings and errors are shown as they come.
#
#   quiet.sh "$(V)" make ARGUMENTS    V=1: a line for each file, as make prints it
#
# A make that has nothing to compile prints nothing. Its exit status is that of this script.
set -u

verbose=$1
shift
case ${MAKEFLAGS%% *} in
  -*) ;;
  *[nq]*) verbose=1 ;; # make -n and make -q, which print or ask
esac
[ -n "$verbose" ] && exec "$@"

# What make would do names each file. It takes a fraction of a second.
all=$("$@" -n 2>/dev/null | grep -cE '^echo "(cc|c\+\+|nvcc|clang) ')
MANY=50 # files, which take long enough to be counted
began=$SECONDS done=0 tenths=0 open=
[ -t 1 ] && terminal=1 || terminal=

finish() { # ends the line that is redrawn
  [ -n "$open" ] && printf '\r\033[K'
  open=
}

files() { echo "$1 file$([ "$1" -eq 1 ] || echo s)"; }

[ "$all" -gt 0 ] && [ -z "$terminal" ] && echo "compiling $(files "$all"); V=1 shows each"
"$@" 2>&1 | {
  while IFS= read -r line; do
    case $line in
      "cc  "* | "c++  "* | "nvcc  "* | "clang "*)
        done=$((done + 1))
        [ "$done" -gt "$all" ] && all=$done
        if [ -n "$terminal" ]; then
          printf '\r\033[Kcompiling %d/%d  %s' "$done" "$all" "${line##* }"
          open=1
        elif [ "$all" -ge "$MANY" ] && [ $((10 * done / all)) -gt "$tenths" ]; then
          tenths=$((10 * done / all))
          echo "compiled $done/$all"
        fi
        ;;
      "link  "* | "gen  "* | "id  "*) ;;
      *)
        finish
        printf '%s\n' "$line" >&2
        ;;
    esac
  done
  finish
  [ "$done" -gt 0 ] && echo "compiled $(files "$done") in $((SECONDS - began)) s"
  true
}
exit "${PIPESTATUS[0]}"
