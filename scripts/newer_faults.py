"""Operators and kernels of `scripts/plant_faults.py --newer`: mistakes with Hopper's asynchronous instructions in
lab/check/corpus/hopper_*.cu, and mistakes in the PTX that Triton makes of lab/check/corpus/triton.

Triton's PTX is not in the tree. `triton_cases` makes it; it needs Triton 3.9.0 and the package flashcore_attn.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import compile_corpus

TRITON = compile_corpus.CORPUS / "triton"
KEEP = '#!/bin/sh\nfor last; do case $before in --launch) cp -r "$(dirname "$last")"/. "$KEPT";; esac; before=$last; done\nexit 9\n'


def replaced(*pairs):
    """An operator that replaces each match of a pattern on a line, one at a time."""

    def sites(lines):
        for number, line in enumerate(lines):
            for pattern, by in pairs:
                for match in re.finditer(pattern, line):
                    yield number, [line[: match.start()] + match.expand(by) + line[match.end() :]]

    return sites


def earlier(pattern, most):
    """A line before the statements, up to `most`, that it follows in its block."""

    def sites(lines):
        for number, line in enumerate(lines):
            for up in range(1, most + 1) if re.search(pattern, line) else ():
                before = lines[number - up : number]
                if any(not text.strip().endswith(";") or re.search(r"^\s*(for|while|if)\b", text) for text in before):
                    break
                yield number - up, [line, *before]

    return sites


ASM = r'asm volatile\("{}[^;"]*;(?:\\n[^"]*)?"[^;]*\);'

# In CUDA C++ for Hopper.
HOPPER = {
    "no-expect-tx": replaced((r"arrive\.expect_tx(\.shared::cta\.b64 _, \[%0\]), %1;", r"arrive\1;")),
    "other-bytes": replaced((r'"([rn])"\((TILE \* 4|COLUMNS \* 4|sizeof\(\w+\)|512|\(M \+ N\) \* K \* 2)\)', r'"\1"(\2 / 2)')),
    "other-parity": replaced(
        (r"(\w+ / STAGES|\(tile / STAGES - 1\)) & 1(?=\))", r"(\1 & 1 ^ 1)"), (r"(parity\S* p, \[%1\]), 0", r"\1, 1"),
        (r"wait\(&full, 0\)", "wait(&full, 1)"),
    ),  # fmt: skip
    "no-phase-wait": replaced((r"uint32_t done = 0;", "uint32_t done = 1;"), (r"^( +)(if \(.*\) )?wait\(.*\);", r"\1\2;")),
    "early-release": earlier(r"mbarrier\.arrive\.shared|^\s*__syncthreads\(\);|^\s*all_blocks\(\);", 4),
    "no-proxy-fence": replaced((ASM.format(r"fence\.proxy\.async"), ";")),
    "no-product-wait": replaced((r"(wgmma\.wait_group\.sync\.aligned) 0", r"\1 1")),
    "no-product-commit": replaced((ASM.format(r"wgmma\.commit_group"), ";")),
    "no-store-wait": replaced((ASM.format(r"cp\.async\.bulk\.wait_group"), ";"), (r"\\ncp\.async\.bulk\.wait_group 0;", "")),
    "no-store-commit": replaced((ASM.format(r"cp\.async\.bulk\.commit_group;\""), ";"), (r"cp\.async\.bulk\.commit_group;\\n", "")),
    "no-cluster-wait": replaced((ASM.format(r"barrier\.cluster"), ";"), (r"^( +)all_blocks\(\);", r"\1;")),
    "fewer-arrivals": replaced((r'(mbarrier\.init.*"r"\()TILE\)', r"\1TILE / 2)"), (r'(mbarrier\.init.*\[%0\], )1;', r"\g<1>0x2;")),
    "other-stage": replaced((r"tile % STAGES|step % STAGES", "(tile + 1) % STAGES")),
    "one-tile-more": replaced((r"(tile|step) \+ STAGES < ", r"\1 + STAGES <= "), (r"(tile|step) < (tiles|steps); ", r"\1 <= \2; ")),
}  # fmt: skip

# In PTX of Triton. What starts with `@` is guarded.
PTX = {
    "no-barrier": replaced((r"^\tbar\.sync \t0;", "")),
    "barrier-later": earlier(r"^\t(ld|st)\.shared", 1),
    "no-copy-wait": replaced((r"^\tcp\.async\.wait_group .*;", "")),
    "copy-wait-one-less": replaced((r"^\tcp\.async\.wait_group \t0;", "\tcp.async.wait_group 1;")),
    "no-copy-commit": replaced((r"^\tcp\.async\.commit_group;", "")),
    "no-warpgroup-wait": replaced((r"^\twgmma\.wait_group\.sync\.aligned .*;", "")),
    "no-async-fence": replaced((r"^\tfence\.proxy\.async\S*;", "")),
    "no-mask": replaced((r"^\t@%p\d+ ((?:ld|st)\.global)", r"\t\1")),
    "next-word": replaced((r"^(\t(?:ld|st)\.shared\S* .*\[%r\d+)(?=\])", r"\1+4"), (r"^(\tst\.shared\S* .*\[%r\d+)(?=\],)", r"\1+4")),
    "next-element": replaced((r"^(\t@?%?p?\d* ?(?:ld|st)\.global\S* .*\[ %rd\d+ \+ )0", r"\g<1>4")),
    "short-mask": replaced((r"^(\tshfl\.sync.*), -1;", r"\1, 65535;")),
    "plain-atomic": replaced(
        (r"^\t(@%p\d+ )?atom\.global\S*\.add\.(\w+) (%r\d+), (\[[^\]]*\]), (%r\d+);",
         r"\t\1ld.global.\2 \3, \4; { .reg .\2 sum; add.\2 sum, \3, \5; \1st.global.\2 \4, sum; }"),
        (r"^\t(@%p\d+ )?red\.global\S*\.add\.(\w+) (\[[^\]]*\]), (%r\d+);",
         r"\t{ .reg .\2 sum; \1ld.global.\2 sum, \3; add.\2 sum, sum, \4; \1st.global.\2 \3, sum; }"),
    ),
    "relaxed-atomic": replaced((r"(atom\.global\.gpu)\.acq_rel", r"\1.relaxed")),
}  # fmt: skip


@functools.cache
def triton_cases():
    """By name the PTX, the launch file and the buffers' files of each case of the corpus, for sm_80 and sm_90a."""
    sys.path.insert(0, str(TRITON))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        keep = pathlib.Path(folder, "keep.sh")
        keep.write_text(KEEP, encoding="utf-8")
        keep.chmod(0o755)
        os.environ["FLASHCORE_COMMAND"] = str(keep)
        os.environ.setdefault("TRITON_CACHE_DIR", str(pathlib.Path(folder, "cache")))
        import flashcore_attn
        from cases import CASES

        for path in sorted(TRITON.glob("*.py")):
            __import__(path.stem)
        for case in CASES:
            for target in ("sm_80", "sm_90a"):
                kept = pathlib.Path(tempfile.mkdtemp(dir=folder))
                os.environ["KEPT"] = str(kept)
                try:
                    flashcore_attn.check(
                        case.kernel, case.grid, case.args, constexprs=case.constexprs, options=case.options, target=target
                    )
                except RuntimeError:  # what stands for the command does not check
                    found.setdefault(f"triton/{case.name}.{target}", {file.name: file.read_bytes() for file in kept.iterdir()})
    return found


def texts():
    """Name and text of all kernels that faults are planted in."""
    files = sorted(compile_corpus.CORPUS.glob("hopper_*.cu")) + sorted((compile_corpus.CORPUS / "faults").glob("hopper_*.twin.cu"))
    for file in files:
        name = file.relative_to(compile_corpus.CORPUS).as_posix().removesuffix(".cu")
        yield name, file.read_text(encoding="utf-8")
    for name, files in triton_cases().items():
        yield name, files["kernel.ptx"].decode()


def assembled(folder, name):
    """Assembles NAME.ptx of Triton with the newer of Triton's ptxas, which knows its version. An error, or none."""
    import triton

    ptxas = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas-blackwell"
    arch = re.search(r"\.target (\w+)", (folder / f"{name}.ptx").read_text(encoding="utf-8"))[1].replace("sm_80", "sm_90")
    command = [ptxas, f"-arch={arch}", "--generate-line-info", f"{name}.ptx", "-o", f"{name}.cubin"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return ran.stderr.strip()[:300] if ran.returncode else None


def written(folder, name, kernel, text):
    """Leaves NAME.ptx, whose lines are those of NAME.cu by its file table, NAME.toml, and the buffers that it names."""
    files = triton_cases()[kernel]
    source = re.search(r'\.file\t1 ("[^"]+")', text)[1]
    (folder / f"{name}.ptx").write_text(text.replace(source, f'"{name}.cu"'), encoding="utf-8")
    launch = re.sub(r'file = "', f'file = "{name}.', files["launch.toml"].decode())
    block = re.search(r"\.reqntid (\d+)", text)[1]
    (folder / f"{name}.toml").write_text(f"block = [{block}]\n{launch}", encoding="utf-8")
    for file in files:
        if file.endswith(".in"):
            (folder / f"{name}.{file}").write_bytes(files[file])
