#!/usr/bin/env python3
"""Compiles the kernels that FlashCore's reports are about, from their own repository, and counts them.

usage: scripts/fetch_reports.py [--repository FOLDER] [--include FOLDER ...] [--ptx FOLDER] [--json FILE]

The repository is https://github.com/GOATnote-Inc/periodicdent42: --repository names a local clone (bare or not),
otherwise it is cloned into a temporary folder. The files of the revisions below are unpacked in a temporary folder and
compiled to PTX with nvcc from PyPI, for sm_89 as theirs. CUTLASS, cuBLAS, NVTX and PyTorch are not among what is
installed: a file that needs their headers counts as failed, by the header, unless --include has it. The first three are
in the packages nvidia-cutlass (cutlass_library/source/include, .../tools/util/include), nvidia-cublas and nvidia-nvtx.
PyTorch's are needed by bindings, which have no kernel.

Prints counts as JSON, or writes them to --json: kernels compiled, failures by reason. --ptx keeps the PTX of files
that differ; none of it, and nothing that was fetched, belongs in the tree.

Exit code: 0 all files were tried, 1 a revision is missing or has none of the files, 3 no repository or no compiler.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

import compile_corpus

URL = "https://github.com/GOATnote-Inc/periodicdent42"
FOLDERS = ["cudadent42/bench/kernels/*.cu", "bench/cutlass/*.cu"]
V2C = "evo-sdpa/kernels/sdpa_fused_v2c.cu"
FUSED = ["flashcore/kernels/flashcore_fused_wmma.cu"]
# Of each revision the files of these folders. The third one is the last that has kernels in the third folder.
REVISIONS = {
    "813e3c8b2af5c2932bddec2f130fe5d81936d71e": FOLDERS,
    "8337b99208285fe6873eab3e3d1c3830a19c612a": FOLDERS,
    "9d41b275fe0a04df2fc84f9a1b78768e88140dca": [*FOLDERS, "flashcore/kernels/*.cu", V2C],
    # Earlier forms of one kernel, whose resources the reports give.
    "29a0dad053297dac04ea9912e03d630e8dadcff2": FUSED,
    "001c85dd9c1f3f72c4fe04fee6516600e62d1520": FUSED,
    "7f385060a10bdffccfdaf96e334505845db0de4f": FUSED,
    "1829bdc8a075e8c2bc9c21b7dca81fa8f5557ea8": FUSED,
    "dfe40be7e027df404f429192f92d058b421e485f": FUSED,
    "39c9f95ea5b69ffe08a27f05971146250738c8ca": FUSED,
}
ARCH = "sm_89"
# What PyTorch's loader passes, by which theirs are built; and no warnings.
FLAGS = [*compile_corpus.FLAGS, "-w", "--expt-relaxed-constexpr", f"-arch={ARCH}"]


def git(repository, *arguments):
    return subprocess.run(["git", "-C", repository, *arguments], capture_output=True, check=False)


def clone(folder):
    """A clone without files: git fetches those that are asked for."""
    command = ["git", "clone", "--quiet", "--bare", "--filter=blob:none", URL, str(folder)]
    if subprocess.run(command, check=False).returncode:
        print(f"cannot clone {URL}: name a local clone by --repository", file=sys.stderr)
        sys.exit(3)
    return folder


def unpack(repository, revision, to):
    """All of a revision's sources: kernels include their neighbours."""
    archive = git(repository, "archive", "--format=tar", revision, "--", "*.cu", "*.cuh", "*.h", "*.hpp")
    if archive.returncode:
        print(f"{revision}: {archive.stderr.decode().strip()}", file=sys.stderr)
        sys.exit(1)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(to, filter="data")


def reason(said):
    """Why a file did not compile, in a few words that quote nothing of it."""
    header = re.search(r"fatal error: (\S+): No such file", said)
    if header:
        top = header[1].split("/")[0]
        return f"header not installed: {top}/" if top != header[1] else f"header not installed: {header[1]}"
    first = re.search(r"error\s*:?\s*(.*)", said)
    return re.sub(r'"[^"]*"', '"…"', first[1])[:80] if first else "no message"


def compiled(tools, source, root, includes, keep):
    """The number of kernels, and none; or none, and why not."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "out.ptx"
        command = [tools / "nvcc", *FLAGS, f"-I{root}", *(f"-I{include}" for include in includes), source, "-o", target]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=compile_corpus.TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return None, f"more than {compile_corpus.TIMEOUT_S} s"
        if ran.returncode:
            return None, reason(ran.stderr)
        text = target.read_text(encoding="utf-8")
        if keep:
            (keep / f"{root.name[:7]}-{source.stem}.ptx").write_text(text, encoding="utf-8")
        return len(re.findall(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s", text, re.M)), None


def counts(results):
    reasons = collections.Counter(why for _, why in results if why)
    kernels = [number for number, why in results if why is None]
    return {
        "files": len(results),
        "compiled": len(kernels),
        "without kernels": kernels.count(0),
        "kernels": sum(kernels),
        "failed": dict(sorted(reasons.items())),
    }


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("--repository", type=pathlib.Path, metavar="FOLDER", help="a local clone")
    usage.add_argument("--include", type=pathlib.Path, action="append", default=[], metavar="FOLDER", help="more headers")
    usage.add_argument("--ptx", type=pathlib.Path, metavar="FOLDER", help="keep the PTX there")
    usage.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the counts there")
    options = usage.parse_args()
    tools = compile_corpus.environment()
    if options.ptx:
        options.ptx.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        repository = options.repository or clone(work / "clone")
        if git(repository, "rev-parse", "--git-dir").returncode:
            print(f"{repository}: not a git repository", file=sys.stderr)
            return 3
        files = []
        for revision, patterns in REVISIONS.items():
            root = work / revision
            root.mkdir()
            unpack(repository, revision, root)
            for pattern in patterns:
                found = sorted(root.glob(pattern))
                if not found:
                    print(f"{revision}: no {pattern}", file=sys.stderr)
                    return 1
                files += [(revision, pattern, file) for file in found]
        # A file that is the same in several revisions is compiled in the first.
        named = [(revision, pattern, hashlib.sha256(file.read_bytes()).digest()) for revision, pattern, file in files]
        first = {name: (file, work / revision) for (revision, _, file), (*_, name) in reversed([*zip(files, named)])}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            tried = pool.map(lambda place: compiled(tools, *place, options.include, options.ptx), first.values())
            once = dict(zip(first, tried))
        found = {}
        for revision, patterns in REVISIONS.items():
            found[revision] = {
                p: counts([once[name] for r, q, name in named if (r, q) == (revision, p)]) for p in patterns
            }
    told = {"repository": URL, "nvcc": nvcc_version(tools), "arch": ARCH, "revisions": found}
    told["distinct files"] = counts(list(once.values()))
    text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def nvcc_version(tools):
    said = subprocess.run([tools / "nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V(\d\S+)", said)[1]


if __name__ == "__main__":
    sys.exit(main())
