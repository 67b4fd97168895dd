#!/bin/bash
# Packs what `make test-gpu` and `make bench-gpu` need that is built, for a machine that has a GPU, its driver and PyTorch, and none
# of the rest: the executable, the libraries that it is linked with, LuaJIT, CUDA's library and the kernels' tests.
#
#   tests/gpu/portable.sh --build build/release --out build/gpu
#
# With a tree of the sources and OUT there, `OUT/run test` and `OUT/run bench` are the two commands. glibc there must be as new as here.
set -eu
shopt -s nullglob
cd "$(dirname "$0")/../.."
build=build/release out=build/gpu
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --out) out=$2 ;;
    *) echo "tests/gpu/portable.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
luajit=$(readlink -f "$(command -v luajit)")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lib" "$work/bin" "$work/release/engine" "$work/release/tests/gpu" "$work/release/bench"

# What a linked file needs, but for what every machine has: the C and C++ libraries, which must not be older than there.
needed() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so'
}

cp "$build/moonshard" "$build/libmoonshard_cuda.so" "$work/release/engine/"
cp "$build/libmoonshard.so.1" "$work/release/libmoonshard.so"
cp "$luajit" "$work/lib/luajit"
[ -d "${build%/*}/gen" ] && cp -r "${build%/*}/gen" "$work/gen"
tests=("$build"/tests/gpu/test_*)
for program in "${tests[@]}"; do
  case $program in *.d | *.o) continue ;; esac
  [ -x "$program" ] && cp "$program" "$work/release/tests/gpu/$(basename "$program").real"
done
for program in "$build"/bench/gpu_*; do
  [ -x "$program" ] && cp "$program" "$work/release/bench/$(basename "$program").real"
done
needed "$build/moonshard" "$luajit" "$work"/release/*/*.real "$work"/release/tests/gpu/*.real | while read -r library; do cp -L "$library" "$work/lib/"; done
strip --strip-debug "$work"/release/*/*.real "$work"/release/engine/* "$work"/release/tests/gpu/*.real 2>/dev/null || true

# A program that finds its libraries: FROM the root of what is packed, TO the program.
wrap() {
  printf '#!/bin/sh\nroot=$(dirname "$(readlink -f "$0")")/%s\nLD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$root/%s" "$@"\n' \
    "$2" "$3" >"$work/$1"
  chmod +x "$work/$1"
}
wrap release/moonshard .. release/engine/moonshard
wrap bin/luajit .. lib/luajit
for program in "$work"/release/tests/gpu/*.real; do
  name=$(basename "$program" .real)
  wrap "release/tests/gpu/$name" ../../.. "release/tests/gpu/$name.real"
done

rm -rf "$out"
mkdir -p "$out"
for program in "$work"/release/bench/*.real; do
  name=$(basename "$program" .real)
  wrap "release/bench/$name" ../.. "release/bench/$name.real"
done

# One file, long matches: the kernels' tests hold the same kernels.
tar -C "$work" --sort=name -cf - . | xz -T0 -6 --lzma2=preset=6,dict=96MiB >"$out/files.tar.xz"
cp tests/gpu/portable_run.sh "$out/run"
chmod +x "$out/run"
du -sk "$out" | awk '{ printf "%s: %.1f MiB; there: %s/run test, %s/run bench\n", $2, $1 / 1024, $2, $2 }'
