"""Arrays as the judge needs them: PyTorch's, and those of the standard library or NumPy.

Both classes have the same methods. On a host, a thread that a kernel starts is what a stream is on a
GPU: work that goes on after the call has returned, and that `sync` waits for.
"""

import array
import contextlib
import copy
import ctypes
import math
import random
import sys
import threading
import time

POISON_BLOCKS = 4  # as many outputs and workspaces as a kernel may allocate
SLEEP_CYCLES = 40_000_000  # about 20 ms: longer than a kernel takes to be enqueued


def difference(count, shape_of, reference, output, atol, rtol):
    """What is wrong with an output, in words; None if nothing."""
    if shape_of(reference) != shape_of(output):
        return f"the output is {shape_of(output)}, the reference {shape_of(reference)}"
    wrong, nonfinite, worst = count(reference, output, atol, rtol)
    if nonfinite:
        return f"{nonfinite} elements are NaN or infinite"
    if wrong:
        return f"{wrong} elements are wrong, the worst by {worst:.3g} (allowed: {atol:.3g} + {rtol:.3g} |reference|)"
    return None


class NotAnArray:
    """An output of another kind."""

    def __init__(self, kind):
        self.kind = kind


def kind_of(value):
    return getattr(value, "kind", type(value).__name__)


class HostArrays:
    """Arrays with the buffer protocol: array.array, numpy.ndarray. Values are float32 or float64."""

    name = "host"
    has_streams = False

    def __init__(self, device):
        if device != "cpu":
            raise ValueError("the task's inputs are not PyTorch tensors, so it runs on the CPU only")
        self.device = device

    def describe(self):
        return {"device": "CPU", "python": sys.version.split()[0], "torch": None, "cuda": None}

    def seed(self, seed):
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)

    def trial_seeds(self, count):
        generator = random.Random(42)
        return [generator.randrange(2**32 - 1) for _ in range(count)]

    def move(self, value):
        return value

    def is_array(self, value):
        return isinstance(value, array.array) or hasattr(value, "__array_interface__")

    def is_float(self, value):
        return self.is_array(value) and memoryview(value).format in ("f", "d")

    def is_plain(self, value):
        """Whether it is an array and not of a class of somebody's own, which may compute when it is read."""
        numpy = sys.modules.get("numpy")
        return type(value) is array.array or (numpy is not None and type(value) is numpy.ndarray)

    def to_bytes(self, value):
        """What `of_bytes` makes an array of."""
        if type(value) is array.array:
            return {"array": value.typecode}, value.tobytes()
        return {"numpy": value.dtype.str, "shape": list(value.shape)}, value.tobytes()

    def of_bytes(self, head, data):
        if "array" in head:
            return array.array(str(head["array"]), data)
        if "numpy" in head:
            numpy = sys.modules["numpy"]
            return numpy.frombuffer(bytearray(data), numpy.dtype(str(head["numpy"]))).reshape(head["shape"])
        return NotAnArray(str(head.get("type")))

    def no_grad(self):
        return contextlib.nullcontext()

    def values(self, value):
        view = memoryview(value)
        return view.cast("B").cast(view.format) if view.ndim != 1 else view

    def clone(self, value):
        return copy.copy(value)

    def copy_into(self, target, source):
        self.values(target)[:] = self.values(source)

    def mapped(self, value, function):
        result = self.clone(value)
        view = self.values(result)
        for i, x in enumerate(view):
            view[i] = function(x)
        return result

    def scaled(self, value, factor):
        return self.mapped(value, lambda x: x * factor)

    def shifted(self, value, by):
        return self.mapped(value, lambda x: x + by)

    def filled(self, value, number):
        return self.mapped(value, lambda _: number)

    def most(self, value):
        return max((abs(x) for x in self.values(value)), default=0.0)

    def is_finite(self, value):
        return all(math.isfinite(x) for x in self.values(value))

    def is_narrow(self, value):
        return False

    def same_bits(self, one, other):
        return bytes(memoryview(one).cast("B")) == bytes(memoryview(other).cast("B"))

    def difference(self, reference, output, atol, rtol):
        if not self.is_array(output):
            return f"the output is {kind_of(output)}, not an array"

        def shape(value):
            view = memoryview(value)
            return f"{view.format}{list(view.shape)}"

        def count(reference, output, atol, rtol):
            wrong, nonfinite, worst = 0, 0, 0.0
            for x, y in zip(self.values(reference), self.values(output)):
                if not math.isfinite(y):
                    nonfinite += 1
                elif abs(x - y) > atol + rtol * abs(x):
                    wrong, worst = wrong + 1, max(worst, abs(x - y))
            return wrong, nonfinite, worst

        return difference(count, shape, reference, output, atol, rtol)

    def overlap(self, one, other):
        return one is other or memoryview(one).obj is memoryview(other).obj

    def poison(self, value):
        pass

    def sync(self):
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()

    def deferred(self, inputs, values, call, side):
        """Writes `values` into `inputs`, calls, and takes the output at once, without waiting."""
        for target, source in zip(inputs, values):
            self.copy_into(target, source)
        output = call()
        return self.clone(output) if self.is_array(output) else output

    def backlog(self, call, repetitions):
        return None


class TorchArrays:
    """PyTorch's tensors, on the CPU or a GPU."""

    name = "torch"

    def __init__(self, device):
        import torch

        self.torch = torch
        self.device = device
        self.has_streams = device != "cpu"
        self.synchronize = torch.cuda.synchronize
        if self.has_streams and not torch.cuda.is_available():
            raise ValueError("PyTorch sees no CUDA device; --device cpu judges a Python kernel on the CPU")
        # As the benchmark does before it compares.
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False

    def describe(self):
        torch = self.torch
        name = torch.cuda.get_device_name() if self.has_streams else "CPU"
        return {
            "device": name,
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "cuda": torch.version.cuda if self.has_streams else None,
        }

    def seed(self, seed):
        self.torch.manual_seed(seed)
        if self.has_streams:
            self.torch.cuda.manual_seed(seed)

    def trial_seeds(self, count):
        # The benchmark's own seeds are public.
        self.torch.manual_seed(42)
        return [int(self.torch.randint(0, 2**32 - 1, (1,)).item()) for _ in range(count)]

    def move(self, value):
        return value.to(self.device) if hasattr(value, "to") else value

    def is_array(self, value):
        return isinstance(value, self.torch.Tensor)

    def is_float(self, value):
        return self.is_array(value) and value.is_floating_point()

    def is_plain(self, value):
        """Whether it is a tensor on the device, and not of a class of somebody's own, which may compute when it is
        read."""
        torch = self.torch
        is_dense = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
        return is_dense and value.device.type == torch.device(self.device).type

    def to_bytes(self, value):
        """What `of_bytes` makes a tensor of."""
        there = value.detach().contiguous().cpu()
        data = ctypes.string_at(there.data_ptr(), there.numel() * there.element_size()) if there.numel() else b""
        return {"torch": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}, data

    def of_bytes(self, head, data):
        torch = self.torch
        if "torch" not in head:
            return NotAnArray(str(head.get("type")))
        dtype, shape = getattr(torch, str(head["torch"])), [int(size) for size in head["shape"]]
        if not data:
            return torch.empty(shape, dtype=dtype, device=self.device)
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).to(self.device)

    def no_grad(self):
        return self.torch.no_grad()

    def clone(self, value):
        return value.clone()

    def copy_into(self, target, source):
        target.copy_(source)

    def scaled(self, value, factor):
        return value * factor

    def shifted(self, value, by):
        return value + by

    def filled(self, value, number):
        return self.torch.full_like(value, number)

    def most(self, value):
        return float(value.float().abs().max()) if value.numel() else 0.0

    def is_finite(self, value):
        return bool(self.torch.isfinite(value).all())

    def is_narrow(self, value):
        return value.dtype == self.torch.bfloat16

    def same_bits(self, one, other):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        as_bytes = lambda x: x.contiguous().view(self.torch.uint8) if x.dim() else x.reshape(1).view(self.torch.uint8)
        return bool(self.torch.equal(as_bytes(one), as_bytes(other)))

    def difference(self, reference, output, atol, rtol):
        if not self.is_array(output):
            return f"the output is {kind_of(output)}, not a tensor"

        def shape(value):
            return f"{value.dtype}{list(value.shape)}"

        def count(reference, output, atol, rtol):
            # As allclose compares: in the tensors' own type, so that no copies of it are made.
            close = self.torch.isclose(output, reference, atol=atol, rtol=rtol)
            wrong = int((~close).sum())
            nonfinite = int((~self.torch.isfinite(output)).sum()) if wrong else 0
            worst = float((output.float() - reference.float()).abs().max()) if wrong and not nonfinite else 0.0
            return wrong, nonfinite, worst

        return difference(count, shape, reference, output, atol, rtol)

    def overlap(self, one, other):
        def span(value):
            storage = value.untyped_storage()
            return storage.data_ptr(), storage.data_ptr() + storage.nbytes()

        (begin, end), (first, last) = span(one), span(other)
        return begin < last and first < end

    def poison(self, value):
        """Leaves NaN in GPU memory that the allocator gives out next for tensors of this size."""
        if not self.has_streams:
            return
        blocks = [self.torch.full_like(value, float("nan")) for _ in range(POISON_BLOCKS)]
        del blocks

    def sync(self):
        if self.has_streams:
            self.synchronize()
        else:
            HostArrays.sync(self)

    def deferred(self, inputs, values, call, side):
        """Writes `values` into `inputs` after a pause of the stream, calls, and copies the output in the
        same stream. The host waits for that stream alone."""
        if not self.has_streams:
            return HostArrays.deferred(self, inputs, values, call, side)
        cuda = self.torch.cuda
        stream = cuda.Stream() if side else cuda.current_stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            cuda._sleep(SLEEP_CYCLES)
            for target, source in zip(inputs, values):
                target.copy_(source, non_blocking=True)
            output = call()
            seen = output.clone() if self.is_array(output) else output
        stream.synchronize()
        return seen

    def backlog(self, call, repetitions):
        """Time of a call in µs when many are enqueued at once: by events of the current stream, and until
        the device is idle. None on a host."""
        if not self.has_streams:
            return None
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        started = time.perf_counter()
        start.record()
        for _ in range(repetitions):
            call()
        end.record()
        end.synchronize()
        in_stream = time.perf_counter() - started
        cuda.synchronize()
        in_all = time.perf_counter() - started
        return in_stream * 1e6 / repetitions, in_all * 1e6 / repetitions

    def captured(self, inputs, values, call):
        """The output of a graph captured from a call and replayed after `values` were written."""
        cuda = self.torch.cuda
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, capture_error_mode="relaxed"):
            output = call()
        for target, source in zip(inputs, values):
            target.copy_(source)
        graph.replay()
        cuda.synchronize()
        return output.clone()


def of(inputs, device):
    """The arrays that inputs are made of."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in inputs):
        return TorchArrays(device)
    if not any(HostArrays.is_array(None, value) for value in inputs):
        raise ValueError("get_inputs returns neither tensors nor arrays")
    return HostArrays(device)
