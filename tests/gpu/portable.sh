#!/bin/bash
# Packs the build results that `make test-gpu` and `make bench-gpu` need, for a machine with a GPU, its driver and
# PyTorch, but no compilers: the executable and the libraries that it links, LuaJIT, the CUDA kernels and their tests.
#
#   tests/gpu/portable.sh --build build/release --out build/gpu
#
# Copy the source tree and OUT to that machine, then use `OUT/run test` and `OUT/run bench`. Its glibc must be at least
# as new as the one of the build machine.
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

# Lists the libraries that linked files need, except the C and C++ libraries, which every machine has.
needed() {
  ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so'
}

cp "$build/moonshard" "$build/libmoonshard_cuda.so" "$work/release/engine/"
cp -L "$build/libmoonshard.so" "$work/release/libmoonshard.so"
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
[ -f "$build/bench/libstand_in.so" ] && cp "$build/bench/libstand_in.so" "$work/release/bench/"
needed "$build/moonshard" "$luajit" "$work"/release/*/*.real "$work"/release/tests/gpu/*.real |
  while read -r library; do cp -L "$library" "$work/lib/"; done
strip --strip-debug "$work"/release/*/*.real "$work"/release/engine/* "$work"/release/tests/gpu/*.real 2>/dev/null ||
  true

# wrap SCRIPT ROOT PROGRAM: creates a script that runs a program with the packed libraries. ROOT: the relative path from
# the script to the root of the package; PROGRAM: its path from there. Only the executable finds its kernels by itself.
wrap() {
  printf '#!/bin/sh\nroot=$(dirname "$(readlink -f "$0")")/%s\n%s\n%s exec "$root/%s" "$@"\n' "$2" \
    'export MOONSHARD_CUDA_LIBRARY=${MOONSHARD_CUDA_LIBRARY:-$root/release/engine/libmoonshard_cuda.so}' \
    'LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}' "$3" >"$work/$1"
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

# One file with a large dictionary, because all test programs contain the same kernels.
tar -C "$work" --sort=name -cf - . | xz -T0 --lzma2=preset=1,dict=96MiB >"$out/files.tar.xz"
cp tests/gpu/portable_run.sh "$out/run"
chmod +x "$out/run"
printf 'code for %s\n' "$(grep -o 'code=[a-z]*_[0-9]*' "$build/cuda.list" | cut -d= -f2 | xargs)"
du -sk "$out" | awk '{ printf "%s: %.1f MiB; on the GPU machine: %s/run test, %s/run bench\n", $2, $1 / 1024, $2, $2 }'
