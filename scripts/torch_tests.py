#!/usr/bin/env python3
"""Runs PyTorch's own tests of attention on FlashCore, and leaves the counts.

usage: torch_tests.py fa3 FOLDER OUT.json [--as pytorch|flashcore] [--processes P] [--seconds T]
       torch_tests.py sdpa FOLDER OUT.json [--most N] [--seed S] [--processes P] [--seconds T]

FOLDER has files of PyTorch's `test` folder; nothing of them is kept in this repository. Needs the
Python of an environment with flashcore, PyTorch and expecttest.

`fa3` runs `test_fa3.py` (with `_fa_test_common.py`, both of `test/nn/attention`) on a GPU of sm_90.
As `pytorch`, PyTorch's own implementation `FA3` runs, and the operators of FlashAttention-3 that it
calls are FlashCore's functions. As `flashcore`, what `flashcore_attn.torch.activate` installs is
registered under the name `FA3`; it has other kernel names, and float8 and packed sequences, which
that does not serve, are not run. `sdpa` runs what `pytest -k sdpa test_transformers.py` selects
twice, without and with `flashcore_attn.torch.activate()`. `--most` draws at most so many of the
variants of a test. Exit code: 1 if a test failed (`fa3`), ended in another way (`sdpa`), or if
FlashCore computed nothing.
"""

import argparse
import collections
import importlib
import inspect
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import types
import unittest

POISONED = 3  # exit code of a worker whose CUDA context is lost
FWD = """fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new, Tensor(v_new!)? v_new, Tensor? q_v, Tensor(out!)? out,
    Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k,
    int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx, Tensor? leftpad_k,
    Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale,
    Tensor? v_descale, float? softmax_scale, bool is_causal, int window_size_left, int window_size_right,
    int attention_chunk, float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits,
    bool? pack_gqa, int sm_margin) -> (Tensor(out!), Tensor, Tensor, Tensor)"""
BWD = """bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!) dq, Tensor(dk!) dk,
    Tensor(dv!) dv, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q,
    int? max_seqlen_k, float? softmax_scale, bool is_causal, int window_size_left, int window_size_right, float softcap,
    bool deterministic, int sm_margin) -> Tensor"""
calls = collections.Counter()  # what FlashCore computed in this process


def offer_operators():
    """FlashAttention-3's operators, as PyTorch's `FA3` calls them, on FlashCore's functions."""
    import torch

    interface = importlib.import_module("flashcore_attn.flash_attn_interface")

    def fwd(q, k, v, k_new, v_new, qv, out, *rest):
        calls["fwd"] += 1
        result, *others = interface._flash_attn_forward(q, k, v, k_new, v_new, qv, None, *rest)
        return (result if out is None else out.copy_(result)), *others

    def bwd(*given):
        calls["bwd"] += 1
        tensors, gradients, lengths, rest = given[:6], given[6:9], given[9:15], given[15:]
        return interface._flash_attn_backward(*tensors, *lengths, *gradients, *rest)

    library = torch.library.Library("flash_attn_3", "DEF")
    for schema, kernel in ((FWD, fwd), (BWD, bwd)):
        library.define(schema)
        library.impl(kernel.__name__, kernel, "CompositeExplicitAutograd")
    sys.modules["flash_attn_interface"] = interface
    return library


def count_calls():
    """Counts the calls of SDPA that FlashCore computes."""
    import flashcore_attn.torch

    for name in ("_direct", "_attend", "_differentiate"):

        def counted(*given, inner=getattr(flashcore_attn.torch, name), name=name, **options):
            results = inner(*given, **options)
            calls[name] += results is not None
            return results

        setattr(flashcore_attn.torch, name, counted)


def load(options):
    """The test module, and what must live as long as it."""
    import torch

    sys.path.insert(0, str(options.folder))
    if options.command == "sdpa":
        # Only the tests of a backend that is built from C++ use it; they are not among those with `sdpa` in the name
        # that are instantiated for devices.
        module = types.ModuleType("test_cpp_extensions_open_device_registration")
        module.generate_faked_module = None
        sys.modules[module.__name__] = module
        return importlib.import_module("test_transformers"), None
    quantized = "torch.nn.attention.experimental._scaled_dot_product_attention_quantized"
    try:
        importlib.import_module(quantized)
    except ModuleNotFoundError:  # older releases; `unserved` takes its tests out
        module = sys.modules[quantized] = types.ModuleType(quantized)
        module._scaled_dot_product_attention_quantized = module.DescaleType = None
    if options.implementation == "pytorch":
        if "FA3" not in torch.nn.attention.list_flash_attention_impls():
            raise SystemExit(f"PyTorch {torch.__version__} has no implementation FA3: take --as flashcore")
        return importlib.import_module("test_fa3"), offer_operators()
    import flashcore_attn.torch

    count_calls()
    torch.nn.attention.register_flash_attention_impl("FA3", register_fn=flashcore_attn.torch._install)
    sys.modules["flash_attn_interface"] = importlib.import_module("flashcore_attn.flash_attn_interface")
    module = importlib.import_module("test_fa3")
    for test in vars(module).values():
        if inspect.isclass(test) and hasattr(test, "fwd_kernel_patterns"):
            test.fwd_kernel_patterns, test.bwd_kernel_patterns = ["_d128_lse"], ["backward_preprocess"]
    return module, None


def tests_of(module):
    """All tests by name."""

    def walk(suite):
        for test in suite:
            yield from walk(test) if isinstance(test, unittest.TestSuite) else [test]

    return {test.id(): test for test in walk(unittest.defaultTestLoader.loadTestsFromModule(module))}


def unserved(options, name):
    """Why a test is not run; None if it is."""
    if options.command == "sdpa":
        return "for a backend that is built from C++" if "PrivateUse1" in name else None
    quantized = sys.modules["torch.nn.attention.experimental._scaled_dot_product_attention_quantized"]
    if "fp8" in name and quantized.DescaleType is None:
        return "this PyTorch has no float8 SDPA"
    if options.implementation == "flashcore" and ("fp8" in name or "varlen" in name):
        return "float8 and packed sequences have no place in SDPA's kernels"
    return None


def drawn(options, tests):
    """The names of the tests to run, and how many there are of each test function: drawn, and in all."""
    names = sorted(name for name in tests if options.command == "fa3" or "sdpa" in name.lower())
    names = [name for name in names if unserved(options, name) is None]
    mix = random.Random(options.seed).shuffle  # what the time does not reach is of all kinds
    if not options.most:
        mix(names)
        return names, {}
    families = collections.defaultdict(list)
    for name in names:
        method = getattr(tests[name], name.rsplit(".", 1)[1])
        families[inspect.unwrap(method).__name__].append(name)
    few = {
        family: random.Random(f"{options.seed} {family}").sample(all_of_it, min(options.most, len(all_of_it)))
        for family, all_of_it in families.items()
    }
    sizes = {family: [len(few[family]), len(families[family])] for family in few}
    names = [name for some in few.values() for name in some]
    mix(names)
    return names, sizes


class Result(unittest.TestResult):
    def _exc_info_to_string(self, error, test):
        return f"{error[0].__name__}: {error[1]}"[:400]


def run_one(test):
    """How a test ends, with what its class prepares for it, and what it says."""
    result = Result()
    unittest.TestSuite([test]).run(result)
    if result.failures or result.errors or result.unexpectedSuccesses:
        says = [says for _, says in result.failures + result.errors]
        return "failed", says[0] if says else "passed, where a failure is expected"
    return ("skipped", result.skipped[0][1][:200]) if result.skipped else ("passed", "")


def work(options):
    """A worker: runs the tests of a file of names, and writes a line for each."""
    ends = time.monotonic() + options.seconds
    module, _alive = load(options)
    if options.active:
        import flashcore_attn.torch

        count_calls()
        flashcore_attn.torch.activate()
    tests = tests_of(module)
    with open(options.out, "a") as out:
        for name in json.loads(options.worker.read_text()):
            if time.monotonic() > ends:
                break
            outcome, says = run_one(tests[name])
            print(json.dumps([name, outcome, says, calls]), file=out, flush=True)
            calls.clear()
            if "CUDA error" in says or "CUDA_ERROR" in says:
                os._exit(POISONED)


def run_all(options, names, active):
    """The last line of each test, and the calls that FlashCore computed. A worker that dies goes on with the next."""
    ends, lines, counted = time.monotonic() + options.seconds, {}, collections.Counter()
    threads = max(1, (os.cpu_count() or 1) // options.processes)
    with tempfile.TemporaryDirectory() as scratch:
        left = {n: names[n :: options.processes] for n in range(options.processes)}
        living = {}

        def start(n):
            names_of_it, out = (pathlib.Path(scratch) / f"{n}.{kind}" for kind in ("json", "jsonl"))
            names_of_it.write_text(json.dumps(left[n]))
            out.write_text("")
            command = [sys.executable, __file__, options.command, options.folder, out, "--worker", names_of_it]
            command += ["--seconds", ends - time.monotonic(), "--as", options.implementation]
            command += ["--active"] if active else []
            log = open(pathlib.Path(scratch) / f"{n}.log", "w+")
            environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
            process = subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log)
            living[n] = process, out, log

        for n in [n for n in left if left[n]]:
            start(n)
        while living:
            time.sleep(0.2)
            for n, (process, out, log) in list(living.items()):
                if process.poll() is None and time.monotonic() < ends + 60:
                    continue
                process.kill()  # a test that does not end
                status = process.wait()
                del living[n]
                whole = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
                for name, outcome, says, count in map(json.loads, whole):
                    lines[name] = (outcome, says)
                    counted.update(count)
                left[n] = [name for name in left[n] if name not in lines]
                if status == 0 or not left[n] or time.monotonic() > ends:
                    continue
                if status != POISONED:
                    log.seek(0)
                    last = log.read().strip().splitlines()[-1:] or [""]
                    lines[left[n].pop(0)] = ("failed", f"the process ended with {status}: {last[0]}"[:400])
                if left[n]:
                    start(n)
    return lines, dict(counted)


def run(options):
    import flashcore_attn
    import torch

    module, _alive = load(options)
    tests = tests_of(module)
    names, sizes = drawn(options, tests)
    if not names:
        raise SystemExit(f"{module.__file__} has no test for this machine's devices: test_fa3.py needs a GPU of sm_90")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    reasons = [unserved(options, name) for name in tests]
    report = {"command": options.command, "device": device, "torch": torch.__version__}
    report |= {"flashcore": flashcore_attn.__version__, "seed": options.seed, "drawn": len(names), "drawn_of": sizes}
    report["not_served"] = dict(collections.Counter(why for why in reasons if why))
    started, results = time.monotonic(), {}
    for active in [True] if options.command == "fa3" else [False, True]:
        lines, counted = results[active] = run_all(options, names, active and options.command == "sdpa")
        counts = dict(collections.Counter(outcome for outcome, _ in lines.values()))
        counts |= {"not_reached": len(names) - len(lines), "computed_by_flashcore": counted}
        counts["failures"] = {name: says for name, (outcome, says) in sorted(lines.items()) if outcome == "failed"}
        report["with" if active else "without"] = counts
    if options.command == "fa3":
        report["as"] = options.implementation
        worse = report["with"]["failures"]
    else:
        before, after = results[False][0], results[True][0]
        both = before.keys() & after.keys()
        worse = {name: [before[name], after[name]] for name in sorted(both) if before[name][0] != after[name][0]}
        report |= {"same_outcome": len(both) - len(worse), "other_outcome": worse}
    report["seconds"] = round(time.monotonic() - started)
    options.out.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    return bool(worse) or not report["with"]["computed_by_flashcore"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["fa3", "sdpa"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--as", dest="implementation", choices=["pytorch", "flashcore"], default="pytorch")
    parser.add_argument("--most", type=int, default=0, help="of the variants of a test; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=540, help="for each pass over the tests")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--active", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    return work(options) if options.worker else int(run(options))


if __name__ == "__main__":
    sys.exit(main())
