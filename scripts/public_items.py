#!/usr/bin/env python3
"""public_items.py: compares what the documentation of the crate flashcore lists with crates/flashcore/public-items.txt.

usage: public_items.py [--write]   after `cargo doc -p flashcore --no-deps`

Items of `flashcore::unstable` do not count. There are at most 150 others.
"""

import os
import re
import sys
from pathlib import Path

MOST = 150
ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "crates/flashcore/public-items.txt"


def documented():
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    page = (target / "doc/flashcore/all.html").read_text()
    names = re.findall(r'<li><a href="([^"]+)">([^<]+)</a></li>', page)
    kinds = ((Path(href).name.split(".")[0], name) for href, name in names)
    return sorted(f"{kind} {name}" for kind, name in kinds if not name.startswith("unstable::"))


def main():
    items = documented()
    if len(items) > MOST:
        sys.exit(f"public_items.py: {len(items)} public items; at most {MOST} are allowed: move some to `unstable`")
    if "--write" in sys.argv[1:]:
        LIST.write_text("\n".join(items) + "\n")
        return
    listed = LIST.read_text().splitlines()
    changes = [f"+ {item}" for item in items if item not in listed] + [f"- {item}" for item in listed if item not in items]
    if changes:
        sys.exit("\n".join(["public_items.py: public items changed; run it with --write if that is meant:", *changes]))
    print(f"{len(items)} public items, as listed")


main()
