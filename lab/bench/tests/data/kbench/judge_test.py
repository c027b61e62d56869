"""judge_test.py JUDGE: checks of the judge in folder JUDGE that need a GPU, on a device that is made up.

The device has streams: what a kernel does there is decided by `kind`, the mistake that is planted. It is called in this
process, where the judge thinks that another one calls it.
"""

import math
import pathlib
import sys
import types

sys.path.insert(0, sys.argv[1])
import judge
import judge_arrays
import judge_host
import judge_link
import judge_times

# What is called here answers at once.
judge_times.LEAST_BATCH = 0.001
# The clock is made up, too: a call takes as long on every machine.
CALL = 1e-4
now = 0.0
judge_times.time = types.SimpleNamespace(perf_counter=lambda: now)

TOY = pathlib.Path(__file__).parent / "toy"


class Device(judge_arrays.HostArrays):
    has_streams = True

    def __init__(self, kind):
        super().__init__("cpu")
        self.kind, self.poisoned = kind, False

    def is_planted(self, *kinds):
        return self.kind in kinds

    def poison(self, value):
        self.poisoned = True

    def deferred(self, inputs, values, call, side):
        # A kernel in another stream reads the inputs before they are written.
        early = self.is_planted("foreign stream") or (side and self.is_planted("default stream"))
        output = call() if early else None
        for target, source in zip(inputs, values):
            self.copy_into(target, source)
        return output if early else call()

    def backlog(self, call, repetitions):
        return (10.0, 40.0) if self.is_planted("foreign stream") else (38.0, 40.0)

    def captured(self, inputs, values, call):
        if self.is_planted("synchronises"):
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.is_planted("leaves work"):
            raise RuntimeError("capture sequence contains UNJOINED work")
        output = call()
        for target, source in zip(inputs, values):
            self.copy_into(target, source)
        return output if self.is_planted("foreign stream") else call()


class Here:
    """In place of the process that calls kernels."""

    def __init__(self, judged, device, kernel, digest):
        self.sets = 0
        candidate, why = judge_host.load_candidate(kernel, digest, [], judged.task)
        assert why is None, why

        def reads_fresh_memory(*inputs):
            output = candidate(*inputs)
            if device.poisoned:
                output[-1] = math.nan
            device.poisoned = False
            return output

        called = reads_fresh_memory if kernel and device.is_planted("reads fresh memory") else candidate

        def timed(*inputs):
            global now
            now += CALL
            return called(*inputs)

        self.session = judge_host.Session(judged.task, device, timed, judge_host.watched())

    def ask(self, do, payload=b"", **what):
        try:
            return self.session.handle({"do": do, **what}, payload)
        except Exception as error:
            raise judge_link.Raised(f"{type(error).__name__}: {error}") from error


def verdicts(kind):
    floor = {"device": "a device", "bytes_per_us": 1e9, "cache_bytes": 0, "cache_bytes_per_us": 1e9, "flops_per_us": 1e9}
    job = {"task": TOY, "kernel": TOY / "honest.py", "device": "cpu", "multi": False, "trials": 2, "atol": None,
           "rtol": None, "seed": 1, "warmup": 1, "repetitions": 50, "rounds": 1, "include": [], "floor": floor}
    device = Device(kind)

    class Judge(judge.Judge):
        def start_host(self, kernel):
            self.arrays = device
            return Here(self, device, kernel, self.digest)

    checks = Judge(job, lambda **event: None).run()["checks"]
    return {check["id"]: (check["status"], check["detail"]) for check in checks}


def main():
    expected = {
        "nothing": [],
        "foreign stream": ["clock", "stream", "caller", "graph"],
        "default stream": ["caller"],
        "reads fresh memory": ["poison", "lengths"],
        "leaves work": ["graph"],
        "synchronises": [],
    }
    for kind, wanted in expected.items():
        seen = verdicts(kind)
        failed = [ident for ident, (status, _) in seen.items() if status == "fail"]
        assert failed == wanted, (kind, failed, seen)
    stale = "its output is that of the values which the inputs held before"
    seen = verdicts("foreign stream")
    assert all(stale in seen[ident][1] for ident in ("stream", "caller", "graph")), seen
    assert "events of the stream do not time the work" in seen["clock"][1], seen
    assert verdicts("synchronises")["graph"][0] == "skip"
    assert verdicts("nothing")["graph"][0] == "pass"
    print("all as planted")


main()
