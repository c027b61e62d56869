#!/usr/bin/env python3
"""Runs a seeded draw of FlashAttention-3's own tests on FlashCore, and leaves the counts.

usage: fa3_tests.py fetch FOLDER [--source REPOSITORY]
       fa3_tests.py run FOLDER OUT.json [--draw GROUP=N ...] [--part I/N] [--seed S] [--processes P] [--seconds T]
                        [--device cuda] [--backward] [--repeats R]
       fa3_tests.py rows RUN OUT.json ... >> EVIDENCE.jsonl

`fetch` takes the tests from FlashAttention's repository at one commit (git), or a clone of it, and
einops from PyPI; nothing of them is kept in this repository. `run` needs the Python of an
environment with flashcore and PyTorch. Groups are dense, varlen, kvcache and combine, and two that
run only where `--draw` names them: determinism and determinism_varlen, the tests of gradients in
order, of which half compare the bits of 1,000 backward passes (`--repeats`). The functions under
test are those of `flashcore_attn.flash_attn_interface`, under the name `flash_attn_interface`.
Calls with chunks (`attention_chunk`) or a head_dim of V over 256 are taken out of the tests' inner
loops. What is not served (`qv`) is not drawn, and counted. `run` may be split over several calls by
`--part`; each part is every Nth test of the same draw. `rows` adds up parts and prints rows of
evidence. Tests with rotary embeddings use FlashAttention's Triton kernel, which needs a C compiler;
without the folder FOLDER/flash_attn they are not among the tests.
With `--backward` the groups dense and varlen also compare gradients. Exit code of `run`: 1 if a
test failed.
"""

import argparse
import collections
import datetime
import importlib
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import types

COMMIT = "0251105a2fb19d2957484b7f023cd8c115286ced"
SOURCE = "https://github.com/Dao-AILab/flash-attention"
FILES = ["hopper/test_flash_attn.py", "hopper/test_flash_attn_bwd_determinism.py", "hopper/test_util.py", "hopper/padding.py",
         "flash_attn/layers/rotary.py", "flash_attn/ops/triton/rotary.py"]  # fmt: skip
MAIN, DETERMINISM = "test_flash_attn", "test_flash_attn_bwd_determinism"
TESTS = {
    "dense": (MAIN, "test_flash_attn_output"),
    "varlen": (MAIN, "test_flash_attn_varlen_output"),
    "kvcache": (MAIN, "test_flash_attn_kvcache"),
    "combine": (MAIN, "test_flash_attn_combine"),
    "determinism": (DETERMINISM, "test_flash_attn_output"),
    "determinism_varlen": (DETERMINISM, "test_flash_attn_varlen_output"),
}
DRAW = {"dense": 4000, "varlen": 2000, "kvcache": 2000, "combine": 200}
POISONED = 3  # exit code of a worker whose CUDA context is lost


def fetch(folder, source):
    folder.mkdir(parents=True, exist_ok=True)
    if not os.path.isdir(source):
        source, address = str(folder / ".fetched"), source
        subprocess.run(["git", "init", "--quiet", "--bare", source], check=True)
        subprocess.run(["git", "-C", source, "remote", "add", "origin", address], check=True)
        wanted = ["--depth", "1", "--filter", "blob:none", "origin", COMMIT]
        subprocess.run(["git", "-C", source, "fetch", "--quiet", *wanted], check=True)
    for name in FILES:
        text = subprocess.run(["git", "-C", source, "show", f"{COMMIT}:{name}"], check=True, capture_output=True).stdout
        at = folder / name.removeprefix("hopper/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "--no-deps"]
    subprocess.run([*pip, "einops==0.8.1"], check=True)
    print(f"{folder}: tests of {COMMIT[:12]}")


def load(options):
    """The test function of each drawn group, on FlashCore."""
    if options.device == "cpu":
        os.environ["FLASH_ATTENTION_DISABLE_FP8"] = "TRUE"  # it asks the GPU
    sys.path.insert(0, str(options.folder))
    interface = importlib.import_module("flashcore_attn.flash_attn_interface")
    modules = {}
    for name in {TESTS[group][0] for group in options.draw}:
        ordered = name == DETERMINISM
        os.environ["FLASH_ATTENTION_DISABLE_BACKWARD"] = "FALSE" if options.backward or ordered else "TRUE"
        sys.modules["flash_attn_interface"] = of_determinism(interface) if ordered else interface
        text = (options.folder / f"{name}.py").read_text()
        if ordered:
            assert text.count("iterations = 1000\n") == 2, "the tests of determinism repeat in another way"
            text = text.replace("iterations = 1000\n", f"iterations = {options.repeats}\n")
        if options.device == "cpu":
            text = text.replace('device = "cuda"', 'device = "cpu"')
            # What the tests allow over PyTorch's error is that of `x + 0.3 - 0.3`: on the CPU it is 0 for x = 0, on a
            # GPU 5e-5 in fp16. Gradients of a row that sees one key are 0 up to sums in another order.
            text = text.replace("_atol = 2 * (d", "_atol = 1e-4 + 2 * (d")
        module = modules[name] = types.ModuleType(name)
        exec(compile(text, str(options.folder / f"{name}.py"), "exec"), module.__dict__)
        module.itertools = types.SimpleNamespace(product=served_product)
    return {group: getattr(modules[TESTS[group][0]], TESTS[group][1]) for group in options.draw}


def of_determinism(interface):
    """The interface as the tests of determinism call it: with `window_size`, for four results."""

    def backward(*tensors, window_size, **rest):
        left, right = map(int, window_size)
        # After the scale and `is_causal` come the sides of the window; dq, dk and dv are written in place.
        softmax_d = interface._flash_attn_backward(*tensors, left, right, **rest)
        return *tensors[12:15], softmax_d

    module = types.ModuleType("flash_attn_interface")
    module.__dict__.update({name: getattr(interface, name) for name in interface.__all__})
    module._flash_attn_backward = backward
    return module


def served_product(*lists):
    """`itertools.product`; of head sizes of V and chunks, two lists of numbers, only those that are served."""
    for values in itertools.product(*lists):
        of_v_and_chunk = len(lists) == 2 and all(type(x) is int for one in lists for x in one)
        if not of_v_and_chunk or (values[0] <= 256 and values[1] == 0):
            yield values


def cases(test):
    """All combinations of a test's parameters, each a dict."""
    axes = []
    for mark in test.pytestmark:
        names = [name.strip() for name in mark.args[0].split(",")]
        axes.append([dict(zip(names, value if len(names) > 1 else [value])) for value in mark.args[1]])
    for choice in itertools.product(*axes):
        yield {name: value for part in choice for name, value in part.items()}


def why_not(group, case):
    """Why a test is not drawn; None if it is."""
    if case.get("has_qv"):
        return "qv"
    if group == "kvcache":
        page = case["page_size"]
        if (page and case["seqlen_k"] % page) or (not case["new_kv"] and case["rotary_fraction"] > 0):
            return "skipped by the test itself"
    return None


def drawn(tests, draw, seed):
    """The tests to run as (group, case), and what was left out."""
    chosen, left_out, totals = [], {}, {}
    for group, count in draw.items():
        every = list(cases(tests[group]))
        reasons = [why_not(group, case) for case in every]
        served = [case for case, why in zip(every, reasons) if why is None]
        left_out[group] = dict(collections.Counter(why for why in reasons if why))
        totals[group] = len(every)
        few = random.Random(f"{seed} {group}").sample(served, min(count, len(served)))
        chosen += [(group, case) for case in few]
    random.Random(seed).shuffle(chosen)  # long and short ones in all parts
    return chosen, left_out, totals


def run_one(test, case):
    """How a test ends, and what it says."""
    import pytest
    import torch

    try:
        test(**case)
        return "passed", ""
    except pytest.skip.Exception as skipped:
        return "skipped", str(skipped)
    except NotImplementedError as error:
        return "refused", str(error)
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        return "out of memory", str(error).splitlines()[0]
    except Exception as error:
        says = (str(error) or type(error).__name__).splitlines()[0]
        return "failed", f"{type(error).__name__}: {says}"[:300]


def work(options):
    """A worker: runs its tests and writes a line for each."""
    tests = load(options)
    chosen, _, _ = drawn(tests, options.draw, options.seed)
    ends = time.monotonic() + options.seconds
    if "/" in options.worker:  # every so many of the draw
        first, step = map(int, options.worker.split("/"))
        numbers = range(first, len(chosen), step)
    else:
        numbers = map(int, options.worker.split(","))
    with open(options.out, "a") as out, open(os.devnull, "w") as quiet:
        standard, sys.stdout = sys.stdout, quiet  # the tests print a lot
        for number in numbers:
            if time.monotonic() > ends:
                break
            group, case = chosen[number]
            outcome, says = run_one(tests[group], case)
            case = {name: str(value) for name, value in case.items()}
            print(json.dumps([number, group, outcome, says, case]), file=out, flush=True)
            if "CUDA error" in says or "CUDA_ERROR" in says:
                os._exit(POISONED)
        sys.stdout = standard


def run(options):
    chosen, left_out, totals = drawn(load(options), options.draw, options.seed)
    part, parts = map(int, options.part.split("/"))
    step, started = options.processes * parts, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        files = [pathlib.Path(scratch) / f"{n}.jsonl" for n in range(options.processes)]
        at = [part - 1 + parts * n for n in range(options.processes)]
        living = {}

        def start(n, numbers=None):
            seconds = options.seconds - (time.monotonic() - started)
            command = [sys.executable, __file__, "run", options.folder, files[n], "--worker", numbers or f"{at[n]}/{step}"]
            command += ["--seed", options.seed, "--seconds", seconds, "--device", options.device, "--repeats", options.repeats]
            command += [word for group, count in options.draw.items() for word in ("--draw", f"{group}={count}")]
            command += ["--backward"] if options.backward else []
            living[n] = subprocess.Popen([str(word) for word in command])

        read = lambda n: [json.loads(line) for line in files[n].read_text().splitlines()] if files[n].exists() else []
        for n in range(options.processes):
            start(n)
        while living:
            for n, process in list(living.items()):
                status = process.poll()
                if status is None:
                    continue
                del living[n]
                lines = read(n)
                if status != 0:  # it died, or its context is lost: on with the next test
                    at[n] = lines[-1][0] + step if lines else at[n]
                    if status != POISONED and at[n] < len(chosen):
                        group, case = chosen[at[n]]
                        case = {name: str(value) for name, value in case.items()}
                        line = [at[n], group, "failed", f"the process ended with {status}", case]
                        with open(files[n], "a") as file:
                            print(json.dumps(line), file=file)
                        at[n] += step
                    if at[n] < len(chosen) and time.monotonic() - started < options.seconds:
                        start(n)
            time.sleep(0.2)
        results = [line for n in range(options.processes) for line in read(n)]
        again = [number for number, _, outcome, _, _ in results if outcome == "out of memory"]
        if again:  # the others had it: alone
            files.append(pathlib.Path(scratch) / "again.jsonl")
            start(options.processes, ",".join(map(str, again)))
            living.popitem()[1].wait()
            alone = {line[0]: line for line in read(options.processes)}
            results = [alone.get(line[0], line) for line in results]
    report = {"commit": COMMIT, "seed": options.seed, "part": options.part, "groups": {}, "not_passed": []}
    ordered = [TESTS[group][0] == DETERMINISM for group in options.draw]
    report["versions"], report["backward"] = versions(), options.backward or any(ordered)
    report["repeats"] = options.repeats if any(ordered) else None
    report["drawn"] = len(range(part - 1, len(chosen), parts))
    report["not_reached"] = report["drawn"] - len(results)
    report["seconds"] = round(time.monotonic() - started)
    for group in options.draw:
        outcomes = collections.Counter(outcome for _, of, outcome, _, _ in results if of == group)
        report["groups"][group] = {"of": totals[group], "ran": dict(outcomes), "not_drawn": left_out[group]}
    report["not_passed"] = [line for line in results if line[2] not in ("passed", "skipped")][:200]
    options.out.write_text(json.dumps(report, indent=1))
    print(json.dumps({name: value for name, value in report.items() if name != "not_passed"}, indent=1))
    for number, group, outcome, says, case in report["not_passed"][:20]:
        print(f"{group} {number} {outcome}: {says} {case}")
    return any(set(counts["ran"]) - {"passed", "skipped"} for counts in report["groups"].values())


def versions():
    import flashcore_attn
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    return {"device": device, "torch": torch.__version__, "flashcore": flashcore_attn.__version__}


def rows(name, reports):
    root = pathlib.Path(__file__).parent
    command = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    revision = subprocess.run(command, capture_output=True, text=True)
    first = reports[0]
    seconds, missed = (sum(report[key] for report in reports) for key in ("seconds", "not_reached"))
    note = f"FlashAttention {first['commit'][:12]}, torch {first['versions']['torch']}, seed {first['seed']};"
    directions = "forward and backward" if first.get("backward") else "forward only"
    note += f" {seconds} s in {len(reports)} parts, {missed} drawn tests not reached; {directions}, without attention_chunk"
    note += f"; those of determinism with {first['repeats']} repeats" if first.get("repeats") else ""
    print(json.dumps({
        "run": name, "date": str(datetime.date.today()), "device": first["versions"]["device"], "driver": None,
        "revision": revision.stdout.strip(), "command": "scripts/fa3_tests.py run", "raw": {}, "at": None, "note": note,
    }))  # fmt: skip
    for group in first["groups"]:
        ran = sum((collections.Counter(report["groups"][group]["ran"]) for report in reports), collections.Counter())
        passed, skipped = ran.pop("passed", 0), ran.pop("skipped", 0)
        failed = sum(ran.values())
        print(json.dumps({
            "run": name, "claim": f"{group} tests of FlashAttention-3", "value": failed, "unit": "failed tests",
            "ok": failed == 0, "passed": passed, "skipped": skipped, "how": dict(ran),
            "of": first["groups"][group]["of"], "not_drawn": first["groups"][group]["not_drawn"],
        }))  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch")
    fetching.add_argument("folder", type=pathlib.Path)
    fetching.add_argument("--source", default=SOURCE)
    running = commands.add_parser("run")
    running.add_argument("folder", type=pathlib.Path)
    running.add_argument("out", type=pathlib.Path)
    running.add_argument("--draw", action="append", default=[])
    running.add_argument("--part", default="1/1")
    running.add_argument("--seed", type=int, default=1)
    running.add_argument("--processes", type=int, default=10)
    running.add_argument("--seconds", type=float, default=540)
    running.add_argument("--device", default="cuda")
    running.add_argument("--backward", action="store_true")
    running.add_argument("--repeats", type=int, default=1000)
    running.add_argument("--worker", help=argparse.SUPPRESS)
    printing = commands.add_parser("rows")
    printing.add_argument("run")
    printing.add_argument("reports", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    if options.command == "fetch":
        return fetch(options.folder, options.source)
    if options.command == "rows":
        return rows(options.run, [json.loads(path.read_text()) for path in options.reports])
    options.folder = options.folder.resolve()
    given = {group: int(count) for group, count in (word.split("=") for word in options.draw)}
    for group in given.keys() - TESTS.keys():
        parser.error(f"--draw names the group {group}; groups are {', '.join(TESTS)}")
    options.draw = given or DRAW
    if options.worker:
        return work(options)
    return int(run(options))


if __name__ == "__main__":
    sys.exit(main())
