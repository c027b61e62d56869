#!/usr/bin/env python3
"""Checks licences, sources, banned and unmaintained crates of every dependency, by the rules of deny.toml.

usage: check_dependencies.py [MANIFEST ...]    default: Cargo.toml and those of bindings/

Reads `cargo metadata`, so it needs no tool that has to be compiled first. `cargo deny check` judges by the same file, and
also knows advisories: CONTRIBUTING.md says when it runs. Unmaintained crates are those of scripts/unmaintained.txt, so
that no network is needed; one that deny.toml ignores has a day until which that holds. Prints what is wrong, and exits
with 1 if anything is.
"""

import datetime
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


def ignored_until(rules):
    """The last day of each advisory that deny.toml ignores; None where it names none."""
    for entry in rules["advisories"].get("ignore", []):
        day = re.search(r"until (\d{4}-\d\d-\d\d)$", entry["reason"])
        yield entry["id"], datetime.date.fromisoformat(day[1]) if day else None


def unmaintained(names, known, until, today):
    """What is wrong with unmaintained crates among `names`, a sentence each. `known`: their advisories by name."""
    found = {known[name]: name for name in names if name in known}
    for advisory, name in sorted(found.items()):
        what = f"{name} is unmaintained ({advisory})"
        if advisory not in until:
            yield f"{what}: replace it, or add it to `ignore` in deny.toml with a reason and a day: `until YYYY-MM-DD`"
        elif until[advisory] is None:
            yield f"{what}: the reason in deny.toml must end with a day: `until YYYY-MM-DD`"
        elif until[advisory] < today:
            yield f"{what}, which deny.toml ignores until {until[advisory]}: replace it, or look at it again and set a new day"
    for advisory in until.keys() - found.keys() & set(known.values()):
        yield f"deny.toml ignores {advisory}, which no dependency has any more: remove the entry"


def read_unmaintained():
    """Advisories by the crate's name, and the day of the list."""
    lines = (ROOT / "scripts" / "unmaintained.txt").read_text(encoding="utf-8").splitlines()
    day, *rows = [line for line in lines if not line.startswith("#")]
    return dict(row.split() for row in rows), datetime.date.fromisoformat(day)


def main(manifests):
    rules = tomllib.loads((ROOT / "deny.toml").read_text(encoding="utf-8"))
    banned = {entry["crate"] for entry in rules["bans"]["deny"]}
    packages = {}
    for manifest in manifests:
        command = ["cargo", "metadata", "--locked", "--all-features", "--format-version=1"]
        command.append(f"--manifest-path={manifest}")
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        packages.update((package["id"], package) for package in json.loads(out)["packages"])
    faults = {fault for package in packages.values() for fault in wrong(package, rules, banned)}
    (known, day), until = read_unmaintained(), dict(ignored_until(rules))
    names = {package["name"] for package in packages.values() if package["source"]}
    faults = sorted(faults.union(unmaintained(names, known, until, datetime.date.today())))
    right = f"{len(packages)} packages: licences, sources and bans are right; unmaintained by the list of {day}: "
    print("\n".join(faults) if faults else right + (", ".join(sorted(names & known.keys())) or "none"))
    return 1 if faults else 0


if __name__ == "__main__":
    # The rules of this script, on expressions whose answer is known.
    assert allowed("MIT OR GPL-3.0", {"MIT"}) and not allowed("MIT AND GPL-3.0", {"MIT"})
    assert allowed("(MIT OR GPL-3.0) AND Zlib", {"MIT", "Zlib"}) and not allowed("GPL-3.0", {"MIT"})
    known, day = {"old": "R-1", "gone": "R-2"}, datetime.date(2026, 1, 31)
    faults = [
        list(unmaintained(names, known, until, day))
        for names, until in (
            ({"old", "new"}, {}),
            ({"old"}, {"R-1": None}),
            ({"old"}, {"R-1": datetime.date(2026, 1, 30)}),
            ({"old"}, {"R-1": day}),
            ({"new"}, {"R-2": day, "R-3": day}),
        )
    ]
    assert [len(found) for found in faults] == [1, 1, 1, 0, 1] and "R-2" in faults[4][0], faults
    assert dict(ignored_until({"advisories": {"ignore": [{"id": "R-1", "reason": "x; until 2026-01-31"}]}})) == {"R-1": day}
    assert dict(ignored_until({"advisories": {"ignore": [{"id": "R-1", "reason": "x"}]}})) == {"R-1": None}
    sys.exit(main(sys.argv[1:] or [ROOT / folder / "Cargo.toml" for folder in ("", "bindings/python", "bindings/candle")]))
