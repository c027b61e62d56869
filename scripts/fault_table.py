"""Compares compute-sanitizer's findings with those of `flashcore check`, for `scripts/plant_faults.py table`."""

import collections
import json
import lzma
import re

# What a finding is of, as either tool calls it.
OURS = {
    "race": "race",
    "block-race": "race",
    "missing-wait": "race",
    "out-of-bounds": "bounds",
    "misaligned": "misaligned",
    "never-written": "uninitialised",
    "missing-lanes": "synchronisation",
    "barrier-mismatch": "synchronisation",
    "deadlock": "synchronisation",
}
THEIRS = [
    (r"misaligned", "misaligned"),
    (r"Invalid __\w+__ (?:read|write|atomic)|out of bounds|Address .* is invalid", "bounds"),
    (r"Uninitialized", "uninitialised"),
    (r"Race reported|hazard", "race"),
    (r"Barrier error|Divergent|Invalid arguments|synchronization", "synchronisation"),
]


def theirs(reports, name):
    """What a tool found in a kernel: kind, line of its file; 0 where it names none."""
    found = set()
    for report in reports:
        # The name of a fault's operator is no report.
        text = report.replace(name, "")
        kind = next((kind for pattern, kind in THEIRS if re.search(pattern, text)), None)
        if kind is None or re.match(r"(=+ )?(ERROR SUMMARY|RACECHECK SUMMARY|COMPUTE-SANITIZER|Program hit)", report):
            continue
        lines = re.findall(rf"\b{re.escape(name)}\.cu:(\d+)", report)
        # The first names what was done; a race names both accesses.
        found |= {(kind, int(line)) for line in (lines if kind == "race" else lines[:1] or ["0"])}
    return found


def ours(told):
    found = set()
    for finding in told.get("said", {}).get("findings", []):
        kind = OURS.get(finding["kind"], finding["kind"])
        sites = [finding["lines"], (finding.get("other") or {}).get("lines", [])]
        found |= {(kind, lines[0]["line"]) for lines in sites if lines}
    return found


def results_of(path):
    """By kernel and tool how it ended, and the reports."""
    text = path.read_bytes()
    lines = (lzma.decompress(text) if path.suffix == ".xz" else text).decode().splitlines()
    found = collections.defaultdict(dict)
    for line in lines:
        told = json.loads(line)
        for name, end in told["ended"].items():
            alone = told["reports"][""] if len(told["ended"]) == 1 else []
            found[name][told["tool"]] = (end, [*told["reports"].get(name, []), *alone])
    return found


def main(folder, results):
    told = results_of(results)
    mine = json.loads((folder / "ours.json").read_text(encoding="utf-8"))
    faults = {case["name"]: case["fault"] for case in json.loads((folder / "built.json").read_text(encoding="utf-8"))}
    rows, counts = [], collections.defaultdict(collections.Counter)
    for name, is_fault in faults.items():
        all_theirs, found, ends = set(), {}, {}
        for tool, (end, reports) in told.get(name, {}).items():
            hits = theirs(reports, name)
            all_theirs |= hits
            ends[tool] = end
            found[tool] = sorted(f"{kind}:{line}" for kind, line in hits)
        if len(found) < 4:
            counts["not run under all four tools"]["fault" if is_fault else "clean"] += 1
        all_ours = ours(mine[name])
        matches = all_theirs & all_ours
        row = {
            "name": name,
            "fault": is_fault,
            "theirs": found,
            "ended": {tool: end for tool, end in ends.items() if end != "end"},
            "ours": sorted(f"{kind}:{line}" for kind, line in all_ours),
            "match": sorted(f"{kind}:{line}" for kind, line in matches),
        }
        rows.append(row)
        if not is_fault:
            counts["clean"]["ours"] += not all_ours
            counts["clean"]["theirs"] += not all_theirs
            counts["clean"]["all"] += 1
            continue
        counts["faults"]["all"] += 1
        counts["faults"]["both" if all_theirs and all_ours else "theirs" if all_theirs else "ours" if all_ours else "none"] += 1
        counts["faults"]["found by it, matched"] += bool(matches)
        counts["faults"]["found by it, not matched"] += bool(all_theirs and not matches)
        if all_ours and not all_theirs:
            for kind in {kind for kind, _ in all_ours}:
                counts["ours alone, by kind"][kind] += 1
        for tool, hits in found.items():
            counts["by tool"][tool] += bool(hits)
    summary = {key: dict(value) for key, value in counts.items()}
    out = {"summary": summary, "rows": rows}
    (folder / "table.json").write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=1))
    for row in rows:
        has = any(row["theirs"].values())
        if row["fault"] and has and not row["match"]:
            print("not matched:", row["name"], row["theirs"], row["ours"])
        if not row["fault"] and (has or row["ours"]):
            print("not clean:", row["name"], row["theirs"], row["ours"])
