#!/usr/bin/env python3
"""Runs a program that launches Triton kernels without a GPU: each launch is one of `flashcore_attn.check`.

usage: scripts/check_triton.py [--target sm_90a] [--blocks N] PROGRAM.py [ARGUMENT ...]

Tensors for `cuda` are on the CPU, and hold after a launch what the kernel left. Of `@autotune` the first configuration
is taken. Needs PyTorch, Triton and the package flashcore_attn. A launch of more than N blocks (default 64) is not run.
Prints a line for each launch, the findings, and last the counts as JSON.

Exit code: 0 all launches are clean, 1 some are not or there was none, 2 wrong usage.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import pathlib
import runpy
import sys
import types

import flashcore_attn
import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

OPTIONS = {field.name for field in dataclasses.fields(CUDAOptions)}


class OnCpu(TorchFunctionMode):
    """Takes `cuda` for the CPU."""

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        return function(*args, **kwargs)


class Launches:
    def __init__(self, target, blocks):
        self.target, self.blocks, self.rows, self.understood = target, blocks, [], []

    def run(self, kernel, *args, grid, warmup, **named):
        values = {param.name: param.default for param in kernel.params if param.has_default}
        values.update(zip(kernel.arg_names, args))
        values.update({name: value for name, value in named.items() if name in kernel.arg_names})
        options = {name: value for name, value in named.items() if name in OPTIONS and name not in kernel.arg_names}
        grid = grid(values) if callable(grid) else grid
        constexprs = {param.name: values[param.name] for param in kernel.params if param.is_constexpr}
        rest = [values[name] for name in kernel.arg_names if name not in constexprs]
        if math.prod(grid) > self.blocks:
            return self.add(kernel, grid, "too large")
        try:
            result = flashcore_attn.check(
                kernel, grid, rest, constexprs=constexprs, options=options, target=self.target, schedules=2
            )
        except triton.CompilationError as error:
            while error.__cause__:  # in the function that it calls
                error = error.__cause__
            return self.add(kernel, grid, f"not compiled: {str(error).strip().splitlines()[-1]}")
        except Exception as error:  # the next launches are checked, too
            return self.add(kernel, grid, f"failed: {type(error).__name__}: {str(error)[:300]}")
        for given, left in zip(rest, result.outputs or ()):
            given = getattr(given, "base", given)
            if isinstance(given, torch.Tensor) and 0 not in given.stride():  # what is expanded is only read
                given.data.copy_(left)  # unseen by autograd
        self.understood.append(result.understood)
        forms = [form["form"] for form in result.missing]
        self.add(kernel, grid, result.verdict, *forms)
        if result.findings:
            print(result, flush=True)

    def add(self, kernel, grid, verdict, *forms):
        self.rows.append((kernel.__name__, verdict.split(":")[0]))
        print(f"{kernel.__name__}{list(grid)}: {verdict} {' '.join(forms)}", flush=True)


def tuned(tuner, *args, **named):
    """A launch with the first configuration."""
    config = tuner.configs[0]
    if config.pre_hook:
        config.pre_hook({**dict(zip(tuner.arg_names, args)), **named, **config.all_kwargs()})
    return tuner.fn.run(*args, **named, **config.all_kwargs())


class Compiled:
    """What `warmup` gives: a kernel of which little is known."""

    n_regs, metadata = 32, types.SimpleNamespace(shared=1024)

    def __init__(self, kernel):
        self._init_handles, self.kernel = (lambda: None), kernel

    def __getitem__(self, grid):
        return self.kernel[grid]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    launches = Launches(given.target, given.blocks)
    capability = int("".join(filter(str.isdigit, given.target)))
    driver = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_active_torch_device=lambda: torch.device("cpu"),
        get_device_interface=lambda: torch.cuda,
        get_benchmarker=lambda: None,
        get_current_device=lambda: 0,
    )
    triton.runtime.driver.set_active(driver)
    properties = {"multiprocessor_count": 4, "max_num_regs": 65536, "max_shared_mem": 232448, "warpSize": 32}
    driver.utils = types.SimpleNamespace(get_device_properties=lambda device: properties)
    JITFunction.warmup = lambda kernel, *args, **named: Compiled(kernel)
    JITFunction.run = lambda kernel, *args, **named: launches.run(kernel, *args, **named)
    Autotuner.run = tuned
    torch.library.wrap_triton = lambda kernel: kernel
    torch.Tensor.is_cuda = property(lambda tensor: True)
    torch.cuda.current_device = lambda: 0
    torch.cuda.device = lambda *of: contextlib.nullcontext()
    torch.cuda.get_device_capability = lambda *of: divmod(capability, 10)
    torch.cuda.get_device_properties = lambda *of: types.SimpleNamespace(multi_processor_count=4, name="none")
    sys.argv = [given.program, *given.arguments]
    sys.path.insert(0, str(pathlib.Path(given.program).resolve().parent))
    with OnCpu():
        runpy.run_path(given.program, run_name="__main__")
    counts = collections.Counter(verdict for _, verdict in launches.rows)
    kernels = len({name for name, _ in launches.rows})
    understood = round(sum(launches.understood) / max(len(launches.understood), 1), 4)
    told = {"kernels": kernels, "launches": len(launches.rows), "target": given.target, "understood": understood}
    print(json.dumps(told | counts))
    if not launches.rows:
        sys.exit(f"{given.program} launched no kernel of Triton: nothing was checked")
    sys.exit(counts["clean"] != len(launches.rows))


if __name__ == "__main__":
    main()
