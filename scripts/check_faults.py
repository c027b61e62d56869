#!/usr/bin/env python3
"""Runs `flashcore check` on the faults of lab/check/faults, and says which it finds. No GPU is needed.

usage: scripts/check_faults.py [planted|races|newer] [--flashcore PROGRAM] [--jobs N]

Those of a list, but for what equivalent.json excludes, and what they are faults of; with `planted` (the default) those
of `unseen` and their twins, with `races` the corpus's races in shared memory. Faults in the PTX of Triton, which is not
in the tree, are left out. nvcc comes from PyPI (compile_corpus.py).

Exit code: 0 all faults are found and nothing else, 1 some are not, or a kernel without one is not clean.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

import compile_corpus

CORPUS = compile_corpus.CORPUS
FAULTS = CORPUS.parent / "faults"


def mutated(text, fault):
    lines, first = text.split("\n"), fault["line"] - 1
    at = slice(first, first + len(fault["before"]))
    if lines[at] != fault["before"]:
        raise SystemExit(f"{fault['kernel']}: line {fault['line']} is not what it was when it was drawn")
    lines[at] = fault["after"]
    return "\n".join(lines)


def sources(which):
    """Name, text, launch file and whether it is a fault, of each."""
    excluded, used = json.loads((FAULTS / "equivalent.json").read_text(encoding="utf-8")), {}
    plain = lambda kernel: pathlib.PurePath(kernel).name.replace(".", "_")
    for fault in json.loads((FAULTS / f"{which}.json").read_text(encoding="utf-8")):
        name, file = f"{plain(fault['kernel'])}-{fault['operator']}", CORPUS / f"{fault['kernel']}.cu"
        if name not in excluded and not fault["kernel"].startswith("triton/"):
            yield name, mutated(file.read_text(encoding="utf-8"), fault), compile_corpus.declaration(file), True
            used[fault["kernel"]] = file
    for file in sorted((CORPUS / "faults").glob("*.cu")) if which == "races" else ():
        if file.read_text(encoding="utf-8").startswith("// fault: shared-race"):
            yield plain(file.stem), file.read_text(encoding="utf-8"), compile_corpus.declaration(file), True
            used[f"faults/{file.stem}.twin"] = file.with_name(f"{file.stem}.twin.cu")
    for kernel, file in sorted(used.items()):
        yield plain(kernel), file.read_text(encoding="utf-8"), compile_corpus.declaration(file), False
    for file in sorted((FAULTS / "unseen").glob("*.cu")) if which == "planted" else ():
        launch = file.with_name(f"{file.stem.removesuffix('_twin')}.toml")
        yield file.stem, file.read_text(encoding="utf-8"), launch, not file.stem.endswith("_twin")


def checked(tools, flashcore, folder, name, text, launch):
    """The findings of a kernel, each a kind and its lines; or why there are none."""
    (folder / f"{name}.cu").write_text(text, encoding="utf-8")
    (folder / f"{name}.toml").write_bytes(launch.read_bytes())
    arch = compile_corpus.arch_of(launch, "sm_80")
    compiler = [tools / "nvcc", *compile_corpus.FLAGS, f"-arch={arch}", f"{name}.cu", "-o", f"{name}.ptx"]
    check = [flashcore, "check", f"{name}.ptx", "--launch", f"{name}.toml", "--profile", "h200", "--json"]
    try:
        for command in (compiler, check):
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
            if command is compiler and ran.returncode:
                return f"does not compile: {ran.stderr.strip()[:300]}"
        return [(found["kind"], [line["line"] for line in found["lines"]]) for found in json.loads(ran.stdout)["findings"]]
    except subprocess.TimeoutExpired:
        return "takes more than 300 s"
    except ValueError:
        return f"is not judged: {(ran.stderr or ran.stdout).strip()[:300]}"


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("list", nargs="?", default="planted", choices=["planted", "races", "newer"])
    usage.add_argument("--flashcore", type=pathlib.Path, default="target/release/flashcore", metavar="PROGRAM")
    usage.add_argument("--jobs", type=int, default=2, metavar="N")
    options = usage.parse_args()
    tools, all_of_them = compile_corpus.environment(), list(sources(options.list))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        check = lambda one: checked(tools, options.flashcore.resolve(), pathlib.Path(folder), *one[:3])
        found = list(pool.map(check, all_of_them))
    right = {True: 0, False: 0}
    for (name, *_, is_fault), findings in zip(all_of_them, found):
        is_right = isinstance(findings, list) and bool(findings) == is_fault
        right[is_fault] += is_right
        if not is_right:
            print(f"{name}: {findings or 'not found'}")
    faults = sum(is_fault for *_, is_fault in all_of_them)
    print(f"{right[True]} of {faults} faults are found, {right[False]} of {len(all_of_them) - faults} kernels without one are clean")
    return int(sum(right.values()) < len(all_of_them))


if __name__ == "__main__":
    sys.exit(main())
