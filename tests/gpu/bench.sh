#!/bin/bash
# Training on one GPU beside PyTorch in the same run: a GPT-2 of 124M and a Llama of 1B, bf16; and their matrix products and attention alone.
# Ends with 2 where there is no GPU.
#
#   tests/gpu/bench.sh --build build/release [--peak TFLOPS]
#
# It needs the driver, what `make all` and its target gpu-bench built, and a Python with PyTorch for CUDA: PYTHON, else python3. Without PyTorch our side is
# measured alone, and the table says so. --peak: what the GPU's bf16 products can do at most (989 TFLOP/s: H100 and H200), for MFU.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=build/release peak=989
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --peak) peak=$2 ;;
    *) echo "tests/gpu/bench.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
bin=$build/moonshard
python=${PYTHON:-python3}
lines=$(mktemp) products=$(mktemp) attention=$(mktemp)
trap 'rm -f "$lines" "$products" "$attention"' EXIT

if ! "$bin" doctor --json | grep -q '"devices":\[{'; then
  echo "tests/gpu: there is no GPU that this build can use:" >&2
  "$bin" doctor | grep -A2 '^gpu' >&2
  exit 2
fi
"$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { echo "$python has no PyTorch for CUDA: our side alone"; python=; }

# measure MODEL BATCH SEQ
measure() {
  local graphs
  for graphs in "" --cuda-graph; do
    timeout 600 "$bin" run tests/gpu/bench.lua device=cuda "model=$1" "batch=$2" "seq=$3" $graphs |
      sed "s/\"moonshard\"/\"moonshard${graphs:+ graphs}\"/" | tee -a "$lines"
  done
  [ -n "$python" ] || return
  timeout 900 "$python" tests/gpu/peer_torch.py --model "$1" --batch "$2" --seq "$3" | tee -a "$lines"
  timeout 900 "$python" tests/gpu/peer_torch.py --model "$1" --batch "$2" --seq "$3" --compile | tee -a "$lines"
}

measure gpt2 32 1024
measure llama 4 4096
NAME=timed timeout 600 "$build/bench/gpu_matmul" | tee -a "$products"
NAME=first MOONSHARD_CUDA_MATMUL_TUNE=0 timeout 600 "$build/bench/gpu_matmul" | tee -a "$products"
[ -z "$python" ] || timeout 600 "$python" tests/gpu/peer_matmul.py | tee -a "$products"
NAME=auto timeout 600 "$build/bench/gpu_attention" | tee -a "$attention"
NAME=flash MOONSHARD_ATTENTION=flash timeout 600 "$build/bench/gpu_attention" | tee -a "$attention"
[ -z "$python" ] || timeout 600 "$python" tests/gpu/peer_attention.py | tee -a "$attention"
printf '\nAttention: cuDNN where it is found, and own kernels, beside torch by cuDNN and by FlashAttention-2\n'
LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;;" luajit tests/gpu/matmul_table.lua "$attention" auto "torch cuDNN"
printf '\nMatrix products: algorithms of cuBLASLt that were timed, and its first proposals, beside torch.matmul\n'
LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;;" luajit tests/gpu/matmul_table.lua "$products"
LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;;" luajit tests/gpu/bench_table.lua "$lines" "$peak"
