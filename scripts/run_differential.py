#!/usr/bin/env python3
"""Runs the cases of `flashcore-tools differential` on a GPU, and compares with what the simulator computed.

usage: scripts/run_differential.py FOLDER OUT [--jobs N] [--recorded]

FOLDER is what the tool has written. Needs a driver, Python 3.11 and NumPy; no toolkit. Each module is compiled and run
in a process of its own, N at a time, so that a launch that fails ends no other. Leaves in OUT differential.json (each
case, and counts) and outputs_N.xz (what the GPU computed); --recorded compares with the latter again, without a GPU,
after the simulator has changed: FOLDER must be of the same seed, count and length.

A case is the same (all bits, or floats within the instruction's bound), close (floats within a kernel's tolerance),
different, or failed. All NaN are one; results that are NaN with other bits are counted by instruction.

Exit code: 0 no case is different or failed, 1 some are, 2 wrong usage, 3 no GPU.
"""

import argparse
import collections
import concurrent.futures
import ctypes
import json
import lzma
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib

import numpy as np

TIMEOUT_S = 30
PIECE = 32 << 20
FLOATS = {"f16": "f2", "f32": "f4", "f64": "f8"}
STORED = FLOATS | {"bf16": "u2", "e4m3": "u1"} | {f"{s}{8 * n}": f"{s}{n}" for s in "iu" for n in (1, 2, 4, 8)}
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


def told_of(log):
    """What a module's processes have said: the device, and a word for each case that ended."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return lines[0] if lines else None, dict(line.split(" ", 1) for line in lines[1:])


def run_module(folder, name):
    """A child's work: runs the cases of a module that none ran. Appends a line for each to NAME.log, and their bytes to
    NAME.out. Ends after a case that fails, as the context is lost then."""
    told = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    data = np.memmap(folder / "data.bin", dtype=np.uint8, mode="r")
    device, done = told_of(folder / f"{name}.log")
    cases = [case for case in told["cases"] if case["module"] == name and case["name"] not in done]
    with open(folder / f"{name}.log", "a", encoding="utf-8") as log, open(folder / f"{name}.out", "ab") as out:
        driver = Driver()
        if device is None:
            print(driver.name, file=log, flush=True)
        # A process that was killed may have left bytes of a case that is not told as run.
        ran = [case for case in told["cases"] if done.get(case["name"]) == "ran"]
        out.truncate(sum(b["bytes"] for case in ran for b in case["buffers"] if b["after"] is not None))
        try:
            module = driver.module((folder / name).read_bytes())
        except RuntimeError as error:
            for case in cases:
                print(case["name"], " ".join(str(error).split()), file=log)
            return
        for case in cases:
            addresses = []
            try:
                for held in case["buffers"]:
                    address, size = driver.allocated(held["bytes"]), held["bytes"]
                    before = held["before"]
                    driver.write(address, bytes(size) if before is None else data[before : before + size].tobytes())
                    addresses.append(address)
                driver.launch(module, case, addresses)
                found = []
                for held, address in zip(case["buffers"], addresses):
                    if held["after"] is not None:
                        found.append(driver.read(address, held["bytes"]))
                    driver("cuMemFree_v2", address)
            except RuntimeError as error:
                print(case["name"], error, file=log, flush=True)
                return
            out.write(b"".join(found))
            out.flush()
            print(case["name"], "ran", file=log, flush=True)


def run_all(folder, cases, jobs):
    """Runs modules in processes of their own; what they leave is read by `recorded`. Interrupted, it kills them."""
    running, stopped = set(), False
    modules = collections.defaultdict(list)
    for case in cases:
        modules[case["module"]].append(case["name"])

    def one(name):
        log = folder / f"{name}.log"
        for file in (log, folder / f"{name}.out"):
            file.unlink(missing_ok=True)
        while not stopped and (left := [case for case in modules[name] if case not in told_of(log)[1]]):
            child = subprocess.Popen([sys.executable, __file__, str(folder), str(folder), "--module", name])
            running.add(child)
            try:
                why = f"ended with {child.wait(TIMEOUT_S)}"
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                why = f"did not end in {TIMEOUT_S} s"
            running.discard(child)
            device, done = told_of(log)
            if device is None:  # the driver did not start
                return
            # A process that fails says so of its case; one that was ended by a signal or by the limit does not.
            now = [case for case in left if case not in done]
            if now and (child.returncode or len(now) == len(left)):
                with open(log, "a", encoding="utf-8") as file:
                    print(now[0], f"not run: its process {why}", file=file)

    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        for task in [pool.submit(one, name) for name in modules]:
            task.result()
    except KeyboardInterrupt:
        stopped = True
        pool.shutdown(wait=False, cancel_futures=True)
        for child in list(running):
            child.kill()
        print("interrupted: what ran is compared", flush=True)


def recorded(folder, cases):
    """What the processes left: the device, why cases failed, and the bytes of the others' buffers, in order."""
    device, failed, whole, logs = None, {}, [], {}
    for case in cases:
        name = case["module"]
        if name not in logs:
            said, told = told_of(folder / f"{name}.log")
            device = device or said
            out = folder / f"{name}.out"
            logs[name] = [told, 0, np.fromfile(out, np.uint8) if out.exists() else np.zeros(0, np.uint8)]
        told, at, stored = logs[name]
        found, after = outputs_of(case, stored, at)
        if told.get(case["name"]) != "ran" or after > len(stored):
            failed[case["name"]] = told.get(case["name"], "not run: the process was ended")
            continue
        logs[name][1] = after
        whole.extend(found)
    return device, failed, np.concatenate(whole) if whole else np.zeros(0, np.uint8)


def numbers(kind, stored):
    """float64 of stored floats."""
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
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = numbers(kind, ours), numbers(kind, theirs)
    both = np.isnan(a) & np.isnan(b)
    share = np.zeros(len(a))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
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
        theirs = next(outputs)
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
        theirs = np.array(next(outputs))
        ours = np.array(data[held["after"] : held["after"] + held["bytes"]])
        if np.array_equal(ours, theirs):
            continue
        check, kind = argument.get("check"), argument["type"]
        a, b = (x.view(STORED[kind]) for x in (ours, theirs))
        if check == "sorted":
            a, b = np.sort(a), np.sort(b)
        if kind in FLOATS or kind == "bf16":
            a, b = numbers(kind, a), numbers(kind, b)
        off = np.abs(a.astype(np.float64) - b.astype(np.float64))
        allowed = argument.get("atol", 0.0) + argument.get("rtol", 0.0) * np.abs(a.astype(np.float64))
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


def outputs_of(case, stored, at):
    """The bytes of a case's buffers in what was stored, and where the next case's begin."""
    found = []
    for held in case["buffers"]:
        if held["after"] is not None:
            found.append(stored[at : at + held["bytes"]])
            at += held["bytes"]
    return found, at


def packed(piece):
    return lzma.compress(piece, preset=1)


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path)
    usage.add_argument("out", type=pathlib.Path)
    usage.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    usage.add_argument("--recorded", action="store_true", help="compare with outputs_N.xz of OUT")
    usage.add_argument("--module", help=argparse.SUPPRESS)
    options = usage.parse_args()
    if options.module:
        run_module(options.folder, options.module)
        return 0
    started = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    told = json.loads((options.folder / "cases.json").read_text(encoding="utf-8"))
    data = np.memmap(options.folder / "data.bin", dtype=np.uint8, mode="r")
    record = options.out / "differential.json"
    if options.recorded:
        before = json.loads(record.read_text(encoding="utf-8"))
        failed, device = before["failed"], before["device"]
        pieces = sorted(options.out.glob("outputs_*.xz"))
        stored = np.frombuffer(b"".join(lzma.decompress(p.read_bytes()) for p in pieces), np.uint8)
    else:
        try:
            Driver()
        except (OSError, RuntimeError) as error:
            print(f"no GPU: {error}", file=sys.stderr)
            return 3
        run_all(options.folder, told["cases"], options.jobs)
        device, failed, stored = recorded(options.folder, told["cases"])
        pieces = [stored[i : i + PIECE].tobytes() for i in range(0, len(stored), PIECE)]
        with concurrent.futures.ProcessPoolExecutor() as pool:
            for number, piece in enumerate(pool.map(packed, pieces)):
                (options.out / f"outputs_{number}.xz").write_bytes(piece)
        for file in [*options.folder.glob("*.out"), *options.folder.glob("*.log")]:
            file.unlink()
    results, nan, shares, at = [], collections.Counter(), {}, 0
    for case in told["cases"]:
        if case["name"] in failed:
            results.append({"name": case["name"], "status": "failed", "why": failed[case["name"]]})
            continue
        found, at = outputs_of(case, stored, at)
        if case["declaration"]:
            text = (options.folder / case["module"]).read_text(encoding="utf-8")
            results.append(judge_kernel(case, data, iter(found), text))
        else:
            one, nans, share = judge_program(case, data, iter(found))
            results.append(one)
            nan.update(nans)
            for form, worst in share.items():
                shares[form] = max(worst, shares.get(form, 0.0))
    kinds = {True: collections.Counter(), False: collections.Counter()}
    firsts = collections.Counter()
    for case, result in zip(told["cases"], results):
        kinds[case["declaration"] is not None][result["status"]] += 1
        if result["status"] == "different" and "form" in result["wrong"][0]:
            firsts[result["wrong"][0]["form"]] += 1
    summary = {
        "device": device,
        "seed": told["seed"],
        "seconds": round(time.monotonic() - started, 1),
        "programs": dict(kinds[False]),
        "kernels": dict(kinds[True]),
        "opcodes": len(told["opcodes"]),
        "first_different": dict(firsts.most_common()),
        "nan_with_other_bits": {form: count for form, count in nan.most_common() if count},
        "worst_share_of_bound": dict(sorted(shares.items())),
        "failed": failed,
        "results": [r for r in results if r["status"] != "same"],
    }
    record.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(f"{device}: programs {summary['programs']}, kernels {summary['kernels']}, {summary['opcodes']} opcodes")
    for form, count in firsts.most_common(40):
        print(f"first different in {count}: {form}")
    for result in summary["results"]:
        if result["status"] == "failed" or "form" not in result["wrong"][0]:
            print(json.dumps(result)[:300])
    bad = sum(kinds[k][s] for k in kinds for s in ("different", "failed"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
