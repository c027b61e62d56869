#!/usr/bin/env python3
"""Inputs and expected outputs of the kernels of lab/check/corpus; run alone, checks that the references are usable.

usage: scripts/corpus_reference.py [--only PATTERN] [--write FOLDER]

For each kernel: makes its inputs, runs its reference (float64), and fails on a reference that is missing, raises, has
another number of elements than the output that it is for, or computes what judges nothing: values that are not finite,
all equal, or equal to what the buffer held before. Starts itself again with the environment of compile_corpus.py if
this Python lacks NumPy or ml_dtypes. lab/check/corpus/README.md has the format of declarations and the generator of inputs.

--write leaves each kernel's launch, inputs and expected outputs in FOLDER as NAME.json, for the test of the simulator
(lab/check/tests/it/corpus.rs), with the path of its PTX.
"""

import argparse
import importlib.util
import inspect
import json
import os
import pathlib
import sys
import tomllib

import compile_corpus

try:
    import ml_dtypes
    import numpy as np
except ImportError:
    if __name__ != "__main__":
        raise
    python = compile_corpus.environment().parents[5] / "bin" / "python"
    os.execv(python, [python, *sys.argv])

STORED = {"bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "f16": "f2", "f32": "f4", "f64": "f8"}
STORED |= {f"{sign}{8 * size}": f"{sign}{size}" for sign in "iu" for size in (1, 2, 4, 8)}
CHECKS = {"exact", "close", "sorted"}
# What a buffer of the declaration keeps when it is written.
KEPT = {"name", "type", "check", "rtol", "atol"}


def mix(z):
    """SplitMix64's output function."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def words(seed, draw, count):
    return mix(np.uint64((seed * 16 + draw) << 32) + np.arange(count, dtype=np.uint64))


def unit(seed, draw, count):
    """Multiples of 2^-24 in [0, 1)."""
    return (words(seed, draw, count) >> np.uint64(40)).astype(np.float64) / 2**24


def integers(seed, count, lo, hi):
    return lo + (words(seed, 0, count) % np.uint64(hi - lo)).astype(np.int64)


def filled(fill, seed, count, table):
    """Elements by their kind, not rounded to the type yet."""
    kind, *numbers = fill.split(":")
    numbers = [int(n) for n in numbers]
    if kind in ("zero", "unwritten"):
        return np.zeros(count)
    if kind == "unit":
        return unit(seed, 0, count)
    if kind == "uniform":
        return 2 * unit(seed, 0, count) - 1
    if kind == "bell":
        return sum(unit(seed, draw, count) for draw in range(12)) - 6
    if kind == "bits":
        return words(seed, 0, count)
    if kind == "ints":
        return integers(seed, count, *numbers)
    if kind == "offsets":
        return np.concatenate([[0], np.cumsum(integers(seed, count - 1, *numbers))])
    if kind == "iota":
        values = np.arange(count)
        for a, b in table.get("swaps", []):
            values[a], values[b] = b, a
        return values
    if kind == "permutation":
        return np.argsort(words(seed, 0, count), kind="stable")
    if kind == "antidiagonal":
        squares = 2 * unit(seed, 0, count).reshape(-1, numbers[0], numbers[0]) - 1
        squares[:, np.arange(numbers[0]), numbers[0] - 1 - np.arange(numbers[0])] += numbers[0]
        return squares.reshape(-1)
    if kind == "triangles":
        packed = 2 * unit(seed, 0, count).reshape(-1, numbers[0] * (numbers[0] + 1) // 2) - 1
        packed[:, np.cumsum(np.arange(numbers[0]) + 1) - 1] += numbers[0]
        return packed.reshape(-1)
    if kind == "values":
        values = table["values"]
        rest = [table["rest"]] if "rest" in table else values
        return np.array([values[i] if i < len(values) else rest[i % len(rest)] for i in range(count)])
    raise ValueError(f"fill = {fill!r}: unknown kind")


def stored(table, seed):
    """The elements of a buffer in global memory, or of a module variable, as they are stored."""
    kind, count, fill, check = table["type"], table["count"], table["fill"], table.get("check")
    if check is not None and check not in CHECKS:
        raise ValueError(f"{table['name']}: check = {check!r}: one of {', '.join(sorted(CHECKS))}")
    values = filled(fill, table.get("seed", seed), count, table)
    if len(values) != count:
        raise ValueError(f"{table['name']}: count = {count} is no whole number of what {fill} makes")
    if kind == "e4m3":
        values = np.clip(values, -448, 448)  # conversions of GPUs saturate
    return values.astype(STORED[kind])


def numbers(buffer):
    """float64 for floats, int64 for integers, uint64 for u64."""
    if buffer["type"] == "u64":
        return buffer["stored"]
    return buffer["stored"].astype(np.int64 if buffer["type"][0] in "iu" else np.float64)


def flat(arguments):
    for argument in arguments:
        yield from argument.get("struct", [argument])


def declared(source):
    """A kernel's declaration, with what its buffers hold; all its arguments in order; and the buffers that are judged."""
    table = tomllib.loads(compile_corpus.declaration(source).read_text(encoding="utf-8"))
    table = {"shared": 0, "prints": False, "symbols": []} | table
    arguments = list(flat([*table["args"], *table["symbols"]]))
    buffers = [argument for argument in arguments if "value" not in argument]
    for seed, buffer in enumerate(buffers, 1):
        buffer["stored"] = stored(buffer, seed)
    return table, arguments, [buffer for buffer in buffers if buffer.get("check")]


def expected(source, table, arguments):
    """Arrays for the judged buffers, in order, then the printed lines if there are any."""
    function = reference(compile_corpus.declaration(source))
    known = {"grid": table["grid"], "block": table["block"]}
    known |= {a["name"]: a["value"] if "value" in a else numbers(a) for a in arguments}
    found = function(**{name: known[name] for name in inspect.signature(function).parameters})
    return list(found) if isinstance(found, tuple) else [found]


def reference(path, loaded={}):
    """The function for a declaration: in a module reference*.py of its folder."""
    for module in sorted(path.parent.glob("reference*.py")):
        if module not in loaded:
            spec = importlib.util.spec_from_file_location(f"{path.parent.name}.{module.stem}", module)
            found = importlib.util.module_from_spec(spec)
            sys.path.insert(0, str(path.parent))  # a module may import its neighbour
            spec.loader.exec_module(found)
            sys.path.pop(0)
            loaded[module] = found
        if hasattr(loaded[module], path.stem):
            return getattr(loaded[module], path.stem)
    raise KeyError(f"no function {path.stem} in {path.parent.name}/reference*.py")


def wrong_with(source):
    """What is wrong with a case, or none."""
    try:
        table, arguments, judged = declared(source)
        right = expected(source, table, arguments)
    except (KeyError, ValueError, AttributeError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    if table["prints"] and not (right.pop() if right else None):
        return "prints nothing"
    if not judged or len(right) != len(judged):
        return f"{len(right)} results for {len(judged)} checked buffers"
    for buffer, values in zip(judged, right):
        values, before = np.asarray(values).reshape(-1), numbers(buffer)
        name, kind, check, atol = buffer["name"], buffer["type"], buffer["check"], buffer.get("atol", 0.0)
        if len(values) == 0 or len(values) > len(before) or (check != "sorted" and len(values) < len(before)):
            return f"{name}: {len(values)} elements for {len(before)}"
        if not np.all(np.isfinite(values.astype(np.float64))):
            return f"{name}: not finite"
        if len(values) > 1 and np.all(values == values[0]):
            return f"{name}: all elements are {values[0]}"
        if np.array_equal(values, before[: len(values)]):
            return f"{name}: as before the launch"
        if kind[0] in "iu" and np.any(values != values.astype(STORED[kind]).astype(values.dtype)):
            return f"{name}: out of the range of {kind}"
        if check == "close" and not (buffer.get("rtol") or atol):
            return f"{name}: close without a tolerance"
        # Two times the tolerance must tell the result from nothing at all.
        if check == "close" and np.all(np.abs(values) <= 2 * atol):
            return f"{name}: the tolerance takes zeros"
    return None


def written(source):
    """What the simulator's test reads."""
    table, arguments, judged = declared(source)
    results = expected(source, table, arguments)
    printed = results.pop() if table["prints"] else None
    right = {buffer["name"]: np.asarray(values).reshape(-1) for buffer, values in zip(judged, results)}

    def argument(a):
        if "struct" in a:
            return {"struct": [argument(field) for field in a["struct"]]}
        if "value" in a:
            return {"name": a["name"], "type": a.get("type"), "value": a["value"]}
        values = [repr(n.item()) if isinstance(n.item(), float) else n.item() for n in right.get(a["name"], ())]
        told = {"stored": a["stored"].tobytes().hex(), "unwritten": a["fill"] == "unwritten", "expected": values}
        return {"check": None, "rtol": 0.0, "atol": 0.0} | {key: a[key] for key in KEPT & a.keys()} | told

    lines = source.read_text(encoding="utf-8").split("\n")
    is_fault = source.parent.name == "faults" and not source.name.endswith(".twin.cu")
    return {
        "ptx": str((compile_corpus.cache() / source.relative_to(compile_corpus.CORPUS)).with_suffix(".ptx")),
        **{key: table[key] for key in ("grid", "block", "shared")},
        "args": [argument(a) for a in table["args"]],
        "symbols": [argument(a) for a in table["symbols"]],
        "printed": printed,
        "fault": lines[0].removeprefix("// fault: ") if is_fault else None,
        "lines": [number for number, line in enumerate(lines, 1) if line.endswith("// FAULT")],
    }


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("--only", default="*", metavar="PATTERN", help="kernels of these names, such as 'gemm_*'")
    usage.add_argument("--write", type=pathlib.Path, metavar="FOLDER", help="leave inputs and expected outputs there")
    options = usage.parse_args()
    files = compile_corpus.sources(options.only)
    # SplitMix64's first output for seed 0, from its author's program: another generator would make other inputs.
    assert mix(np.zeros(1, np.uint64))[0] == 0xE220A8397B1DCDAF
    failed = 0
    for source in files:
        wrong = wrong_with(source)
        if wrong:
            failed += 1
            print(f"{source.relative_to(compile_corpus.CORPUS)}: {wrong}", file=sys.stderr)
        elif options.write:
            path = options.write / source.relative_to(compile_corpus.CORPUS).with_suffix(".json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(written(source)), encoding="utf-8")
    print(f"{len(files) - failed} passed, {failed} failed")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    np.seterr(over="ignore")  # the generator's words wrap around
    sys.exit(main())
