"""Compiles Triton functions to PTX, for `check`. Triton is imported when one is compiled; no GPU is needed.

`python -m flashcore_attn._triton [FILE]` does it for `flashcore check FILE.py:FUNCTION` and for declarations: it reads a
line of JSON, or a file, and writes a line.
"""

import dataclasses
import json
import pathlib
import re
import sys

from ._check import TYPES, Array, Descriptor, is_triton

# Types of launch files in Triton's signatures. Several dtypes are bytes there, and u8 means those that are numbers.
POINTERS = {**dict(TYPES.values()), "u8": "u8"}


def compile_triton(kernel, args, constexprs, options, target, programs):
    """PTX of a Triton function as a launch with these arguments would compile it. Needs Triton, and no GPU."""
    from triton import compile as compile_source
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDAOptions
    from triton.compiler import ASTSource

    kernel = _plain(kernel)
    params = {param.name: param for param in kernel.params}
    unknown = [f"constexpr {name}" for name in constexprs if name not in params]
    unknown += [f"option {name}" for name in options if name not in {field.name for field in dataclasses.fields(CUDAOptions)}]
    if unknown:
        raise ValueError(f"{kernel.__name__} has no {', no '.join(unknown)}; its parameters are {', '.join(params)}")
    fixed = {name: param.default for name, param in params.items() if param.is_constexpr and param.has_default}
    fixed.update(constexprs)
    if lacking := [name for name, param in params.items() if param.is_constexpr and name not in fixed]:
        raise ValueError(f"{kernel.__name__} needs constexprs={{...}} for {', '.join(lacking)}")
    rest = [name for name, param in params.items() if name not in fixed]
    if len(args) != len(rest):
        raise ValueError(f"{kernel.__name__} takes {len(rest)} arguments ({', '.join(rest)}), and {len(args)} are given")
    found = re.fullmatch(r"sm_(\d+)a?", target)
    if not found:
        raise ValueError(f"target is {target!r}; allowed for Triton: an architecture, such as sm_80 or sm_90a")
    # As at a launch: None and 1 become constants, and multiples of 16 are known as such, with what allocators of GPUs
    # return.
    types, aligned, names = {}, {}, []
    for name, value in zip(rest, args):
        special = not params[name].do_not_specialize
        if value is None or (special and type(value) is int and value == 1):
            fixed[name] = value
            continue
        names.append(name)
        types[name] = getattr(params[name], "annotation_type", "") or _triton_type(name, value)
        place = value.address - value.owner.address if isinstance(value, Array) else value
        if special and type(place) is int and place % 16 == 0 and not isinstance(value, Descriptor):
            aligned[(kernel.arg_names.index(name),)] = [["tt.divisibility", 16]]
    signature = {name: types.get(name, "constexpr") for name in params}
    source = ASTSource(kernel, signature, fixed, aligned)
    made = compile_source(source, target=GPUTarget("cuda", int(found[1]), 32), options=dict(options))
    ptx, meta = made.asm["ptx"], made.metadata
    # LLVM counts the lines of inline assembly as lines of the Python file, from that of the statement on.
    of_asm = re.compile(r"// begin inline asm.*?// end inline asm", re.DOTALL)
    ptx = of_asm.sub(lambda block: re.sub(r"(?m)^\s*\.loc\s.*$", "", block[0]), ptx)
    maps = list(getattr(meta, "tensordesc_meta", None) or [])
    values = dict(zip(rest, args))
    names = [name for name in names for _ in range(values[name].count(maps) if isinstance(values[name], Descriptor) else 1)]
    # Scratch memory comes last.
    count = re.search(r"\.entry\s+[\w$]+\s*\((.*?)\)", ptx, re.DOTALL)[1].count(".param")
    scratch = ["global_scratch", "profile_scratch"][: count - len(names)]
    return {
        "ptx": ptx,
        "entry": meta.name,
        "shared": meta.shared,
        "warps": meta.num_warps,
        "names": names + scratch,
        "kept": [name in types for name in rest],
        "maps": maps,
        "scratch": [min((getattr(meta, f"{name}_size", 0) or 0) * programs, 2**64 - 1) for name in scratch],
    }


def _plain(kernel):
    """What @autotune and @heuristics decorate."""
    return kernel if hasattr(kernel, "params") else _plain(kernel.fn)


def _triton_type(name, value):
    if isinstance(value, Descriptor):
        return f"tensordesc<{value.triton}[{','.join(str(size) for size in value.tensor.block_shape)}]>"
    if isinstance(value, Array):
        return f"*{value.triton}"
    if isinstance(value, (bool, float)):
        return "i1" if isinstance(value, bool) else "fp32"
    for kind, low, end in (("i32", -(2**31), 2**31), ("i64", -(2**63), 2**63), ("u64", 0, 2**64)):
        if low <= value < end:
            return kind
    raise ValueError(f"`{name}` is {value}; allowed: whole numbers of 64 bits")


class _Pointer(Array):
    """An array of which only the type is known."""

    def __init__(self, type):
        if type not in POINTERS:
            raise ValueError(f"an argument has the type {type}; allowed: {', '.join(POINTERS)}")
        self.triton = POINTERS[type]
        self.owner, self.address = self, 0


def _answer(asked):
    from . import _own

    # A copy of the file runs, which imports what lies next to the file.
    if "next_to" in asked:
        sys.path.insert(0, asked["next_to"])
    kernel, name = _own.loaded(asked["own"]), asked["own"]["code"]["python"]
    if not is_triton(kernel):
        raise TypeError(f"{name} is no Triton function (@triton.jit)")
    if asked.get("declaration"):
        if not hasattr(kernel, "flashcore_declaration"):
            raise TypeError(f"{name} has no declaration (@flashcore_attn.declared)")
        return kernel.flashcore_declaration
    names, constants = _plain(kernel).arg_names, asked["constants"]
    constexprs = {name: value for name, value in constants.items() if name in names}
    options = {name: value for name, value in constants.items() if name not in names}
    args = [_Pointer(arg["type"]) if "type" in arg else arg["value"] for arg in asked["args"]]
    return compile_triton(kernel, args, constexprs, options, asked["target"], asked["programs"])


if __name__ == "__main__":
    question = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8") if sys.argv[1:] else sys.stdin.readline())
    answers, sys.stdout = sys.stdout, sys.stderr  # what the file prints is no answer
    try:
        answer = _answer(question)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=answers)
