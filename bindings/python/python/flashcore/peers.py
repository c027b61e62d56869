"""Other implementations of attention, as functions to be timed beside ours on the very same tensors.

    >>> found, absent = flashcore.peers.find("cuda")
    >>> run = found["torch/cudnn"](q, k, v, causal=True)   # [batch, seq, heads, head_dim], any strides
    >>> out = run()

Every peer is given views of the tensors it is asked about, never copies in a layout it likes better. FlashAttention-3
is used where the environment variable FLASHCORE_FA3 names its library, or a folder with it (and, if it was built for
another CUDA release than PyTorch, that release's libcudart).
"""

import ctypes
import os
import pathlib

__all__ = ["find"]

FA3_VARIABLE = "FLASHCORE_FA3"


class NotServed(ValueError):
    """A peer does not compute what is asked."""


def find(device):
    """The peers that can run on a device (`"cpu"` or `"cuda"`), and why the others cannot.

    Returns `(found, absent)`: `found[name](q, k, v, *, causal, window, softcap, scale, scales)` gives a function
    without arguments that computes once and returns `[batch, seq, heads, head_dim]`, or raises `NotServed`;
    `absent[name]` is a sentence to be said once. `scales` are those of q, k and v where they are float8_e4m3fn, each
    float32 `[batch, kv_heads]`.
    """
    names = ["torch/flash", "torch/cudnn", "torch/efficient", "torch/math"]
    try:
        import torch
    except ImportError as error:
        return {}, dict.fromkeys([*names, "fa3"], f"PyTorch is not installed in this Python ({error})")
    if device == "cpu":
        # On the host SDPA chooses between its flash kernel and plain operations; the default is what people run.
        return {"torch/sdpa": _sdpa(torch, None), "torch/math": _sdpa(torch, "MATH")}, {}
    if not torch.cuda.is_available():
        return {}, dict.fromkeys([*names, "fa3"], "PyTorch sees no CUDA device")
    found = {
        "torch/flash": _sdpa(torch, "FLASH_ATTENTION"),
        "torch/cudnn": _sdpa(torch, "CUDNN_ATTENTION"),
        "torch/efficient": _sdpa(torch, "EFFICIENT_ATTENTION"),
        "torch/math": _sdpa(torch, "MATH"),
    }
    absent = {}
    try:
        found["fa3"] = _fa3(torch)
    except (OSError, RuntimeError, AttributeError) as error:
        absent["fa3"] = f"FlashAttention-3 is not there: {error}"
    return found, absent


def versions():
    """Versions of what the peers are made of, for the record of a measurement."""
    try:
        import torch
    except ImportError:
        return {}
    known = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.backends.cudnn.is_available():
        known["cudnn"] = str(torch.backends.cudnn.version())
    return {name: version for name, version in known.items() if version}


def _sdpa(torch, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def make(q, k, v, *, causal=False, window=None, softcap=None, scale=None, scales=None):
        if scales is not None:
            raise NotServed("SDPA does not serve fp8")
        if softcap is not None:
            raise NotServed("SDPA has no soft cap")
        if window is not None and any(side is not None for side in window):
            raise NotServed("SDPA has no window")
        if causal and q.shape[1] == 1:
            causal = False  # aligned at the bottom right, the one row sees every key
        if causal and q.shape[1] != k.shape[1]:
            raise NotServed("SDPA aligns causal masks at the top left; that is another problem where lengths differ")
        heads_first = [x.transpose(1, 2) for x in (q, k, v)]
        options = {"is_causal": causal, "scale": scale}
        if q.shape[2] != k.shape[2]:
            options["enable_gqa"] = True

        def plain():
            return scaled_dot_product_attention(*heads_first, **options).transpose(1, 2)

        if backend is None:
            return plain
        chosen = getattr(SDPBackend, backend)

        def run():
            with sdpa_kernel(chosen):
                return plain()

        return run

    return make


def _fa3(torch):
    where = os.environ.get(FA3_VARIABLE)
    if not where:
        raise OSError(f"set {FA3_VARIABLE} to its library (_C*.so), or to a folder with it")
    path = pathlib.Path(where)
    library = path
    if path.is_dir():
        libraries = sorted(path.rglob("_C*.so"))
        if not libraries:
            raise OSError(f"{FA3_VARIABLE}={where} is a folder without a _C*.so")
        library = libraries[0]
        for runtime in sorted(path.rglob("libcudart.so.*")):
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    torch.ops.load_library(str(library))
    forward = torch.ops.flash_attn_3.fwd

    def make(q, k, v, *, causal=False, window=None, softcap=None, scale=None, scales=None):
        left, right = (-1 if side is None else side for side in window or (None, None))
        options = {"is_causal": causal, "window_size_left": left, "window_size_right": 0 if causal else right}
        if softcap is not None:
            options["softcap"] = softcap
        if scale is not None:
            options["softmax_scale"] = scale
        if scales is not None:
            options.update(zip(("q_descale", "k_descale", "v_descale"), scales))
        return lambda: forward(q, k, v, **options)[0]

    return make
