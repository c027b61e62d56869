#!/usr/bin/env python3
"""Runs PyTorch's own tests of SDPA without FlashCore and with it, and leaves the counts.

usage: torch_tests.py FOLDER OUT.json [--most N] [--seed S] [--processes P] [--seconds T]

FOLDER has files of PyTorch's `test` folder; nothing of them is kept in this repository. Needs the
Python of an environment with flashcore, PyTorch, expecttest, and pytest with xdist and timeout, of
which this file is a plugin, too. What `pytest -k sdpa test_transformers.py` selects runs twice,
without and with `flashcore_attn.torch.activate()`. `--most` draws at most so many of the variants of
a test. A test whose process dies has failed. Exit code: 1 if a test ended in another way with
FlashCore, or ran in one of the two only, if FlashCore computed nothing, or if pytest itself failed.
"""

import argparse
import collections
import inspect
import json
import random
import sys
import time
import types

from pytest_runs import add_options, run_all, told, versions

calls = collections.Counter()  # what FlashCore computed in this process


def pytest_configure():
    # Only the tests of a backend that is built from C++ use it; they are not drawn.
    module = types.ModuleType("test_cpp_extensions_open_device_registration")
    module.generate_faked_module = None
    sys.modules[module.__name__] = module
    if not told()["active"]:
        return
    import flashcore_attn.torch

    for name in ("_direct", "_attend", "_differentiate"):

        def counted(*given, inner=getattr(flashcore_attn.torch, name), name=name, **options):
            results = inner(*given, **options)
            calls[name] += results is not None
            return results

        setattr(flashcore_attn.torch, name, counted)
    flashcore_attn.torch.activate()


def pytest_collection_modifyitems(items):
    """Leaves the tests that are drawn, mixed, so that what the time does not reach is of all kinds."""
    most, seed = told()["most"], told()["seed"]
    families = collections.defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        if "sdpa" in item.name.lower() and "PrivateUse1" not in item.nodeid:
            families[inspect.unwrap(item.obj).__name__].append(item)
    draw = lambda family, every: random.Random(f"{seed} {family}").sample(every, min(most or len(every), len(every)))
    items[:] = [item for family, every in families.items() for item in draw(family, every)]
    random.Random(seed).shuffle(items)


def pytest_runtest_teardown(item):
    item.user_properties += calls.items()
    calls.clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, processes=8)
    parser.add_argument("--most", type=int, default=0, help="of the variants of a test; 0: all")
    options = parser.parse_args()
    report = versions() | {"seed": options.seed}
    started, results = time.monotonic(), {}
    for word in ("without", "with"):
        asked = {"active": word == "with", "most": options.most}
        lines = results[word] = run_all("torch_tests", options.folder, ["test_transformers.py"], options, asked)
        computed = collections.Counter()
        for _, _, noted in lines.values():
            computed.update({name: int(count) for name, count in noted.items()})
        report[word] = dict(collections.Counter(outcome for outcome, *_ in lines.values()))
        report[word] |= {"drawn": len(lines), "computed_by_flashcore": dict(computed)}
        report[word]["failures"] = {name: says for name, (outcome, says, _) in sorted(lines.items()) if outcome == "failed"}
    every = sorted(results["without"].keys() | results["with"].keys())
    other = {name: [results[word].get(name, ("missing", ""))[:2] for word in results] for name in every}
    ran = {name: ends for name, ends in other.items() if all(outcome != "not_reached" for outcome, _ in ends)}
    other = {name: ends for name, ends in ran.items() if ends[0][0] != ends[1][0]}
    report |= {"same_outcome": len(ran) - len(other), "other_outcome": other, "seconds": round(time.monotonic() - started)}
    options.out.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    return int(bool(other) or not report["with"]["computed_by_flashcore"])


if __name__ == "__main__":
    sys.exit(main())
