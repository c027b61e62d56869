#!/usr/bin/env python3
"""Runs what a page shows, with the packages that are installed, and compares answers with float64.

usage: examples.py answers                    attention in each dtype that the installed libraries have
       examples.py python PAGE                blocks tagged `python` of a Markdown page, one after another
       examples.py rust PAGE FOLDER           writes those tagged `rust` as programs FOLDER/example1.rs, ...
       examples.py printed PAGE NUMBER FILE   whether FILE is what the page says that Rust block NUMBER prints

A block tagged `text` right after a block is what it prints; `...` stands for anything, and runs of blanks are one. Blocks
with more tags (`python gpu`) are left out. What cannot run here is said in a line that begins with `NOT CHECKED: `.
"""

import contextlib
import doctest
import importlib.util
import io
import os
import pathlib
import re
import sys
import time

# The project's own, for a row of a few hundred keys (bindings/python/tests/reference.py).
TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}
OPTIONAL = ("torch", "transformers", "jax")


def blocks(page, language):
    """Each block of a language, with what it prints: text, or None."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    fenced = re.compile(rf"^```{language}\n(.*?)^```\n(?:\n*```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
    return fenced.findall(text)


def same(page, number, wanted, got):
    if wanted and not doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE):
        sys.exit(f"{page}: block {number} printed\n{got}\nand the page says\n{wanted}")
    return "prints what the page says" if wanted else "runs"


def installed(module):
    return importlib.util.find_spec(module) is not None


def run_python(page):
    names, ran = {"__name__": "__main__"}, 0
    for number, (block, wanted) in enumerate(blocks(page, "python"), 1):
        code = compile(block, f"{page}, block {number}", "exec")
        missing = [module for module in OPTIONAL if re.search(rf"\b{module}\b", block) and not installed(module)]
        if missing:
            print(f"{page}: Python block {number} needs {missing[0]}, which is not in this environment")
            continue
        if '"cuda"' in block and not os.path.exists("/dev/nvidiactl"):
            print(f"NOT CHECKED: Python block {number} of {os.path.basename(page)}: there is no GPU; it compiles")
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, names)
        print(f"{page}: Python block {number} {same(page, number, wanted, said.getvalue())}")
        ran += 1
    return ran


def write_rust(page, folder):
    for number, (block, _) in enumerate(blocks(page, "rust"), 1):
        rest = "" if re.search(r"\bfn main\(", block) else "\n#[allow(dead_code)]\nfn main() {}\n"
        pathlib.Path(folder, f"example{number}.rs").write_text(f"#![allow(dead_code)]\n{block}{rest}", encoding="utf-8")


def compare_printed(page, number, file):
    wanted = blocks(page, "rust")[int(number) - 1][1]
    print(f"{page}: Rust block {number} {same(page, number, wanted, pathlib.Path(file).read_text())}")


def tensors(np):
    """Libraries with their dtypes, how each makes a tensor of an array, and how it reads one as float64."""
    yield "NumPy", ["float32", "float16"], lambda array, dtype: array.astype(dtype), lambda out: np.asarray(out, np.float64)
    if installed("torch"):
        import torch

        yield "PyTorch", list(TOLERANCE), lambda array, dtype: torch.from_numpy(array).to(getattr(torch, dtype)), lambda out: out.double().numpy()
    if installed("jax"):
        import jax

        yield "JAX", list(TOLERANCE), lambda array, dtype: jax.numpy.asarray(array, dtype), lambda out: np.asarray(out, np.float64)


def compare_answers():
    import flashcore_attn
    import numpy as np

    arrays = np.random.default_rng(0).standard_normal((3, 2, 129, 4, 64)).astype(np.float32)
    for library, dtypes, tensor, read in tensors(np):
        for dtype in dtypes:
            q, k, v = (tensor(array, dtype) for array in arrays)
            # As examples/jax_arrays.py says: outputs for arrays that are not to be changed would be NumPy's.
            given = {"out": tensor(np.zeros_like(arrays[0]), dtype)} if library == "JAX" else {}
            out = read(flashcore_attn.attention(q, k, v, causal=True, **given))
            q, k, v = (read(x).transpose(0, 2, 1, 3) for x in (q, k, v))
            scores = np.where(np.tri(q.shape[2], dtype=bool), q @ k.swapaxes(2, 3) / 8, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            reference = (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
            error = np.abs(out - reference).max()
            if not error <= TOLERANCE[dtype] * (1 + np.abs(reference).max()):
                sys.exit(f"{library}, {dtype}: off by {error:.1e} from float64")
            print(f"{library}, {dtype}: off by {error:.1e} from float64, at {time.time():.1f}")
    where = os.path.dirname(flashcore_attn.__file__)
    print(f"flashcore-attn {flashcore_attn.__version__}, Python {sys.version.split()[0]}, from {where}")


if __name__ == "__main__":
    what, *arguments = sys.argv[1:] or ["--help"]
    functions = {("answers", 0): compare_answers, ("python", 1): run_python, ("rust", 2): write_rust, ("printed", 3): compare_printed}
    if (what, len(arguments)) not in functions:
        sys.exit(__doc__)
    functions[what, len(arguments)](*arguments)
