# NVIDIA's libraries for scripts that source this: where the dynamic linker does not find them, those that PyTorch's packages brought.
# PYTHON, else python3, knows where those lie. What a MOONSHARD_..._LIBRARY names already stays.

# find_library VARIABLE NAME
find_library() {
  local found
  [ -n "${!1:-}" ] && return
  ldconfig -p 2>/dev/null | grep -q "^[[:space:]]*$2 " && return
  found=$("${PYTHON:-python3}" -c '
import glob, os, site, sys
roots = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
found = [f for r in roots if r for f in glob.glob(os.path.join(r, "nvidia", "**", sys.argv[1]), recursive=True)]
print(found[0] if found else "")' "$2" 2>/dev/null)
  [ -n "$found" ] && export "$1=$found"
}

find_library MOONSHARD_NCCL_LIBRARY libnccl.so.2
find_library MOONSHARD_CUBLASLT_LIBRARY libcublasLt.so.13
find_library MOONSHARD_CUDNN_LIBRARY libcudnn.so.9
