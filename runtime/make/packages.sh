#!/bin/bash
# Makes sure that the Debian packages named as arguments are installed.
#
# Quiet and fast (one dpkg-query) when nothing is missing. Otherwise installs what is missing, as root or through
# sudo, and refreshes apt's lists only when they do not know a package. When it cannot install, it prints the
# command that would, and ends with status 2. On a machine without dpkg, only names the packages.
set -u

command -v dpkg-query >/dev/null || {
  echo "packages: no dpkg on this machine; Moonshard needs these Debian packages, or their equivalents: $*" >&2
  exit 0
}

missing=()
for package in "$@"; do
  # A pure virtual or absent package has no "installed" status; the glob-free query prints nothing for it.
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

refuse() {
  {
    echo "packages: $1; missing:"
    printf '  %s\n' "${missing[@]}"
    echo "install them with: apt-get install --no-install-recommends ${missing[*]}"
  } >&2
  exit 2
}

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || refuse "not root, and no sudo to become it"
  as_root=(sudo)
  # Without a terminal sudo cannot ask for a password.
  [ -t 0 ] || as_root=(sudo -n)
  "${as_root[@]}" true || refuse "sudo was refused"
fi

install_missing() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "${missing[@]}" >"$log" 2>&1
}

# What apt and dpkg print is of interest only if they fail.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "packages: installing ${#missing[@]}: ${missing[*]}"
apt-cache show "${missing[@]}" >/dev/null 2>&1 || "${as_root[@]}" apt-get update -qq >&2 || refuse "apt-get update failed"
install_missing && exit 0
# The lists can be older than the archive: refresh them and try once more.
"${as_root[@]}" apt-get update -qq >&2 && install_missing && exit 0
cat "$log" >&2
refuse "apt-get could not install"
