"""Judges a kernel for a robust-kbench task: by that benchmark's protocol, and by checks that it lacks.

Reads a job (one line of JSON) from standard input, which stays open, and writes one JSON object per line to standard
output: {"started": title}, {"compiled": seconds}, and at the end {"report": ...} or {"failed": [whose,
why]}, where the task, the kernel or the machine is what nothing can be judged for.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import statistics
import sys
import threading
import time

import judge_arrays
from judge_task import Broken, Task, load_module

# What the benchmark compiles with.
FLAGS = ["-O3", "--use_fast_math"]
# Operators of PyTorch that do the work of a kernel.
OPERATORS = re.compile(r"\b(?:at|torch)::(?:nn::functional::)?(\w*(?:attention|matmul|softmax|linear|einsum|conv)\w*|b?mm)\(")
MOST_LENGTHS = 16
# A stream that ends so long before the device is idle did not do the work.
LEAST_BACKLOG_US = 100.0
LEAST_BACKLOG_SHARE = 0.25


class Judge:
    def __init__(self, job, say):
        self.job, self.say = job, say
        self.task = Task(job["task"], job["multi"])
        self.checks, self.notes, self.times, self.lost = [], [], None, False
        self.random = random.Random(job["seed"])
        device = job["device"]
        try:
            self.arrays = judge_arrays.of(self.task.module.get_inputs(**self.task.configs[0][0]), device)
        except ValueError as error:
            raise Broken("machine", str(error)) from error
        self.candidate = self.load_candidate(pathlib.Path(job["kernel"]))

    # --- the candidate and the reference ---

    def load_candidate(self, path):
        text = path.read_bytes()
        self.digest = hashlib.sha256(text).hexdigest()
        if path.suffix == ".py":
            sys.path.append(str(path.parent))
            try:
                module = load_module(path, "candidate")
            except Exception as error:
                raise Broken("kernel", f"{path}: {type(error).__name__}: {error}") from error
            if not callable(getattr(module, "forward", None)):
                raise Broken("kernel", f"{path} has no function `forward`")
            return module.forward
        if not self.arrays.has_streams:
            raise Broken("machine", f"{path}: CUDA C++ needs a task of PyTorch tensors and --device cuda")
        operators = sorted(set(OPERATORS.findall(text.decode(errors="replace"))))
        if operators:
            self.notes.append(f"it calls PyTorch's own operators ({', '.join(operators)}): its speed is theirs")
        self.say(started=f"compiling {path.name}")
        started = time.monotonic()
        try:
            from torch.utils.cpp_extension import load

            module = load(
                name=f"kbench_{self.digest[:16]}", sources=[str(path)], extra_cuda_cflags=FLAGS,
                extra_include_paths=self.job["include"], with_cuda=True, verbose=False,
            )
        except Exception as error:
            raise Broken("kernel", f"{path} does not compile: {error}") from error
        self.say(compiled=time.monotonic() - started)
        if not hasattr(module, "forward"):
            raise Broken("kernel", f"{path} defines no `forward` (PYBIND11_MODULE)")
        return module.forward

    def inputs(self, seed, settings):
        self.arrays.seed(seed)
        return [self.arrays.move(value) for value in self.task.module.get_inputs(**settings)]

    def model(self, seed, settings):
        self.arrays.seed(seed)
        return self.arrays.move(self.task.module.Model(**settings))

    def reference(self, model, inputs):
        output = model.forward(*inputs, fn=self.task.module.forward_fn)
        self.arrays.sync()
        return output

    def fresh(self, values):
        """Copies at addresses that the candidate has not seen together with these values."""
        return [self.arrays.clone(value) if self.arrays.is_array(value) else value for value in values]

    def floats(self, values):
        return [value for value in values if self.arrays.is_float(value)]

    def drawn(self):
        return self.random.randrange(2**31)

    def tolerance(self, reference, base=None):
        """Absolute and relative. Where inputs were changed, outputs may be larger, and so may errors."""
        atol, rtol = self.job["atol"], self.job["rtol"]
        if atol is None or rtol is None:
            usual = 1e-2 if self.arrays.is_narrow(reference) else 1e-3
            atol, rtol = (usual if atol is None else atol), (usual if rtol is None else rtol)
        if base is not None:
            atol *= max(1.0, self.arrays.most(reference) / max(self.arrays.most(base), 1e-30))
        return atol, rtol

    def wrong(self, reference, output, base=None, stale=None):
        """What is wrong with an output; says so if it is that of values which were there before."""
        why = self.arrays.difference(reference, output, *self.tolerance(reference, base))
        if why and stale is not None and not self.arrays.difference(stale, output, *self.tolerance(stale)):
            return "its output is that of the values which the inputs held before"
        return why

    # --- checks: each returns (status, detail) ---

    def check(self, ident, group, title, function):
        if self.lost:
            self.checks.append({"id": ident, "group": group, "title": title, "status": "skip",
                                "detail": "not run: the device was lost before"})
            return
        self.say(started=title)
        try:
            status, detail = function()
        except Broken:
            raise
        except Exception as error:
            status, detail = "fail", f"it raised {type(error).__name__}: {first_line(error)}"
        try:
            self.arrays.sync()
        except Exception as error:
            status, detail, self.lost = "fail", f"it faulted: {first_line(error)}", True
        self.checks.append({"id": ident, "group": group, "title": title, "status": status, "detail": detail})

    def is_repeatable(self):
        for input_settings, init_settings, _ in self.task.configs:
            inputs, model = self.inputs(self.drawn(), input_settings), self.model(1, init_settings)
            one = self.arrays.clone(self.reference(model, inputs))
            other = self.reference(model, inputs)
            if not self.arrays.is_finite(one):
                raise Broken("task", "the reference's output has NaN or infinite elements for the task's own inputs")
            atol, rtol = self.tolerance(one)
            why = self.arrays.difference(one, other, atol / 10, rtol / 10)
            if why:
                raise Broken("task", f"the reference gives another output for the same inputs ({why}): nothing can be judged")

    def protocol(self):
        """Candidate, reference, candidate, on the same inputs, the device idle between them."""
        arrays, correct, total = self.arrays, 0, 0
        first = None
        for input_settings, init_settings, _ in self.task.configs:
            for seed in arrays.trial_seeds(self.job["trials"]):
                total += 1
                inputs = self.inputs(seed, input_settings)
                models = [self.model(seed, init_settings) for _ in range(2)]
                outputs = [models[1].forward(*inputs, fn=self.candidate)]
                arrays.sync()
                reference = self.reference(models[0], inputs)
                outputs.append(models[1].forward(*inputs, fn=self.candidate))
                arrays.sync()
                whys = [self.wrong(reference, output) for output in outputs]
                correct += whys == [None, None]
                first = first or next((why for why in whys if why), None)
        if first:
            return "fail", f"{correct} of {total} trials: {first}"
        return "pass", f"{total} of {total} trials, two calls each"

    def base(self):
        """Inputs of the first config from a drawn seed, the model, and the reference's output."""
        input_settings, init_settings, _ = self.task.configs[0]
        inputs, model = self.inputs(self.drawn(), input_settings), self.model(1, init_settings)
        return inputs, model, self.arrays.clone(self.reference(model, inputs))

    def call(self, model, inputs):
        return model.forward(*inputs, fn=self.candidate)

    def other_seeds(self):
        seeds = []
        for _ in range(3):
            inputs, model, reference = self.base()
            output = self.call(model, inputs)
            self.arrays.sync()
            why = self.wrong(reference, output)
            if why:
                return "fail", why
            seeds.append(inputs)
        return "pass", f"{len(seeds)} seeds that the benchmark does not use"

    def keeps_inputs(self):
        inputs, model, _ = self.base()
        kept = self.fresh(inputs)
        self.call(model, inputs)
        self.arrays.sync()
        same = [self.arrays.same_bits(a, b) for a, b in zip(kept, inputs) if self.arrays.is_array(a)]
        if not all(same):
            return "fail", f"input {same.index(False)} was changed"
        return "pass", f"{len(same)} inputs are unchanged"

    def writes_all(self):
        inputs, model, reference = self.base()
        if not self.arrays.has_streams:
            return "skip", "memory that a kernel allocates can be filled beforehand on a GPU only"
        for _ in range(2):
            self.arrays.poison(reference)
            output = self.call(model, self.fresh(inputs))
            self.arrays.sync()
            why = self.wrong(reference, output)
            if why:
                return "fail", f"with NaN in freshly allocated memory: {why}"
        return "pass", "correct with NaN in freshly allocated memory"

    def computes_anew(self):
        inputs, model, before = self.base()
        self.call(model, inputs)
        self.arrays.sync()
        values, _, _ = self.base()
        for target, source in zip(self.floats(inputs), self.floats(values)):
            self.arrays.copy_into(target, source)
        reference = self.reference(model, inputs)
        output = self.call(model, inputs)
        self.arrays.sync()
        why = self.wrong(reference, output, stale=before)
        if why:
            return "fail", f"new values in the same tensors: {why}"
        return "pass", "new values in the same tensors give a new output"

    def gives_own_memory(self):
        inputs, model, reference = self.base()
        output = self.call(model, inputs)
        self.arrays.sync()
        if any(self.arrays.overlap(output, value) for value in inputs if self.arrays.is_array(value)):
            return "fail", "the output lies in the memory of an input"
        others, _, _ = self.base()
        second = self.call(model, others)
        self.arrays.sync()
        if self.arrays.overlap(output, second):
            return "fail", "two calls return the same memory"
        why = self.wrong(reference, output)
        if why:
            return "fail", f"a later call changed the output of an earlier one: {why}"
        return "pass", "outputs share memory with no input and no other output"

    def values(self):
        inputs, model, base = self.base()
        arrays = self.arrays

        def each(function):
            return [function(value) if arrays.is_float(value) else value for value in inputs]

        count = len(self.floats(inputs))
        cases = [
            ("all 8 times as large", each(lambda x: arrays.scaled(x, 8.0))),
            ("all 64 times as small", each(lambda x: arrays.scaled(x, 1 / 64))),
            ("all larger by 1", each(lambda x: arrays.shifted(x, 1.0))),
            ("all 0", each(lambda x: arrays.filled(x, 0.0))),
            ("all 0.5", each(lambda x: arrays.filled(x, 0.5))),
        ]
        for index in range(min(count, 4)):
            chosen = self.floats(inputs)[index]
            swap = lambda to: [to if value is chosen else value for value in inputs]
            cases.append((f"input {index} 64 times as large", swap(arrays.scaled(chosen, 64.0))))
            cases.append((f"input {index} negated", swap(arrays.scaled(chosen, -1.0))))
        judged, unusable = 0, 0
        for name, values in cases:
            reference = arrays.clone(self.reference(model, values))
            if not arrays.is_finite(reference):
                unusable += 1
                continue
            output = self.call(model, self.fresh(values))
            arrays.sync()
            why = self.wrong(reference, output, base=base)
            if why:
                return "fail", f"inputs {name}: {why}"
            judged += 1
        left = f"; {unusable} are too large for the reference" if unusable else ""
        return "pass", f"{judged} changes of the inputs{left}"

    def in_stream(self, side):
        if side and not self.arrays.has_streams:
            return "skip", "there are no streams of the caller on the CPU"
        inputs, model, before = self.base()
        values, _, reference = self.base()
        inputs = self.fresh(inputs)
        targets, sources = self.floats(inputs), self.floats(values)
        seen = self.arrays.deferred(targets, sources, lambda: self.call(model, inputs), side)
        self.arrays.sync()
        why = self.wrong(reference, seen, stale=before)
        if not self.arrays.has_streams:
            where = "when it returns"
        else:
            where = "in a stream of the caller" if side else "in the default stream"
        if why:
            return "fail", f"its output, taken {where} without waiting for the device: {why}"
        return "pass", f"its output is there {where}, without waiting for the device"

    def other_settings(self):
        """Variants of a config: each whole number of the inputs, and those of one value together, smaller
        and larger."""
        input_settings, init_settings, shared = self.task.configs[0]
        whole = {key: value for key, value in input_settings.items() if type(value) is int and value > 0}
        groups = [[key] for key in whole]
        for value in sorted(set(whole.values())):
            same = [key for key in whole if whole[key] == value]
            if len(same) > 1:
                groups.append(same)
        for change in (lambda n: n + n // 2 + 1, lambda n: n - 1):
            for keys in groups:
                changed = {key: change(whole[key]) for key in keys}
                if min(changed.values()) > 0:
                    in_init = {key: value for key, value in changed.items() if key in shared}
                    yield changed, {**input_settings, **changed}, {**init_settings, **in_init}

    def lengths(self):
        correct, refused, invalid = [], [], 0
        for changed, input_settings, init_settings in self.other_settings():
            if len(correct) + len(refused) >= MOST_LENGTHS:
                break
            name = ", ".join(f"{key} {value}" for key, value in changed.items())
            try:
                inputs, model = self.inputs(self.drawn(), input_settings), self.model(1, init_settings)
                reference = self.arrays.clone(self.reference(model, inputs))
            except Exception:
                invalid += 1
                continue
            if not self.arrays.is_finite(reference):
                invalid += 1
                continue
            self.arrays.poison(reference)
            try:
                output = self.call(model, inputs)
            except Exception as error:
                self.arrays.sync()  # a fault is no refusal: it raises here, too
                refused.append(f"{name} ({first_line(error)[:80]})")
                continue
            self.arrays.sync()
            why = self.wrong(reference, output)
            if why:
                return "fail", f"{name}: {why}"
            correct.append(name)
        if not correct and not refused:
            return "skip", "no other sizes are valid for the reference"
        if refused:
            self.notes.append(f"it refuses {len(refused)} of {len(correct) + len(refused)} other sizes, such as {refused[0]}")
        return "pass", f"{len(correct)} other sizes are correct, {len(refused)} are refused"

    def graph(self):
        if not self.arrays.has_streams:
            return "skip", "there are no graphs on the CPU"
        inputs, model, before = self.base()
        values, _, reference = self.base()
        inputs = self.fresh(inputs)
        targets, sources = self.floats(inputs), self.floats(values)
        try:
            output = self.arrays.captured(targets, sources, lambda: self.call(model, inputs))
        except Exception as error:
            if "unjoined" in str(error).lower():
                return "fail", f"it leaves work in another stream: {first_line(error)}"
            return "skip", f"it cannot be captured: {first_line(error)}"
        why = self.wrong(reference, output, stale=before)
        if why:
            return "fail", f"replayed with new values: {why}"
        return "pass", "a captured call computes anew when it is replayed"

    def clock(self):
        """The benchmark's times: candidate, reference, candidate, in turns; and times that wait for the
        device."""
        job, arrays = self.job, self.arrays
        inputs, model, _ = self.base()
        calls = {
            "candidate": lambda: self.call(model, inputs),
            "reference": lambda: model.forward(*inputs, fn=self.task.module.forward_fn),
        }
        for call in calls.values():
            for _ in range(job["warmup"]):
                call()
                arrays.sync()
        samples, rounds = {"candidate": [], "reference": []}, []
        for _ in range(job["rounds"]):
            of_round = {"candidate": [], "reference": []}
            for who in ("candidate", "reference", "candidate"):
                of_round[who] += arrays.times(calls[who], job["repetitions"])
            rounds.append({who: statistics.median(taken) for who, taken in of_round.items()})
            for who, taken in of_round.items():
                samples[who] += taken
        ratios = sorted(row["reference"] / row["candidate"] for row in rounds)
        backlog = arrays.backlog(calls["candidate"], job["repetitions"])
        self.times = {
            "candidate": summary(samples["candidate"]),
            "reference": summary(samples["reference"]),
            "speedup": statistics.median(ratios),
            "speedup_low": ratios[0],
            "speedup_high": ratios[-1],
            "rounds": job["rounds"],
            "enqueued_us": backlog and backlog[0],
            "until_idle_us": backlog and backlog[1],
        }
        if backlog is None:
            return "skip", "the CPU has no stream that could be timed without the work"
        in_stream, until_idle = backlog
        late = (until_idle - in_stream) * job["repetitions"]
        if late > LEAST_BACKLOG_US and until_idle - in_stream > LEAST_BACKLOG_SHARE * until_idle:
            return "fail", (
                f"its stream is done after {in_stream:.1f} us a call, the device after {until_idle:.1f} us:"
                " events of the stream do not time the work"
            )
        return "pass", f"the device is idle when its stream is done ({until_idle:.1f} us a call)"

    def run(self):
        with self.arrays.torch.no_grad() if self.arrays.name == "torch" else contextlib.nullcontext():
            self.say(started="the reference, twice")
            self.is_repeatable()
            self.check("protocol", "protocol", "correct for the benchmark's seeds", self.protocol)
            if self.checks[0]["status"] == "pass":
                ours = [
                    ("clock", "timed by its stream", self.clock),
                    ("seeds", "correct for other seeds", self.other_seeds),
                    ("inputs", "leaves its inputs alone", self.keeps_inputs),
                    ("poison", "writes every element", self.writes_all),
                    ("stale", "computes anew", self.computes_anew),
                    ("memory", "returns memory that nothing else uses", self.gives_own_memory),
                    ("values", "correct for other values", self.values),
                    ("stream", "works in the default stream", lambda: self.in_stream(False)),
                    ("caller", "works in the caller's stream", lambda: self.in_stream(True)),
                    ("lengths", "correct for other sizes, or refuses", self.lengths),
                    ("graph", "computes in a captured graph", self.graph),
                ]
                for ident, title, function in ours:
                    self.check(ident, "ours", title, function)
        return {
            "kernel_sha256": self.digest,
            "machine": self.arrays.describe(),
            "checks": self.checks,
            "times": self.times,
            "notes": self.notes,
        }


def summary(samples):
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    return {
        "mean_us": statistics.fmean(samples),
        "median_us": quartiles[1],
        "iqr_us": quartiles[2] - quartiles[0],
        "samples": len(samples),
    }


def first_line(error):
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def end_with_input():
    """Whoever started this process is gone when its input ends."""
    sys.stdin.read()
    os._exit(1)


def main():
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_input, daemon=True).start()
    # What kernels and compilers print goes to standard error; events have the pipe for themselves.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**event):
        events.write(json.dumps(event) + "\n")
        events.flush()

    try:
        say(report=Judge(job, say).run())
    except Broken as error:
        say(failed=[error.whose, str(error)])
    # Threads that a kernel left must not keep the process.
    events.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
