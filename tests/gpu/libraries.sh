# Source this file to find NVIDIA's libraries, and for need_gpu. If the dynamic linker does not find one, it uses the one
# in PyTorch's packages, in the folders that PYTHON (otherwise python3) reports. A MOONSHARD_..._LIBRARY that is set is
# kept.
#
# Such a library loads further parts by name (cuDNN's engines, NVRTC), which are in other folders; these are appended to
# LD_LIBRARY_PATH.

# list_packaged: prints the paths of packaged libraries, one per line
list_packaged() {
  "${PYTHON:-python3}" -c '
import site, sys
print(*dict.fromkeys([*site.getsitepackages(), site.getusersitepackages(), *sys.path]), sep="\n")' 2>/dev/null |
    while read -r folder; do
      [ -d "$folder/nvidia" ] && find -L "$folder/nvidia" -name 'lib*.so*' | sort
    done
}

# find_library VARIABLE NAME...: sets VARIABLE to the first name that exists; names are ordered from the newest version
find_library() {
  local variable=$1 name found
  shift
  [ -z "${!variable:-}" ] || return 0
  for name in "$@"; do
    ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$name " && return 0
  done
  [ -n "$packaged" ] || packaged=$(list_packaged; echo none)
  for name in "$@"; do
    found=$(grep "/$name\$" <<<"$packaged" | head -n 1)
    [ -n "$found" ] || continue
    export "$variable=$found"
    used=1
    return 0
  done
}

# need_gpu MOONSHARD: exits with 2 if there is no GPU that this program can use
need_gpu() {
  "$1" doctor --json | grep -q '"devices":\[{' && return 0
  echo "tests/gpu: no GPU that this build can use:" >&2
  "$1" doctor | grep -A2 '^gpu' >&2
  exit 2
}

packaged='' used=''
find_library MOONSHARD_NCCL_LIBRARY libnccl.so.2
find_library MOONSHARD_CUBLASLT_LIBRARY libcublasLt.so.13 libcublasLt.so.12
find_library MOONSHARD_CUDNN_LIBRARY libcudnn.so.9
if [ -n "$used" ]; then
  folders=$(grep / <<<"$packaged" | sed 's|/[^/]*$||' | sort -u | paste -sd:)
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folders"
fi
