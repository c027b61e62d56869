#!/usr/bin/env python3
"""Runs the cases of `flashcore-tools differential` on a GPU, and compares with what the simulator computed.

usage: scripts/run_differential.py FOLDER OUT.json [--jobs N]

FOLDER is what the tool has written. Needs a driver, Python 3.11 and NumPy; no toolkit. Each module is compiled and run
in a process of its own, N at a time: a launch that fails does not end the others. OUT.json gets each case that is not the
same, and counts.

A case is the same (all bits, or floats within the instruction's bound), close (floats within a kernel's tolerance),
different, or failed. All NaN are one; results that are NaN with other bits are counted by instruction.

Exit code: 0 no case is different or failed, 1 some are, 2 wrong usage, 3 no GPU.
"""

import argparse
import collections
import concurrent.futures
import ctypes
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import time
import tomllib

import numpy as np

TIMEOUT_S = 30
STORED = {"f16": "f2", "f32": "f4", "f64": "f8", "bf16": "u2", "e4m3": "u1"}
STORED |= {f"{s}{8 * n}": f"{s}{n}" for s in "iu" for n in (1, 2, 4, 8)}
# What may make a kernel's results close but not equal: sums in another order, approximations, products of matrices, and
# products and sums without a rounding, which ptxas may contract.
INEXACT = re.compile(
    r"(?:atom|red)\S*\.add\S*\.(?:noftz\.)?b?f\d+(?:x2)?|\w+\.(?:approx|full)\S*|w?mma\.\S*f(?:16|32|64)\S*"
    r"|\b(?:mul|add|sub)(?:\.ftz)?\.f(?:32|64)\b"
)
# Kernels whose sums come in an order that the threads' schedule decides.
ORDERED = {"spin_lock": "the order in which threads take the lock"}


class Driver:
    """The driver of CUDA, by its C functions."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        name = ctypes.create_string_buffer(100)
        self("cuDeviceGetName", name, 100, device)
        version = ctypes.c_int()
        self("cuDriverGetVersion", ctypes.byref(version))
        self.name = f"{name.value.decode()}, CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)

    def __call__(self, function, *arguments):
        error = getattr(self.lib, function)(*arguments)
        if error:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(error, ctypes.byref(text))
            raise RuntimeError(f"{function}: {(text.value or b'?').decode()}")

    def module(self, text):
        """A loaded module: a cubin, or PTX. Raises what the compiler says."""
        log = ctypes.create_string_buffer(1 << 14)
        # CU_JIT_ERROR_LOG_BUFFER and its size.
        options = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        module = ctypes.c_void_p()
        try:
            self("cuModuleLoadDataEx", ctypes.byref(module), ctypes.c_char_p(text + b"\0"), 2, options, values)
        except RuntimeError as error:
            raise RuntimeError(f"{error} {log.value.decode(errors='replace')[:500]}") from None
        return module

    def allocated(self, size):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address

    def write(self, address, data):
        self("cuMemcpyHtoD_v2", address, ctypes.c_char_p(data), ctypes.c_size_t(len(data)))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(size))
        return data.raw

    def launch(self, module, case, addresses):
        """Launches a case, with the addresses of its buffers in its arguments."""
        function = ctypes.c_void_p()
        self("cuModuleGetFunction", ctypes.byref(function), module, case["entry"].encode())
        for name, held in case["variables"]:
            address, size = ctypes.c_uint64(), ctypes.c_size_t()
            self("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, name.encode())
            self.write(address, bytes.fromhex(held))
        if case["shared"] > 48 << 10:
            self("cuFuncSetAttribute", function, 8, case["shared"])
        arguments = []
        for stored, pointers in case["args"]:
            data = bytearray.fromhex(stored)
            for at, slot in pointers:
                data[at : at + 8] = addresses[slot].value.to_bytes(8, "little")
            arguments.append(ctypes.create_string_buffer(bytes(data), len(data)))
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(*(ctypes.addressof(a) for a in arguments))
        self("cuLaunchKernel", function, *case["grid"], *case["block"], case["shared"], None, pointers, None)
        self("cuCtxSynchronize")


def run_module(folder, name, first, out):
    """A child's work: writes, of each case of a module from the first on, the bytes of its buffers, or why it failed.
    Ends after a case that fails, as the context is lost then."""
    told = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    data = np.memmap(folder / "data.bin", dtype=np.uint8, mode="r")
    cases = [case for case in told["cases"] if case["module"] == name][first:]

    def say(found):
        pickle.dump(found, out)
        out.flush()

    driver = Driver()
    try:
        module = driver.module((folder / name).read_bytes())
    except RuntimeError as error:
        for _ in cases:
            say(" ".join(str(error).split()))
        return
    for case in cases:
        addresses = []
        try:
            for held in case["buffers"]:
                address, size, before = driver.allocated(held["bytes"]), held["bytes"], held["before"]
                driver.write(address, bytes(size) if before is None else data[before : before + size].tobytes())
                addresses.append(address)
            driver.launch(module, case, addresses)
            kept = [(held, address) for held, address in zip(case["buffers"], addresses) if held["after"] is not None]
            found = [driver.read(address, held["bytes"]) for held, address in kept]
            for address in addresses:
                driver("cuMemFree_v2", address)
        except RuntimeError as error:
            return say(str(error))
        say(found)


def pickled(file):
    """What a process has written, also if it was ended within the last."""
    while True:
        try:
            yield pickle.load(file)
        except (EOFError, pickle.UnpicklingError):
            return


def run(folder, name, count):
    """Of each case of a module what `run_module` says."""
    found = []
    while len(found) < count:
        with tempfile.NamedTemporaryFile() as said:
            command = [sys.executable, __file__, folder, said.name, "--module", name, "--first", str(len(found))]
            try:
                why = f"ended with {subprocess.run(command, timeout=TIMEOUT_S, check=False).returncode}"
            except subprocess.TimeoutExpired:
                why = f"did not end in {TIMEOUT_S} s"
            now = list(pickled(said))
        found += now
        # A process that fails says so of its case; one that was ended by a signal or by the limit does not.
        if len(found) < count and not (now and isinstance(now[-1], str)):
            found.append(f"not run: its process {why}")
    return found


def numbers(kind, stored):
    """float64 of what is stored."""
    if kind == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def compared(area, ours, theirs):
    """Number of elements that differ and of NaN with other bits, the first of the former, the largest share of the
    bound."""
    # What is rounded to tf32 is a float in an untyped register.
    kind = "f32" if ".tf32." in area["form"] else area["kind"]
    if kind == "u":
        wrong = ours != theirs
        return int(wrong.sum()), 0, int(np.argmax(wrong)), 0.0
    ours, theirs = (x.view(STORED[kind]) for x in (ours, theirs))
    bits = f"u{ours.itemsize}"
    same = ours.view(bits) == theirs.view(bits)
    if same.all():
        return 0, 0, 0, 0.0
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        a, b = numbers(kind, ours), numbers(kind, theirs)
        both = np.isnan(a) & np.isnan(b)
        bound = np.maximum(area["absolute"], area["relative"] * np.abs(a))
        off = np.abs(a - b)
        share = np.where(same | both, 0.0, np.where(bound > 0, off / bound, np.inf))
    share = np.where(np.isnan(share), np.inf, share)
    wrong = share > 1.0
    fine = share[~wrong]
    return int(wrong.sum()), int((both & ~same).sum()), int(np.argmax(wrong)), float(fine.max(initial=0.0))


def judge_program(case, data, outputs):
    """What of a program's output differs."""
    wrong, nan, shares = [], collections.Counter(), {}
    for held in case["buffers"]:
        if held["after"] is None:
            continue
        theirs = np.frombuffer(next(outputs), np.uint8)
        ours = data[held["after"] : held["after"] + held["bytes"]]
        for area in held["areas"]:
            part = slice(area["at"], area["at"] + area["bytes"])
            count, nans, first, share = compared(area, np.array(ours[part]), np.array(theirs[part]))
            nan[area["form"]] += nans
            if area["absolute"] or area["relative"]:
                shares[area["form"]] = max(share, shares.get(area["form"], 0.0))
            if count:
                size = 1 if area["kind"] == "u" else np.dtype(STORED[area["kind"]]).itemsize
                at = first * size // 8 * 8
                values = [bytes(x[part][at : at + 8]).hex() for x in (ours, theirs)]
                wrong.append({"form": area["form"], "elements": count, "byte": at, "values": values})
    return {"name": case["name"], "status": "different" if wrong else "same", "wrong": wrong}, nan, shares


def flat(arguments):
    for argument in arguments:
        yield from flat(argument["struct"]) if "struct" in argument else [argument]


def judge_kernel(case, data, outputs, text):
    """The same of a kernel of the corpus, whose launch file says what is close."""
    declared = [a for a in flat(tomllib.loads(case["declaration"])["args"]) if "value" not in a]
    told = {"name": case["name"], "status": "same", "wrong": []}
    for held, argument in zip(case["buffers"], declared, strict=True):
        theirs = np.frombuffer(next(outputs), np.uint8)
        ours = np.array(data[held["after"] : held["after"] + held["bytes"]])
        if np.array_equal(ours, theirs):
            continue
        check, kind = argument.get("check"), argument["type"]
        a, b = (x.view(STORED[kind]) for x in (ours, theirs))
        if check == "sorted":
            a, b = np.sort(a), np.sort(b)
        a, b = numbers(kind, a), numbers(kind, b)
        off, allowed = np.abs(a - b), argument.get("atol", 0.0) + argument.get("rtol", 0.0) * np.abs(a)
        differs = int((~(off <= allowed) & ~((a != a) & (b != b))).sum()) if check else 0
        told["wrong"].append(
            {"buffer": held["name"], "check": check, "bytes": int((ours != theirs).sum()), "elements": differs}
        )
        told["status"] = "different" if differs or told["status"] == "different" else "close"
    if told["status"] == "close":
        told["because"] = sorted(set(INEXACT.findall(text)))[:8]
        if case["name"] in ORDERED:
            told["because"] = [ORDERED[case["name"]]]
        unjudged = all(w["check"] in (None, "sorted") for w in told["wrong"])
        told["status"] = "close" if told["because"] or unjudged else "different"
    return told


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path)
    usage.add_argument("out", type=pathlib.Path)
    usage.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    usage.add_argument("--module", help=argparse.SUPPRESS)
    usage.add_argument("--first", type=int, help=argparse.SUPPRESS)
    options = usage.parse_args()
    if options.module:
        with options.out.open("wb") as out:
            run_module(options.folder, options.module, options.first, out)
        return 0
    started = time.monotonic()
    told = json.loads((options.folder / "cases.json").read_text(encoding="utf-8"))
    data = np.memmap(options.folder / "data.bin", dtype=np.uint8, mode="r")
    try:
        device = Driver().name
    except (OSError, RuntimeError) as error:
        print(f"no GPU: {error}", file=sys.stderr)
        return 3
    counts = collections.Counter(case["module"] for case in told["cases"])
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        found = dict(zip(counts, map(iter, pool.map(lambda one: run(options.folder, *one), counts.items()))))
    results, nan, shares = [], collections.Counter(), {}
    kinds, firsts = {"programs": collections.Counter(), "kernels": collections.Counter()}, collections.Counter()
    for case in told["cases"]:
        outputs = next(found[case["module"]])
        if isinstance(outputs, str):
            result = {"name": case["name"], "status": "failed", "why": outputs}
        elif case["declaration"]:
            text = (options.folder / case["module"]).read_text(encoding="utf-8")
            result = judge_kernel(case, data, iter(outputs), text)
        else:
            result, nans, share = judge_program(case, data, iter(outputs))
            nan.update(nans)
            shares = {form: max(shares.get(form, 0.0), share.get(form, 0.0)) for form in shares.keys() | share.keys()}
        results.append(result)
        kinds["kernels" if case["declaration"] else "programs"][result["status"]] += 1
        if result["status"] == "different" and "form" in result["wrong"][0]:
            firsts[result["wrong"][0]["form"]] += 1
    summary = {
        "device": device,
        "seed": told["seed"],
        "seconds": round(time.monotonic() - started, 1),
        **kinds,
        "opcodes": len(told["opcodes"]),
        "first_different": dict(firsts.most_common()),
        "nan_with_other_bits": {form: count for form, count in nan.most_common() if count},
        "worst_share_of_bound": dict(sorted(shares.items())),
        "results": [r for r in results if r["status"] != "same"],
    }
    options.out.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(f"{device}: programs {dict(kinds['programs'])}, kernels {dict(kinds['kernels'])}, {summary['opcodes']} opcodes")
    for form, count in firsts.most_common(40):
        print(f"first different in {count}: {form}")
    for result in summary["results"]:
        if result["status"] == "failed" or "form" not in result["wrong"][0]:
            print(json.dumps(result)[:300])
    return int(any(result["status"] in ("different", "failed") for result in results))


if __name__ == "__main__":
    sys.exit(main())
