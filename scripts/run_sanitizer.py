#!/usr/bin/env python3
"""Runs the kernels of `plant_faults.py build` on a GPU under compute-sanitizer's four tools.

usage: scripts/run_sanitizer.py FOLDER OUT [--jobs N] [--sanitizer PROGRAM]

Needs a driver, compute-sanitizer and Python 3.9; nothing else. Some kernels share a process, since each costs seconds;
after one that ends the context, or hangs, the others go on in a new process. Appends a line to OUT/sanitizer.jsonl for
each process: tool, exit code, and for each kernel how it ended and the tool's reports, each once. plant_faults.py
table reads it.

Exit code: 0 all ran, 2 wrong usage, 3 no GPU or no compute-sanitizer, 130 interrupted: what ran is kept.
"""

import argparse
import base64
import collections
import concurrent.futures
import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib

# Tools in the order in which they run.
TOOLS = {
    "racecheck": ["--racecheck-report", "analysis"],
    "memcheck": ["--destroy-on-device-error", "kernel"],
    "synccheck": [],
    "initcheck": [],
}
# Seconds without progress of a process that starts, and of one that runs.
START_S, STEP_S = 40, 15
TOGETHER = 6
# Reports of a kernel that are kept, and bytes of each.
MOST, MOST_BYTES = 12, 700
RUNNING = set()
# Kernels of these names may wait for ever: they have processes of their own, last.
SLOW = ("barrier-in-branch", "plain-exchange", "lookback", "lock", "grid_barrier", "chained", "queue")
SLOW += ("fewer-arrivals", "other-bytes", "other-stage", "one-tile-more", "other-parity")
# Types of the elements of a tensor map, with their bytes (cuda.h, CUtensorMapDataType).
ELEMENTS = {"u8": (0, 1), "i8": (0, 1), "e4m3": (0, 1), "f16": (6, 2), "f32": (7, 4), "bf16": (9, 2)}


class Driver:
    """The driver of CUDA, by its C functions."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)

    def __call__(self, function, *arguments):
        error = getattr(self.lib, function)(*arguments)
        if error:
            raise RuntimeError(f"{function}: {error}")

    def tensor_map(self, address, kind, told):
        """A map as a launch file has it, encoded; it begins at a multiple of 64 bytes."""
        code, size = ELEMENTS[kind]
        dims, rank = told["dims"], len(told["dims"])
        dense = [size]
        for dim in dims[:-1]:
            dense.append(dense[-1] * dim)
        room = ctypes.create_string_buffer(192)
        encoded = (ctypes.c_char * 128).from_buffer(room, -ctypes.addressof(room) % 64)
        wide, narrow = (ctypes.c_uint64 * rank), (ctypes.c_uint32 * rank)
        strides = (ctypes.c_uint64 * max(rank - 1, 1))(*told.get("strides", dense[1:]))
        swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[told.get("swizzle", 0)]
        self(
            "cuTensorMapEncodeTiled", encoded, code, rank, address, wide(*dims), strides, narrow(*told["box"]),
            narrow(*[1] * rank), 0, swizzle, 0, 0,
        )  # fmt: skip
        return encoded

    def run(self, case, cubin):
        module, function, held = ctypes.c_void_p(), ctypes.c_void_p(), []
        self("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin))
        self("cuModuleGetFunction", ctypes.byref(function), module, case["entry"].encode())
        for name, stored in case["variables"]:
            address, size = ctypes.c_uint64(), ctypes.c_size_t()
            self("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, name.encode())
            data = bytes.fromhex(stored)
            self("cuMemcpyHtoD_v2", address, ctypes.c_char_p(data), ctypes.c_size_t(len(data)))
        for buffer in case["buffers"]:
            address = ctypes.c_uint64()
            self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(buffer["bytes"]))
            if buffer["data"] is not None:
                data = zlib.decompress(base64.b64decode(buffer["data"]))
                self("cuMemcpyHtoD_v2", address, ctypes.c_char_p(data), ctypes.c_size_t(len(data)))
            held.append(address)
        arguments = []
        for stored, pointers in case["args"]:
            data = bytearray.fromhex(stored)
            for at, slot in pointers:
                data[at : at + 8] = held[slot].value.to_bytes(8, "little")
            arguments.append(ctypes.create_string_buffer(bytes(data), len(data)))
        for place, slot, kind, told in case.get("maps", ()):
            arguments[place] = self.tensor_map(held[slot], kind, told)
        if case["shared"] > 48 << 10:
            self("cuFuncSetAttribute", function, 8, ctypes.c_int(case["shared"]))
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(*(ctypes.addressof(a) for a in arguments))
        self("cuLaunchKernel", function, *case["grid"], *case["block"], case["shared"], None, pointers, None)
        self("cuCtxSynchronize")
        for address in held:
            self("cuMemFree_v2", address)


def run_cases(folder, names, progress):
    """A child's work, under a tool: notes in a file where it is."""
    cases = {case["name"]: case for case in json.loads((folder / "cases.json").read_text())}
    with open(progress, "a") as file:
        print("start", file=file, flush=True)
        driver = Driver()
        for name in names:
            print("begin", name, file=file, flush=True)
            try:
                driver.run(cases[name], (folder / f"{name}.cubin").read_bytes())
            except RuntimeError as error:
                print("error", name, error, file=file, flush=True)
                os._exit(7)
            print("end", name, file=file, flush=True)


def watched(command, progress):
    """Exit code and text of a process, which is ended once its progress stops."""
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        RUNNING.add(child.pid)
        seen, since = -1, time.monotonic()
        while child.poll() is None:
            time.sleep(0.1)
            size = progress.stat().st_size if progress.exists() else 0
            if size != seen:
                seen, since = size, time.monotonic()
            if time.monotonic() - since > (STEP_S if seen > 6 else START_S):
                os.killpg(child.pid, 9)
                child.wait()
        RUNNING.discard(child.pid)
        said.seek(0)
        return child.returncode, said.read().decode(errors="replace")


def reports(said, names):
    """The tool's reports by kernel, each kind at a line once; those that name no file are of none."""
    found, seen = {name: [] for name in ["", *names]}, set()
    for report in re.split(r"\n=+ (?=\S)", said):
        of = next((name for name in names if f"{name}.cu:" in report), "")
        key = (of, re.sub(r"0x[0-9a-f]+|\d+", "#", report.split("\n")[0]), *re.findall(r"[\w-]+\.cu:\d+", report)[:2])
        if key not in seen and len(found[of]) < MOST:
            seen.add(key)
            found[of].append(report[:MOST_BYTES])
    return found


def under(sanitizer, tool, folder, names, write):
    """Runs kernels under a tool, in as many processes as it takes."""
    names = list(names)
    while names:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            progress = pathlib.Path(place, "progress")
            command = [sanitizer, "--tool", tool, *TOOLS[tool], "--print-limit", "3000"]
            command += [sys.executable, os.path.abspath(__file__), str(folder), str(progress), "--cases", ",".join(names)]
            code, said = watched(command, progress)
            lines = progress.read_text().splitlines() if progress.exists() else []
        ends = {line.split()[1]: line.split(" ", 2)[2] if line.startswith("error") else "end" for line in lines if " " in line and not line.startswith("begin")}
        begun = [line.split()[1] for line in lines if line.startswith("begin")]
        ended = {name: ends.get(name, "hang" if code == -9 else "lost") for name in begun}
        if not begun:  # the process did not come so far
            ended = {names[0]: f"not started: {code}"}
        told = {"tool": tool, "code": code, "seconds": round(time.monotonic() - started, 1), "ended": ended}
        write(told | {"reports": reports(said, list(ended))})
        names = [name for name in names if name not in ended]


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("folder", type=pathlib.Path)
    usage.add_argument("out", type=pathlib.Path)
    usage.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    usage.add_argument("--sanitizer", default="compute-sanitizer", metavar="PROGRAM")
    usage.add_argument("--cases", help=argparse.SUPPRESS)
    options = usage.parse_args()
    if options.cases:
        run_cases(options.folder, options.cases.split(","), options.out)
        return 0
    usual = "/usr/local/cuda/bin/compute-sanitizer"
    sanitizer = shutil.which(options.sanitizer) or (usual if os.path.exists(usual) else None)
    if sanitizer is None:
        print(f"no {options.sanitizer}", file=sys.stderr)
        return 3
    cases = json.loads((options.folder / "cases.json").read_text())

    def groups(is_fault):
        of = [case["name"] for case in cases if case["fault"] == is_fault]
        quick = [name for name in of if not any(word in name for word in SLOW)]
        return [quick[i::-(-len(quick) // TOGETHER)] for i in range(-(-len(quick) // TOGETHER))]

    slow = [[case["name"]] for case in cases if any(word in case["name"] for word in SLOW)]
    first, last = list(TOOLS)[:2], list(TOOLS)[2:]
    tasks = [(tool, names) for tool in first for names in groups(True)]
    tasks += [(tool, names) for tool in first for names in slow]
    tasks += [(tool, names) for tool in last for names in groups(True)]
    tasks += [(tool, names) for tool in TOOLS for names in groups(False)]
    tasks += [(tool, names) for tool in last for names in slow]
    options.out.mkdir(parents=True, exist_ok=True)
    lock, started, done = threading.Lock(), time.monotonic(), collections.Counter()
    with open(options.out / "sanitizer.jsonl", "a") as file:

        def write(told):
            with lock:
                print(json.dumps(told), file=file, flush=True)
                for end in told["ended"].values():
                    done[told["tool"], end if end in ("end", "hang") else "other"] += 1

        pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
        try:
            running = [pool.submit(under, sanitizer, tool, options.folder, names, write) for tool, names in tasks]
            for task in running:
                task.result()
        except KeyboardInterrupt:
            print(f"interrupted after {time.monotonic() - started:.0f} s: {dict(done)}", flush=True)
            for pid in list(RUNNING):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, 9)
            os._exit(130)
    print(f"{len(cases)} kernels, {time.monotonic() - started:.0f} s: {dict(done)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
