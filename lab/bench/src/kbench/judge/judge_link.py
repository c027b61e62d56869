"""The judge's side of the process that calls a kernel, and a set of inputs there."""

import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import threading

from judge_task import Broken

# Ended from outside: by somebody, or by a limit of the system. A kernel's own fault raises another signal.
OUTSIDE = {1, 2, 3, 9, 13, 15, 24, 25, 30}
SHOWN = 200
# Bytes of an answer's line, and of a line of standard error that is read at once: one without an end fills no memory.
LONGEST = 1 << 20


class Raised(Exception):
    """What the kernel raised."""


class Host:
    """A process that calls a kernel, or the task's own function if there is none."""

    def __init__(self, job, kernel, digest, doing):
        self.doing, self.sets = doing, 0
        self.whose, self.name = ("kernel", kernel) if kernel else ("task", "the task's own function")
        here = pathlib.Path(__file__).parent
        self.process = subprocess.Popen(
            [sys.executable, "-B", str(here / "judge_host.py"), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        self.words = ""
        self.reader = threading.Thread(target=self.read_errors, daemon=True)
        self.reader.start()
        asked = {key: job[key] for key in ("task", "multi", "device", "include")}
        why, _ = self.exchange({**asked, "kernel": kernel, "digest": digest}, b"")
        if why is not None:
            raise Broken(self.whose, why)

    def read_errors(self):
        for line in iter(lambda: self.process.stderr.readline(LONGEST), b""):
            text = line.decode(errors="replace").strip()
            self.words = text or self.words
            print(text, file=sys.stderr)

    def ask(self, do, payload=b"", **what):
        """The value and the bytes that come back."""
        return self.exchange({"do": do, **what}, payload)

    def exchange(self, asked, payload):
        # Nothing that is written without being asked for has this id.
        asked = {"id": secrets.token_hex(8), **asked, "size": len(payload)}
        try:
            self.process.stdin.write(json.dumps(asked).encode() + b"\n" + payload)
            self.process.stdin.flush()
            line = self.process.stdout.readline(LONGEST)
        except OSError:
            line = b""
        if not line:
            raise self.ended()
        try:
            answer = json.loads(line)
            ident, size = answer["id"], int(answer["bytes"])
        except (ValueError, KeyError, TypeError):
            ident, size, answer = None, 0, None
        if ident != asked["id"]:
            shown = line[:SHOWN].decode(errors="replace").strip()
            raise Broken(self.whose, f"{self.name}: it wrote `{shown}` to the judge's pipe, at: {self.doing()}: its results are forged")
        data = self.process.stdout.read(size) if size else b""
        if len(data) != size:
            raise self.ended()
        if "lack" in answer:
            raise Broken("machine", f"this machine ran out of memory, disk space or files, at: {self.doing()}: {answer['lack']}")
        if "raised" in answer:
            raise Raised(answer["raised"])
        return answer["ok"], data

    def ended(self):
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            return Broken(self.whose, f"{self.name}: it closed the judge's pipe, at: {self.doing()}")
        self.reader.join(2)
        name = f"signal {-code}" if code < 0 else f"exit code {code}"
        words = f": {self.words}" if self.words else ""
        if -code in OUTSIDE or code - 128 in OUTSIDE:
            return Broken("machine", f"the process that calls the kernel was ended from outside ({name}), at: {self.doing()}")
        return Broken(self.whose, f"{self.name}: the process ended ({name}) at: {self.doing()}{words}")

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


class Set:
    """Inputs and a model, here and in the kernel's process. The values are those that are here."""

    def __init__(self, judge, host, seed, settings, model_seed=1, like=None):
        self.judge, self.host = judge, host
        host.sets += 1
        self.name, self.outputs = host.sets, 0
        input_settings, init_settings = settings
        self.inputs = list(like.inputs) if like else judge.inputs(seed, input_settings)
        self.model = like.model if like else judge.model(model_seed, init_settings)
        host.ask("open", set=self.name, seed=seed, input=input_settings, model_seed=model_seed, init=init_settings)
        self.write(self.inputs)

    def write(self, values):
        """Other values in the same arrays of the kernel's process."""
        for index, value in enumerate(values):
            if self.judge.arrays.is_array(value):
                head, data = self.judge.arrays.to_bytes(value)
                self.host.ask("write", data, set=self.name, index=index, head=head)
        self.inputs = list(values)

    def fresh(self):
        self.host.ask("fresh", set=self.name)

    def reference(self):
        return self.judge.arrays.clone(self.judge.reference(self.model, self.inputs))

    def new_output(self):
        self.outputs += 1
        return f"{self.name}.{self.outputs}"

    def call(self):
        """Calls the kernel; the name of its output."""
        name = self.new_output()
        self.host.ask("call", set=self.name, output=name)
        return name

    def output(self, name=None):
        """An output, or that of a call."""
        return self.judge.arrays.of_bytes(*self.host.ask("output", output=self.call() if name is None else name))

    def read(self, index):
        return self.judge.arrays.of_bytes(*self.host.ask("read", set=self.name, index=index))

    def over(self, do, values, **what):
        """The output of a call while the values of another set are written."""
        name = self.new_output()
        self.host.ask(do, set=self.name, values=values.name, output=name, **what)
        return self.output(name)
