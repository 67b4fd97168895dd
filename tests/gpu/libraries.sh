# NVIDIA's libraries for scripts that source this: where the dynamic linker does not find them, those that PyTorch's packages brought.
# PYTHON, else python3, knows where those lie. What a MOONSHARD_..._LIBRARY names already stays.
#
# The parts that such a library loads by name in its turn (cuDNN's engines, NVRTC) lie in folders of their own, which
# LD_LIBRARY_PATH then names behind what it named before.

# list_packaged: their files, one a line
list_packaged() {
  "${PYTHON:-python3}" -c '
import site, sys
print(*dict.fromkeys([*site.getsitepackages(), site.getusersitepackages(), *sys.path]), sep="\n")' 2>/dev/null |
    while read -r folder; do
      [ -d "$folder/nvidia" ] && find -L "$folder/nvidia" -name 'lib*.so*' | sort
    done
}

# find_library VARIABLE NAME...: the first of the names that is found, newest version first
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

packaged='' used=''
find_library MOONSHARD_NCCL_LIBRARY libnccl.so.2
find_library MOONSHARD_CUBLASLT_LIBRARY libcublasLt.so.13 libcublasLt.so.12
find_library MOONSHARD_CUDNN_LIBRARY libcudnn.so.9
if [ -n "$used" ]; then
  folders=$(grep / <<<"$packaged" | sed 's|/[^/]*$||' | sort -u | paste -sd:)
  export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folders"
fi
