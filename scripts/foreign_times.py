#!/usr/bin/env python3
"""Predicts the times of kernels of other compilers, measures them on a GPU, and compares both.

usage: scripts/foreign_times.py predict CASES OUT.json --flashcore COMMAND [--card NAME]
       scripts/foreign_times.py measure CASES OUT.json
       scripts/foreign_times.py compare PREDICTED.json MEASURED.json

CASES has NAME.ptx and NAME.toml, the launch that `flashcore check --launch` takes. `predict` simulates a few blocks of
each kernel, on any machine. `measure` needs a driver and NumPy: buffers hold random numbers, as the launch declares
them, which stay in L2 where they fit; a time is the median of 15 rounds, each the mean of as many launches as take 1 ms.
Predict before you measure.

Exit code: 0, 1 some kernel was neither predicted nor measured, 3 no GPU.
"""

import argparse
import ctypes
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tomllib

from run_differential import Driver

SIZES = {"f16": 2, "bf16": 2, "u16": 2, "i16": 2, "e4m3": 1, "e5m2": 1, "u8": 1, "i8": 1, "f64": 8, "i64": 8, "u64": 8}
ROUNDS, ROUND_MS = 15, 1.0


def predict(ptx, options):
    """What the model says, or why it says nothing."""
    launch = ptx.with_suffix(".toml")
    command = [options.flashcore, "check", ptx, "--launch", launch, "--launch", "opted-in", "--profile", options.card]
    done = subprocess.run([*command, "--schedules", "1", "--blocks", "1", "--json"], capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        return {"unknown": done.stderr.strip()[:200]}
    told = json.loads(done.stdout)
    time = told.get("predicted")
    if time is None:
        return {"unknown": told.get("not_predicted") or told["verdict"]}
    return {key: time[key] for key in ("micros", "low_micros", "high_micros", "binds", "lines")}


def contents(argument, random):
    """Random bytes of a buffer: numbers of -1 to 1, or of the range that it declares."""
    kind, count = argument["type"], argument["count"]
    fill = argument.get("fill", "values" if "values" in argument else "uniform")
    if fill in ("zero", "unwritten"):
        return bytes(count * SIZES.get(kind, 4))
    whole = re.fullmatch(r"ints:(-?\d+):(-?\d+)", fill)
    if not whole and fill not in ("uniform", "bell"):
        allowed = "uniform, bell, ints:LO:HI, unwritten, zero"
        raise ValueError(f"`{argument.get('name', '')}` has the fill `{fill}`; allowed for measuring: {allowed}")
    if kind in ("f32", "f64", "f16"):
        return random.uniform(-1, 1, count).astype({"f32": "f4", "f64": "f8", "f16": "f2"}[kind]).tobytes()
    if kind == "bf16":
        return (random.uniform(-1, 1, count).astype("f4").view("u4") >> 16).astype("u2").tobytes()
    low, high = map(int, whole.groups()) if whole else (0, 64)
    return random.integers(low, high, count).astype(f"i{SIZES.get(kind, 4)}").tobytes()


def measure(driver, ptx, random):
    """Microseconds of a launch."""
    declared = tomllib.loads(ptx.with_suffix(".toml").read_text(encoding="utf-8"))
    text = ptx.read_text(encoding="utf-8")
    entry = re.search(r"\.entry\s+(\S+?)\s*\(", text)
    types = re.findall(r"\.param\s+(?:\.align \d+ )?\.(\w+)\s", text[entry.end() : text.index(")", entry.end())])
    module, function = driver.module(text.encode()), ctypes.c_void_p()
    driver("cuModuleGetFunction", ctypes.byref(function), module, entry[1].encode())
    if declared.get("shared", 0) > 48 << 10:
        driver("cuFuncSetAttribute", function, 8, declared["shared"])
    held, buffers = [], []
    for argument, kind in zip(declared["args"], types, strict=True):
        if "value" in argument:
            ctype = {"f32": ctypes.c_float, "f64": ctypes.c_double, "u64": ctypes.c_uint64, "b64": ctypes.c_uint64}
            value = argument["value"]
            held.append(ctype.get(kind, ctypes.c_uint32)(value if kind.startswith("f") else value & 0xFFFFFFFFFFFFFFFF))
            continue
        data = contents(argument, random)
        buffers.append(driver.allocated(len(data)))
        driver.write(buffers[-1], data)
        held.append(buffers[-1])
    pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in held))
    grid, block = ((declared[name] + [1, 1])[:3] for name in ("grid", "block"))
    events = [ctypes.c_void_p(), ctypes.c_void_p()]
    for event in events:
        driver("cuEventCreate", ctypes.byref(event), 0)

    def micros(launches):
        driver("cuEventRecord", events[0], None)
        for _ in range(launches):
            driver("cuLaunchKernel", function, *grid, *block, declared.get("shared", 0), None, pointers, None)
        driver("cuEventRecord", events[1], None)
        driver("cuEventSynchronize", events[1])
        elapsed = ctypes.c_float()
        driver("cuEventElapsedTime", ctypes.byref(elapsed), *events)
        return 1000 * elapsed.value / launches

    first = micros(3)
    launches = max(1, min(200, int(1000 * ROUND_MS / first)))
    times = [micros(launches) for _ in range(ROUNDS)]
    for buffer in buffers:
        driver("cuMemFree_v2", buffer)
    driver("cuModuleUnload", module)
    return {"micros": statistics.median(times), "launches": launches, "rounds": sorted(times)}


def measured(cases):
    """Each in a process of its own: a kernel that traps takes the context with it."""
    for ptx in cases:
        command = [sys.executable, __file__, "one", ptx, "-"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired as error:
            yield ptx.stem, {"unknown": f"no time within {error.timeout} s"}
            continue
        said = done.stdout.strip()
        yield ptx.stem, json.loads(said) if said.startswith("{") else {"unknown": done.stderr.strip()[-200:]}


def compare(predicted, measured):
    """A row a kernel, and the summary."""
    pairs = []
    for name, foreseen in predicted.items():
        seen = measured.get(name, {"unknown": "not measured"})
        why = foreseen.get("unknown") or seen.get("unknown")
        if why or "micros" not in seen:
            print(f"{name:44} {(why or 'not measured')[:100]}")
            continue
        pairs.append((foreseen, seen["micros"]))
        binds, ratio = json.dumps(foreseen["binds"]).strip('"'), seen["micros"] / foreseen["micros"]
        print(f"{name:44} {foreseen['micros']:9.1f} {seen['micros']:9.1f} {ratio:6.2f}  {binds}")
    if len(pairs) < 2:
        print(f"{len(pairs)} kernels were both predicted and measured; a summary needs 2")
        return
    ratios = sorted(seen / foreseen["micros"] for foreseen, seen in pairs)

    def ranks(values):
        order = sorted(range(len(values)), key=values.__getitem__)
        return {at: rank for rank, at in enumerate(order)}

    one, other = ranks([f["micros"] for f, _ in pairs]), ranks([seen for _, seen in pairs])
    n = len(pairs)
    spearman = 1 - 6 * sum((one[i] - other[i]) ** 2 for i in range(n)) / (n * (n * n - 1))
    within = sum(1 / 1.7 <= ratio <= 1.7 for ratio in ratios) / n
    inside = sum(f["low_micros"] <= seen <= f["high_micros"] for f, seen in pairs) / n
    print(
        f"{n} kernels, {sum(seen > 20 for _, seen in pairs)} over 20 us: measured/predicted {statistics.median(ratios):.2f}"
        f" ({ratios[n // 10]:.2f} to {ratios[-1 - n // 10]:.2f}), {within:.0%} within a factor 1.7, {inside:.0%} in their"
        f" intervals, Spearman {spearman:.3f}"
    )


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("what", choices=["predict", "measure", "compare", "one"])
    usage.add_argument("cases", type=pathlib.Path)
    usage.add_argument("out", type=pathlib.Path)
    usage.add_argument("--flashcore", default="flashcore")
    usage.add_argument("--card", default="h200")
    options = usage.parse_args()
    if options.what == "compare":
        compare(*(json.loads(path.read_text(encoding="utf-8")) for path in (options.cases, options.out)))
        return 0
    if options.what == "one":
        import numpy  # only here

        print(json.dumps(measure(Driver(), options.cases, numpy.random.default_rng(1))))
        return 0
    cases = sorted(options.cases.glob("*.ptx"))
    if options.what == "predict":
        told = {ptx.stem: predict(ptx, options) for ptx in cases}
    else:
        try:
            Driver()
        except (OSError, RuntimeError) as error:
            print(f"no GPU: {error}", file=sys.stderr)
            return 3
        told = dict(measured(cases))
    options.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    unknown = {name: one["unknown"] for name, one in told.items() if "unknown" in one}
    for name, why in unknown.items():
        print(f"{name}: {why}")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
