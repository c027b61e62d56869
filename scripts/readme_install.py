#!/usr/bin/env python3
"""Writes the install lines of README.md and of the Python pages: of a clone, or of the registries once PUBLISHED.

usage: readme_install.py            writes the lines between the markers of each page
       readme_install.py --check    exits with 1 if a page has other lines
       readme_install.py --test     both states, on copies of the pages

PUBLISHED is the one switch. Set it when the names on PyPI and crates.io are the project's, and write the pages.
"""

import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLISHED = False
# What builds a wheel for other machines, and the folder that it leaves it in.
WHEEL = "scripts/release/linux.sh x86_64 dist"

CLONE = "In a clone of this repository, on Linux with Rust 1.89 or newer. The\nfirst command builds for minutes:"
FIRST = """
cargo run --release                                     # is attention correct here, and how fast?
cargo run --release -- check tiny --plant drop-barrier  # exit 1: finds the error that it plants
"""
FROM_CLONE = f"""
pip install ./bindings/python         # Python 3.9 or newer: import flashcore_attn
cargo install --path lab/cli          # the command `flashcore`
{WHEEL}  # wheel and command for glibc 2.17, in dist/
"""
FROM_REGISTRIES = """
pip install flashcore-attn           # Python 3.9 or newer: import flashcore_attn
cargo add flashcore                  # in your Rust package
uvx --from flashcore-attn flashcore  # the command, without installing it
"""
EXTRAS = """
pip install {0}
pip install "{0}[torch]"             # and PyTorch 2.11 or newer
pip install "{0}[transformers]"      # and Transformers 5
"""


def shell(lines):
    return f"```sh\n{lines.strip()}\n```"


def blocks(published):
    """The lines of each page by its path."""
    if published:
        readme = f"Rust needs version 1.89 or newer, Python no compiler:\n\n{shell(FROM_REGISTRIES)}\n\n{CLONE}\n\n{shell(FIRST)}"
        return {
            "README.md": readme,
            "bindings/python/README.md": shell(EXTRAS.format("flashcore-attn")),
            "docs/python.md": shell("pip install flashcore-attn"),
        }
    return {
        "README.md": f"Nothing is published yet. {CLONE}\n\n{shell(FIRST)}\n\nTo install from the clone:\n\n{shell(FROM_CLONE)}\n\nIn a Rust package: `cargo add --path CLONE/crates/flashcore`, where CLONE is this folder.",
        "bindings/python/README.md": "In this folder of a clone, with Rust 1.89 or newer:\n\n" + shell(EXTRAS.format(".")),
        "docs/python.md": shell("pip install ./bindings/python        # from a clone; needs Rust 1.89 or newer"),
    }


def rendered(text, block, page):
    """The page with these lines between its markers."""
    marked = re.compile(r"(<!-- install:[^>]*-->\n)(.*?)(<!-- /install -->)", re.DOTALL)
    found = marked.findall(text)
    if len(found) != 1:
        sys.exit(f"{page}: {len(found)} pairs of `<!-- install: ... -->` and `<!-- /install -->`; one is needed")
    return marked.sub(lambda part: f"{part[1]}{block}\n{part[3]}", text)


def pages(root, published, write):
    """The pages that have other lines, now written if that is asked for."""
    changed = []
    for page, block in blocks(published).items():
        text = (root / page).read_text(encoding="utf-8")
        wanted = rendered(text, block, page)
        if wanted != text:
            changed.append(page)
            if write:
                (root / page).write_text(wanted, encoding="utf-8")
    return changed


def test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for page in blocks(PUBLISHED):
            (root / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / page, root / page)
        before = {page: (root / page).read_text(encoding="utf-8") for page in blocks(PUBLISHED)}
        # The other state changes every page, says so without writing, and is stable.
        assert pages(root, not PUBLISHED, write=False) == list(before)
        assert pages(root, not PUBLISHED, write=True) == list(before)
        assert pages(root, not PUBLISHED, write=False) == []
        for published in (True, False):
            pages(root, published, write=True)
            for page in before:
                text = (root / page).read_text(encoding="utf-8")
                assert ("pip install flashcore-attn" in text) == published, (page, published)
                outside = text.split("<!-- install:")[0], text.split("<!-- /install -->")[1]
                assert outside == (before[page].split("<!-- install:")[0], before[page].split("<!-- /install -->")[1]), page
        pages(root, PUBLISHED, write=True)
        assert before == {page: (root / page).read_text(encoding="utf-8") for page in before}
    print("both states of the install lines are written, and written back")


def main():
    if sys.argv[1:] == ["--test"]:
        return test()
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    if not PUBLISHED and not (ROOT / WHEEL.split()[0]).is_file():
        sys.exit(f"{WHEEL.split()[0]} is not there: what builds a wheel?")
    changed = pages(ROOT, PUBLISHED, write=not sys.argv[1:])
    if changed and sys.argv[1:]:
        sys.exit(f"{', '.join(changed)}: other install lines than scripts/readme_install.py writes; run it")


main()
