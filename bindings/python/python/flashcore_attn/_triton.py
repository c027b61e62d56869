"""Compiles Triton functions to PTX, for `check`. Triton is imported when one is compiled; no GPU is needed."""

import dataclasses
import re

from ._check import Array, Uninit


def compile_triton(kernel, args, constexprs, options, target, programs):
    """PTX of a Triton function as a launch with these arguments would compile it. Needs Triton, and no GPU."""
    from triton import compile as compile_source
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDAOptions
    from triton.compiler import ASTSource

    while not hasattr(kernel, "params"):  # of @autotune, @heuristics
        kernel = kernel.fn
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
        if special and (isinstance(value, Array) or (type(value) is int and value % 16 == 0)):
            aligned[(kernel.arg_names.index(name),)] = [["tt.divisibility", 16]]
    signature = {name: types.get(name, "constexpr") for name in params}
    source = ASTSource(kernel, signature, {name: value for name, value in fixed.items()}, aligned)
    made = compile_source(source, target=GPUTarget("cuda", int(found[1]), 32), options=dict(options))
    ptx, meta = made.asm["ptx"], made.metadata
    given = [value for name, value in zip(rest, args) if name in types]
    # Scratch memory comes last.
    count = re.search(r"\.entry\s+[\w$]+\s*\((.*?)\)", ptx, re.DOTALL)[1].count(".param")
    for name in ["global_scratch", "profile_scratch"][: count - len(given)]:
        size = (getattr(meta, f"{name}_size", 0) or 0) * programs
        names.append(name)
        given.append(Array(name, Uninit(size, "uint8")) if size else 0)
    return {"ptx": ptx, "entry": meta.name, "shared": meta.shared, "names": names, "args": given}


def _triton_type(name, value):
    if isinstance(value, Array):
        return f"*{value.triton}"
    if isinstance(value, (bool, float)):
        return "i1" if isinstance(value, bool) else "fp32"
    for kind, low, end in (("i32", -(2**31), 2**31), ("i64", -(2**63), 2**63), ("u64", 0, 2**64)):
        if low <= value < end:
            return kind
    raise ValueError(f"`{name}` is {value}; allowed: whole numbers of 64 bits")
