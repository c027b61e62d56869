"""Arguments that are not what functions take are named, and batches of nothing are served, as lengths of 0 are."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from flashcore_attn import flash_attn_interface as fa3  # noqa: E402
from ragged import int32  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def equal():
    return {"q": draw(2, 3, 4, 16), "k": draw(2, 7, 2, 16), "v": draw(2, 7, 2, 16)}


def packed():
    starts = {"cu_seqlens_q": int32([0, 3, 6]), "cu_seqlens_k": int32([0, 7, 14])}
    return {name: x.flatten(0, 1) for name, x in equal().items()} | starts | {"max_seqlen_q": 3, "max_seqlen_k": 7}


def cached():
    q, k, v = equal().values()
    tables = {"rotary_cos": draw(7, 4), "rotary_sin": draw(7, 4), "rotary_seqlens": int32([1, 2])}
    given = {"q": q, "k_cache": k, "v_cache": v, "k": draw(2, 1, 2, 16), "v": draw(2, 1, 2, 16), **tables}
    return given | {"cache_seqlens": int32([4, 5])}


def gradients():
    given = packed()
    tensors = [given[name] for name in "qkv"]
    out, lse = fa3.flash_attn_varlen_func(**given, return_attn_probs=True)
    results = dict(zip(("dq", "dk", "dv"), (torch.empty_like(x) for x in tensors)))
    return given | {"dout": out, "out": out, "softmax_lse": lse} | results


def schedule():
    sizes = {"batch_size": 2, "max_seqlen_q": 1, "max_seqlen_k": 8, "num_heads_q": 4, "num_heads_kv": 2, "headdim": 16}
    return sizes | {"cache_seqlens": int32([3, 4]), "qkv_dtype": torch.float32}


CALLS = {
    "equal": (fa3.flash_attn_func, equal),
    "packed": (fa3.flash_attn_varlen_func, packed),
    "cached": (fa3.flash_attn_with_kvcache, cached),
    "gradients": (fa3._flash_attn_backward, gradients),
    "schedule": (fa3.get_scheduler_metadata, schedule),
    "parts": (fa3.flash_attn_combine, lambda: {"out_partial": draw(3, 2, 5, 4, 16), "lse_partial": draw(3, 2, 5, 4)}),
}
NONE = torch.empty(0, dtype=torch.int32)
SPARSE = torch.eye(3).to_sparse()


@pytest.mark.parametrize(
    "call, change, says",
    [
        ("equal", {"q": torch.tensor(1.0)}, "q has no dimensions"),
        ("equal", {"v": SPARSE}, "v has the layout torch.sparse_coo"),
        ("equal", {"window_size": torch.tensor([1.5, 2.0])}, r"window_size is tensor\(.*an int tensor of two"),
        ("packed", {"k": torch.tensor(1.0)}, "k has no dimensions"),
        ("packed", {"cu_seqlens_k": SPARSE}, "cu_seqlens_k has the layout torch.sparse_coo"),
        ("packed", {"seqused_q": NONE}, r"seqused_q has shape \(0,\); it must be int32 of shape \(2,\)"),
        ("packed", {"seqused_k": NONE}, r"seqused_k has shape \(0,\)"),
        ("packed", {"max_seqlen_k": int32([1, 2])}, r"max_seqlen_k is a tensor of shape \(2,\); give an int"),
        ("cached", {"k_cache": torch.tensor(1.0)}, "k_cache has no dimensions"),
        ("cached", {"rotary_seqlens": NONE}, r"rotary_seqlens has shape \(0,\); it must be int32 of shape \(2,\)"),
        (
            "cached",
            {"cache_batch_idx": int32([1, 1]), "cache_seqlens": int32([4, 4])},
            "cache_batch_idx has 1 for sequences 0 and 1, which both write row 4 there",
        ),
        ("cached", {"scheduler_metadata": 1}, "scheduler_metadata is a int; it must be a tensor"),
        ("gradients", {"cu_seqlens_q": [0, 3, 6]}, "cu_seqlens_q is a list; it must be a tensor"),
        ("gradients", {"sequed_k": [7, 7]}, "sequed_k is a list; it must be a tensor"),
        ("gradients", {"sequed_k": NONE}, r"sequed_k has shape \(0,\)"),
        ("gradients", {"out": draw(0, 4, 16)}, r"out has shape \[1, 0, 4, 16\]"),
        ("gradients", {"dq": torch.empty(6, 4, 16, device="meta")}, "dq holds .* on meta; it must hold .* on cpu"),
        ("schedule", {"cache_seqlens": [3, 4]}, "cache_seqlens is a list; it must be a tensor"),
        ("schedule", {"cache_leftpad": int32([1])}, r"cache_leftpad has shape \(1,\); .* it is \(2,\)"),
        ("schedule", {"cu_seqlens_k_new": int32([0, 1])}, r"cu_seqlens_k_new has shape \(2,\); .* it is \(3,\)"),
        ("schedule", {"batch_invariant": 0}, "batch_invariant is 0; a split has 1 key or more"),
        ("schedule", {"cu_seqlens_k_new": 1}, "cu_seqlens_k_new is a int; it must be a tensor"),
        ("schedule", {"max_seqlen_q": -1}, "max_seqlen_q is -1; it is a bound of lengths"),
        ("schedule", {"max_seqlen_k": -8}, "max_seqlen_k is -8; it is a bound of lengths"),
        ("schedule", {"out": 1}, "out is a int; it must be a tensor"),
        ("parts", {"out_dtype": "float16"}, "out_dtype is 'float16'; it must be a torch.dtype"),
    ],
    ids=lambda of: next(iter(of)) if isinstance(of, dict) else of,
)
def test_arguments_are_named(call, change, says):
    function, given = CALLS[call]
    function(**given())
    with pytest.raises((TypeError, ValueError, NotImplementedError, RuntimeError), match=f"^{says}"):
        function(**given() | change)


@pytest.mark.parametrize("pages", [False, True])
def test_no_sequences(pages):
    """Rows of packed queries are of no sequence then, and the results have their shapes."""
    none = {"cache_seqlens": NONE, "cu_seqlens_q": int32([0]), "max_seqlen_q": 3}
    none |= {"page_table": NONE.view(0, 1)} if pages else {}
    caches = (draw(5 if pages else 0, 7, 2, 16), draw(5 if pages else 0, 7, 2, 24))
    out, lse, *_ = fa3.flash_attn_with_kvcache(draw(6, 4, 16), *caches, return_softmax_lse=True, **none)
    assert (out.shape, lse.shape) == ((6, 4, 24), (4, 6))
    of_none = fa3.get_scheduler_metadata(**schedule() | {"batch_size": 0, "cache_seqlens": NONE})
    of_no_rows = fa3.get_scheduler_metadata(**schedule(), cu_seqlens_q=int32([0, 0, 0]), total_q=0)
    assert of_none.numel() == of_no_rows.numel() == 0  # calls take it, and have none
    k, v = (cache.flatten(0, 1) for cache in caches)
    options = {"max_seqlen_q": None, "max_seqlen_k": 7, "return_attn_probs": True}
    out, lse = fa3.flash_attn_varlen_func(draw(0, 3, 4, 16), k, v, None, int32([0]), **options)
    assert (out.shape, lse.shape) == ((0, 3, 4, 24), (0, 4, 3))


@pytest.mark.parametrize("pages", [False, True])
def test_selected_sequences_of_a_cache_in_modes_and_transforms(pages):
    """Where values cannot be looked at, which sequences `cache_batch_idx` has is not checked."""
    q, k, v = (torch.stack((x, -x)) for x in equal().values())
    given = {"cache_seqlens": 5} | ({"page_table": int32([[0], [1]])} if pages else {})
    chosen = int32([[1, 0], [1, 1]])
    call = lambda q, k, v, chosen: fa3.flash_attn_with_kvcache(q, k, v, cache_batch_idx=chosen, **given)
    want = torch.stack([call(*of_each) for of_each in zip(q, k, v, chosen)])
    assert torch.equal(torch.vmap(call)(q, k, v, chosen), want)
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(x[0]) for x in (q, k, v, chosen)]
    given = {name: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    with mode:
        assert call(*fakes).shape == (2, 3, 4, 16)


@pytest.mark.parametrize("direct", [False, True])
def test_a_window_without_sides_is_none_for_rotary_embeddings(direct):
    """Then all queries are rotated at one position."""
    given = cached() if direct else cached() | {"cache_batch_idx": int32([0, 1])}
    outs = [fa3.flash_attn_with_kvcache(**given, window_size=window) for window in ((-1, -1), (-2, -1), (-1, -3))]
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])
