#!/bin/bash
# Fuzzes one target of libFuzzer: libfuzzer.sh BUILD TARGET SECONDS [SEED]; with `build` for SECONDS it only builds it.
# Starts from the committed fixtures; what is found new stays in BUILD/fuzz/corpus-TARGET, a crash in BUILD/fuzz. Ends
# with 0 and says so where clang or its libFuzzer is missing.
set -eu
cd "$(dirname "$0")/../../.."
build=$1 target=$2 seconds=$3 seed=${4:-0} # 0: another one each time

[ -f "tests/fuzz/libfuzzer/fuzz_$target.c" ] || {
  echo "fuzz: there is no tests/fuzz/libfuzzer/fuzz_$target.c" >&2
  exit 2
}
mkdir -p "$build/fuzz/corpus-$target"
probe='int LLVMFuzzerTestOneInput(const char *d, unsigned long n); int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n ? 0 : 0; }'
if ! command -v clang >/dev/null || ! echo "$probe" | clang -fsanitize=fuzzer,address,undefined -x c - -o "$build/fuzz/probe" 2>/dev/null; then
  echo "fuzz: skipped: clang with its libFuzzer is not here (Debian: apt-get install clang libclang-rt-14-dev)"
  exit 0
fi
rm -f "$build/fuzz/probe"
# A configuration of its own: lists of the release build, remembered with this spelling of the folder, would differ.
make --no-print-directory -j"$(nproc)" -f runtime/make/build.mk CONFIG=fuzz BUILD="$build" "$build/fuzz/fuzz_$target"
[ "$seconds" != build ] || exit 0

seeds=()
while IFS= read -r folder; do seeds+=("$folder"); done < <(find "tests/fixtures/$target" -mindepth 1 -type d | sort)
limit=-max_total_time=$seconds
[ "$seconds" -gt 0 ] || limit=-runs=0 # only the inputs that are there
"$build/fuzz/fuzz_$target" "$limit" -seed="$seed" -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
  -dict="tests/fuzz/libfuzzer/$target.dict" -artifact_prefix="$build/fuzz/" "$build/fuzz/corpus-$target" \
  "${seeds[@]}" 2>&1 | tail -n 40
exit "${PIPESTATUS[0]}"
