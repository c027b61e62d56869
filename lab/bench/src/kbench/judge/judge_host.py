"""Calls a kernel for the judge, in a separate process, where the kernel may replace what it likes: inputs and
expected outputs, comparisons and the clock are the judge's, in the parent process. It does what the parent asks, one
JSON object a line, with the bytes of an array after it.
"""

import ctypes
import errno
import importlib
import json
import os
import pathlib
import signal
import sys
import threading
import time

import judge_arrays
from judge_task import Task, load_module

# What the benchmark compiles with.
FLAGS = ["-O3", "--use_fast_math"]
# Outputs of a timed batch that are kept: the parent asks for two of them.
RING = 8
# Clocks, waits, comparisons, and what reads an output: a kernel has no reason to replace one.
WATCHED = [
    ("time", ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "process_time")),
    ("torch", ("allclose", "isclose", "equal")),
    ("torch.testing", ("assert_close",)),
    ("torch.cuda", ("synchronize", "Event", "Stream", "current_stream")),
    ("torch.cuda.Event", ("record", "synchronize", "elapsed_time")),
    ("torch.Tensor", ("detach", "contiguous", "cpu", "clone", "data_ptr")),
    ("numpy", ("allclose", "isclose", "array_equal")),
]
# Errors of the system that say that the machine ran out of something.
LACKS = {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.EFBIG, errno.ENOSPC, errno.EDQUOT}


def watched():
    """The watched functions of modules that are loaded, by name."""
    found = {}
    for path, names in WATCHED:
        module, _, kind = path.rpartition(".")
        place = sys.modules.get(path) or getattr(sys.modules.get(module), kind, None)
        for name in names:
            if place is not None and hasattr(place, name):
                found[f"{path}.{name}"] = getattr(place, name)
    return found


class Session:
    """What the parent asks for: each `do_` method takes a request and the bytes after it, and returns a value and
    bytes."""

    def __init__(self, task, arrays, candidate, bound):
        self.task, self.arrays, self.candidate = task, arrays, candidate
        self.bound, self.sync = bound, arrays.sync
        self.sets, self.outputs, self.ring = {}, {}, []

    def handle(self, asked, payload):
        return getattr(self, "do_" + asked["do"])(asked, payload)

    def do_open(self, asked, _):
        """Inputs and a model, from seeds."""
        self.arrays.seed(asked["seed"])
        inputs = [self.arrays.move(value) for value in self.task.module.get_inputs(**asked["input"])]
        self.arrays.seed(asked["model_seed"])
        model = self.arrays.move(self.task.module.Model(**asked["init"]))
        self.sets[asked["set"]] = (inputs, model)
        return len(inputs), b""

    def do_write(self, asked, payload):
        """Other values in an array of the inputs, where it lies."""
        inputs, _ = self.sets[asked["set"]]
        target = inputs[asked["index"]]
        self.arrays.copy_into(target, self.arrays.of_bytes(asked["head"], payload))
        return None, b""

    def do_fresh(self, asked, _):
        """Inputs at addresses that the kernel has not seen together with these values."""
        inputs, model = self.sets[asked["set"]]
        fresh = [self.arrays.clone(value) if self.arrays.is_array(value) else value for value in inputs]
        self.sets[asked["set"]] = (fresh, model)
        return None, b""

    def do_read(self, asked, _):
        return self.arrays.to_bytes(self.sets[asked["set"]][0][asked["index"]])

    def call(self, name):
        inputs, model = self.sets[name]
        return model.forward(*inputs, fn=self.candidate)

    def do_call(self, asked, _):
        self.outputs[asked["output"]] = self.call(asked["set"])
        self.sync()
        return None, b""

    def do_output(self, asked, _):
        """An output as it is now; of a timed batch by its number."""
        place, key = (self.ring, asked["number"] % RING) if "number" in asked else (self.outputs, asked["output"])
        value = place[key]
        # A class of the kernel's own may compute when it is read.
        if not self.arrays.is_plain(value):
            return {"type": type(value).__name__}, b""
        return self.arrays.to_bytes(value)

    def do_overlap(self, asked, _):
        output = self.outputs[asked["output"]]
        if "other" in asked:
            return self.arrays.overlap(output, self.outputs[asked["other"]]), b""
        inputs, _ = self.sets[asked["set"]]
        return any(self.arrays.overlap(output, value) for value in inputs if self.arrays.is_array(value)), b""

    def do_poison(self, asked, payload):
        self.arrays.poison(self.arrays.of_bytes(asked["head"], payload))
        return None, b""

    def pair(self, asked):
        """The float arrays of two sets: those to write, and the values."""
        floats = [[value for value in self.sets[asked[key]][0] if self.arrays.is_float(value)] for key in ("set", "values")]
        return *floats, lambda: self.call(asked["set"])

    def do_deferred(self, asked, _):
        seen = self.arrays.deferred(*self.pair(asked), asked["side"])
        self.outputs[asked["output"]] = seen
        return None, b""

    def do_captured(self, asked, _):
        self.outputs[asked["output"]] = self.arrays.captured(*self.pair(asked))
        return None, b""

    def do_backlog(self, asked, _):
        return self.arrays.backlog(lambda: self.call(asked["set"]), asked["calls"]), b""

    def do_time(self, asked, _):
        """Calls, each with the inputs of the next set. The parent takes the time."""
        calls = [(self.sets[name][1].forward, self.sets[name][0]) for name in asked["sets"]]
        candidate, count, many, ring = self.candidate, len(calls), asked["calls"], [None] * RING
        for number in range(many):
            forward, inputs = calls[number % count]
            ring[number % RING] = forward(*inputs, fn=candidate)
        self.sync()
        self.ring = ring
        return None, b""

    def do_sync(self, asked, _):
        self.sync()
        return None, b""

    def do_clear(self, asked, _):
        self.sets, self.outputs, self.ring = {}, {}, []
        return None, b""

    def do_replaced(self, asked, _):
        """The watched functions that are not what they were before the kernel was loaded."""
        now = watched()
        return sorted(name for name, what in self.bound.items() if now.get(name) is not what), b""


def load_candidate(kernel, digest, include, task):
    """The function that is judged, and why there is none."""
    if kernel is None:
        return task.module.forward_fn, None
    path = pathlib.Path(kernel)
    if path.suffix == ".py":
        sys.path.append(str(path.parent))
        try:
            module = load_module(path, "candidate")
        except Exception as error:
            return None, f"{path}: {type(error).__name__}: {error}"
        if not callable(getattr(module, "forward", None)):
            return None, f"{path} has no function `forward`"
        return module.forward, None
    try:
        cpp_extension = importlib.import_module("torch.utils.cpp_extension")
        module = cpp_extension.load(
            name=f"kbench_{digest[:16]}", sources=[str(path)], extra_cuda_cflags=FLAGS,
            extra_include_paths=include, with_cuda=True, verbose=False,
        )
    except Exception as error:
        return None, f"{path} does not compile: {error}"
    if not hasattr(module, "forward"):
        return None, f"{path} defines no `forward` (PYBIND11_MODULE)"
    return module.forward, None


def die_with(parent):
    """Whoever started this process is not to be outlived, even while a kernel hangs with Python's lock held."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def watch(parent):
    while os.getppid() == parent:
        time_sleep(0.2)
    os._exit(1)


time_sleep = time.sleep


def main():
    parent = int(sys.argv[1])
    die_with(parent)
    threading.Thread(target=watch, args=(parent,), daemon=True).start()
    # The pipes are the judge's. What kernels and compilers print goes to standard error.
    asks, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    loads, dumps, is_lack = json.loads, json.dumps, lack

    def answer(ident, what, payload=b""):
        answers.write(dumps({"id": ident, **what, "bytes": len(payload)}).encode() + b"\n" + payload)
        answers.flush()

    job = loads(asks.readline())
    task = Task(job["task"], job["multi"])
    arrays = judge_arrays.of(task.module.get_inputs(**task.configs[0][0]), job["device"])
    bound = watched()
    candidate, why = load_candidate(job["kernel"], job["digest"], job["include"], task)
    answer(job["id"], {"ok": why})
    session = Session(task, arrays, candidate, bound)
    with arrays.no_grad():
        for line in asks:
            asked = loads(line)
            payload = asks.read(asked["size"]) if asked.get("size") else b""
            try:
                value, data = session.handle(asked, payload)
            except Exception as error:
                answer(asked["id"], {"lack" if is_lack(error) else "raised": f"{type(error).__name__}: {first_line(error)}"})
            else:
                answer(asked["id"], {"ok": value}, data)
    os._exit(0)


def lack(error):
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in LACKS)


def first_line(error):
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


if __name__ == "__main__":
    main()
