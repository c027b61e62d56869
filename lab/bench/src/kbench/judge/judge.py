"""Judges a kernel for a robust-kbench task: by that benchmark's protocol, and by checks that it lacks.

Reads a job (one line of JSON) from standard input, which stays open, and writes one JSON object per line to standard
output: {"started": title}, {"compiled": seconds}, and at the end {"report": ...} or {"failed": [whose,
why]}, where the task, the kernel or the machine is what nothing can be judged for.

The kernel runs in another process (judge_host.py), which is told what to call. Inputs, expected outputs, comparisons
and the clock are here, where no kernel is loaded.
"""

import hashlib
import json
import os
import pathlib
import random
import re
import sys
import threading
import time

import judge_arrays
from judge_link import Host, Raised, Set
from judge_task import Broken, Task
from judge_times import Timing

# Operators of PyTorch that do the work of a kernel.
OPERATORS = re.compile(r"\b(?:at|torch)::(?:nn::functional::)?(\w*(?:attention|matmul|softmax|linear|einsum|conv)\w*|b?mm)\(")
MOST_LENGTHS = 16
# A stream that ends so long before the device is idle did not do the work.
LEAST_BACKLOG_US = 100.0
LEAST_BACKLOG_SHARE = 0.25


class Judge:
    def __init__(self, job, say, host=Host):
        self.job, self.say, self.doing = job, say, "starting"
        self.task = Task(job["task"], job["multi"])
        self.checks, self.notes, self.times, self.lost = [], [], None, False
        self.random = random.Random(job["seed"])
        device = job["device"]
        try:
            self.arrays = judge_arrays.of(self.task.module.get_inputs(**self.task.configs[0][0]), device)
        except ValueError as error:
            raise Broken("machine", str(error)) from error
        self.new_host = host
        self.host = self.load(pathlib.Path(job["kernel"]))

    # --- the candidate and the reference ---

    def load(self, path):
        text = path.read_bytes()
        self.digest = hashlib.sha256(text).hexdigest()
        is_source = path.suffix != ".py"
        if is_source and not self.arrays.has_streams:
            raise Broken("machine", f"{path}: CUDA C++ needs a task of PyTorch tensors and --device cuda")
        operators = sorted(set(OPERATORS.findall(text.decode(errors="replace")))) if is_source else []
        if operators:
            self.notes.append(f"it calls PyTorch's own operators ({', '.join(operators)}): its speed is theirs")
        # Before the kernel, which could change the files of both.
        self.task_host = self.start_host(None)
        self.start(f"{'compiling' if is_source else 'loading'} {path.name}")
        started = time.monotonic()
        host = self.start_host(str(path))
        if is_source:
            self.say(compiled=time.monotonic() - started)
        return host

    def start_host(self, kernel):
        """A process that calls a kernel, or the task's own function if there is none."""
        return self.new_host(self.job, kernel, self.digest, lambda: self.doing)

    def start(self, what):
        self.doing = what
        self.say(started=what)

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
        self.start(title)
        try:
            self.host.ask("clear")
            status, detail = function()
        except Raised as error:
            status, detail = "fail", f"it raised {error}"
        try:
            self.host.ask("sync")
        except Raised as error:
            status, detail, self.lost = "fail", f"it faulted: {error}", True
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
        correct, total = 0, 0
        first = None
        for input_settings, init_settings, _ in self.task.configs:
            for seed in self.arrays.trial_seeds(self.job["trials"]):
                total += 1
                inputs = Set(self, self.host, seed, (input_settings, init_settings), model_seed=seed)
                outputs = [inputs.output()]
                reference = inputs.reference()
                outputs.append(inputs.output())
                whys = [self.wrong(reference, output) for output in outputs]
                correct += whys == [None, None]
                first = first or next((why for why in whys if why), None)
        if first:
            return "fail", f"{correct} of {total} trials: {first}"
        return "pass", f"{total} of {total} trials, two calls each"

    def base(self, host=None, like=None):
        """Inputs of the first config from a drawn seed, in the candidate's process; or those of another set."""
        return Set(self, host or self.host, self.drawn(), self.task.configs[0][:2], like=like)

    def other_seeds(self):
        seeds = 3
        for _ in range(seeds):
            inputs = self.base()
            why = self.wrong(inputs.reference(), inputs.output())
            if why:
                return "fail", why
        return "pass", f"{seeds} seeds that the benchmark does not use"

    def keeps_inputs(self):
        inputs = self.base()
        inputs.call()
        there = [index for index, value in enumerate(inputs.inputs) if self.arrays.is_array(value)]
        for place, index in enumerate(there):
            if not self.arrays.same_bits(inputs.inputs[index], inputs.read(index)):
                return "fail", f"input {place} was changed"
        return "pass", f"{len(there)} inputs are unchanged"

    def writes_all(self):
        if not self.arrays.has_streams:
            return "skip", "memory that a kernel allocates can be filled beforehand on a GPU only"
        inputs = self.base()
        reference = inputs.reference()
        head, data = self.arrays.to_bytes(reference)
        for _ in range(2):
            inputs.fresh()
            self.host.ask("poison", data, head=head)
            why = self.wrong(reference, inputs.output())
            if why:
                return "fail", f"with NaN in freshly allocated memory: {why}"
        return "pass", "correct with NaN in freshly allocated memory"

    def computes_anew(self):
        inputs = self.base()
        before = inputs.reference()
        inputs.call()
        inputs.write(self.new_floats(inputs))
        why = self.wrong(inputs.reference(), inputs.output(), stale=before)
        if why:
            return "fail", f"new values in the same tensors: {why}"
        return "pass", "new values in the same tensors give a new output"

    def new_floats(self, inputs):
        """The inputs of a set with other values in float arrays."""
        values = self.inputs(self.drawn(), self.task.configs[0][0])
        both = zip(inputs.inputs, values)
        return [new if self.arrays.is_float(old) else old for old, new in both]

    def gives_own_memory(self):
        inputs = self.base()
        reference, first = inputs.reference(), inputs.call()
        if self.host.ask("overlap", output=first, set=inputs.name)[0]:
            return "fail", "the output lies in the memory of an input"
        second = self.base().call()
        if self.host.ask("overlap", output=first, other=second)[0]:
            return "fail", "two calls return the same memory"
        why = self.wrong(reference, inputs.output(first))
        if why:
            return "fail", f"a later call changed the output of an earlier one: {why}"
        return "pass", "outputs share memory with no input and no other output"

    def values(self):
        origin = self.base()
        base, inputs, arrays = origin.reference(), origin.inputs, self.arrays

        def each(function):
            return [function(value) if arrays.is_float(value) else value for value in inputs]

        floats = self.floats(inputs)
        cases = [
            ("all 8 times as large", each(lambda x: arrays.scaled(x, 8.0))),
            ("all 64 times as small", each(lambda x: arrays.scaled(x, 1 / 64))),
            ("all larger by 1", each(lambda x: arrays.shifted(x, 1.0))),
            ("all 0", each(lambda x: arrays.filled(x, 0.0))),
            ("all 0.5", each(lambda x: arrays.filled(x, 0.5))),
        ]
        for index, chosen in enumerate(floats[:4]):
            swap = lambda to: [to if value is chosen else value for value in inputs]
            cases.append((f"input {index} 64 times as large", swap(arrays.scaled(chosen, 64.0))))
            cases.append((f"input {index} negated", swap(arrays.scaled(chosen, -1.0))))
        judged, unusable = 0, 0
        for name, values in cases:
            changed = self.base(like=origin)
            changed.write(values)
            reference = changed.reference()
            if not arrays.is_finite(reference):
                unusable += 1
                continue
            why = self.wrong(reference, changed.output(), base=base)
            if why:
                return "fail", f"inputs {name}: {why}"
            judged += 1
        left = f"; {unusable} are too large for the reference" if unusable else ""
        return "pass", f"{judged} changes of the inputs{left}"

    def in_stream(self, side):
        if side and not self.arrays.has_streams:
            return "skip", "there are no streams of the caller on the CPU"
        inputs, values = self.base(), self.base()
        before = inputs.reference()
        seen = inputs.over("deferred", values, side=side)
        why = self.wrong(values.reference(), seen, stale=before)
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
        correct, refused = [], []
        for changed, input_settings, init_settings in self.other_settings():
            if len(correct) + len(refused) >= MOST_LENGTHS:
                break
            name = ", ".join(f"{key} {value}" for key, value in changed.items())
            seed = self.drawn()
            try:
                model, inputs = self.model(1, init_settings), self.inputs(seed, input_settings)
                reference = self.arrays.clone(self.reference(model, inputs))
            except Exception:
                continue
            if not self.arrays.is_finite(reference):
                continue
            there = Set(self, self.host, seed, (input_settings, init_settings))
            head, data = self.arrays.to_bytes(reference)
            self.host.ask("poison", data, head=head)
            try:
                output = there.output()
            except Raised as error:
                self.host.ask("sync")  # a fault is no refusal: it raises here, too
                refused.append(f"{name} ({str(error).partition(': ')[2][:80]})")
                continue
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
        inputs, values = self.base(), self.base()
        before = inputs.reference()
        try:
            output = inputs.over("captured", values)
        except Raised as error:
            if "unjoined" in str(error).lower():
                return "fail", f"it leaves work in another stream: {error}"
            return "skip", f"it cannot be captured: {error}"
        why = self.wrong(values.reference(), output, stale=before)
        if why:
            return "fail", f"replayed with new values: {why}"
        return "pass", "a captured call computes anew when it is replayed"

    def clock(self):
        """Times of candidate, reference, candidate, in turns, by the clock of this process; and whether a stream's
        events would miss the work."""
        timing = Timing(self)
        why, self.times = timing.run()
        replaced, _ = self.host.ask("replaced")
        if replaced:
            why, self.times = why or f"it replaces {', '.join(replaced)}", None
        if why:
            return "fail", why
        # Timed batches have more calls than the device's queue holds.
        calls = min(timing.calls["candidate"], self.job["repetitions"])
        backlog, _ = self.host.ask("backlog", set=self.base().name, calls=calls)
        if backlog is None:
            return "pass", "timed from outside; outputs of timed calls are correct"
        in_stream, until_idle = backlog
        self.times["enqueued_us"], self.times["until_idle_us"] = backlog
        late = (until_idle - in_stream) * calls
        if late > LEAST_BACKLOG_US and until_idle - in_stream > LEAST_BACKLOG_SHARE * until_idle:
            return "fail", (
                f"its stream is done after {in_stream:.1f} us a call, the device after {until_idle:.1f} us:"
                " events of the stream do not time the work"
            )
        return "pass", f"the device is idle when its stream is done ({until_idle:.1f} us a call)"

    def run(self):
        with self.arrays.no_grad():
            self.start("the reference, twice")
            self.is_repeatable()
            self.check("protocol", "protocol", "correct for the benchmark's seeds", self.protocol)
            if self.checks[0]["status"] == "pass":
                ours = [
                    ("clock", "takes the time that is measured", self.clock),
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

    hosts = []

    def host(*arguments):
        hosts.append(Host(*arguments))
        return hosts[-1]

    try:
        say(report=Judge(job, say, host).run())
    except Broken as error:
        say(failed=[error.whose, str(error)])
    for one in hosts:
        one.end()
    events.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
