#!/usr/bin/env python3
"""Writes the table of docs/compared.md: what other libraries serve, read from their wheels and sources.

    scripts/probe_peers.py fa3=FOLDER fa4=FOLDER flashinfer=FOLDER cudnn=FOLDER [--check]

Each FOLDER has an unpacked wheel (fa4: flash-attn-4, flashinfer: flashinfer-python, cudnn: nvidia-cudnn-frontend), or for
fa3 FlashAttention's sources, with their commit in a file COMMIT. Cells are in compared.toml. One with a probe is a text,
a file, and a regular expression that must be found there; where it is not, the script ends and says so: the library has
changed, and the cell must be read again. A cell without a probe is from a project's documentation; a row without any
says so. --check writes nothing, and ends with an error where the page has another table or other versions."""
import datetime
import re
import sys
import tomllib
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compared.md"
BEGIN, END = "<!-- probed -->", "<!-- /probed -->"
LIBRARIES = {"fa3": "FA3", "fa4": "FA4", "flashinfer": "FlashInfer", "cudnn": "cuDNN", "candle": "candle-flash-attn"}
WHEELS = {"fa4": "flash_attn_4", "flashinfer": "flashinfer_python", "cudnn": "nvidia_cudnn_frontend"}
ROWS = Path(__file__).with_name("compared.toml")


def version(name, folder):
    """Of a wheel that of its metadata's folder, of sources their commit (a file COMMIT)."""
    if name not in WHEELS:
        return f"commit {(folder / 'COMMIT').read_text().strip()[:12]}"
    metadata = next(folder.glob(f"{WHEELS[name]}-*.dist-info"))
    return metadata.name.removeprefix(f"{WHEELS[name]}-").removesuffix(".dist-info")


def cell(folders, library, value, missing):
    if isinstance(value, str):
        return value
    text, file, pattern = value
    path = folders[library] / file
    if not path.is_file() or not re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.DOTALL):
        missing.append(f"{library}: `{pattern}` is not in {path}: read it, and change the cell")
    return text + " \\*"


def main():
    folders = {name: Path(folder) for name, _, folder in (word.partition("=") for word in sys.argv[1:] if "=" in word)}
    if set(folders) != set(LIBRARIES) - {"candle"}:
        sys.exit(__doc__)
    missing, lines = [], ["| | FlashCore | " + " | ".join(LIBRARIES.values()) + " |", "|---" * 7 + "|"]
    for row, texts in tomllib.loads(ROWS.read_text(encoding="utf-8")).items():
        cells = [cell(folders, library, texts[library], missing) for library in LIBRARIES]
        note = "" if any(text.endswith("*") for text in cells) else " (not probed)"
        lines.append(f"| {row}{note} | {texts['flashcore']} | " + " | ".join(cells) + " |")
    if missing:
        sys.exit("\n".join(missing))
    named = [f"{LIBRARIES[name]} {version(name, folder)}" for name, folder in folders.items()]
    day = datetime.date.today().isoformat()
    text = "\n".join(["", f"Cells with an asterisk were read on {day}:\n{', '.join(named)}.", "", *lines, ""])
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    known, after = rest.split(END)
    undated = lambda text: re.sub(r"read on \d{4}-\d\d-\d\d", "", text).strip()
    if "--check" not in sys.argv:
        PAGE.write_text(before + BEGIN + "\n" + text + END + after, encoding="utf-8")
    elif undated(known) != undated(text):
        sys.exit(f"{PAGE} has another table; without --check it is written")


main()
