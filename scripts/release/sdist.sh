#!/usr/bin/env bash
# sdist.sh DIST: leaves the source distribution of the Python package in the folder DIST. Wheels are built from it
# (linux.sh, native.sh). It has no command. Tools come from PyPI (tools.sh).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
tools=$("$root/scripts/release/tools.sh")
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

rm -f "$out"/flashcore_attn-*.tar.gz
"$tools/maturin" sdist --manifest-path "$root/bindings/python/Cargo.toml" --out "$work"
tar xf "$work"/flashcore_attn-*.tar.gz -C "$work"
folder=$(basename "$work"/flashcore_attn-*/)
install -D -m 644 "$root/lab/cli/build.rs" "$work/$folder/lab/cli/build.rs" # of another folder: maturin does not pack it

# maturin passes no revision on. As cargo does for crates, so that the build script reads one format.
dirty=
[[ -z $(git -C "$root" status --porcelain) ]] || dirty=', "dirty": true'
printf '{ "git": { "sha1": "%s"%s }, "path_in_vcs": "bindings/python" }\n' "$(git -C "$root" rev-parse HEAD)" "$dirty" \
    >"$work/$folder/bindings/python/.cargo_vcs_info.json"
# The same bytes from the same commit.
tar c -C "$work" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --mtime="@$(git -C "$root" log -1 --format=%ct)" "$folder" | gzip -9 --no-name >"$out/$folder.tar.gz"
ls -l "$out/$folder.tar.gz"
