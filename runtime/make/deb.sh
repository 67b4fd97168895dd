#!/bin/bash
# Builds Debian packages from the tree, checks them with lintian, unpacks them and runs a training with their contents.
#
#   runtime/make/deb.sh OUT VERSION "BUILD PACKAGES"
#
# The packages are left in OUT. DEBFULLNAME and DEBEMAIL name their maintainer.
set -eu
cd "$(dirname "$0")/../.."
out=$1 version=$2 packages=$3
maintainer="${DEBFULLNAME:-Moonshard} <${DEBEMAIL:-moonshard@packages.invalid}>"

rm -rf "$out"
tree=$out/moonshard-$version
mkdir -p "$tree"
cp -r Makefile LICENSE README.md runtime kernels lua recipes "$tree"
mv "$tree/runtime/make/debian" "$tree/debian"
sed -i -e "s/@MAINTAINER@/$maintainer/" -e "s/@PACKAGES_BUILD@/${packages// /, }/" "$tree/debian/control"
cat >"$tree/debian/changelog" <<END
moonshard ($version) unstable; urgency=medium

  * Packages made from the source tree.

 -- $maintainer  $(date -R -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}")
END

# Uses the package's compiler flags, not those of the caller of make.
(cd "$tree" && env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u CFLAGS -u CPPFLAGS -u CXXFLAGS -u LDFLAGS -u BUILD -u PREFIX \
  dpkg-buildpackage -us -uc -b) >"$out/build.log" 2>&1 || { tail -n 40 "$out/build.log"; exit 1; }
rm -rf "$tree"

# Not an upload to Debian, which would have to close a bug report.
lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$out"/*.changes

# The unpacked program and library work from any folder.
root=$out/root
for package in "$out"/*_*.deb; do dpkg -x "$package" "$root"; done
env -i PATH=/usr/bin:/bin "$root/usr/bin/moonshard" run "$root/usr/share/moonshard/recipes/toy_hsdp.lua" -n 4 steps=3
env -i PATH=/usr/bin:/bin luajit -e "package.path = '$(cd "$root" && pwd)/usr/share/lua/5.1/?.lua;' ..
  '$(cd "$root" && pwd)/usr/share/lua/5.1/?/init.lua'; print('luajit loads moonshard ' .. require('moonshard').version)"
rm -rf "$root"
ls "$out"/*.deb
