#!/usr/bin/env python3
"""Checks that a tag may be published: everything names its version, and its artefacts were built from it.

usage: check_version.py TAG [DIST]    TAG: v0.1.0; DIST: the folder of artefacts

The version is that of each manifest of the workspaces, of citations and of a section of CHANGELOG.md with a date. DIST has
artefacts of this version only; the packages of sources, from which the others are built, are of the commit that is checked
out, and were not modified. Prints what is wrong, and exits with 1 if anything is.
"""

import json
import pathlib
import re
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def versions():
    """Each place that states the version, and the version."""
    for manifest in ("Cargo.toml", "bindings/python/Cargo.toml"):
        text = (ROOT / manifest).read_text(encoding="utf-8")
        for number, version in re.findall(r'^(version|flashcore[\w-]* = \{ path = "[^"]*", version) = "([^"]*)"', text, re.MULTILINE):
            yield f"{manifest}, {number.split()[0]}", version
    found = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    yield "CITATION.cff", found[1] if found else None


def revision(path):
    """What a package of sources says of its commit: its hash, and whether files were modified."""
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".cargo_vcs_info.json"):
                said = json.load(archive.extractfile(member))["git"]
                return said["sha1"], said.get("dirty", False)
    return None, True


def artefact_problems(folder, version):
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sources = [path for path in files if path.name.endswith((".tar.gz", ".crate"))]
    if not sources:
        yield f"{folder} has no source distribution and no crate"
    for path in files:
        if not re.search(rf"-{re.escape(version)}[-.]", path.name):
            yield f"{path.name} is not of version {version}"
    for path in sources:
        commit, modified = revision(path)
        if commit != head or modified:
            yield f"{path.name} was made from {commit or 'an unknown revision'}{', modified' if modified else ''}; HEAD is {head}"


def main(tag, folder=None):
    if not re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?", tag):
        sys.exit(f"check_version.py: the tag is {tag!r}; a release has one such as v0.1.0")
    version = tag.removeprefix("v")
    wrong = [f"{where} says {found}; the tag says {version}" for where, found in versions() if found != version]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`")
    if folder:
        wrong.extend(artefact_problems(pathlib.Path(folder), version))
    print(*wrong, sep="\n")
    sys.exit(f"{len(wrong)} reasons not to publish {tag}" if wrong else 0)


if not 2 <= len(sys.argv) <= 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
