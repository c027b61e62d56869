#!/usr/bin/env python3
"""Says whether two folders of PTX hold the same kernels and launches: what a change of the sources must not change.

usage: scripts/same_machine_code.py OLD NEW [--sass-only] [--ptxas PATH]

OLD and NEW are folders that `flashcore-tools dump-ptx` wrote before and after the change. Kernels go by
their paths; a kernel whose name changed is found by its text.

A kernel is the same if its PTX is, once registers, labels, parameters and the entry are numbered by
first use, and if offline ptxas makes the same machine code of both. Equal files are not assembled.
--sass-only accepts other PTX as long as the machine code is the same: for
changes that reorder or drop instructions on which ptxas decides by itself.

Launches are the lines of launches.txt in each folder: the same kernels with other arguments are not the same. A
folder without the file, of an older dump, is said not to be compared.

ptxas is --ptxas, $FLASHCORE_PTXAS, or .bin/ptxas (scripts/get-ptxas.sh).

Exit code: 0 all the same, 1 something differs, 2 wrong usage, 3 no ptxas.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A register, a label, or a name of the entry and its parameters. Special registers (%tid) have no number.
NAMES = re.compile(r"(?P<register>%[a-z]+)\d+\b|\$\w+|\b\w+_param_\w+|\b(?:L|LBB|BB)\d\w*")
COUNTS = re.compile(r"^\s*\.reg\s.*$", re.MULTILINE)
COMMENTS = re.compile(r"//.*$", re.MULTILINE)


def renumbered(text):
    """PTX with comments and counts of registers dropped, and every name numbered by its first use."""
    text = COUNTS.sub("", COMMENTS.sub("", text))
    entry = re.search(r"\.entry\s+(\w+)", text)
    parameters = re.findall(r"\.param\s[^,)]*?(\w+)(?:\[\d+\])?\s*[,)\n]", text)
    named = {name: f"parameter{n}" for n, name in enumerate(dict.fromkeys(parameters))}
    if entry:
        named[entry[1]] = "entry"
        text = re.sub(r"\b\w+\b", lambda word: named.get(word[0], word[0]), text)
    numbers, counts = {}, {}

    def number(match):
        kind = match["register"] or "name"
        if match[0] not in numbers:
            counts[kind] = counts.get(kind, 0) + 1
            numbers[match[0]] = f"{kind}#{counts[kind]}"
        return numbers[match[0]]

    return re.sub(r"\s+", " ", NAMES.sub(number, text)).strip()


def machine_code(elf):
    """The .text sections of a cubin (64-bit ELF), in their order, without names."""
    table, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]

    def name(header):
        start = headers[names][4] + header[0]
        return elf[start : elf.index(b"\0", start)]

    return [elf[h[4] : h[4] + h[5]] for h in headers if name(h).startswith(b".text")]


def assembled(ptxas, path):
    """The machine code that ptxas makes of a file for the target in its text, or its error."""
    target = re.search(r"^\.target\s+(sm_\d+[af]?)", path.read_text(), re.MULTILINE)[1]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        command = [ptxas, "-arch", target, str(path), "-o", cubin.name]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            return (run.stdout + run.stderr).replace(str(path), "FILE")
        return b"".join(machine_code(pathlib.Path(cubin.name).read_bytes()))


def pairs(old, new):
    """(path, old file, new file) of each kernel, and a line for each that only one folder has."""
    files = [{path.relative_to(top): path for path in top.rglob("*.ptx")} for top in (old, new)]
    both = [(name, files[0][name], files[1][name]) for name in sorted(files[0].keys() & files[1].keys())]
    lone = [{name: files[i][name] for name in files[i].keys() - files[1 - i].keys()} for i in (0, 1)]
    by_text = {}
    for name, path in lone[1].items():
        by_text.setdefault((name.parent, renumbered(path.read_text())), (name, path))
    for name, path in sorted(lone[0].items()):
        found = by_text.pop((name.parent, renumbered(path.read_text())), None)
        if found:
            both.append((name, path, found[1]))
            del lone[0][name], lone[1][found[0]]
    return both, [f"{name}: only in {top}" for top, only in zip((old, new), lone) for name in sorted(map(str, only))]


def launches(top):
    """The launches of each folder that has them: kernel's name, and the rest of the line."""
    found = {}
    for path in top.rglob("launches.txt"):
        lines = (line.partition(" ") for line in path.read_text().splitlines())
        found[path.parent.relative_to(top)] = {(name, rest) for name, _, rest in lines}
    return found


def compared_launches(old, new):
    """How many launches are the same, and a line for each kernel whose launches are not."""
    old, new = launches(old), launches(new)
    both = old.keys() & new.keys()
    differs = [f"{folder}: no launches to compare" for folder in sorted(old.keys() ^ new.keys())]
    for folder in sorted(both):
        names = sorted({name for name, _ in old[folder] ^ new[folder]})
        differs += [f"{folder / name}: other launches" for name in names]
    return sum(len(old[folder] & new[folder]) for folder in both), differs


def verdict(args, pair):
    _, old, new = pair
    if old.read_bytes() == new.read_bytes():
        return "same file"
    same_ptx = renumbered(old.read_text()) == renumbered(new.read_text())
    if not same_ptx and not args.sass_only:
        return "other PTX"
    if assembled(args.ptxas, old) != assembled(args.ptxas, new):
        return "other machine code"
    return "same PTX and machine code" if same_ptx else "same machine code, other PTX"


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1][7:])
    parser.add_argument("folders", nargs=2, type=pathlib.Path)
    parser.add_argument("--sass-only", action="store_true")
    parser.add_argument("--ptxas", default=os.environ.get("FLASHCORE_PTXAS", str(ROOT / ".bin/ptxas")))
    args = parser.parse_args()
    if not all(folder.is_dir() for folder in args.folders):
        parser.error("two folders of PTX are needed")
    if not os.access(args.ptxas, os.X_OK):
        print(f"no ptxas at {args.ptxas}: scripts/get-ptxas.sh fetches it", file=sys.stderr)
        sys.exit(3)
    both, lone = pairs(*args.folders)
    counts, differs = collections.Counter(), []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for pair, found in zip(both, pool.map(lambda pair: verdict(args, pair), both)):
            counts[found] += 1
            if found.startswith("other"):
                differs.append(f"{pair[0]}: {found}")
    counts["same launches"], others = compared_launches(*args.folders)
    differs += lone + others
    for line in differs:
        print(line)
    print("; ".join(f"{n} {found}" for found, n in sorted(counts.items())) or "no kernels")
    sys.exit(1 if differs or not both else 0)


if __name__ == "__main__":
    main()
