"""Attention of this and other libraries, timed in one process by one protocol on the same tensors.

The protocol itself (inspecting outputs, warming up, interleaved rounds, when to stop, ratios, verdicts, evidence) is
`flashcore-bench`'s, in Rust, and so are our kernels; this file says how a peer is called.

- `run` benches kernels and peers on problems: `flashcore bench`, with peers.
- `python -m flashcore_attn._bench` is `run` for another program: see docs/peers.md.

This is a hook for the project's own tools: it changes with them, without notice.
"""

import ctypes
import functools
import json
import math
import os
import sys

from . import __version__, _asked, _own
from . import peers as _peers
from ._asked import Asked, NotServed, first_line
from ._native import abort_at_end_of_input as _abort_at_end_of_input
from ._native import check_build as _check_build
from ._native import run_bench as _run_bench

# A graph's chain of runs, as flashcore-bench makes them for our kernels: so long that launching it costs next to
# nothing a run, and not longer, unless there are more copies of K and V than that.
CHAIN_US, MAX_CHAIN = 200.0, 64


def run(request, *, device="cuda", peers="all", store=None, watcher=None):
    """Benches kernels and peers; returns `flashcore-bench`'s `Report` as a dict.

    `request` is its `Request` as a dict; `peers` a list of names of `flashcore_attn.peers`, or "all"; `store` the path of
    an evidence store; `watcher(kind, json)` is told of each "note", "case", "running", "inspected", "sample" and
    "result".
    """
    cases = request.get("cases", [])  # checked in Rust
    backward = isinstance(cases, list) and any(_asked.is_backward(case["problem"]) for case in cases)
    source = PeerSource(device.partition(":")[0], peers, plain=request.get("plain", False), backward=backward)
    failed = {label for label, _ in request.get("failed", [])}
    source.own = [own for own in request.get("own", []) if "python" in own["code"] and own["label"] not in failed]
    source.watcher, source.scores = watcher, request.get("scores", False)
    source.caches = request.get("options", {}).get("caches", 1)
    try:
        return json.loads(_run_bench(device, json.dumps(request), source, store=store, watcher=watcher))
    finally:
        source.close()


class Subject:
    """A function without arguments, and who it is."""

    def __init__(self, label, call, *, launch="plain", runs_per_call=1, versions=None):
        how = {"kind": "graph", "runs": runs_per_call} if launch == "graph" else {"kind": launch}
        self.label, self.call, self.runs_per_call = label, call, runs_per_call
        self.info = json.dumps(
            {
                "label": label,
                "kernel": None,
                "module": None,
                "launch": how,
                "options": "",
                "attributes": None,
                "versions": versions or {},
            }
        )


class PeerSource:
    """Makes subjects of the peers that are found, on the tensors that the bench owns."""

    def __init__(self, kind, wanted="all", plain=False, backward=False):
        looked_for = None if wanted == "all" else wanted
        if backward and wanted == "all":
            looked_for = _peers.BACKWARD_NAMES
        self.found, self.absent = _peers.find(kind, looked_for)
        self.wanted = [*self.found, *self.absent] if wanted == "all" else list(wanted)
        self.known = (*_peers.NAMES, _peers.FA3_DETERMINISTIC) if kind == "cuda" else tuple(self.found)
        self.plain, self.before = plain, None
        self.own, self.watcher, self.scores, self.caches = [], None, False, 1

    def absences(self):
        if self.scores:
            return []
        reasons = {}
        for name in self.wanted:
            if name not in self.found:
                known = ", ".join(self.known)
                reasons.setdefault(self.absent.get(name, f"no peer has this name here; there are {known}"), []).append(name)
        return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]

    def peers(self, case, place, tensors):
        """For each peer a subject that has run once, or its name and why it does not serve the problem."""
        tensors = {tensor["name"]: tensor for tensor in json.loads(tensors)}
        problem = json.loads(case)["problem"]
        wanted = [name for name in self.wanted if name in self.found]
        if not wanted and not self.own and "scores" not in tensors:
            return []
        try:
            import torch
        except ImportError:
            if place is not None:
                raise
            views = lambda: _own.arrays(tensors)
            return [self._made_own(own, problem, views, None) for own in self.own]

        if place is not None:
            ordinal, stream = place
            if self.before is None:
                self.before = torch.cuda.current_stream(ordinal)
            # For all that follows: peers are called in the bench's stream, without a guard around each call.
            torch.cuda.set_stream(torch.cuda.ExternalStream(stream, device=ordinal))
        if "scores" in tensors:
            return [self._cublas(torch, problem, tensors, place)]
        q, k, v = (_wrapped(torch, tensors[name], place) for name in "qkv")
        scales = None
        if "q_scale" in tensors:
            scales = tuple(_wrapped(torch, tensors[f"{name}_scale"], place) for name in "qkv")
        made = []
        for name in wanted:
            try:
                options = Asked.of(problem, q, k)._replace(scales=scales)._asdict()
                views = {name: _wrapped(torch, tensor, place) for name, tensor in tensors.items()}
                of = _called_with(self.found[name], problem, views, options)
                run = of(k, v) if self.caches == 1 else _InTurn(of, k, v, self.caches)
                made.append(self._maker(place is not None)(torch, name, run))
            except Exception as error:  # whatever a library raises, it costs this peer this problem and no more
                made.append((name, first_line(error)))
        views = lambda: {name: _wrapped(torch, tensors[name], place) for name in ("q", "k", "v", "out")}
        for own in self.own:
            made.append(self._made_own(own, problem, views, torch, on_gpu=place is not None))
        return made

    def _maker(self, on_gpu):
        """What makes a subject of a peer."""
        return functools.partial(_PlainPeer, launch="plain" if on_gpu else "host") if self.plain or not on_gpu else _GraphPeer

    def _cublas(self, torch, problem, tensors, place):
        """`scale * Q K^T` of all heads by one call of cuBLAS, into the tensor that all subjects write."""
        label = "torch/baddbmm"
        try:
            q, k = (_matrices(_wrapped(torch, tensors[name], place).transpose(1, 2), name) for name in "qk")
            if len(q) != len(k):
                raise NotServed("a batched product has as many K as Q; grouped heads would be copied")
            scores = _matrices(_wrapped(torch, tensors["scores"], place), "scores")
            scale = problem["softmax_scale"]
            run = lambda: torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=scale, out=scores)
            return self._maker(True)(torch, label, run, versions={"torch": torch.__version__})
        except Exception as error:  # as for every peer
            return (label, first_line(error))

    def _made_own(self, own, problem, views, torch, on_gpu=False):
        """A function of the user as a subject that has run once, or its label and why it does not serve the problem."""

        def say(doing):
            if self.watcher is not None:
                self.watcher("running", json.dumps(doing and [own["label"], doing]))

        label = own["label"]
        try:
            say("building")
            function = _own.load(own)
            say("calling")
            run = function.bind(problem, views())
            made = self._maker(on_gpu)(torch, label, run, versions=_own.versions())
            made.dtype = None if torch else views()["out"].dtype  # which a function on arrays need not return
        except Exception as error:
            made = (label, _own.described(error))
            if on_gpu:
                _own.end_if_lost(torch, made[1])
        say(None)
        return made

    def close(self):
        """Puts back the stream that was current."""
        if self.before is not None:
            import torch

            torch.cuda.set_stream(self.before)


class _InTurn:
    """A function whose runs take turns with copies of K and V. The last run of a chain has the bench's own."""

    def __init__(self, of, k, v, caches):
        self.own, self.copies, self.left = (k, v), [(k.clone(), v.clone()) for _ in range(caches - 1)], 0
        self.made = [of(k, v), *(of(*copy) for copy in self.copies)]
        for made in self.made:  # what a library does at the first run is not to be captured
            getattr(made, "run", made)()

    def run(self):
        made = self.made[self.left % len(self.made)]
        self.left = max(self.left - 1, 0)
        return getattr(made, "run", made)()

    def refresh(self):
        for copy in self.copies:
            for to, own in zip(copy, self.own):
                to.copy_(own)
        for made in self.made:
            getattr(made, "refresh", lambda: None)()


def _chain(us, caches):
    """Runs of a chain that take turns with so many copies of K and V, all of them the same number of times."""
    runs = min(MAX_CHAIN, max(1, math.ceil(CHAIN_US / us)))
    return math.ceil(runs / caches) * caches


def _way(problem):
    """The attribute of a peer that computes a problem, and what is said where there is none; None for forward passes over
    equal lengths, which the peer itself computes."""
    return {
        (True, False): ("serving", "packed sequences and caches are not passed on to it"),
        (False, True): ("backward", "it has no backward pass"),
        (True, True): ("backward_packed", "packed sequences are not passed on to a backward pass of it"),
    }.get((_asked.has_lengths(problem), _asked.is_backward(problem)))


def _called_with(peer, problem, views, options):
    """What makes a function of a peer, from K and V, on the bench's other tensors."""
    way = _way(problem)
    if way is None:
        return lambda k, v: peer(views["q"], k, v, **options)
    attribute, missing = way
    if not hasattr(peer, attribute):
        raise NotServed(missing)
    given = (problem,) if _asked.has_lengths(problem) else ()
    return lambda k, v: getattr(peer, attribute)({**views, "k": k, "v": v}, *given, **options)


def _matrices(tensor, name):
    """A tensor `[batch, heads, rows, columns]` as one of matrices, without copying."""
    matrices = tensor.flatten(0, 1)
    if matrices.data_ptr() != tensor.data_ptr():
        raise NotServed(f"{name} is no batch of matrices; it would be copied")
    return matrices


class _OnDevice:
    """Device memory as `__cuda_array_interface__` describes it. bfloat16 and fp8 are not among its types, so elements
    travel as integers."""

    def __init__(self, tensor, size):
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor["shape"]),
            "strides": tuple(stride * size for stride in tensor["strides"]),
            "typestr": f"<i{size}",
            "data": (tensor["address"], False),
            "version": 3,
        }


def _wrapped(torch, tensor, place):
    """A tensor of the bench as one of PyTorch's, without copying."""
    dtype = getattr(torch, _asked.DTYPES[tensor["dtype"]])
    if place is not None:
        size = torch.empty((), dtype=dtype).element_size()
        return torch.as_tensor(_OnDevice(tensor, size), device=f"cuda:{place[0]}").view(dtype)
    memory = (ctypes.c_ubyte * tensor["bytes"]).from_address(tensor["address"])
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).as_strided(tensor["shape"], tensor["strides"])


class _PlainPeer(Subject):
    """A peer, called run by run: a function, or a pass of `_peers_backward.py`."""

    dtype = None  # of the output where runs return NumPy's arrays

    def __init__(self, torch, label, run, launch="host", runs_per_call=1, versions=None):
        self.torch, self.run = torch, getattr(run, "run", run)
        self.in_turn = run if isinstance(run, _InTurn) else None
        if hasattr(run, "refresh"):
            self.refresh_pass, self.refresh = run.refresh, self._refresh
        versions = _peers.versions(label) if versions is None else versions
        super().__init__(label, self._once, launch=launch, runs_per_call=runs_per_call, versions=versions)
        self._once()

    def _once(self):
        # The output of the last run is kept for `own_output`; its memory is used again two runs later.
        self.last = self.run()

    def _refresh(self):
        """The inputs have new values: repeats what was computed of the old ones ahead of runs."""
        self.last = None
        self.refresh_pass()

    def own_output(self):
        """The outputs of the last run, dense, on the CPU; None if they are in the bench's own."""
        if self.last is None:
            return None
        outputs = self.last if isinstance(self.last, (tuple, list)) else (self.last,)
        return [x.detach().cpu().contiguous() if self.dtype is None else x.astype(self.dtype, "C") for x in outputs]


class _GraphPeer(_PlainPeer):
    """A peer on a CUDA device, in a graph that is a chain of runs."""

    def __init__(self, torch, label, run, versions=None):
        stream, once = torch.cuda.current_stream(), getattr(run, "run", run)
        for _ in range(3):  # what a library does the first times is not to be captured
            once()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(3):
            once()
        ended.record()
        ended.synchronize()
        us = began.elapsed_time(ended) * 1e3 / 3
        chain = _chain(us, len(run.made) if isinstance(run, _InTurn) else 1)
        super().__init__(torch, label, run, launch="graph", runs_per_call=chain, versions=versions)
        self._capture_all()
        self.call()

    def _refresh(self):
        self.graphs = self.run_once = self.call = None  # they write to what is freed now
        super()._refresh()
        self._once()
        self._capture_all()

    def _capture_all(self):
        stream = self.torch.cuda.current_stream()
        stream.synchronize()
        # The chain is captured last: the output that is inspected is its.
        self.graphs = {runs: self._capture(stream, runs) for runs in sorted({1, self.runs_per_call})}
        self.run_once = self.graphs[1].replay  # for cold timings, which are of single runs
        self.call = self.graphs[self.runs_per_call].replay

    def _capture(self, stream, runs):
        graph = self.torch.cuda.CUDAGraph()
        if self.in_turn is not None:
            self.in_turn.left = runs - 1
        with self.torch.cuda.graph(graph, stream=stream):
            for _ in range(runs):
                self._once()
        return graph


def main():
    """Reads a request from standard input, writes events to standard output: see docs/peers.md."""
    # The first line is the request if it is attended: then this process ends when its input does.
    text = sys.stdin.readline()
    try:
        asked = json.loads(text)
    except ValueError:
        asked = json.loads(text + sys.stdin.read())
    if asked.get("attended", False):
        _abort_at_end_of_input()
    # What others print goes to standard error, so that it is not taken for events or spoils them.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(kind, what):
        print(f'{{"{kind}": {what}}}', file=events, flush=True)

    _own.FAILED = lambda reason: say("failed", json.dumps(reason))
    try:
        # A newer program may ask for what this package does not know, and must not get something else.
        unknown = sorted(asked.keys() - {"attended", "build", "device", "peers", "request", "store"})
        if unknown:
            raise ValueError(f"{', '.join(unknown)} of the request is not known to flashcore {__version__}; update it")
        if "build" in asked and (note := _check_build(json.dumps(asked["build"]))):
            say("note", json.dumps(note))
        report = run(
            asked["request"],
            device=asked.get("device", "cuda"),
            peers=asked.get("peers", "all"),
            store=asked.get("store"),
            watcher=say,
        )
    except (RuntimeError, ValueError) as error:
        say("failed", json.dumps(str(error)))
        return 1
    say("report", json.dumps(report))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Threads of users' functions, and exit handlers that wait for their kernels, do not keep the process.
    os._exit(status)
