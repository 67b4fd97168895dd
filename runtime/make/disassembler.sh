#!/bin/bash
# Downloads NVIDIA's cuobjdump and nvdisasm from PyPI, for toolkits that lack them: disassembler.sh FOLDER
#
# The folder becomes a Python environment; FOLDER/bin/cuobjdump is what
# tests/lua/cuda/cuda_machine_code_spec.lua looks for.
set -u
folder=$1
give_up() {
  echo "disassembler: $1" >&2
  rm -rf "$folder"
  exit 1
}

"$folder/bin/cuobjdump" --version >/dev/null 2>&1 && { echo "disassembler: $folder/bin/cuobjdump is ready"; exit 0; }

python3 -m venv --clear "$folder" || give_up "cannot make a virtual environment (python3-venv)"
"$folder/bin/pip" install --quiet --disable-pip-version-check nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm ||
  give_up "pip could not install nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm (its words are above)"
for program in cuobjdump nvdisasm; do
  path=$(find "$folder" -path '*/nvidia/*/bin/*' -name "$program" | head -n 1)
  [ -n "$path" ] || give_up "the packages have no $program"
  ln -s "$(realpath "$path")" "$folder/bin/$program"
done
"$folder/bin/cuobjdump" --version >/dev/null || give_up "$folder/bin/cuobjdump does not run"
echo "disassembler: $folder/bin/cuobjdump is ready"
