#!/usr/bin/env bash
# linux.sh ARCH DIST [SDIST]: builds for Linux on x86_64 or aarch64 with glibc 2.17 or newer, and leaves in the folder DIST
#
#   flashcore-VERSION-TARGET.tar.xz   the command, with licences and README
#   flashcore_attn-*.whl              the Python package with the command
#
# The wheel is built from the source distribution in the folder SDIST; without SDIST, from one that is made in DIST first.
# zig links against the old glibc, on any machine. A static command could not open the driver: musl's `dlopen` refuses.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
arch=$1
out=$(mkdir -p "$2" && cd "$2" && pwd)
sdist=$(cd "${3:-$out}" && pwd)
case $arch in
x86_64 | aarch64) ;;
*)
    echo "linux.sh: ARCH is $arch; allowed are x86_64 and aarch64" >&2
    exit 2
    ;;
esac
[[ $# -gt 2 ]] || "$root/scripts/release/sdist.sh" "$out"
target=$arch-unknown-linux-gnu
built=${CARGO_TARGET_DIR:-$root/target}
tools=$("$root/scripts/release/tools.sh")
export PATH=$tools:$PATH CARGO_TARGET_DIR=$built
[[ $(rustup target list --installed) == *"$target"* ]] || rustup target add "$target"

# In one place for each target, so that a second build finds what it compiled. Files get a new time: cargo compares
# times, and those of a source distribution are its commit's.
source=$built/from-sdist/$target
rm -rf "$source" && mkdir -p "$source"
tar xmf "$sdist"/flashcore_attn-*.tar.gz -C "$source" --strip-components 1
version=$(sed -n 's/^Version: //p' "$source/PKG-INFO")
packaged=$(cat "$source/bindings/python/.cargo_vcs_info.json")
revision=$(sed -n 's/.*"sha1": "\([0-9a-f]*\)".*/\1/p' <<<"$packaged")
if [[ $revision != $(git -C "$root" rev-parse HEAD) ]]; then
    echo "linux.sh: the source distribution is of revision $revision, and this clone is not: check it out" >&2
    exit 1
fi
# Of both, so that `flashcore bench` takes one for the other's.
FLASHCORE_REVISION=${revision:0:12}$([[ $packaged != *'"dirty": true'* ]] || echo -modified)
export FLASHCORE_REVISION

CARGO_PROFILE_RELEASE_STRIP=true cargo zigbuild --release --locked --manifest-path "$root/Cargo.toml" --target "$target.2.17" -p flashcore-cli
command=$built/$target/release/flashcore
name=flashcore-$version-$target
rm -rf "${built:?}/$name" && mkdir "$built/$name"
cp "$command" "$root"/{README.md,LICENSE-MIT,LICENSE-APACHE} "$built/$name"
tar c -C "$built" --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --mtime="@$(git -C "$root" log -1 --format=%ct)" "$name" | xz -9 >"$out/$name.tar.xz"

# maturin takes scripts from a folder that the key `data` names, and fails if there is none: the sources have neither.
install -D "$command" "$source/flashcore_attn.data/scripts/flashcore"
sed -i 's/^\[tool\.maturin\]$/&\ndata = "flashcore_attn.data"/' "$source/pyproject.toml"
rm -f "$out"/flashcore_attn-*_"$arch".whl
cd "$source"
maturin build --release --locked --zig --compatibility manylinux2014 --target "$target" --out "$out"
ls -l "$out/$name.tar.xz" "$out"/flashcore_attn-*_"$arch".whl
