"""Functions of users as attention: `FILE.py:FUNCTION` in `flashcore bench --kernel`.

A function is called as `function(q, k, v, out=..., causal=..., softmax_scale=...)` with views of the bench's own
tensors, `[batch, seq, heads, head_dim]`, on the problem's device: PyTorch's, or NumPy's on the host where there is no
PyTorch. Of the keywords it gets those that its signature has. It returns the output, or writes `out` and returns None or
`out`. A problem that needs a keyword which the signature lacks is not served.
"""

import ctypes
import hashlib
import importlib.util
import inspect
import os
import pathlib
import sys

from . import _asked
from ._asked import NotServed, first_line

# How the reason of an end is told before the process ends; a bench in this process has no one to tell.
FAILED = None

_loaded = {}


class Function:
    """A function of a user, and the keywords that it takes."""

    def __init__(self, function, label):
        self.function, self.label = function, label
        parameters = inspect.signature(function).parameters.values()
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.keywords = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def takes(self, name):
        return self.takes_all or name in self.keywords

    def bind(self, problem, views):
        """A function without arguments for a problem; it returns the output, or None if that is in `out`."""
        options = self._options(problem, views["q"], views["k"])
        q, k, v, out = (views[name] for name in ("q", "k", "v", "out"))
        if self.takes("out"):
            options["out"] = out
        function = self.function

        def run():
            given = function(q, k, v, **options)
            return None if given is out else given

        first = run()
        if first is None and not self.takes("out"):
            raise NotServed("it returned None and takes no out=: return the output")
        if first is not None and not hasattr(first, "shape"):
            raise NotServed(f"it returned a {type(first).__name__}: return a tensor, or write out= and return None")
        if first is not None and tuple(first.shape) != tuple(out.shape):
            raise NotServed(f"it returned a tensor of shape {list(first.shape)}; the output is {list(out.shape)}")
        return run

    def _options(self, problem, q, k):
        if _asked.has_lengths(problem):
            raise NotServed("packed sequences and caches are not passed on to functions")
        _asked.check(problem, q, k, "functions")
        if _asked.is_backward(problem):
            raise NotServed("functions compute the forward pass")
        if problem["return_lse"]:
            raise NotServed("the log-sum-exp is not asked of functions")
        if str(problem["dtype"]) == "e4m3":
            raise NotServed("scales of fp8 are not passed on to functions")
        options = {}
        for name, value, is_needed, what in _asked.of_function(problem):
            is_told = name in self.keywords or (self.takes_all and (is_needed or name in ("causal", "softmax_scale")))
            if is_told and (is_needed or name in ("causal", "softmax_scale")):
                options[name] = value
            elif is_needed:
                raise NotServed(f"the problem has {what}, and the function takes no {name}=")
        return options


def load(own):
    return Function(loaded(own), own["label"])


def loaded(own):
    """The function that an `Own` as JSON names, if its file still has the content that was allowed to run."""
    path, name = pathlib.Path(own["file"]), own["code"]["python"]
    key = (own["file"], own["sha256"])
    if key not in _loaded:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != own["sha256"]:
            raise NotServed(f"{path} has changed since it was allowed to run")
        # Imports of what lies next to it work, as for a program.
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(f"own_{path.stem}_{own['sha256'][:8]}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        # What was allowed to run is what is compiled, whatever the file has become meanwhile.
        exec(compile(content, str(path), "exec"), module.__dict__)
        _loaded[key] = module
    function = getattr(_loaded[key], name, None)
    if not callable(function):
        known = ", ".join(sorted(k for k, v in vars(_loaded[key]).items() if callable(v) and not k.startswith("_")))
        raise NotServed(f"{path} has no function {name}; it has {known or 'none'}")
    return function


def described(error):
    """What went wrong, in one line, with the place in the user's file."""
    text = first_line(error)
    if isinstance(error, NotServed):
        return text
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    here = pathlib.Path(__file__).parent
    theirs = [frame for frame in frames if not pathlib.Path(frame.filename).is_relative_to(here)]
    at = f" ({pathlib.Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""
    if "captur" in text:
        at += "; launch in torch.cuda.current_stream(), in C++ at::cuda::getCurrentCUDAStream(), or bench with --mode plain"
    return f"{type(error).__name__}: {text}{at}"


def end_if_lost(torch, reason):
    """Ends the process if the device is lost: nothing else would run on it."""
    try:
        torch.cuda.synchronize()
    except Exception:
        if FAILED is not None:
            FAILED(reason)
        os._exit(1)


def versions():
    """Versions of what functions use most, for the record of a measurement."""
    loaded = {name: sys.modules[name] for name in ("torch", "triton", "numpy") if name in sys.modules}
    return {name: str(getattr(module, "__version__", "unknown")) for name, module in loaded.items()}


def arrays(tensors):
    """The bench's tensors as NumPy's, without copying."""
    import numpy

    views = {}
    for name in ("q", "k", "v", "out"):
        tensor = tensors[name]
        dtype = _asked.DTYPES[tensor["dtype"]]
        if not hasattr(numpy, dtype):
            raise NotServed(f"NumPy has no {dtype}; with PyTorch in this Python functions get its tensors")
        dtype = numpy.dtype(dtype)
        memory = (ctypes.c_ubyte * tensor["bytes"]).from_address(tensor["address"])
        strides = [stride * dtype.itemsize for stride in tensor["strides"]]
        flat = numpy.frombuffer(memory, dtype)
        views[name] = numpy.lib.stride_tricks.as_strided(flat, tensor["shape"], strides)
    return views
