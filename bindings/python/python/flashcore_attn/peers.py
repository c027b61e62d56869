"""Other implementations of attention, as functions to be timed with ours on the same tensors.

    >>> found, absent = flashcore_attn.peers.find("cuda")
    >>> run = found["torch/cudnn"](q, k, v, causal=True)   # [batch, seq, heads, head_dim], any strides
    >>> out = run()

Every peer is given views of the tensors it is asked about, never copies in a layout it likes better. FlashAttention-4
and FlashInfer are used where their packages can be imported. FlashAttention-3 is used where the environment variable
FLASHCORE_FA3 names its library, or a folder with it (and, if it was built for another CUDA release than PyTorch, that
release's libcudart), or else from the package xformers, which carries that library.
"""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import re

from . import _peers_backward, _peers_serving
from ._asked import Asked, NotServed, first_line

__all__ = ["NAMES", "NotServed", "find", "versions"]

FA3_VARIABLE = "FLASHCORE_FA3"

# SDPA's backends by the names of peers.
SDPA = {
    "torch/flash": "FLASH_ATTENTION",
    "torch/cudnn": "CUDNN_ATTENTION",
    "torch/efficient": "EFFICIENT_ATTENTION",
    "torch/math": "MATH",
}
# The peers of a CUDA device, in the order in which tables show them.
NAMES = (*SDPA, "fa3", "fa4", "flashinfer")
# FlashAttention-3's backward pass whose results are the same bits in every run.
FA3_DETERMINISTIC = "fa3-deterministic"
# Those that have a backward pass, in the same order; further libraries have none that is called here.
BACKWARD_NAMES = (*SDPA, "fa3", FA3_DETERMINISTIC, "fa4")
# Distributions whose versions belong to a peer's record, besides PyTorch's.
DISTRIBUTIONS = {
    "fa3": "xformers",
    FA3_DETERMINISTIC: "xformers",
    "fa4": "flash-attn-4",
    "flashinfer": "flashinfer-python",
}

# xformers 0.0.34 is the last release known to carry the library; its pin of PyTorch is for its other operators.
INSTALL_FA3 = "pip install --no-deps xformers==0.0.34 nvidia-cuda-runtime-cu12"
INSTALL_FLASHINFER = "pip install flashinfer-python"

# FlashInfer's recommendation for the buffer in which it merges the parts of split keys.
FLASHINFER_WORKSPACE_BYTES = 128 << 20
# Its kernels read any page size; the largest that servers use costs the fewest table entries.
FLASHINFER_PAGE = 64


def find(device, wanted=None):
    """The peers that can run on a device (`"cpu"` or `"cuda"`), and why the others cannot.

    Returns `(found, absent)`: `found[name](q, k, v, **options)`, of the options of `_asked.Asked`, gives a function
    without arguments that computes once and returns `[batch, seq, heads, head_dim]`, or raises `NotServed`;
    `absent[name]` is a sentence to be said once, with the command that installs the peer. `scales` are those of q, k
    and v where they are float8_e4m3fn, each float32 `[batch, kv_heads]`. Only peers in `wanted` are looked for, if it
    is given: to import one can take seconds. `found[name].backward`, where there is one, makes backward passes
    (`_peers_backward.py`); `"fa3-deterministic"`, which has nothing else, is looked for only if it is wanted.
    `found[name].serving`, where there is one, takes sequences of different lengths (`_peers_serving.py`), and
    `found[name].backward_packed` makes the backward passes of packed ones.
    """
    known = NAMES if wanted is None else (*NAMES, FA3_DETERMINISTIC)
    names = [name for name in known if wanted is None or name in wanted]
    try:
        import torch
    except ImportError as error:
        return {}, dict.fromkeys(names, f"PyTorch is not installed in this Python ({error}): pip install torch")
    if device == "cpu":
        # On the host SDPA chooses between its flash kernel and plain operations; the default is what people run.
        return {"torch/sdpa": _sdpa(torch, None), "torch/math": _sdpa(torch, "MATH")}, {}
    if not torch.cuda.is_available():
        return {}, dict.fromkeys(names, "PyTorch sees no CUDA device")
    found, absent = {}, {}
    for name in names:
        try:
            found[name] = _sdpa(torch, SDPA[name]) if name in SDPA else LIBRARIES[name](torch)
        except Exception as error:  # whatever a library raises while it is loaded, it costs this peer and no more
            absent[name] = first_line(error)
    return found, absent


def versions(name=None):
    """Versions of what a peer is made of, for the record of a measurement; without a name, PyTorch's alone."""
    try:
        import torch
    except ImportError:
        return {}
    known = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.backends.cudnn.is_available():
        known["cudnn"] = str(torch.backends.cudnn.version())
    if name in DISTRIBUTIONS:
        try:
            known[DISTRIBUTIONS[name]] = importlib.metadata.version(DISTRIBUTIONS[name])
        except importlib.metadata.PackageNotFoundError:
            pass  # unpacked without its metadata, or named by FLASHCORE_FA3
    return {name: version for name, version in known.items() if version}


def _import(module, what, install):
    """A module of a peer, or an `OSError` that says what is missing and how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Its own package or a parent: `flash_attn` may be there without `cute`, since FlashAttention-2 has that name.
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise OSError(f"{what} is not installed: {install}") from error
        raise OSError(f"{what} is installed without {error.name}, which it imports: {install}") from error
    except Exception as error:
        raise OSError(f"{what} cannot be imported ({first_line(error)}): {install}") from error


def _sdpa(torch, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def make(q, k, v, **how):
        asked = Asked.by("SDPA", **how)
        causal = asked.causal and q.shape[1] > 1  # aligned at the bottom right, one row sees every key
        if causal and q.shape[1] != k.shape[1]:
            raise NotServed("SDPA aligns causal masks at the top left; that is another problem where lengths differ")
        heads_first = [x.transpose(1, 2) for x in (q, k, v)]
        options = {"is_causal": causal, "scale": asked.scale}
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

    make.backward = _peers_backward.of_autograd(torch, make)
    make.backward_packed = _peers_backward.of_torch_packed(torch, backend)
    make.serving = _peers_serving.of_torch(torch, backend, make)
    return make


def _fa3(torch):
    library, folders = _fa3_library()
    _load(torch, library, folders)
    operators = torch.ops.flash_attn_3

    def make(q, k, v, **how):
        asked = Asked(**how)
        options = asked.of_fa3() | dict(zip(("q_descale", "k_descale", "v_descale"), asked.scales or ()))
        return lambda: operators.fwd(q, k, v, **options)[0]

    make.backward, make.backward_packed = _fa3_backward(operators, deterministic=False)
    make.serving = _peers_serving.of_fa3(torch, operators)
    return make


def _fa3_deterministic(torch):
    _fa3(torch)

    def make(q, k, v, **how):
        raise NotServed("it is a backward pass; the forward pass is that of fa3")

    make.backward, make.backward_packed = _fa3_backward(torch.ops.flash_attn_3, deterministic=True)
    return make


def _fa3_backward(operators, deterministic):
    def make(tensors, *, lengths={}, **how):
        options = {**Asked(**how).of_fa3(), **lengths, "deterministic": deterministic}
        return _peers_backward.of_fa3(operators.bwd, tensors, options)

    def packed(tensors, problem, **how):
        tensors, lengths = _peers_backward.of_packed(tensors, problem)
        return make(tensors, lengths=lengths, **how)

    return make, packed


def _fa3_library():
    """FlashAttention-3's library, and the folders in which libraries that it needs are looked for."""
    # pip unpacks CUDA's libraries into folders of the namespace package `nvidia`.
    nvidia = importlib.util.find_spec("nvidia")
    folders = [pathlib.Path(folder) for folder in (nvidia.submodule_search_locations if nvidia else None) or []]
    where = os.environ.get(FA3_VARIABLE)
    if where:
        path = pathlib.Path(where)
        if not path.is_dir():
            return path, [path.parent, *folders]
        libraries = sorted(path.rglob("_C*.so"))
        if not libraries:
            raise OSError(f"{FA3_VARIABLE}={where} is a folder without a _C*.so")
        return libraries[0], [path, *folders]
    xformers = importlib.util.find_spec("xformers")
    for folder in (xformers.submodule_search_locations if xformers else None) or []:
        for library in sorted(pathlib.Path(folder).glob("flash_attn_3/_C*.so")):
            return library, folders
    choice = f"or set {FA3_VARIABLE} to its library (_C*.so), or to a folder with it"
    raise OSError(f"FlashAttention-3 is not installed: {INSTALL_FA3}; {choice}")


def _load(torch, library, folders):
    """Loads a library of operators, and first those that it needs and that the loader does not find by itself."""
    what, loaded = f"FlashAttention-3's library {library}", set()
    while True:
        try:
            return torch.ops.load_library(str(library))
        except OSError as error:
            # PyTorch wraps what the loader says.
            said = "\n".join(str(told) for told in (error.__cause__, error) if told)
            missing = re.search(r"(\S+\.so[.\d]*): cannot open shared object file", said)
            name = missing and missing[1]
            if not missing or name == str(library) or name in loaded:
                raise OSError(f"{what} cannot be loaded: {said.splitlines()[0]}") from error
            found = next((path for folder in folders for path in sorted(folder.rglob(name))), None)
            if found is None:
                package = "nvidia-cuda-runtime-cu12" if name == "libcudart.so.12" else "the package that has it"
                folder = f"or put it into a folder with the library, and name that by {FA3_VARIABLE}"
                raise OSError(f"{what} needs {name}, which is missing: pip install {package}, {folder}") from error
            ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
            loaded.add(name)


def _fa4(torch):
    extra = "[cu13]" if str(torch.version.cuda).startswith("13") else ""
    package = _import("flash_attn.cute", "FlashAttention-4", f"pip install --pre 'flash-attn-4{extra}'")
    forward = package.flash_attn_func

    def make(q, k, v, **how):
        asked = Asked.by("FlashAttention-4's function", **how)
        options = asked.of_fa4()
        # The log-sum-exp comes with it, `None` where it is not asked for.
        return lambda: forward(q, k, v, **options)[0]

    make.backward = _peers_backward.of_autograd(torch, make)
    return make


def _flashinfer(torch):
    flashinfer = _import("flashinfer", "FlashInfer", INSTALL_FLASHINFER)
    workspaces = {}

    def workspace(device):
        # Shared by all problems: they run one after another in one stream.
        if device not in workspaces:
            workspaces[device] = torch.empty(FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return workspaces[device]

    serving = _peers_serving.of_flashinfer(torch, flashinfer, workspace, FLASHINFER_PAGE)

    def make(q, k, v, **how):
        if q.shape[0] > 1 or q.shape[1] == 1:
            return serving({"q": q, "k": k, "v": v}, {}, **how)
        asked = Asked(**how)
        _peers_serving.check_flashinfer(torch, q, asked)
        run, options = flashinfer.single_prefill_with_kv_cache, {"causal": asked.causal, **asked.of_flashinfer()}
        one = [x[0] for x in (q, k, v)]
        return lambda: run(*one, **options).unsqueeze(0)

    make.serving = serving
    return make


# What makes the peers that are not PyTorch's own.
LIBRARIES = {"fa3": _fa3, FA3_DETERMINISTIC: _fa3_deterministic, "fa4": _fa4, "flashinfer": _flashinfer}
