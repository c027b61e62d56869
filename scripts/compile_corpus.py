#!/usr/bin/env python3
"""Compiles the CUDA kernels of lab/check/corpus to PTX with nvcc from PyPI. No GPU and no toolkit are needed.

usage: scripts/compile_corpus.py [--ptxas] [--only PATTERN]

Prints the folder of PTX files last: NAME.ptx of NAME.cu, those of faults/ in a folder of that name. It is a cache outside
of the tree, named by the hash of sources and versions; what is there is not compiled again. FLASHCORE_CI_CACHE names
the folder of caches (default ~/.cache/flashcore-ci). --ptxas also assembles each
file with the same package's ptxas.
A fault must name its kind and mark lines that have code in the PTX, a twin must do neither; a warning of nvcc is a failure.
lab/check/corpus/README.md describes the files.

Exit code: 0 all compiled, 1 something did not, 2 wrong usage, 3 no compiler.
"""

import argparse
import concurrent.futures
import fnmatch
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "lab" / "check" / "corpus"
FLAGS = ["-ptx", "-lineinfo", "-O3", "-std=c++17"]
TIMEOUT_S = 300
KINDS = {f"out-of-bounds-{space}" for space in ("global", "shared", "local")}
KINDS |= {"shared-race", "global-race", "missing-wait", "missing-fence", "misaligned", "uninitialised-shared"}
KINDS |= {"uninitialised-global", "barrier-divergence", "wrong-mask"}
KINDS |= {"wrong-phase", "missing-proxy-fence", "product-in-flight"}


def environment():
    """The folder of the package with nvcc, installed if it is not there."""
    got = subprocess.run(
        [ROOT / "scripts" / "get-torch.sh", CORPUS / "requirements.txt"], stdout=subprocess.PIPE, text=True, check=False
    )
    if got.returncode:
        sys.exit(3)  # the installer said why
    found = list(pathlib.Path(got.stdout.strip()).glob("lib/python*/site-packages/nvidia/cu13/bin/nvcc"))
    if not found:
        print(f"no nvcc in {got.stdout.strip()}: remove that folder to install it again", file=sys.stderr)
        sys.exit(3)
    return found[0].parent


def declaration(source):
    """The TOML file of a source: a twin has that of its fault."""
    return source.with_name(source.name.split(".")[0] + ".toml")


def sources(pattern="*"):
    files = [*sorted(CORPUS.glob("*.cu")), *sorted((CORPUS / "faults").glob("*.cu"))]
    return [file for file in files if fnmatch.fnmatchcase(file.name.split(".")[0], pattern)]


def arch_of(launch, default=None):
    return tomllib.loads(launch.read_text(encoding="utf-8")).get("arch", default)


def cache():
    """The folder of PTX, named by all that it depends on."""
    base = os.environ.get("FLASHCORE_CI_CACHE") or pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "flashcore-ci"
    )
    seen = hashlib.sha256(" ".join(FLAGS).encode())
    for file in [CORPUS / "requirements.txt", *(f for s in sources() for f in (s, declaration(s)))]:
        seen.update(file.relative_to(CORPUS).as_posix().encode() + b"\0" + file.read_bytes())
    return pathlib.Path(base) / f"corpus-{seen.hexdigest()[:16]}"


def wrong_marks(source, ptx):
    """What is wrong with the comments that say what the fault is, and where; or none."""
    lines = source.read_text(encoding="utf-8").split("\n")
    kind = re.fullmatch(r"// fault: (\S+)", lines[0])
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("// FAULT")}
    if source.parent == CORPUS or source.name.endswith(".twin.cu"):
        return "marks a fault, and is none" if kind or marked else None
    if not kind or kind[1] not in KINDS:
        return f"the first line is not `// fault: KIND`, of {', '.join(sorted(KINDS))}"
    # `.loc FILE LINE COLUMN`, and for inlined code `inlined_at FILE LINE COLUMN`.
    lost = marked - {int(line) for line in re.findall(r"(?:\.loc\s+|inlined_at )\d+ (\d+) ", ptx)}
    if lost or not marked:
        return f"no code at the marked lines {sorted(lost)}" if lost else "no line is marked"
    return None


def compile_one(tools, source, out, ptxas):
    """An error, or none. A file has its name only when it is whole."""
    target = (out / source.relative_to(CORPUS)).with_suffix(".ptx")
    target.parent.mkdir(parents=True, exist_ok=True)
    name, arch = source.relative_to(ROOT), arch_of(declaration(source))
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = target if target.exists() else pathlib.Path(folder, target.name)
        commands = [] if made is target else [[tools / "nvcc", *FLAGS, f"-arch={arch}", name, "-o", made]]
        commands += [[tools / "ptxas", f"-arch={arch}", made, "-o", os.devnull]] if ptxas else []
        for command in commands:
            try:
                ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                return f"{name}: {command[0].name} took more than {TIMEOUT_S} s"
            said = ran.stderr.strip()
            if ran.returncode or (said and command[0].name == "nvcc"):  # a warning is a mistake in a corpus
                return f"{name}: {command[0].name} exit code {ran.returncode}\n{said}"
        # Paths in the tree, so that what is kept does not depend on where the tree is.
        ptx = made.read_text(encoding="utf-8").replace(f'"{ROOT}/', '"')
        wrong = wrong_marks(source, ptx)
        if wrong:
            return f"{name}: {wrong}"
        if made is not target:
            made.write_text(ptx, encoding="utf-8")
            made.rename(target)
    return None


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("--ptxas", action="store_true", help="assemble the PTX, too")
    usage.add_argument("--only", default="*", metavar="PATTERN", help="kernels of these names, such as 'gemm_*'")
    options = usage.parse_args()
    files = sources(options.only)
    if not files:
        print(f"no kernel is called {options.only}", file=sys.stderr)
        return 2
    tools, out = environment(), cache()
    started = time.monotonic()
    there = sum((out / f.relative_to(CORPUS)).with_suffix(".ptx").exists() for f in files)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = [e for e in pool.map(lambda f: compile_one(tools, f, out, options.ptxas), files) if e]
    for error in errors:
        print(error, file=sys.stderr)
    kernels = sum(f.parent == CORPUS for f in files)
    twins = sum(f.name.endswith(".twin.cu") for f in files)
    faults = len(files) - kernels - twins
    assembled = ", all assembled" if options.ptxas and not errors else ""
    print(
        f"{kernels} kernels, {faults} faults, {twins} twins: {len(files) - len(errors)} compiled "
        f"({there} were there){assembled}, {len(errors)} failed, {time.monotonic() - started:.1f} s"
    )
    print(out)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
