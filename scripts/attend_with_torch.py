#!/usr/bin/env python3
"""Runs PyTorch's attention on inputs from files, to compare errors on the same numbers.

usage: scripts/attend_with_torch.py [--device cuda]

Each line of standard input names a folder. problem.json in it has `dtype` (fp16 or bf16), `q`, `k`,
`v` (shapes [batch, seq, heads, head_dim]), `causal` and `scale`; q.bin, k.bin, v.bin have the
elements, dense, in the machine's byte order. Every backend of SDPA that serves the problem writes
its output there as torch-NAME.bin in the same order. For each folder the script prints a line of
JSON: each backend with null, or with the reason why it does not serve the problem.

Exit code: 0 all lines read, 3 no PyTorch.
"""

import argparse
import ctypes
import json
import pathlib
import sys


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("--device", default="cuda")
    options = usage.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"PyTorch is not installed in this Python ({error})", file=sys.stderr)
        return 3
    print(f"PyTorch {torch.__version__}", file=sys.stderr)
    for line in sys.stdin:
        print(json.dumps(attend(torch, pathlib.Path(line.strip()), options.device)), flush=True)
    return 0


def attend(torch, folder, device):
    """Answers the problem in a folder: by backend `None`, or why it does not serve it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    problem = json.loads((folder / "problem.json").read_text())
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[problem["dtype"]]

    def load(name):
        raw = bytearray((folder / f"{name}.bin").read_bytes())
        return torch.frombuffer(raw, dtype=dtype).reshape(problem[name]).to(device).transpose(1, 2)

    q, k, v = load("q"), load("k"), load("v")
    refusals = {}
    for name, backend in [("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)]:
        try:
            with sdpa_kernel(backend):
                out = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=problem["causal"], scale=problem["scale"], enable_gqa=q.shape[1] != k.shape[1]
                )
        except RuntimeError as error:
            refusals[name] = str(error).splitlines()[0]
            continue
        refusals[name] = None
        dense = out.transpose(1, 2).contiguous().cpu()
        (folder / f"torch-{name}.bin").write_bytes(ctypes.string_at(dense.data_ptr(), dense.nbytes))
    return refusals


if __name__ == "__main__":
    sys.exit(main())
