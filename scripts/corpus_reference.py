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
import dataclasses
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


@dataclasses.dataclass
class Buffer:
    """An array in global memory, or a module variable: elements as they are stored."""

    name: str
    type: str
    fill: str
    check: str | None
    rtol: float
    atol: float
    stored: np.ndarray

    @classmethod
    def of(cls, table, seed):
        kind, count, fill = table["type"], table["count"], table["fill"]
        check = table.get("check")
        if check is not None and check not in CHECKS:
            raise ValueError(f"{table['name']}: check = {check!r}: one of {', '.join(sorted(CHECKS))}")
        values = filled(fill, table.get("seed", seed), count, table)
        if len(values) != count:
            raise ValueError(f"{table['name']}: count = {count} is no whole number of what {fill} makes")
        if kind == "e4m3":
            values = np.clip(values, -448, 448)  # conversions of GPUs saturate
        stored = values.astype(STORED[kind])
        return cls(table["name"], kind, fill, check, table.get("rtol", 0.0), table.get("atol", 0.0), stored)

    def numbers(self):
        """float64 for floats, int64 for integers, uint64 for u64."""
        if self.type[0] in "iu":
            return self.stored if self.type == "u64" else self.stored.astype(np.int64)
        return self.stored.astype(np.float64)


@dataclasses.dataclass
class Scalar:
    name: str
    type: str | None  # None: the parameter's type in the PTX says it
    value: int | float


class Case:
    """A kernel of the corpus: its declaration, arguments and reference."""

    def __init__(self, source):
        self.source = source
        path = compile_corpus.declaration(source)
        self.table = tomllib.loads(path.read_text(encoding="utf-8"))
        self.grid, self.block = self.table["grid"], self.table["block"]
        self.shared, self.prints = self.table.get("shared", 0), self.table.get("prints", False)
        self.seed = 0
        self.arguments = [self.argument(a) for a in self.table["args"]]
        self.symbols = [self.argument(a) for a in self.table.get("symbols", [])]
        self.reference = reference(path)

    def argument(self, table):
        if "struct" in table:
            return [self.argument(field) for field in table["struct"]]
        if "value" in table:
            return Scalar(table["name"], table.get("type"), table["value"])
        self.seed += 1
        return Buffer.of(table, self.seed)

    def flat(self):
        for argument in [*self.arguments, *self.symbols]:
            yield from argument if isinstance(argument, list) else [argument]

    def checked(self):
        return [b for b in self.flat() if isinstance(b, Buffer) and b.check]

    def expected(self):
        """Arrays for the checked buffers, in order, then the printed lines if there are any."""
        known = {"grid": self.grid, "block": self.block}
        known |= {a.name: a.value if isinstance(a, Scalar) else a.numbers() for a in self.flat()}
        found = self.reference(**{name: known[name] for name in inspect.signature(self.reference).parameters})
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
        case = Case(source)
        checked, expected = case.checked(), case.expected()
    except (KeyError, ValueError, AttributeError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    if case.prints and not (expected.pop() if expected else None):
        return "prints nothing"
    if not checked or len(expected) != len(checked):
        return f"{len(expected)} results for {len(checked)} checked buffers"
    for buffer, values in zip(checked, expected):
        values = np.asarray(values).reshape(-1)
        before = buffer.numbers()
        if len(values) == 0 or len(values) > len(before) or (buffer.check != "sorted" and len(values) < len(before)):
            return f"{buffer.name}: {len(values)} elements for {len(before)}"
        if not np.all(np.isfinite(values.astype(np.float64))):
            return f"{buffer.name}: not finite"
        if len(values) > 1 and np.all(values == values[0]):
            return f"{buffer.name}: all elements are {values[0]}"
        if np.array_equal(values, before[: len(values)]):
            return f"{buffer.name}: as before the launch"
        if buffer.type[0] in "iu" and np.any(values != np.asarray(values).astype(STORED[buffer.type]).astype(values.dtype)):
            return f"{buffer.name}: out of the range of {buffer.type}"
        if buffer.check == "close" and not (buffer.rtol or buffer.atol):
            return f"{buffer.name}: close without a tolerance"
        # Two times the tolerance must tell the result from nothing at all.
        if buffer.check == "close" and np.all(np.abs(values) <= 2 * buffer.atol):
            return f"{buffer.name}: the tolerance takes zeros"
    return None


def written(source):
    """What the simulator's test reads."""
    case = Case(source)
    results = case.expected()
    printed = results.pop() if case.prints else None
    expected = iter(results)

    def argument(a):
        if isinstance(a, list):
            return {"struct": [argument(field) for field in a]}
        if isinstance(a, Scalar):
            return {"name": a.name, "type": a.type, "value": a.value}
        values = np.asarray(next(expected)).reshape(-1) if a.check else []
        right = [repr(n.item()) if isinstance(n.item(), float) else n.item() for n in values]
        told = {"name": a.name, "type": a.type, "stored": a.stored.tobytes().hex(), "unwritten": a.fill == "unwritten"}
        return told | {"check": a.check, "rtol": a.rtol, "atol": a.atol, "expected": right}

    folder = compile_corpus.cache() / source.relative_to(compile_corpus.CORPUS)
    lines = source.read_text(encoding="utf-8").split("\n")
    is_fault = source.parent.name == "faults" and not source.name.endswith(".twin.cu")
    return {
        "ptx": str(folder.with_suffix(".ptx")),
        "grid": case.grid,
        "block": case.block,
        "shared": case.shared,
        "args": [argument(a) for a in case.arguments],
        "symbols": [argument(a) for a in case.symbols],
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
