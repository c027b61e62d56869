#!/usr/bin/env python3
"""Launch files for the kernels of the reports' repository, and one PTX file a kernel, for `flashcore check`.

usage: scripts/report_launches.py PTX FOLDER [--length N] [--heads N]
       scripts/report_launches.py --compare CASES

PTX is what `scripts/fetch_reports.py --ptx` leaves. Grids, blocks, shared memory and arguments are those of the
repository's host code for batch 1 and head_dim 64. Writes NAME.ptx and NAME.toml; a file of several kernels becomes as
many, numbered. None of it belongs in the tree. Prints files without a kernel or a launch.

--compare compares the outputs of CASES with attention, or the part of it that they compute, in float64: `flashcore-tools differential CASES --count 0 --corpus
FOLDER` leaves them there. Prints for each kernel the largest difference and how many elements differ by more than
ATOL. Needs NumPy.

Exit code: 0.
"""

import argparse
import json
import pathlib
import re
import sys
import tomllib

DIM = 64
# P is rounded to fp16 in their kernels, V is within ±6.
ATOL = 1e-2
# Shared memory that their host code opts in to (`cudaFuncSetAttribute`).
OPTS_IN = ("flashcore_fused_wmma_cpasync", "flashcore_fused_wmma_pipeline", "flashcore_fa3_", "sdpa_fused_v2c")
# Bytes of 64 rows of fp16, and of those that are padded by 8 elements. A tile of fp32 has two of them.
TILE, PADDED = 64 * DIM * 2, 64 * (DIM + 8) * 2
SCALE = '{ name = "scale", value = 0.125 }'
# By the file's name: rows of a block's tile (or what the grid is), threads (None: what the kernel declares), bytes of
# dynamic shared memory, and the arguments after the tensors.
HALF = {
    "fa_inverted_prod": (32, 128, 0, "scale batch heads length causal"),
    "fa_inverted_v2_tensor_cores": (32, 128, 0, "scale batch heads length causal"),
    "fa_inverted_v3_large_tiles": (48, 192, 0, "scale batch heads length causal"),
    "fa_minimal": (1, 128, 0, "scale batch heads length"),
    "fa_phase1": (16, 128, 0, "scale batch heads length"),
    "fa_phase3_wmma": (32, 128, 0, "scale batch heads length"),
    "fa_phase5_wmma": (32, 128, 0, "scale batch heads length"),
    "fa_phase6_scalar": (32, 256, 0, "scale batch heads length"),
    "fa_phase3_stable": (32, 256, 0, "batch heads length dim scale"),
    "fa_phaseD_tuned": (32, 192, "keys", "batch heads length length dim scale"),
    "fa_s512": ("heads first", 256, 0, "batch heads"),
    "fa_s512_v3": ("one axis", None, 0, "scale batch heads length causal"),
    "flashcore_fused_wmma": (32, 128, 0, "scale batch heads length dim"),
    "flashcore_fused_wmma_fp32p": (32, 128, 0, "scale batch heads length dim"),
    "flashcore_fused_wmma_64x64": (64, 256, 75 << 10, "scale batch heads length dim"),
    "flashcore_fused_wmma_cpasync": (64, 128, 64_000, "scale batch heads length dim"),
    "flashcore_fused_wmma_pipeline": (64, 128, 64_000, "scale batch heads length dim"),
    "fa_wmma_qkt": (32, 256, 0, "batch heads length dim scale"),
    "sdpa_fused_v2c": (64, 256, "stages", "batch heads length dim scale causal"),
    "flashcore_wmma_v2": ("blocks last", 128, 0, "scale batch heads length"),
    "flashcore_fa3_simple": (64, 128, 3 * TILE, "batch heads length dim scale"),
    "flashcore_fa3_kernel": (64, 128, 9 * TILE, "batch heads length dim scale"),
    "flashcore_fa3_kernel_v2": (64, 128, 9 * PADDED, "batch heads length dim causal scale"),
    "flashcore_fa3_v3": (64, 128, 3 * PADDED, "batch heads length dim causal scale"),
    "flashcore_fa3_v3_1": (64, 128, 3 * PADDED, "batch heads length dim causal scale"),
    "flashcore_fa3_v4": (64, 128, 3 * PADDED, "batch heads length dim causal scale"),
    "flashcore_fa3_v5": (64, 128, 5 * PADDED + 516, "batch heads length dim causal scale"),
    "flashcore_fa3_v6_wmma": (64, 128, 7 * PADDED + 516, "batch heads length dim causal scale"),
    "flashcore_fa3_v6_opt_vec": (64, 128, 7 * PADDED + 516, "batch heads length dim causal scale"),
    "flashcore_fa3_v7_wmma_pv": (64, 128, 7 * PADDED + 516, "batch heads length dim causal scale"),
    "flashcore_fa3_v7_1_wmma_pv_fixed": (64, 128, 9 * PADDED + 516, "batch heads length dim causal scale"),
}
BYTES = ["baseline", "baseline_v2", "coalesced", "fixed", "stage_a", "stage_b", "stage_c_wmma", "vectorized", "wmma"]


def launch(stem, text, heads, length):
    """Grid, threads, shared memory and arguments; none if there is none."""
    dim, stages = map(int, re.search(r"Li(\d+)ELi(\d)E", text).groups()) if stem == "sdpa_fused_v2c" else (DIM, 0)
    number = {"batch": 1, "heads": heads, "length": length, "dim": dim, "causal": 0}

    def values(names):
        return [SCALE if name == "scale" else f'{{ name = "{name}", value = {number[name]} }}' for name in names.split()]

    def tensors(ty, fill, rows):
        return [f'{{ name = "{n}", type = "{ty}", count = {heads * rows * dim}, fill = "{fill}" }}' for n in "QKV"]

    def output(rows):
        return f'{{ name = "O", type = "f16", count = {heads * rows * dim}, fill = "unwritten" }}'

    if stem == "fa_cublas_simple":
        scores = f'{{ name = "S", type = "f32", count = {length * length}, fill = "bell" }}'
        return [length], 256, 128, [scores, *values("length length")]
    if stem in HALF:
        tile, threads, shared, names = HALF[stem]
        rows = 512 if tile == "heads first" else length
        if threads is None:
            threads = int(re.search(r"\.maxntid (\d+)", text)[1])
        if shared == "keys":
            shared = 32 * DIM * 6 + 2 * length * DIM * 2 + 32 * length * 4 + 32 * 8
        if shared == "stages":
            keys = 64 if dim == 64 else 32
            shared = (64 * 6 + 4 * stages * keys) * (dim + 8) + 64 * keys * 4 + 512
        if tile == "heads first":
            grid = [heads, rows // 128]
        elif tile == "one axis":
            tile = int(re.search(r"KernelTraitsILi(\d+)E", text)[1])
            grid = [heads * -(-length // tile)]
        elif tile == "blocks last":
            grid = [1, heads, -(-length // 32)]
        else:
            grid = [-(-length // tile), heads, 1]
        return grid, threads, shared, [*tensors("f16", "bell", rows), output(rows), *values(names)]
    kind = stem.removeprefix("sdpa_fp8_")
    if kind in BYTES:
        arguments = tensors(*(("e4m3", "bell") if kind == "baseline" else ("u8", "ints:64:192")), length)
        arguments += [f'{{ name = "{n}_scale", type = "f32", count = {heads}, values = [0.02, 0.03] }}' for n in "QKV"]
        threads = 128 if kind == "stage_c_wmma" else 256
        return [-(-length // 32), heads, 1], threads, 0, [*arguments, output(length), *values("batch heads length dim scale")]
    if stem.startswith("test_fp8_qkt"):
        arguments = [f'{{ name = "{n}", type = "u8", count = {32 * DIM}, fill = "ints:64:192" }}' for n in "QK"]
        arguments += [f'{{ name = "{n}_scale", value = 0.02 }}' for n in "qk"]
        arguments += ['{ name = "S", type = "f16", count = 1024, fill = "unwritten" }']
        arguments += [f'{{ name = "{n}", value = {v} }}' for n, v in (("m", 32), ("n", 32), ("d", DIM))]
        return [32, 32], 32, 0, [*arguments, *([SCALE] if stem.endswith("fixed") else [])]
    return None


def entries(text):
    """Begin and end of each kernel."""
    for match in re.finditer(r"^(\.visible )?\.entry ", text, re.MULTILINE):
        yield match.start(), text.index("\n}\n", match.end()) + 3


def compare(folder):
    """Outputs and float64: of attention, or of Q and K alone where there is no V."""
    import numpy as np  # only here

    import corpus_reference

    told = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    data = (folder / "data.bin").read_bytes()
    for case in told["cases"]:
        arguments = tomllib.loads(case["declaration"])["args"]
        values = {a["name"]: a["value"] for a in arguments if "value" in a}
        buffers = dict(zip((a["name"] for a in arguments if "value" not in a), case["buffers"], strict=True))
        types = {a["name"]: a.get("type") for a in arguments}

        def numbers(name, at):
            stored = np.frombuffer(data, np.uint8, buffers[name]["bytes"], buffers[name][at])
            if types[name] == "u8":
                # Their stand-in for fp8.
                found = stored / 255 * 896 - 448
            else:
                found = stored.view(corpus_reference.STORED[types[name]]).astype(np.float64)
            scale = f"{name}_scale" if f"{name}_scale" in buffers else None
            lower = values.get(f"{name.lower()}_scale")
            found = found.reshape(values.get("heads", 1), -1, values.get("dim", DIM)) if name in "QKV" else found
            return found * (numbers(scale, at)[:, None, None] if scale else lower or 1.0)

        if "Q" in buffers:
            q, k = numbers("Q", "before"), numbers("K", "before")
            scores = q @ k.transpose(0, 2, 1) * values.get("scale", 1.0)
        else:
            scores = numbers("S", "before").reshape(1, -1, values["length"])
        if "fa_phase6_scalar" in case["name"]:  # always causal
            scores = np.where(np.tri(scores.shape[1], dtype=bool), scores, -np.inf)
        p = np.exp(scores - scores.max(2, keepdims=True))
        p /= p.sum(2, keepdims=True)
        expected, name = scores, "S"
        if "V" in buffers:
            expected, name = p @ numbers("V", "before"), "O"
        elif "Q" not in buffers:
            expected = p
        with np.errstate(invalid="ignore"):
            off = np.abs(numbers(name, "after").reshape(-1) - expected.reshape(-1))
        wrong = int((~(off <= ATOL + ATOL * np.abs(expected.reshape(-1)))).sum())
        largest = np.nanmax(off, initial=0.0)
        print(f"{case['name']}: largest difference {largest:.2g}, {wrong} of {off.size} elements differ")


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("ptx", type=pathlib.Path, nargs="?")
    usage.add_argument("folder", type=pathlib.Path, nargs="?")
    usage.add_argument("--compare", type=pathlib.Path, metavar="CASES", help="outputs with float64")
    usage.add_argument("--length", type=int, default=512, metavar="N")
    usage.add_argument("--heads", type=int, default=2, metavar="N")
    options = usage.parse_args()
    if options.compare:
        compare(options.compare)
        return 0
    if not options.folder:
        usage.error("PTX and FOLDER, or --compare CASES")
    options.folder.mkdir(parents=True, exist_ok=True)
    written = 0
    for file in sorted(options.ptx.glob("*.ptx")):
        text, stem = file.read_text(encoding="utf-8"), file.stem.split("-", 1)[1]
        spans = list(entries(text))
        for number, (begin, end) in enumerate(spans):
            others = [span for span in spans if span != (begin, end)]
            alone = text
            for first, last in reversed(others):
                alone = alone[:first] + alone[last:]
            found = launch(stem, text[begin:end], options.heads, options.length)
            if found is None:
                print(f"{file.name}: no launch is known")
                continue
            grid, threads, shared, arguments = found
            name = f"{file.stem}-{number}" if len(spans) > 1 else file.stem
            (options.folder / f"{name}.ptx").write_text(alone, encoding="utf-8")
            lines = "".join(f"    {argument},\n" for argument in arguments)
            told = f'arch = "sm_89"\ngrid = {grid}\nblock = [{threads}]\nshared = {shared}\n'
            told += f"opted_in = {str(stem.startswith(OPTS_IN)).lower()}\nargs = [\n{lines}]\n"
            (options.folder / f"{name}.toml").write_text(told, encoding="utf-8")
            written += 1
        if not spans:
            print(f"{file.name}: no kernel")
    print(f"{written} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
