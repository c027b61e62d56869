"""`check`: runs a kernel of Triton, CUDA C++ or PTX on the CPU, in the checking simulator of the command `flashcore`.

Importing this imports neither Triton, PyTorch nor NumPy. docs/check-python.md is the manual.
"""

import ctypes
import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any, Optional

from .__main__ import NO_COMMAND, command

# A dtype's name in NumPy, ml_dtypes and PyTorch: its name in launch files, and in Triton's signatures.
TYPES = {
    "float16": ("f16", "fp16"),
    "bfloat16": ("bf16", "bf16"),
    "float32": ("f32", "fp32"),
    "float64": ("f64", "fp64"),
    "float8_e4m3fn": ("e4m3", "fp8e4nv"),
    "float8_e5m2": ("u8", "fp8e5"),
    "bool": ("u8", "i1"),
    **{f"{sign}int{bits}": (f"{sign or 'i'}{bits}",) * 2 for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
# The card of an architecture whose times are predicted.
CARDS = {"sm_80": "a100", "sm_89": "l4", "sm_90a": "h200"}


@dataclasses.dataclass(frozen=True)
class Uninit:
    """An argument that holds nothing: reading an element before the kernel wrote it is a finding."""

    shape: Any
    dtype: Any = "float32"

    def array(self):
        if type(self.dtype).__module__ == "torch":
            return sys.modules["torch"].empty(self.shape, dtype=self.dtype)
        return _numpy().empty(self.shape, dtype=self.dtype)


class CheckFailed(AssertionError):
    """A kernel is not clean."""


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """What the simulator found."""

    verdict: str
    """`clean`, `findings`, `refused` (the card cannot launch it) or `not_judged` (forms are missing)."""
    findings: list
    """Each a dictionary: `kind`, `message`, `lines`, `schedules`, …, and its text in `rendered`."""
    missing: list
    """Forms of instructions that the simulator does not execute: `form`, `count`, `lines`, `why`."""
    problems: list
    """Why the card cannot launch it, or warnings."""
    understood: float
    """The share of the kernel's instructions that the simulator executes."""
    outputs: Optional[list]
    """For each of `args` an array of what it holds after the kernel, None for numbers. None if it did not run."""
    predicted_us: Optional[float]
    """The predicted time on an A100 (sm_80), L4 (sm_89) or H200 (sm_90a); None if the model does not cover it."""

    def __str__(self):
        parts = [finding["rendered"].rstrip() for finding in self.findings]
        parts += [f"{problem['kind']}: {problem['message']}" for problem in self.problems]
        for form in self.missing:
            lines = ", ".join(str(line["line"]) for line in form["lines"][:12])
            parts.append(f"missing: {form['form']}, {form['count']} times (lines {lines}): {form['why']}")
        return "\n\n".join([*parts, f"verdict: {self.verdict.replace('_', ' ')}"])

    def raise_if_bad(self):
        """Raises `CheckFailed` with the findings as text, unless the kernel was judged and is clean."""
        if self.verdict != "clean":
            raise CheckFailed(f"\n{self}")
        return self


def check(
    kernel, grid, args, block=None, smem=None, constexprs={}, options={}, target="sm_90a", schedules=3, entry=None
) -> CheckResult:
    """Runs a kernel on the CPU under seeded schedules, and reports races, accesses out of bounds, reads of what
    nothing wrote, deadlocks, and what the kernel leaves in its arguments. No GPU is needed.

    `kernel`: a Triton function, PTX text, or the path of a `.ptx`, `.cu` or compiled file. `grid`: one to three
    numbers. `args`: in the kernel's order NumPy arrays, CPU tensors of PyTorch, numbers and `Uninit(shape, dtype)`;
    none is changed. `block` and `smem`: threads of a block and bytes of dynamic shared memory; Triton and PTX that
    declares its threads need none. `constexprs`: of Triton, or macros of a `.cu`. `options`: of Triton
    (`num_warps`, `num_stages`, …), or a list of the compiler's for a `.cu`. `target`: an architecture or a card of
    `flashcore list profiles`. `entry` names a kernel of a file that has several.

    Raises ValueError or TypeError for what is not valid, RuntimeError without a compiler or the command.
    """
    program = os.environ.get("FLASHCORE_COMMAND") or command()
    if program is None:
        raise RuntimeError(NO_COMMAND)
    grid, args = _axes("grid", grid), list(args)
    flags, launch = [], {"grid": grid, "opted_in": True}
    with tempfile.TemporaryDirectory(prefix="flashcore-") as folder:
        folder = pathlib.Path(folder)
        names, passed = [""] * len(args), [_given(number, value) for number, value in enumerate(args, 1)]
        _join(passed)
        if is_triton(kernel):
            if block is not None or smem is not None:
                raise ValueError("`block` and `smem` are Triton's choice; set `options`, such as num_warps=8")
            if not isinstance(options, dict):
                raise TypeError("`options` of a Triton function is a dictionary, such as {'num_warps': 8}")
            from ._triton import compile_triton

            made = compile_triton(kernel, passed, constexprs, options, target, math.prod(grid))
            (file := folder / "kernel.ptx").write_text(made["ptx"])
            names, entry, launch["shared"] = made["names"], made["entry"], made["shared"]
            given, maps = [], iter(made["maps"])
            for value in (value for value, is_kept in zip(passed, made["kept"]) if is_kept):
                given += value.parts(next(maps, None)) if isinstance(value, Descriptor) else [value]
            given += [Array(0, Uninit(size, "uint8")) if size else 0 for size in made["scratch"]]
        else:
            file, flags = _file(kernel, folder, constexprs, options)
            given = passed
            launch["shared"] = _whole("smem", smem or 0)
            if block is not None:
                launch["block"] = _axes("block", block)
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in launch.items())
        for number, (name, value) in enumerate(zip(names, given)):
            text += f"[[args]]\nname = {json.dumps(name)}\n" + _argument(value, given, folder / f"{number}.in")
        (folder / "launch.toml").write_text(text, encoding="utf-8")
        line = [program, "check", str(file), "--launch", str(folder / "launch.toml"), "--output", str(folder / "outputs")]
        line += ["--profile", CARDS.get(target, str(target)), "--schedules", str(_whole("schedules", schedules)), "--json"]
        line += ["--launch", f"entry={entry}"] if entry else []
        # The compiler of CUDA C++ is looked for in this interpreter's packages.
        env = {"FLASHCORE_PYTHON": sys.executable, **os.environ}
        ran = subprocess.run([*line, *flags], capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL, env=env)
        if not ran.stdout.strip():
            said = ran.stderr.strip() or f"{program} ended with exit code {ran.returncode}"
            raise (ValueError if ran.returncode == 2 else RuntimeError)(said)
        told = json.loads(ran.stdout)
        return CheckResult(
            verdict=told["verdict"],
            findings=told["findings"],
            missing=told["missing"],
            problems=told["problems"],
            understood=told["understood"] / max(told["instructions"], 1),
            outputs=_outputs(passed, given, folder / "outputs"),
            predicted_us=(told["predicted"] or {}).get("micros"),
        )


def _numpy():
    try:
        import numpy
    except ImportError as error:
        raise ImportError("flashcore_attn.check needs NumPy: pip install numpy") from error
    return numpy


def _whole(what, value):
    try:
        number = value.__index__()
    except AttributeError:
        number = -1
    if number < 0:
        raise ValueError(f"{what} is {value!r}; allowed: whole numbers from 0 on")
    return number


def _axes(what, given):
    axes = [given] if hasattr(given, "__index__") else list(given) if hasattr(given, "__iter__") else []
    if not 1 <= len(axes) <= 3 or not all(hasattr(n, "__index__") and n.__index__() > 0 for n in axes):
        raise ValueError(f"{what} is {given!r}; allowed: one to three whole numbers above 0, x, y, z")
    return [n.__index__() for n in axes]


class Array:
    """The memory of an array, from its first element to its last."""

    def __init__(self, number, value):
        self.unwritten = isinstance(value, Uninit)
        self.array = value.array() if self.unwritten else value
        name = str(self.array.dtype).split(".")[-1]
        if name not in TYPES:
            raise TypeError(f"argument {number} has the dtype {name}; allowed: {', '.join(TYPES)}")
        self.type, self.triton = TYPES[name]
        self.is_torch = type(self.array).__module__.startswith("torch")
        if self.is_torch and self.array.device.type != "cpu":
            raise ValueError(f"argument {number} is a tensor on {self.array.device}; give it as `tensor.cpu()`")
        size = self.array.element_size() if self.is_torch else self.array.itemsize
        strides = self.array.stride() if self.is_torch else self.array.strides
        if min(strides, default=0) < 0:
            raise ValueError(f"argument {number} has negative strides; give a copy, `numpy.ascontiguousarray(x)`")
        last = sum((n - 1) * stride for n, stride in zip(self.array.shape, strides)) * (size if self.is_torch else 1)
        self.bytes = last + size if math.prod(self.array.shape) else 0
        self.address = self.array.data_ptr() if self.is_torch else self.array.ctypes.data
        self.owner, self.span, self.size = self, self.bytes, size

    def with_bytes(self, data):
        """An array of this shape and these strides with other contents."""
        if self.is_torch:
            torch, (shape, strides) = sys.modules["torch"], (self.array.shape, self.array.stride())
            flat = torch.frombuffer(bytearray(data), dtype=self.array.dtype) if data else self.array.new_empty(0)
            return flat.as_strided(shape, strides)
        flat = _numpy().frombuffer(bytearray(data), dtype=self.array.dtype)
        return _numpy().lib.stride_tricks.as_strided(flat, self.array.shape, self.array.strides)


class Descriptor(Array):
    """A `TensorDescriptor` of Triton."""

    def __init__(self, number, value):
        super().__init__(number, value.base)
        self.tensor, self.map = value, None

    def count(self, has_map):
        """Of its parameters."""
        return (1 if has_map else 3) + (2 if has_map else 4) * len(self.tensor.shape)

    def parts(self, meta):
        """The parameters that it becomes: a tensor map as the compiler wants it, or its fields where it makes none."""
        shape, strides = list(self.tensor.shape), list(self.tensor.strides)
        if not meta:
            flags = [self.tensor.padding == "nan", self.tensor.round_f32_to_tf32]
            return [self, *shape, *strides, *flags, *shape, *strides]
        if meta.get("is_im2col") or meta["fp4_padded"] or self.tensor.padding == "nan":
            raise ValueError("a descriptor with im2col, padded fp4 or NaN outside of its tensor is not simulated")
        if self.owner is not self or self.span != self.bytes:
            raise ValueError("the tensor of a descriptor overlaps another argument; give each its own memory")
        self.map = (
            f"map = {{ dims = {shape[::-1]}, box = {list(meta['block_size'])[::-1]}, "
            f"strides = {[self.size * stride for stride in strides[-2::-1]]}, swizzle = {(0, 32, 64, 128)[meta['swizzle']]} }}\n"
        )
        return [self, *shape, *strides]


def _given(number, value):
    """An argument as an `Array`, a number or None."""
    numpy = _numpy()
    if isinstance(value, numpy.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if type(value).__name__ == "TensorDescriptor" and hasattr(value, "base"):
        return Descriptor(number, value)
    torch = sys.modules.get("torch")
    if isinstance(value, (Uninit, numpy.ndarray)) or (torch and isinstance(value, torch.Tensor)):
        return Array(number, value)
    allowed = "NumPy arrays, CPU tensors of PyTorch, numbers, Uninit(shape, dtype), Triton's TensorDescriptor"
    raise TypeError(f"argument {number} is of type {type(value).__name__}; allowed: {allowed}")


def _join(given):
    """Arrays that overlap get one buffer: that of the first in memory, which spans all of them."""
    owner = None
    for array in sorted((value for value in given if isinstance(value, Array)), key=lambda array: array.address):
        if owner and array.address < owner.address + owner.span:
            array.owner = owner
            owner.span = max(owner.span, array.address - owner.address + array.bytes)
        else:
            owner = array


def _argument(value, given, file):
    """The lines of an argument in a launch file."""
    if not isinstance(value, Array):
        if value is None:
            raise TypeError("None is an argument for Triton functions alone; a pointer of CUDA C++ may be 0")
        wrapped = value - 2**64 if isinstance(value, int) and value >= 2**63 else value
        return f"value = {int(wrapped) if isinstance(wrapped, bool) else repr(wrapped)}\n"
    if value.unwritten:
        return f'type = "u8"\ncount = {value.bytes}\nfill = "unwritten"\n'
    if value.owner is not value:
        return f"type = {json.dumps(value.type)}\ninto = {given.index(value.owner)}\noffset = {value.address - value.owner.address}\n"
    file.write_bytes(ctypes.string_at(value.address, value.span))
    # What arrays that overlap have in common may be no whole number of elements.
    kind = "u8" if value.span % value.size else value.type
    return f"type = {json.dumps(kind)}\nfile = {json.dumps(file.name)}\n" + (getattr(value, "map", None) or "")


def _outputs(passed, given, folder):
    if not folder.is_dir():
        return None
    owners = [value for value in given if isinstance(value, Array) and value.owner is value]
    data = {id(owner): (folder / f"{place}.bin").read_bytes() for place, owner in enumerate(owners)}

    def output(value):
        first = value.address - value.owner.address
        return value.with_bytes(data[id(value.owner)][first : first + value.bytes])

    return [output(value) if value in given and isinstance(value, Array) else None for value in passed]


def _file(kernel, folder, constexprs, options):
    """The file of a kernel that is no Triton function, and flags of its compiler."""
    is_text = isinstance(kernel, str) and ".entry" in kernel
    if (constexprs or options) and (is_text or str(kernel).endswith(".ptx")):
        raise ValueError("`constexprs` and `options` are for Triton and CUDA C++; PTX is compiled: it takes neither")
    if isinstance(options, str) or (options and isinstance(options, dict)):
        raise TypeError(f"`options` is {options!r}; allowed for a .cu: a list of the compiler's, such as ['-O3']")
    if is_text:
        (folder / "kernel.ptx").write_text(kernel, encoding="utf-8")
        return folder / "kernel.ptx", []
    if not isinstance(kernel, (str, os.PathLike)):
        what = "a Triton function (@triton.jit), PTX text, the path of a .ptx or .cu file"
        raise TypeError(f"the kernel is of type {type(kernel).__name__}; allowed: {what}")
    flags = [*(f"-D{name}={value}" for name, value in constexprs.items()), *(options or [])]
    return kernel, ["--", *flags] if flags else []


def is_triton(kernel):
    return any(base.__module__.split(".")[0] == "triton" for base in type(kernel).__mro__)
