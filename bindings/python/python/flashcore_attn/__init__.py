"""Fused attention on NVIDIA GPUs, and on the CPU where there is none.

    >>> import flashcore_attn
    >>> out = flashcore_attn.attention(q, k, v, causal=True)

`q`, `k`, `v` are tensors `[batch, seq, heads, head_dim]` of PyTorch, JAX, CuPy, NumPy or any other library that
speaks DLPack, with any strides; nothing is copied. CUDA tensors are computed on their library's current stream.
`flashcore_attn.explain` says how a call would be computed, `flashcore_attn.devices` on what. `flashcore_attn.check`
finds faults of a kernel of Triton, CUDA C++ or PTX without a GPU.

Modules that need PyTorch are imported by name: `flashcore_attn.flash_attn_interface` (FlashAttention-3's functions),
`flashcore_attn.flash_attn` (FlashAttention-2's), `flashcore_attn.torch` (`scaled_dot_product_attention`) and
`flashcore_attn.transformers` (Hugging Face).
"""

from ._check import CheckFailed, CheckResult, Uninit, check
from ._declared import declared
from ._native import __version__, attention, devices, plan, why_not_cuda

__all__ = [
    "CheckFailed",
    "CheckResult",
    "Uninit",
    "__version__",
    "attention",
    "check",
    "declared",
    "devices",
    "explain",
    "plan",
    "why_not_cuda",
]


def explain(q, k, v, **options) -> str:
    """How `attention` would compute this call, in words: kernel, reason, and on a GPU the launch and what was refused.

    Takes the arguments of `attention`, and raises what it raises.
    """
    how = plan(q, k, v, **options)
    lines = [f"{how['problem']} on {how['device']}: {how['kernel']}", f"  because {how['why']}"]
    if "grid" in how:
        blocks, threads = how["grid"], how["block"]
        lines.append(
            f"  {blocks[0]} x {blocks[1]} x {blocks[2]} blocks of {threads[0] * threads[1] * threads[2]} threads for "
            f"{how['target']}, {how['shared_bytes']:,} B of shared memory a block, "
            f"{how['workspace_bytes']:,} B of workspace"
        )
        lines += [f"  before it {kernel}" for kernel in how["before"]]
        lines += [f"  then {kernel}" for kernel in how["then"]]
        lines += [f"  refused: {kernel}: {why}" for kernel, why in how["considered"] if why is not None]
    lines += [f"  note: {note}" for note in how["notes"]]
    lines.append(f"  {how['flops'] / 1e9:,.2f} GFLOP over the visible keys")
    return "\n".join(lines)
