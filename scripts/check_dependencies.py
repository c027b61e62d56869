#!/usr/bin/env python3
"""Checks licences, sources and banned crates of every dependency, by the rules of deny.toml.

usage: check_dependencies.py [MANIFEST ...]    default: Cargo.toml and those of bindings/

Reads `cargo metadata`, so it needs no tool that has to be compiled first. `cargo deny check` judges by the same file, and
also knows advisories: CONTRIBUTING.md says when it runs. Prints what is wrong, and exits with 1 if anything is.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def allowed(expression, licences):
    """Whether an SPDX expression can be met with these licences: OR needs one side, AND both; `/` is an old OR."""
    expression = expression.replace("/", " OR ")
    while "(" in expression:
        inner = re.search(r"\(([^()]*)\)", expression)
        met = "MET" if allowed(inner[1], licences) else "UNMET"
        expression = expression[: inner.start()] + met + expression[inner.end() :]
    return any(
        all(part.strip() in licences or part.strip() == "MET" for part in side.split(" AND "))
        for side in expression.split(" OR ")
    )


def wrong(package, rules, banned):
    """What is wrong with a package, a sentence each."""
    name = f"{package['name']} {package['version']}"
    if package["source"] is None:
        return  # ours
    if package["source"] != CRATES_IO:
        yield f"{name} comes from {package['source']}; only crates.io is allowed"
    licence = package["license"] or "none stated"
    if not allowed(licence, set(rules["licenses"]["allow"])):
        yield f"{name} is licensed as {licence}; deny.toml lists what is allowed"
    if package["name"] in banned:
        yield f"{name} is banned by deny.toml"


def main(manifests):
    rules = tomllib.loads((ROOT / "deny.toml").read_text(encoding="utf-8"))
    banned = {entry["crate"] for entry in rules["bans"]["deny"]}
    packages = {}
    for manifest in manifests:
        command = ["cargo", "metadata", "--locked", "--all-features", "--format-version=1"]
        command.append(f"--manifest-path={manifest}")
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        packages.update((package["id"], package) for package in json.loads(out)["packages"])
    faults = sorted({fault for package in packages.values() for fault in wrong(package, rules, banned)})
    print("\n".join(faults) if faults else f"{len(packages)} packages: licences, sources and bans are right")
    return 1 if faults else 0


if __name__ == "__main__":
    # The rules of this script, on expressions whose answer is known.
    assert allowed("MIT OR GPL-3.0", {"MIT"}) and not allowed("MIT AND GPL-3.0", {"MIT"})
    assert allowed("(MIT OR GPL-3.0) AND Zlib", {"MIT", "Zlib"}) and not allowed("GPL-3.0", {"MIT"})
    sys.exit(main(sys.argv[1:] or [ROOT / folder / "Cargo.toml" for folder in ("", "bindings/python", "bindings/candle")]))
