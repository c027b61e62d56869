"""Attention of this and other libraries, timed in one process by one protocol on the same tensors.

    from flashcore import _bench
    case = _bench.Case(batch=1, heads=8, kv_heads=8, seq_q=512, seq_kv=512, head_dim=64, dtype="float16")
    report = _bench.compare(case, ["torch/cudnn", "flashcore", "fa3"], device="cuda", launch="graph")

The protocol itself (warming up, interleaved rounds, when to stop, ratios, verdicts) is `flashcore-bench`'s, in Rust;
this file only says how a function is called and how time is read. `python -m flashcore._bench` does the same for
another program: a request as JSON on standard input, one line of JSON for each event on standard output.

This is a hook for the project's own tools: it changes with them, without notice.
"""

import dataclasses
import json
import sys
import time
from typing import Optional, Tuple

from . import __version__, attention, devices, peers
from ._native import measure as _measure

# Runs in a graph's chain: with 20, the half microsecond of a replay's launch is spread thin.
GRAPH_RUNS = 20
# Rows of the answer that are computed again in float64 before a subject is timed.
CHECKED_ROWS = 256
# Allowed distance from float64, absolute and relative: the project's tolerances.
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem: what is asked, on contiguous tensors [batch, seq, heads, head_dim] of normal values."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    dtype: str = "float16"
    causal: bool = False
    window: Optional[Tuple[Optional[int], Optional[int]]] = None
    softcap: Optional[float] = None
    scale: Optional[float] = None

    def options(self):
        return {"causal": self.causal, "window": self.window, "softcap": self.softcap, "scale": self.scale}

    def tensors(self, torch, device, seed=0):
        generator = torch.Generator(device).manual_seed(seed)
        dtype = getattr(torch, self.dtype)

        def normal(seq, heads):
            shape = (self.batch, seq, heads, self.head_dim)
            return torch.randn(shape, generator=generator, device=device, dtype=dtype)

        return normal(self.seq_q, self.heads), normal(self.seq_kv, self.kv_heads), normal(self.seq_kv, self.kv_heads)


class Subject:
    """A function without arguments, and who it is."""

    def __init__(self, label, call, *, launch="plain", runs_per_call=1, kernel=None, versions=None):
        how = {"kind": "graph", "runs": runs_per_call} if launch == "graph" else {"kind": launch}
        self.call, self.runs_per_call, self.label = call, runs_per_call, label
        self.info = json.dumps(
            {
                "label": label,
                "kernel": kernel,
                "module": None,
                "launch": how,
                "options": "",
                "attributes": None,
                "versions": versions or {},
            }
        )


class HostStopwatch:
    """The host's clock, for functions that return when their work is done."""

    def __init__(self):
        self.laps = {}

    def begin(self, lap):
        self.laps[lap] = [time.perf_counter_ns(), 0]

    def end(self, lap):
        self.laps[lap][1] = time.perf_counter_ns()

    def elapsed_us(self, lap):
        began, ended = self.laps[lap]
        return (ended - began) / 1e3

    def hold(self):
        pass

    def flush(self):
        pass


class CudaStopwatch:
    """CUDA events in PyTorch's current stream, which must be the one that all subjects use."""

    def __init__(self, torch):
        self.torch, self.laps = torch, {}
        l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.overwritten = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")

    def _events(self, lap):
        if lap not in self.laps:
            self.laps[lap] = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
        return self.laps[lap]

    def begin(self, lap):
        self._events(lap)[0].record()

    def end(self, lap):
        self._events(lap)[1].record()

    def elapsed_us(self, lap):
        began, ended = self._events(lap)
        ended.synchronize()
        return began.elapsed_time(ended) * 1e3

    def hold(self):
        self.torch.cuda._sleep(200_000)  # cycles: about 0.1 ms, time for the host to queue a flush and a call

    def flush(self):
        self.overwritten.zero_()


def measure(subjects, stopwatch, *, mode="hot", baseline=0, options=None, uuid=None, observer=None):
    """Times subjects against each other by the protocol; returns `flashcore-bench`'s `Measurement` as a dict.

    `options` are its `Options` by name; `uuid` names the GPU whose clocks and power are noted with each round;
    `observer(kind, json)` is told of each "sample" and "round" as it happens. A subject whose call raises is left out
    with its reason.
    """
    return json.loads(
        _measure(
            list(subjects),
            stopwatch,
            mode=mode,
            baseline=baseline,
            options=json.dumps(options or {}),
            uuid=uuid,
            observer=observer,
        )
    )


def error_on_rows(torch, case, q, k, v, out, seed=0):
    """Largest distance of rows of `out`, drawn at random, from float64, in units of what is allowed: above 1 it is wrong."""
    tolerance = TOLERANCE[case.dtype]
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(n, (CHECKED_ROWS,), generator=generator).tolist()
    group = case.heads // case.kv_heads
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    left, right = case.window or (None, None)
    right = 0 if case.causal else right
    keys = torch.arange(case.seq_kv, device=q.device) - (case.seq_kv - case.seq_q)
    worst = 0.0
    for b, h, row in zip(draw(case.batch), draw(case.heads), draw(case.seq_q)):
        scores = k[b, :, h // group].double() @ q[b, row, h].double() * scale
        if case.softcap is not None:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        hidden = torch.zeros_like(keys, dtype=torch.bool)
        if left is not None:
            hidden |= keys < row - left
        if right is not None:
            hidden |= keys > row + right
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), 0).nan_to_num(0.0)
        want = weights @ v[b, :, h // group].double()
        distance = (out[b, row, h].double() - want).abs() / (tolerance + tolerance * want.abs())
        # A NaN is as wrong as can be, and max() would pass over it.
        worst = max(worst, distance.nan_to_num(float("inf")).max().item())
    return worst


def compare(case, names, *, device="cuda", launch="plain", mode="hot", options=None, observer=None, seed=0):
    """Times `names` on one case; the first is the baseline.

    Names are `flashcore`, `flashcore:KERNEL` and those of `flashcore.peers`. `launch` is `"plain"` or `"graph"` (a
    chain of runs in a CUDA graph). Every answer is checked against float64 before it is timed. Returns a dict with
    the measurement, the errors, and what was left out with its reason.
    """
    import torch

    found, absent = peers.find(device)
    q, k, v = case.tensors(torch, device, seed)
    left_out, errors, subjects = {}, {}, []
    uuid = None
    if device == "cuda":
        here = f"cuda:{torch.cuda.current_device()}"
        uuid = next((info["uuid"] for info in devices() if info["device"] == here), None)
        # The legacy default stream, which PyTorch is on unless told otherwise, cannot be captured.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        within = torch.cuda.stream(stream)
        stopwatch = CudaStopwatch(torch)
    else:
        import contextlib

        within, stopwatch, launch = contextlib.nullcontext(), HostStopwatch(), "host"

    with within:
        for name in names:
            try:
                run, kernel = _runner(torch, name, found, absent, case, q, k, v)
                errors[name] = error_on_rows(torch, case, q, k, v, run(), seed)
                if errors[name] > 1:
                    raise RuntimeError(f"its answer is {errors[name]:.3g} times as far from float64 as is allowed")
                runs = 1
                if launch == "graph":
                    run, runs = _chain(torch, run), GRAPH_RUNS
            except Exception as error:  # whatever a library raises, it takes part no further
                left_out[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            versions = {"flashcore": __version__} if kernel else peers.versions()
            subjects.append(
                Subject(name, run, launch=launch, runs_per_call=runs, kernel=kernel, versions=versions)
            )
        measurement = None
        if subjects:
            measurement = measure(
                subjects, stopwatch, mode=mode, options=options, uuid=uuid, observer=observer
            )
    return {"case": dataclasses.asdict(case), "left_out": left_out, "errors": errors, "measurement": measurement}


def _runner(torch, name, found, absent, case, q, k, v):
    """The function to time, and for our own the kernel's id."""
    library, _, kernel = name.partition(":")
    if library != "flashcore":
        if name not in found:
            raise LookupError(absent.get(name, f"no peer has this name; there are {', '.join(found)}"))
        return found[name](q, k, v, **case.options()), None
    from . import plan

    options = {**case.options(), "kernel": kernel or None}
    # Peers allocate their answers anew in each call, from a pool that is warm; so do we.
    return (lambda: attention(q, k, v, **options)), plan(q, k, v, **options)["kernel"]


def _chain(torch, run):
    """A replay of a graph that is a chain of `GRAPH_RUNS` runs."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(GRAPH_RUNS):
            run()
    return graph.replay


def main():
    """Reads a request from standard input, writes events to standard output: see docs/python.md."""
    request = json.load(sys.stdin)

    def say(kind, what):
        print(json.dumps({kind: what}), flush=True)

    device = request.get("device", "cuda")
    found, absent = peers.find(device)
    say("peers", {"found": sorted(found), "absent": absent, "versions": peers.versions()})
    for index, case in enumerate(request.get("cases", [])):
        report = compare(
            Case(**case),
            request["subjects"],
            device=device,
            launch=request.get("launch", "plain"),
            mode=request.get("mode", "hot"),
            options=request.get("options"),
            observer=lambda kind, what: say(kind, {"case": index, "what": json.loads(what)}),
            seed=request.get("seed", 0),
        )
        say("report", report)


if __name__ == "__main__":
    main()
