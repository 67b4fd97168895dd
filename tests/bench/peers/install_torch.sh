#!/bin/bash
# Makes build/peers/venv with PyTorch for the CPU benchmarks: install_torch.sh FOLDER CUDA_HOME
#
# PyPI's Linux wheel of PyTorch links CUDA libraries even when only its CPU side is used. Where a CUDA 13 toolkit with
# cuDNN stands in CUDA_HOME its libraries serve, and only the few that a toolkit lacks are downloaded; elsewhere pip
# fetches them all, about 3 GB. Nothing is done when the environment already imports.
set -u
folder=$1 cuda_home=$2
venv=$folder/venv
torch=torch==2.15.0
pure_python=(numpy filelock 'typing-extensions>=4.13' 'sympy>=1.13.3' networkx jinja2 'fsspec>=0.8.5')
# Of the versions this torch was linked against.
not_in_toolkit=(nvidia-cufile nvidia-cusparselt-cu13==0.8.1 nvidia-nvshmem-cu13==3.7.2 nvidia-nccl-cu13==2.30.7)

imports() { "$venv/bin/python" -c 'import numpy; from torch.distributed.fsdp import fully_shard' 2>"$folder/import.log"; }
install() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
# In addition to PyTorch; only the benchmarks of the tokenizers and of generation need them.
install_transformers() {
  "$venv/bin/python" -c 'import tokenizers' 2>/dev/null || install --no-deps tokenizers==0.23.3 ||
    echo "bench-peers: pip could not install tokenizers; its benchmark will run without a peer" >&2
  "$venv/bin/python" -c 'from transformers import GPT2LMHeadModel' 2>/dev/null || install transformers==5.24.0 ||
    echo "bench-peers: pip could not install transformers; generation will run without a peer" >&2
}
give_up() {
  echo "bench-peers: $1; the benchmark will run without PyTorch" >&2
  rm -rf "$venv"
  exit 1
}

mkdir -p "$folder"
[ -x "$venv/bin/python" ] && imports && { install_transformers; echo "bench-peers: PyTorch is ready in $venv"; exit 0; }

/usr/bin/python3 -m venv --clear "$venv" || give_up "cannot make a virtual environment"
install "${pure_python[@]}" || give_up "PyPI cannot be reached, or lacks a package (pip's words are above)"
if [ -e "$cuda_home/lib64/libcublas.so.13" ] && [ -e "$cuda_home/lib64/libcudnn.so.9" ]; then
  install --no-deps "$torch" "${not_in_toolkit[@]}" || give_up "pip could not install PyTorch"
fi
imports || install "$torch" || give_up "pip could not install PyTorch with its CUDA libraries"
imports || { cat "$folder/import.log" >&2; give_up "PyTorch was installed and does not import"; }
install_transformers
echo "bench-peers: PyTorch is ready in $venv"
