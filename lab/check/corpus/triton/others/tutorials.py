"""Calls the kernels of Triton's tutorials (https://github.com/triton-lang/triton, python/tutorials) on small tensors.

usage: scripts/check_triton.py lab/check/corpus/triton/others/tutorials.py CLONE [NUMBER ...]

Of each tutorial the definitions are executed, not what it runs and times. Nothing of the clone is in this tree.
"""

import ast
import pathlib
import sys
import traceback
import types

import torch

TUTORIALS = pathlib.Path(sys.argv[1], "python", "tutorials")
# Values that definitions need, other than constants in capitals.
NEEDED = {"properties", "target", "kernels", "configs", "tma_configs", "layer_norm", "attention", "ref_lib"}


def is_definition(node):
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return len(names) == len(node.targets) and all(name.isupper() or name in NEEDED for name in names)
    if isinstance(node, ast.If):
        return "__main__" not in ast.unparse(node.test) and all(is_definition(line) for line in node.body)
    return isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Try))


def load(number):
    (path,) = TUTORIALS.glob(f"{number:02}-*.py")
    module = sys.modules[f"tutorial{number}"] = types.ModuleType(f"tutorial{number}")
    module.__file__ = str(path)
    tree = ast.parse(path.read_text(), path)
    tree.body = [node for node in tree.body if is_definition(node)]
    exec(compile(tree, path, "exec"), vars(module))
    return module


def half(*shape, dtype=torch.float16):
    return (torch.rand(shape) - 0.5).to(dtype)


def vector_add(tutorial):
    tutorial.add(torch.rand(9843), torch.rand(9843))


def softmax(tutorial):
    tutorial.softmax(torch.randn(18, 781))


def matmul(tutorial):
    tutorial.matmul(half(160, 96), half(96, 320))
    tutorial.matmul(half(160, 96), half(96, 320), activation="leaky_relu")
    tutorial.matmul(half(160, 96, dtype=torch.float8_e5m2), half(320, 96, dtype=torch.float8_e5m2).T)


def dropout(tutorial):
    x = torch.randn(1500)
    tutorial.dropout(x, x_keep=(torch.rand(1500) > 0.5).to(torch.int32), p=0.5)
    tutorial.seeded_dropout(x, p=0.5, seed=123)


def layer_norm(tutorial):
    for columns, dtype in ((300, torch.float16), (1000, torch.float32)):
        x = half(11, columns, dtype=dtype).requires_grad_()
        weight, bias = (torch.rand(columns, dtype=dtype, requires_grad=True) for _ in range(2))
        y = tutorial.LayerNorm.apply(x, (columns,), weight, bias, 1e-5)
        y.backward(half(11, columns, dtype=dtype))


def attention(tutorial):
    for causal in (False, True):
        q, k, v = (half(1, 2, 128, 64).requires_grad_() for _ in range(3))
        tutorial._attention.apply(q, k, v, causal, 0.5, False).backward(half(1, 2, 128, 64))
    with torch.no_grad():
        tutorial._attention.apply(q, k, v, False, 0.5, True)  # with its own descriptors on Hopper


def extern(tutorial):
    x = torch.rand(3000)
    tutorial.asin_kernel[(3,)](x, torch.empty_like(x), 3000, BLOCK_SIZE=1024)


def grouped(tutorial):
    pairs = [(half(m, 64), half(64, n)) for m, n in ((128, 128), (64, 192))]
    tutorial.group_gemm_fn(*zip(*pairs))
    if tutorial.supports_tma():
        tutorial.group_gemm_tma_fn([a for a, _ in pairs], [b.T.contiguous() for _, b in pairs])


def persistent(tutorial):
    a, b = half(256, 128), half(256, 128)
    tutorial.matmul(a, b.T)
    tutorial.matmul_persistent(a, b.T)
    for name in ("matmul_tma", "matmul_tma_persistent", "matmul_descriptor_persistent"):
        for warp_specialize in (False, True) if tutorial.HAS_WARP_SPECIALIZE else (False,):
            getattr(tutorial, name)(a, b, warp_specialize)


def dependent(tutorial):
    for launch_pdl in (False, True) if tutorial.supports_pdl() else (False,):
        tutorial.add(torch.rand(3000), torch.rand(3000), launch_pdl)


sys.modules["tabulate"] = types.ModuleType("tabulate")  # what the dropouts print
# The tenth has block-scaled products, which Blackwell and CDNA 4 have.
RUNS = {1: vector_add, 2: softmax, 3: matmul, 4: dropout, 5: layer_norm, 6: attention, 7: extern, 8: grouped, 9: persistent}
RUNS[11] = dependent
for number in [int(given) for given in sys.argv[2:]] or RUNS:
    torch.manual_seed(0)
    print(f"tutorial {number}: {RUNS[number].__name__}", flush=True)
    try:
        RUNS[number](load(number))
    except Exception as error:  # the next tutorials run, too
        print(f"stopped: {type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}")
