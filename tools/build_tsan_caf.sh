#!/bin/sh
# Builds Debian's CAF source (core, io and openssl) with -fsanitize=thread into .cache/caf-tsan, where the preset tsan-cluster
# looks for it. ThreadSanitizer cannot judge programs that link Debian's uninstrumented library: it reports races that
# are none. About four minutes on two cores; does nothing when the library is already there.
#
# The source comes through apt from Debian's archive, with package lists of its own in a temporary folder: the system
# needs no deb-src line, and its lists stay as they are. Works as any user.
set -eu
cd "$(dirname "$0")/.."
prefix=$PWD/.cache/caf-tsan
[ -e "$prefix/lib/libcaf_openssl.so" ] && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/source"
echo 'deb-src http://deb.debian.org/debian bookworm main' >"$work/sources.list"
apt_source() {
  apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work/lists" -o APT::Sandbox::User=root "$@"
}
(cd "$work/source" && apt_source update && apt_source --download-only --tar-only source actor-framework)
tar -C "$work/source" -xf "$work"/source/*.orig.tar.*
cd "$work"/source/actor-framework-*/

# gcc 12 in C++17 no longer brings in <cstdint> and <limits> by the way.
cmake -G Ninja -B "$work/build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_STANDARD=17 \
  -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
  -DCMAKE_CXX_FLAGS='-fsanitize=thread -fno-omit-frame-pointer -include cstdint -include limits' \
  -DCAF_NO_EXAMPLES=ON -DCAF_NO_UNIT_TESTS=ON -DCAF_NO_TOOLS=ON -DCAF_NO_OPENCL=ON -DCAF_NO_PYTHON=ON \
  -DCAF_NO_AUTO_LIBCPP=ON
cmake --build "$work/build"
cmake --install "$work/build"
