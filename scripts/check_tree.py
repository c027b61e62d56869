#!/usr/bin/env python3
"""Checks the tracked files: sizes, length of lines and of docs, rows of evidence/.

usage: check_tree.py            prints what is wrong, and exits with 1 if anything is

Rules:
- no tracked file over 20 KB, except source, lock files, licences and what ALLOWED names;
- no Rust or Python file over 500 lines, and no Rust file in tests/it that main.rs leaves out;
- Markdown: no line over 100 columns (tables, links and code blocks aside), docs/ and the root's pages have at most
  40,000 words, and every link to a file of the tree, or to a heading of a page, leads there;
- comments of Rust: no line over 120 columns (the same aside);
- the Python package is called by its names, `flashcore-attn` and `flashcore_attn`: `flashcore` is another project's;
- evidence/*/: at most 3,000 lines of JSON, each a run or a claim of a run, no raw output; every run that a page names
  is there (run `tune-d80`). Bundles, evidence/*.jsonl, are checked by `flashcore evidence verify`;
- a published crate has the licences, a README, `include`, metadata for docs.rs and the workspace's rust-version; every
  copy of a licence has the bytes of the one in the root; the workspaces have one rust-version, but for NEWER_RUST.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

MOST_BYTES = 20 * 1024
MOST_SOURCE_LINES = 500
# Of docs/ and the pages in the root, without figures.
MOST_WORDS = 40_000
MOST_COLUMNS = 100
MOST_COMMENT_COLUMNS = 120
MOST_EVIDENCE_LINES = 3000
# Text, and snapshots of text. Rust and Python files have another limit.
SOURCE = {".rs", ".py", ".sh", ".md", ".snap"}
# Data that a test or a command reads, and diagrams; each with its reason.
ALLOWED = {
    "lab/tune/data/h200-space.json": "times that `tune` replays",
    "lab/sim/tests/it/recorded/h200.jsonl.zst": "what a GPU computed of random programs, which a test replays",
    "lab/check/faults/planted.json": "faults that were drawn, and committed, before a tool saw them",
    "lab/check/faults/newer.json": "the same for Hopper and Triton",
    "lab/tools/data/regret.jsonl": "problems and choices that were committed before they were timed",
    "lab/tools/data/regret-times.jsonl": "their times",
    "lab/tools/data/regret-known.csv": "choices that were compared with times of the tree",
    "crates/kernels/src/wgmma/defaults/measured/fitted.csv": "times that a test holds the defaults to",
    "crates/kernels/src/wgmma/defaults/measured/short.csv": "the same for short problems",
}
ALLOWED_NAMES = {"Cargo.lock", "ncu-counts.json", "h200.json"}
# A file a card.
ALLOWED_FOLDERS = {"crates/kernels/cards"}
# A package has no files of other folders: maturin refuses a build script in `..`, and a link is text on Windows.
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
# What would install or import the other project.
OTHER_PACKAGE = re.compile(r"\b(import|from) flashcore\b(?![_-])|-m flashcore\.|pip install '?flashcore\b(?!-attn)")
# Workspaces whose dependencies need a newer Rust.
NEWER_RUST = {"bindings/candle/Cargo.toml"}
# A run, or a list of runs.
RUN = r"`[a-z0-9]+(?:-[a-z0-9]+)*`"
RUNS = re.compile(rf"\bruns?\s+({RUN}(?:(?:,\s+|,?\s+and\s+){RUN})*)")
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")
RUN_KEYS = {"run", "date", "device", "driver", "revision", "command", "raw"}
CLAIM_KEYS = {"run", "claim", "value", "unit"}


def tracked():
    out = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    return [pathlib.Path(name) for name in out.split("\0") if name and pathlib.Path(name).is_file()]


def too_large(path):
    is_bundle = path.parent == pathlib.Path("evidence")
    if is_bundle or path.suffix in SOURCE or path.name in ALLOWED_NAMES or path.name.startswith("LICENSE"):
        return
    size = path.stat().st_size
    if size > MOST_BYTES and str(path) not in ALLOWED and str(path.parent) not in ALLOWED_FOLDERS:
        yield f"{path}: {size:,} bytes; at most {MOST_BYTES:,}, or a reason in {pathlib.Path(__file__).name}"


def long_lines(path, text, most, comment=r""):
    """Lines of prose, which begin like `comment`, that are too long: not in code, tables, or one link."""
    code = False
    for number, line in enumerate(text.split("\n"), 1):
        prose = re.match(rf"\s*{comment}\s*(.*)", line)
        if not prose:
            code = False
        elif prose[1].startswith("```"):
            code = not code
        # A figure is written by `flashcore evidence render`.
        elif not code and len(line) > most and not prose[1].startswith("|") and not re.search(r"\S{60,}|<!-- figure ", line):
            yield f"{path}:{number}: {len(line)} columns; at most {most}"


def headings(text):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", CODE.sub("", text), re.MULTILINE)
    names = [LINK.sub(r"\1", title).replace("`", "").strip().lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", name).replace(" ", "-") for name in names}


def broken_links(path, text):
    for _, target in LINK.findall(CODE.sub("", text)):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        if not page.exists():
            yield f"{path}: [...]({target}): no such file"
        elif anchor and page.suffix == ".md" and anchor not in headings(page.read_text(encoding="utf-8")):
            yield f"{path}: [...]({target}): the page has no such heading"


def evidence(files):
    runs, claims, lines = {}, [], 0
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            lines += 1
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                yield f"{where}: not JSON: {error}"
                continue
            if "claim" in row:
                claims.append((where, row))
                missing = CLAIM_KEYS - row.keys()
            else:
                missing = RUN_KEYS - row.keys()
                if row.get("run") in runs:
                    yield f"{where}: run {row['run']} is also in {runs[row['run']]}"
                runs[row.get("run")] = where
                if row.get("raw") and "at" not in row:
                    yield f"{where}: `raw` without `at`: the commit that has it, or null"
            if missing:
                yield f"{where}: no {', '.join(sorted(missing))}"
    for where, row in claims:
        if row.get("run") not in runs:
            yield f"{where}: no run is called {row.get('run')}"
    if lines > MOST_EVIDENCE_LINES:
        yield f"evidence/: {lines:,} lines; at most {MOST_EVIDENCE_LINES:,}"


def unknown_runs(pages, files):
    known = {name for path in files for name in re.findall(r'^{"run": "([^"]+)"', path.read_text("utf-8"), re.MULTILINE)}
    for page in pages:
        lists = RUNS.findall(page.read_text(encoding="utf-8"))
        named = [name for listed in lists for name in re.findall(r"`([^`]+)`", listed) if "-" in name]
        yield from (f"{page}: evidence/ has no run `{name}`" for name in sorted(set(named) - known))


def other_package(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if OTHER_PACKAGE.search(line):
            yield f"{path}:{number}: names PyPI's flashcore, another project: {line.strip()}"


def wrong_crate(manifest, package, files):
    """What a crate lacks to be published, a phrase each."""
    for name in (*LICENCES, "README.md"):
        if manifest.parent / name not in files:
            yield f"no {name}"
    if "include" not in package:
        yield "no `include`: its package would hold tests and data of tests"
    if "targets" not in package.get("metadata", {}).get("docs", {}).get("rs", {}):
        yield "no `targets` in [package.metadata.docs.rs]"


def packages(files):
    versions = {}
    for path in files:
        if path.name in LICENCES and path.read_bytes() != pathlib.Path(path.name).read_bytes():
            yield f"{path}: differs from {path.name} in the root"
        if path.name != "Cargo.toml":
            continue
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
        package = manifest.get("package", {})
        version = manifest.get("workspace", {}).get("package", package).get("rust-version")
        if str(path) in NEWER_RUST:
            continue
        if isinstance(version, str):
            versions.setdefault(version, path)
        elif version != {"workspace": True}:
            yield f"{path}: no rust-version"
        if package and package.get("publish") is not False:
            yield from (f"{path}: {what}" for what in wrong_crate(path, package, set(files)))
    if len(versions) > 1:
        named = ", ".join(f"{version} ({path})" for version, path in versions.items())
        yield f"several values of rust-version: {named}"


def problems(files):
    yield from packages(files)
    for path in files:
        yield from too_large(path)
        if path.suffix not in {".rs", ".py", ".md"}:
            continue
        text = path.read_text(encoding="utf-8")
        yield from other_package(path, text)
        lines = text.count("\n")
        if path.suffix in (".rs", ".py") and lines > MOST_SOURCE_LINES:
            yield f"{path}: {lines} lines; at most {MOST_SOURCE_LINES}"
        if path.suffix == ".md":
            yield from long_lines(path, text, MOST_COLUMNS)
            yield from broken_links(path, text)
        if path.suffix == ".rs":
            yield from long_lines(path, text, MOST_COMMENT_COLUMNS, "//[/!]?")
        if path.parent.name == "it" and path.name != "main.rs" and path.suffix == ".rs":
            if f"mod {path.stem};" not in (path.parent / "main.rs").read_text(encoding="utf-8"):
                yield f"{path}: not compiled: main.rs in this folder has no `mod {path.stem};`"
    pages = [path for path in files if path.suffix == ".md" and path.parts[:-1][:1] in ((), ("docs",))]
    # Rendered figures are tables, not text.
    texts = (re.sub(r"<!-- figure .*?<!-- /figure -->", "", path.read_text(encoding="utf-8"), flags=re.S) for path in pages)
    words = sum(len(text.split()) for text in texts)
    if words > MOST_WORDS:
        yield f"docs/ and the pages in the root: {words:,} words; at most {MOST_WORDS:,}"
    below = [path for path in files if path.parts[0] == "evidence"]
    rows = [path for path in below if path.suffix == ".jsonl" and len(path.parts) > 2]
    yield from evidence(rows)
    yield from unknown_runs([path for path in files if path.suffix == ".md"], rows)
    for path in below:
        if path.suffix not in {".jsonl", ".md"} and path.name != "current.toml":
            yield f"{path}: evidence/ has JSON lines, Markdown and current.toml only"


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    wrong = list(problems(tracked()))
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} problems in the tree")


main()
