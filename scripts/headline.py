#!/usr/bin/env python3
"""Measures the problems of README.md and docs/performance.md, each with at least eight rounds of every subject.

    scripts/headline.py OUT --libraries fa3 --until 540 [--had FILE.jsonl ...] [--device cpu] [--flashcore PATH]

OUT/runs.jsonl gets the runs, as `flashcore evidence export` writes them. What earlier files (`--had`) have is not
measured again, and a part that would not end before `--until` seconds is left out, so several calls can share the
work. Parts that need a library other than PyTorch run where `--libraries` names it. With `--device cpu` the CPU's part
runs alone. The last lines are the commands that make bundles of the runs, after `flashcore evidence import` of the
files (evidence/README.md).
"""
import argparse
import json
import os
import subprocess
import time
from pathlib import Path

ROUNDS = ["--rounds", "8"]
LONG = [*ROUNDS, "--budget", "0.2", "--lead", "40ms"]
SHORT = [*ROUNDS, "--budget", "0.4"]
HOST = ["--device", "cpu", "--kernel", "default", "--peers", "torch/sdpa", *ROUNDS, "--budget", "1"]
LLAMA = "llama8b-prefill-8k"


def grid(head_dims, lengths, end=""):
    return [f"d{d}-s{s}{mask}{end}" for d in head_dims for mask in ("", "-causal") for s in lengths]


ALL = (512, 1024, 2048, 4096, 8192, 16384)
SOME = (512, 2048, 8192)
DECODE = [f"llama8b-decode-{name}" for name in ("b1-4k", "b1-32k", "b1-128k", "b64-4k")]
PAGED = [f"paged64-{name}" for name in ("b1-4k", "b64-1k-8k", "b256-512-2k")]
SERVED = ["varlen-16x100-4000", "mixed64-2k-at-8k-63x1-at-4k", "chunks-16x64-at-4k"]
SMALL = ["small", "small-causal", "small-b2", "small-b2-causal"]
# What family mma has for cards without wgmma, on a card where FlashAttention-2 runs too.
MMA = {64: "m128n64-w4x1-s2-b1-qreg-xor-spec", 128: "m128n64-w4x1-s2-b1-qsh-xor-spec", 256: "m128n32-w8x1-s2-b1-qreg-xor-cond"}
DOCUMENTS = ["documents-d128-backward", "documents-llama8b-backward"]
BACKWARD = [f"{LLAMA}-backward", *DOCUMENTS, *grid((64, 128, 256), SOME, "-backward")]
CPU = [*SMALL, "llama8b-decode-b1-32k"]

# Name, seconds for a problem on an H200, library, problems, flags. In the order of their weight in the README.
BF16, FP16, F32 = (["--dtype", dtype] for dtype in ("bf16", "fp16", "f32"))
HOPPER = ["--peers", "fa3,torch/cudnn"]
PARTS = [
    ("grid-bf16", 6, "fa3", [LLAMA, *grid((64, 128, 256), ALL)], [*BF16, *HOPPER, *LONG]),
    ("short-fp16", 5, "fa3", SMALL, [*FP16, "--peers", "fa3,torch/cudnn,torch/flash", *SHORT]),
    ("decode-bf16", 6, "fa3", DECODE, [*BF16, *HOPPER, *SHORT]),
    ("served-bf16", 7, "fa3", SERVED, [*BF16, *HOPPER, *SHORT]),
    ("grid-fp16", 6, "fa3", [LLAMA, *grid((64, 128, 256), SOME)], [*FP16, *HOPPER, *LONG]),
    ("backward-bf16", 8, "fa3", BACKWARD, [*BF16, *HOPPER, *LONG]),
    # It compiles with nvcc for half a minute when it is first used.
    ("paged-bf16", 20, "flashinfer", PAGED, [*BF16, "--peers", "fa3,torch/cudnn,flashinfer", *SHORT]),
    ("fa4-bf16", 13, "fa4", [LLAMA, *grid((64, 128), (2048, 8192))], [*BF16, "--peers", "fa4", *LONG]),
    *((f"mma-d{d}", 5, "", grid((d,), (2048,)), ["--kernel", f"mma/{MMA[d]}", *FP16, "--peers", "torch/flash", *LONG]) for d in MMA),
    ("short-bf16", 5, "fa3", SMALL, [*BF16, *HOPPER, *SHORT]),
    ("decode-fp16", 6, "fa3", DECODE, [*FP16, *HOPPER, *SHORT]),
    ("cpu-bf16", 10, "cpu", CPU, [*BF16, *HOST]),
    ("cpu-f32", 10, "cpu", CPU, [*F32, *HOST]),
]
START_SECONDS = 8  # of a process with PyTorch


def current(name):
    """The name that a problem has now: those that are called small were called mission."""
    return name.replace("mission", "small")


def ended(files):
    """Problems that were measured to their end, and keys of the runs that did so, by the name of their part."""
    problems, keys = {}, {}
    for line in (line for file in files if file.exists() for line in file.open(encoding="utf-8")):
        kind, value = next(iter(json.loads(line).items()))
        if kind == "run":
            key, command = value["key"], value["identity"].get("command", [])
            is_of = lambda part: command[-len(part[4]):] == part[4] and command[2:3] and current(command[2]) in part[3]
            name = next((part[0] for part in PARTS if is_of(part)), None)
        elif kind == "measurement":
            case = current(value["case"]["name"])
        elif kind == "end":
            problems.setdefault(name, set()).add(case)
            keys.setdefault(name, {})[key] = None
    return problems, keys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--libraries", default="", help="fa3,fa4,flashinfer: those that are installed")
    parser.add_argument("--until", type=float, default=600, help="seconds after which nothing begins")
    parser.add_argument("--had", type=Path, nargs="*", default=[])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--flashcore", default="flashcore")
    args = parser.parse_args()
    began, libraries = time.monotonic(), {"", "cpu", *args.libraries.split(",")}
    args.out.mkdir(parents=True, exist_ok=True)
    runs = args.out / "runs.jsonl"
    env = dict(os.environ, XDG_DATA_HOME=str(args.out.resolve() / "data"))
    for name, seconds, library, problems, flags in PARTS:
        left = args.until - (time.monotonic() - began)
        done = ended([*args.had, runs])[0].get(name, set())
        wanted = [problem for problem in problems if problem not in done]
        fitting = wanted[:max(0, int((left - START_SECONDS) / seconds))]
        is_asked = library in libraries and (args.device == "cuda" or library == "cpu")
        if not is_asked or not fitting:
            print(f"{name}: {len(problems) - len(wanted)} of {len(problems)} measured before, left out with {left:.0f} s left", flush=True)
            continue
        # Names and flags alone: a file of problems or kernels would not come along with the command.
        command = [args.flashcore, "bench", *fitting, *flags]
        try:
            code = subprocess.run(command, env=env, timeout=left).returncode
        except subprocess.TimeoutExpired:
            code = "timed out"
        subprocess.run([args.flashcore, "evidence", "export", "all", "-o", runs], env=env, check=True)
        ends = time.monotonic() - began
        print(f"{name}: {len(fitting)} of {len(wanted)}, exit code {code}, from {args.until - left:.0f} to {ends:.0f} s", flush=True)
    for name, keys in ended([*args.had, runs])[1].items():
        print(f"flashcore evidence publish {name} {' '.join(keys)}")


main()
