#!/usr/bin/env python3
"""Writes the diagram of crates in docs/architecture.md: what each imports, by `cargo metadata`.

usage: draw_architecture.py            writes the block between the marks
       draw_architecture.py --check    exits with 1 if that block is not what would be written

An import that follows from others (A imports B, B imports C, so A may use C) is left out. Fails if the library imports
the lab.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"(?<=<!-- crates: written by scripts/draw_architecture.py -->\n).*?(?=<!-- /crates -->)", re.DOTALL)


def crates():
    """Name to (folder, names of the workspace's crates that it imports)."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)["packages"]
    folders = {package["name"]: pathlib.Path(package["manifest_path"]).parent for package in packages}
    found = {}
    for package in packages:
        imports = {d["name"] for d in package["dependencies"] if d["kind"] is None} & folders.keys()
        folder = folders[package["name"]]
        found[folder.name] = (folder.parent.name, {folders[name].name for name in imports})
    return found


def reach(found, name):
    """All that a crate imports, directly or through others."""
    return found[name][1].union(*(reach(found, imported) for imported in found[name][1]))


def diagram(found):
    yield "```mermaid\nflowchart RL"
    for group in ("crates", "lab"):
        yield f"    subgraph {group}"
        yield from (f"        {name}" for name in sorted(found) if found[name][0] == group)
        yield "    end"
    for name, (_, imports) in sorted(found.items()):
        through = set().union(*(reach(found, imported) for imported in imports))
        yield from (f"    {name} --> {imported}" for imported in sorted(imports - through))
    yield "```\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    found = crates()
    for name, (group, _) in found.items():
        lab = sorted(imported for imported in reach(found, name) if found[imported][0] == "lab")
        if group == "crates" and lab:
            sys.exit(f"crates/{name} imports the lab: {', '.join(lab)}")
    text = PAGE.read_text(encoding="utf-8")
    wanted, places = BLOCK.subn(lambda _: "\n".join(diagram(found)), text)
    if places != 1:
        sys.exit(f"{PAGE.relative_to(ROOT)} has no block of crates")
    if not sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        sys.exit("docs/architecture.md is not current: run scripts/draw_architecture.py")


main()
