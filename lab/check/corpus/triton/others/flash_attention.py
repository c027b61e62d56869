"""Calls the Triton kernels of FlashAttention (https://github.com/Dao-AILab/flash-attention) on small tensors.

usage: scripts/check_triton.py lab/check/corpus/triton/others/flash_attention.py CLONE

Nothing of the clone is in this tree.
"""

import importlib.util
import pathlib
import sys
import types

import torch

CLONE = pathlib.Path(sys.argv[1])


def stub(name, **members):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)


def load(name):
    spec = importlib.util.spec_from_file_location(name, CLONE / (name.replace(".", "/") + ".py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The package itself imports its extension of CUDA; Triton 3 has no `triton.ops`, which ranks configurations.
for package in ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton", "flash_attn.utils", "triton.ops"):
    stub(package, __path__=[])
stub("flash_attn.utils.torch", custom_fwd=lambda function: function, custom_bwd=lambda function: function)
stub("flash_attn.utils.library", triton_op=lambda *args, **named: lambda function: function)
stub("triton.ops.matmul_perf_model", early_config_prune=None, estimate_matmul_time=None)

torch.manual_seed(0)
half = {"dtype": torch.float16}
print("losses")
logits = torch.randn(6, 300, requires_grad=True)
loss, _ = load("flash_attn.ops.triton.cross_entropy").cross_entropy_loss(
    logits, torch.randint(300, (6,)), label_smoothing=0.1, lse_square_scale=1e-4
)
loss.sum().backward()

print("rotary embedding")
rotary = load("flash_attn.ops.triton.rotary").apply_rotary
x, cos, sin = torch.randn(2, 12, 3, 64, **half), torch.randn(16, 32, **half), torch.randn(16, 32, **half)
for options in ({}, {"interleaved": True}, {"inplace": True}, {"conjugate": True, "seqlen_offsets": 2}):
    rotary(x, cos, sin, **options)
rotary(x.flatten(0, 1), cos, sin, cu_seqlens=torch.tensor([0, 9, 24], dtype=torch.int32), max_seqlen=15)

print("layer norm")
norms = load("flash_attn.ops.triton.layer_norm")
weight, bias = torch.randn(200), torch.randn(200)
for options in ({}, {"residual": torch.randn(7, 200)}, {"is_rms_norm": True, "dropout_p": 0.1}):
    x = torch.randn(7, 200, requires_grad=True)
    norms.layer_norm_fn(x, weight.requires_grad_(), bias.requires_grad_(), **options).sum().backward()

print("linear")
load("flash_attn.ops.triton.k_activations")
linear = load("flash_attn.ops.triton.linear")
x, weight = torch.randn(48, 64, **half), torch.randn(80, 64, **half)
for activation in ("id", "gelu", "gelu_approx", "squared_relu"):
    linear.triton_linear_act(x, weight, torch.randn(80, **half), activation, save_act_input=True)
    linear.triton_dgrad_act(torch.randn(48, 80, **half), weight, activation, torch.randn(48, 64, **half))

print("attention")
attention = load("flash_attn.flash_attn_triton").flash_attn_func
for causal in (False, True):
    q, k, v = (torch.randn(1, 150, 2, 64, **half, requires_grad=True) for _ in range(3))
    attention(q, k, v, None, causal).sum().backward()
