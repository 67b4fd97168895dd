#!/bin/bash
# Compares training on one GPU with PyTorch in the same run: GPT-2 124M and Llama 1B in bf16, and their matrix products,
# attention and products of experts separately; also measures kernels that memory bounds. Exits with 2 if there is no
# GPU.
#
#   tests/gpu/bench.sh --build build/release [--models "gpt2 llama"] [--peak TFLOPS] [--seconds 560] [--dry]
#
# It needs the driver, the results of `make all` and its target gpu-bench, and a Python with PyTorch for CUDA: PYTHON,
# otherwise python3. Without PyTorch it measures only Moonshard, and reports that. --peak: the GPU's bf16 peak, for MFU
# (989 TFLOP/s: H100 and H200). --seconds: after this time the remaining measurements are skipped and the tables are
# printed. --dry: tiny models on any device, even an emulated one, and PyTorch on the CPU, to check that all runs.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=build/release models="gpt2 llama" peak=989 seconds=560 dry=
while [ $# -gt 0 ]; do
  case $1 in
    --dry) dry=1; shift; continue ;;
    --build) build=$2 ;;
    --models) models=$2 ;;
    --peak) peak=$2 ;;
    --seconds) seconds=$2 ;;
    *) echo "tests/gpu/bench.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
. tests/gpu/libraries.sh
bin=$build/moonshard
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lines=$work/lines products=$work/products attention=$work/attention experts=$work/experts
: >"$lines"
: >"$products"
: >"$attention"
: >"$experts"

need_gpu "$bin"
torch='import torch; assert torch.cuda.is_available()'
[ -n "$dry" ] && torch='import torch'
if ! "$python" -c "$torch" 2>"$work/why"; then
  tail -1 "$work/why"
  echo "$python has no PyTorch for CUDA: measuring Moonshard alone"
  python=
fi

# try FILE COMMAND...: runs a command within the remaining time, appends its JSON lines to the file, reports failures.
try() {
  local left=$((seconds - SECONDS)) status into=$1
  shift
  [ "$left" -gt 5 ] || { echo "no time left for: $*"; return; }
  timeout -k 5 "$left" "$@" >"$work/out" 2>"$work/err"
  status=$?
  [ "$status" -eq 0 ] || { echo "status $status: $*"; tail -n 5 "$work/err"; }
  grep '^{' "$work/out" | tee -a "$into"
}

declare -A batches=([gpt2]=32 [llama]=4) seqs=([gpt2]=1024 [llama]=4096)
ours=() theirs=() copies=()
if [ -n "$dry" ]; then
  batches=([gpt2]=2 [llama]=1) seqs=([gpt2]=32 [llama]=32)
  ours=(layers=1 vocab=256 steps=5 warmup=2)
  theirs=(--layers 1 --vocab 256 --steps 4 --warmup 1 --device cpu)
  copies=(--device cpu --mib 4 --repeats 2)
fi

for model in $models; do
  shape=(model="$model" batch="${batches[$model]}" seq="${seqs[$model]}")
  try "$lines" "$bin" run tests/gpu/bench.lua device=cuda "${shape[@]}" "${ours[@]}"
  try "$lines" "$bin" run tests/gpu/bench.lua device=cuda "${shape[@]}" "${ours[@]}" name=moonshard_graphs --cuda-graph
  # Traced steps are slower, because every kernel is timed, so they serve only for the times of kernels.
  try "$lines" "$bin" run tests/gpu/bench.lua device=cuda "${shape[@]}" "${ours[@]}" name=traced steps=5 warmup=2 \
    --trace "$work/trace" --trace-steps 4-5
  "$bin" trace "$work/trace" --json >"$work/summary-$model" || rm -f "$work/summary-$model"
  [ -n "$python" ] || continue
  peer=("$python" tests/gpu/peers/peer_torch.py --model "$model" --batch "${batches[$model]}" --seq "${seqs[$model]}")
  peer+=("${theirs[@]}")
  try "$lines" "${peer[@]}"
  try "$lines" "${peer[@]}" --attention cudnn
  [ -n "$dry" ] || try "$lines" "${peer[@]}" --compile
  [ -n "$dry" ] || try "$lines" "${peer[@]}" --compile --attention cudnn
done
[ -z "$python" ] || try "$lines" "$python" tests/gpu/peers/peer_copy.py "${copies[@]}"
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;;"
if [ -z "$dry" ]; then
  NAME=timed try "$products" "$build/bench/gpu_matmul"
  NAME=apart MOONSHARD_CUDA_EPILOGUES=apart try "$products" "$build/bench/gpu_matmul"
  NAME=first MOONSHARD_CUDA_MATMUL_TUNE=0 try "$products" "$build/bench/gpu_matmul"
  [ -z "$python" ] || try "$products" "$python" tests/gpu/peers/peer_matmul.py
  NAME=auto try "$attention" "$build/bench/gpu_attention"
  NAME=flash MOONSHARD_ATTENTION=flash try "$attention" "$build/bench/gpu_attention"
  [ -z "$python" ] || try "$attention" "$python" tests/gpu/peers/peer_attention.py
  NAME=timed try "$experts" "$build/bench/gpu_experts"
  [ -z "$python" ] || try "$experts" "$python" tests/gpu/peers/peer_experts.py
  try "$work/memory" "$build/bench/gpu_memory"
  printf '\nAttention: cuDNN (auto) and our own kernels (flash), and torch with cuDNN and FlashAttention-2\n'
  luajit tests/gpu/matmul_table.lua "$attention" auto "torch cuDNN"
  printf '\nMatrix products: cuBLASLt (timed, with separate gelu, first candidates) and torch.matmul\n'
  luajit tests/gpu/matmul_table.lua "$products"
  printf '\nProducts of experts: own kernels and torch._grouped_mm\n'
  luajit tests/gpu/matmul_table.lua "$experts"
fi
luajit tests/gpu/bench_table.lua "$lines" "$peak" "$work"
