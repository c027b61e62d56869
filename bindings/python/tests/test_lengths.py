"""Packed sequences and caches through FlashAttention-3's functions, on CPU tensors and, where there is one, on a GPU.

NaN lies past every end: a result that depends on it is not a number.
"""

import flashcore_attn
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ops  # noqa: E402  (needs PyTorch)
import ragged  # noqa: E402
from flashcore_attn import _kvcache, _operators  # noqa: E402, F401  (registers them)
from flashcore_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: E402

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
cuda = pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
DEVICES = ["cpu", pytest.param("cuda", marks=cuda)]
DTYPES = {"cpu": [torch.float32], "cuda": [torch.float16, torch.bfloat16]}
OPTIONS = [
    {},
    {"causal": True},
    {"window_size": (5, 3)},
    {"causal": True, "window_size": (7, -1)},
    {"softcap": 4.0},
    {"softmax_scale": 0.3},
]
MAX = 200  # more than any length
NAN = float("nan")


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def kinds(device):
    """The dtype and head_dim of each test on a device: on a GPU also those of Hopper's kernels."""
    return [(torch.float32, 16)] if device == "cpu" else [(torch.bfloat16, 64), (torch.float16, 128)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("used", [False, True], ids=["", "used"])
def test_packed_sequences(device, used, options):
    for dtype, dim in kinds(device):
        parts = ragged.sequences(device=device, dtype=dtype, dim=dim)
        qs, ks, vs = zip(*parts)
        unused_q, unused_k = (2, 3) if used else (0, 0)
        q, k, v = ragged.packed(qs, unused_q, 5), ragged.packed(ks, unused_k, 4), ragged.packed(vs, unused_k, 4)
        counts = lambda xs, unused: [len(x) + unused for x in xs]
        lengths = {}
        if used:
            lengths = {
                "seqused_q": ragged.int32(counts(qs, 0), device),
                "seqused_k": ragged.int32(counts(ks, 0), device),
            }
        starts_q, starts_k = (ragged.starts(counts(*x), device) for x in ((qs, unused_q), (ks, unused_k)))
        out, lse = flash_attn_varlen_func(
            q, k, v, starts_q, starts_k, MAX, MAX, return_attn_probs=True, **lengths, **options
        )
        assert out.shape == q.shape and out.dtype == dtype and lse.shape == (ragged.HEADS, len(q))
        ragged.check_packed(out, lse, parts, unused_q, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("page_size", [None, 1, 7, 16, 64])
def test_decoding_over_a_cache(device, page_size, options):
    for dtype, dim in kinds(device):
        parts = ragged.sequences([(3, keys) for keys in (5, 70, 0, 129, 3, 1)], device=device, dtype=dtype, dim=dim)
        qs, ks, vs = zip(*parts)
        if page_size is None:
            k, v, table = ragged.cache(ks, 130), ragged.cache(vs, 130), None
        else:
            k, v, table = ragged.paged(ks, vs, page_size)
        seqlens = ragged.int32([len(k) for k in ks], device)
        out, lse, *_ = flash_attn_with_kvcache(
            torch.stack(qs), k, v, cache_seqlens=seqlens, page_table=table, return_softmax_lse=True, **options
        )
        assert out.shape == (6, 3, ragged.HEADS, dim) and lse.shape == (6, ragged.HEADS, 3)
        for b, part in enumerate(parts):
            ragged.check(out[b], lse[b], *part, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("page_size", [None, 16, 24])
def test_packed_queries_over_a_cache(device, page_size, options):
    for dtype, dim in kinds(device):
        parts = ragged.sequences(device=device, dtype=dtype, dim=dim)
        qs, ks, vs = zip(*parts)
        if page_size is None:
            k, v, table = ragged.cache(ks, 130), ragged.cache(vs, 130), None
        else:
            k, v, table = ragged.paged(ks, vs, page_size)
        out, lse, *_ = flash_attn_with_kvcache(
            ragged.packed(qs, 0, 3),
            k,
            v,
            cache_seqlens=ragged.int32([len(k) for k in ks], device),
            page_table=table,
            cu_seqlens_q=ragged.starts([len(q) for q in qs], device),
            max_seqlen_q=MAX,
            return_softmax_lse=True,
            **options,
        )
        ragged.check_packed(out, lse, parts, **options)


def test_pages_before_a_window_may_be_missing(device):
    for dtype, dim in kinds(device):
        parts = ragged.sequences([(2, 100), (1, 64), (3, 90)], device=device, dtype=dtype, dim=dim)
        qs, ks, vs = zip(*parts)
        holes = {(0, i) for i in range(5)} | {(2, i) for i in range(4)}  # of 16 keys
        k, v, table = ragged.paged(ks, vs, 16, holes=holes)
        out, lse, *_ = flash_attn_with_kvcache(
            ragged.packed(qs),
            k,
            v,
            cache_seqlens=ragged.int32([100, 64, 90], device),
            page_table=table,
            cu_seqlens_q=ragged.starts([2, 1, 3], device),
            max_seqlen_q=3,
            causal=True,
            window_size=(15, 0),
            return_softmax_lse=True,
        )
        ragged.check_packed(out, lse, parts, causal=True, window_size=(15, 0))


def test_equal_queries_with_packed_keys_and_with_used_rows(device):
    dtype, dim = kinds(device)[0]
    parts = ragged.sequences([(9, 20), (9, 0), (9, 33)], device=device, dtype=dtype, dim=dim)
    qs, ks, vs = zip(*parts)
    q, starts_k = torch.stack(qs), ragged.starts([20, 0, 33], device)
    out, lse = flash_attn_varlen_func(
        q, ragged.packed(ks), ragged.packed(vs), None, starts_k, None, 33, causal=True, return_attn_probs=True
    )
    assert out.shape == q.shape and lse.shape == (3, ragged.HEADS, 9)
    for b, part in enumerate(parts):
        ragged.check(out[b], lse[b], *part, causal=True)

    used = [4, 9, 0]
    q = q.clone()
    for b, rows in enumerate(used):
        q[b, rows:] = NAN
    seqused = {"seqused_q": ragged.int32(used, device), "seqused_k": ragged.int32([20, 0, 33], device)}
    k, v = ragged.cache(ks, 40), ragged.cache(vs, 40)
    out, lse = flash_attn_varlen_func(q, k, v, None, None, None, None, causal=True, return_attn_probs=True, **seqused)
    for b, ((q, k, v), rows) in enumerate(zip(parts, used)):
        ragged.check(out[b, :rows], lse[b, :, :rows], q[:rows], k, v, causal=True)


def test_lengths_of_whole_tensors_equal_those_of_the_dense_function(device):
    dtype, dim = kinds(device)[0]
    parts = ragged.sequences([(33, 50)] * 3, device=device, dtype=dtype, dim=dim)
    q, k, v = (torch.stack(x) for x in zip(*parts))
    expected = flash_attn_func(q, k, v, causal=True)
    close = lambda out: torch.testing.assert_close(out, expected, atol=1e-2 if device == "cuda" else 1e-6, rtol=0)
    close(flash_attn_with_kvcache(q, k, v, causal=True))
    close(flash_attn_with_kvcache(q, k, v, cache_seqlens=50, causal=True))
    starts = ragged.starts([33] * 3, device), ragged.starts([50] * 3, device)
    close(flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *starts, 33, 50, causal=True).view_as(q))
    out = flash_attn_with_kvcache(q.flatten(0, 1), k, v, cu_seqlens_q=starts[0], max_seqlen_q=33, causal=True)
    close(out.view_as(q))


def test_no_rows_and_no_keys(device):
    q, k = torch.randn(5, 4, 16, device=device), torch.randn(7, 2, 16, device=device)
    starts = ragged.int32([0, 2, 5], device), ragged.int32([0, 3, 7], device)
    nothing = torch.zeros_like(starts[0])
    out, lse = flash_attn_varlen_func(q, k[:0], k[:0], starts[0], nothing, 5, 5, return_attn_probs=True)
    assert (out == 0).all() and torch.isneginf(lse).all() and lse.shape == (4, 5)
    out, lse = flash_attn_varlen_func(q[:0], k, k, nothing, starts[1], 5, 5, return_attn_probs=True)
    assert out.shape == (0, 4, 16) and lse.shape == (4, 0)
    if device == "cpu":  # on a GPU a length is cut to its bound
        with pytest.raises(RuntimeError, match="cu_seqlens_k gives sequence 1 4 rows; the problem's bound is 3"):
            flash_attn_varlen_func(q, k, k, *starts, 5, 3)


EMPTY = {  # K's shape, lengths, and what is said of them; None: they are served
    "no keys": ((2, 0, 2, 16), {"cache_seqlens": [0, 0]}, None),
    "no keys, selected": ((5, 0, 2, 16), {"cache_seqlens": [0, 0], "cache_batch_idx": [1, 3]}, None),
    "keys of a cache without": ((2, 0, 2, 16), {"cache_seqlens": [9, 13]}, "cache_seqlens has 13, but k_cache, of"),
    "of one sequence": ((2, 0, 2, 16), {"cache_seqlens": [0]}, "has 1 entries"),
    "pages of no key": ((3, 0, 2, 16), {"cache_seqlens": [9, 13], "page_table": [[0], [1]]}, r"k_cache has shape \(3, 0"),
    "no pages": ((0, 8, 2, 16), {"cache_seqlens": [9, 13], "page_table": [[0], [1]]}, r"k_cache has shape \(0, 8"),
    "a table of no page": ((3, 8, 2, 16), {"cache_seqlens": [0, 0], "page_table": [[], []]}, r"page_table has shape \(2, 0"),
    "no sequence": ((0, 7, 2, 16), {"cache_seqlens": [0, 0]}, r"k_cache has shape \[0, 7, 2, 16\]"),
    "packed keys": ((0, 2, 16), {"cu_seqlens_k": [0, 0, 0]}, None),
    "keys that are not there": ((0, 2, 16), {"cu_seqlens_k": [0, 7, 3]}, "cu_seqlens_k has 7, but k, of shape"),
    "starts of one sequence": ((0, 2, 16), {"cu_seqlens_k": [0, 0]}, "cu_seqlens_k has 2 entries"),
    "starts below 0": ((0, 2, 16), {"cu_seqlens_k": [0, -1, 0]}, "cu_seqlens_k decreases from 0 to -1"),
    "two dimensions": ((0, 2), {"cache_seqlens": [0, 0]}, r"k_cache has shape \(0, 2\); it has 3 dimensions"),
}


@pytest.mark.parametrize("case", EMPTY)
def test_caches_without_keys_are_checked(case):
    shape, lengths, says = EMPTY[case]
    q, k = torch.randn(2, 1, 4, 16), torch.randn(shape)
    lengths = {name: ragged.int32(values) for name, values in lengths.items()}

    def call():
        if "cu_seqlens_k" in lengths:
            starts = ragged.int32([0, 1, 2])
            return flash_attn_varlen_func(q[:, 0], k, k, starts, lengths["cu_seqlens_k"], 1, 0, return_attn_probs=True)
        return flash_attn_with_kvcache(q, k, k, **lengths, return_softmax_lse=True)[:2]

    if says is None:
        out, lse = call()
        assert (out == 0).all() and torch.isneginf(lse).all()
    else:
        with pytest.raises((ValueError, RuntimeError), match=says):
            call()


def test_a_batch_without_sequences():
    q, k, none = torch.randn(0, 3, 4, 16), torch.randn(5, 7, 2, 16), ragged.int32([])
    assert flash_attn_with_kvcache(q, k[:0], k[:0], cache_seqlens=none).shape == q.shape
    assert flash_attn_with_kvcache(q, k, k, cache_seqlens=none, cache_batch_idx=none).shape == q.shape


def test_strides_and_tables_of_a_larger_tensor(device):
    dtype, dim = kinds(device)[0]
    parts = ragged.sequences([(1, 20), (1, 37)], device=device, dtype=dtype, dim=dim)
    qs, ks, vs = zip(*parts)
    k, v, table = ragged.paged(ks, vs, 8)
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))  # [pages, kv_heads, page_size, dim]
    wide = torch.full((2, table.shape[1] + 5), -1, dtype=torch.int32, device=device)
    wide[:, : table.shape[1]] = table
    out, lse, *_ = flash_attn_with_kvcache(
        torch.stack(qs),
        k,
        v,
        cache_seqlens=ragged.int32([20, 37], device),
        page_table=wide[:, : table.shape[1]],
        return_softmax_lse=True,
    )
    for b, part in enumerate(parts):
        ragged.check(out[b], lse[b], *part)


I32 = ragged.int32


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"cu_seqlens_q": torch.tensor([0, 2, 5])}, RuntimeError, "cu_seqlens_q holds int64; it must be int32"),
        ({"cu_seqlens_q": I32([0, 2, 6])}, RuntimeError, "cu_seqlens_q has 6 in entry 2; its tensors have 5 rows"),
        ({"cu_seqlens_q": I32([1, 2, 5])}, RuntimeError, "cu_seqlens_q starts at 1"),
        (
            {"cu_seqlens_k": I32([0, 7])},
            RuntimeError,
            "cu_seqlens_k has 2 entries; this problem of 2 sequences needs 3",
        ),
        ({"cu_seqlens_k": I32([[0, 3, 7]])}, RuntimeError, "cu_seqlens_k has 2 dimensions; it must have 1"),
        ({"seqused_k": I32([3, 5])}, RuntimeError, "seqused_k has 5 for sequence 1; allowed are 0 to 4"),
        ({"seqused_q": I32([3])}, RuntimeError, "seqused_q has 1 entries"),
        ({"max_seqlen_q": None}, ValueError, "max_seqlen_q was not given"),
        ({"max_seqlen_k": -1}, ValueError, "max_seqlen_k is -1; it is a bound"),
        ({"cu_seqlens_q": I32([])}, ValueError, r"cu_seqlens_q has shape \(0,\)"),
        ({"qv": 3}, NotImplementedError, "^qv is "),
        ({"attention_chunk": 3}, NotImplementedError, "^attention_chunk is 3"),
        ({"sm_margin": 3}, RuntimeError, "^sm_margin is 3; the CPU has no multiprocessors"),
        ({"sm_margin": -1}, RuntimeError, "^sm_margin is -1"),
        ({"batch_invariant": 0}, ValueError, "^batch_invariant is 0"),
        ({"batch_invariant": -1}, ValueError, "^batch_invariant is -1"),
        ({"q_descale": torch.ones(2, 2)}, RuntimeError, "q_descale was given, but q holds f32"),
        ({"num_splits": -1}, ValueError, "num_splits is -1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument(change, error, says):
    q, k = torch.randn(5, 4, 16), torch.randn(7, 2, 16)
    given = {"cu_seqlens_q": I32([0, 2, 5]), "cu_seqlens_k": I32([0, 3, 7]), "max_seqlen_q": 5, "max_seqlen_k": 7}
    flash_attn_varlen_func(q, k, k, **given)
    with pytest.raises(error, match=says):
        flash_attn_varlen_func(q, k, k, **{**given, **change})


def test_selected_sequences_outside_the_cache_have_no_pages(device):
    """Where values stay on the device, as on a GPU and while a model is traced."""
    table, selected = (ragged.int32(x, device) for x in ([[4, 5], [6, 7]], [1, 9, -1, -(2**31), 2**31 - 1]))
    k = torch.empty(8, 4, 2, 16, device=device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        found = _kvcache.table_of(5, k, table, selected)
    assert found.tolist() == [[6, 7]] + 4 * [[-1, -1]]


def test_a_window_may_be_a_tensor_of_two():
    q, k = torch.randn(5, 4, 16), torch.randn(7, 2, 16)
    given = {"cu_seqlens_q": I32([0, 2, 5]), "cu_seqlens_k": I32([0, 3, 7]), "max_seqlen_q": 5, "max_seqlen_k": 7}
    want, out = (flash_attn_varlen_func(q, k, k, **given, window_size=x) for x in ((1, 0), torch.tensor([1, 0])))
    assert torch.equal(out, want)


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"page_table": I32([[0, 1]])}, RuntimeError, "page_table has 1 rows; it must have one for each of 2"),
        ({"page_table": I32([[0, 1], [2, 9]])}, RuntimeError, "page_table has 9 in entry 1 of sequence 1"),
        ({"page_table": I32([[0, -1], [2, 3]])}, RuntimeError, "page_table has -1 in entry 1 of sequence 0, no page"),
        ({"page_table": I32([0, 1])}, ValueError, r"page_table has shape \(2,\); it must be int32 of shape"),
        ({"window_size": (3,)}, ValueError, r"window_size is \(3,\); it must be a pair"),
        ({"cache_seqlens": I32([6, 9])}, RuntimeError, "cache_seqlens has 9 for sequence 1; allowed are 0 to 8"),
        ({"cache_seqlens": I32([6])}, RuntimeError, "cache_seqlens has 1 entries"),
        ({"cu_seqlens_q": I32([0, 1])}, ValueError, "max_seqlen_q was not given"),
        (
            {"cu_seqlens_q": I32([0, 1]), "max_seqlen_q": 1},
            RuntimeError,
            "q has 4 dimensions and cu_seqlens_q was given",
        ),
        ({"scheduler_metadata": I32([1, 2])}, NotImplementedError, "^scheduler_metadata is given"),
        ({"rotary_cos": torch.ones(8, 4)}, ValueError, "rotary_cos is given without k and v"),
        ({"cu_seqlens_k_new": I32([0, 1])}, ValueError, "cu_seqlens_k_new is given without k and v"),
        ({"cache_batch_idx": I32([0])}, ValueError, r"cache_batch_idx holds torch.int32 of shape \(1,\)"),
        ({"cache_batch_idx": I32([0, 1]).long()}, ValueError, "cache_batch_idx holds torch.int64 .* must be an int32"),
        ({"cache_batch_idx": I32([0, 1]).to("meta")}, ValueError, "cache_batch_idx holds .* on meta; .* on cpu"),
        ({"cache_batch_idx": [0, 1]}, TypeError, "cache_batch_idx is a list; it must be a tensor"),
        ({"cache_batch_idx": I32([0, 7])}, ValueError, "cache_batch_idx has 7 for sequence 1; the cache has 2"),
        ({"cache_batch_idx": I32([-1, 0])}, ValueError, "cache_batch_idx has -1 for sequence 0; the cache has 2"),
        ({"cache_batch_idx": I32([0, 4]), "page_table": None}, ValueError, "cache_batch_idx has 4 .* the cache has 4"),
        ({"page_table": I32([[0, 1]])[:0], "cache_batch_idx": I32([0, 0])}, ValueError, r"page_table has shape \(0, 2\)"),
        ({"cache_leftpad": I32([0])}, ValueError, r"cache_leftpad holds torch.int32 of shape \(1,\)"),
        ({"cache_leftpad": I32([0, 0]).long()}, ValueError, "cache_leftpad holds torch.int64"),
        ({"cache_leftpad": I32([0, 9])}, ValueError, "cache_leftpad has 9 for sequence 1; allowed are 0 to 8"),
        (
            {"cache_leftpad": I32([1, 0]), "cache_seqlens": I32([6, 9])},
            ValueError,
            "^cache_seqlens has 9 for sequence 1; allowed are 0 to 8",
        ),
        (
            {"cache_leftpad": I32([1, 0]), "cache_seqlens": I32([-1, 3])},
            ValueError,
            "^cache_seqlens has -1 for sequence 0",
        ),
        (
            {"cache_leftpad": I32([1, 0]), "page_table": None},
            ValueError,
            r"^k_cache has shape \(4, 4, 2, 16\); without page_table it holds the 2 sequences",
        ),
        ({"cache_seqlens": 2**40}, ValueError, "^cache_seqlens is 1099511627776"),
        ({"v_cache": torch.randn(3, 4, 2, 16)}, ValueError, r"^v_cache has shape \(3, 4, 2, 16\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_errors_of_caches_name_the_argument(change, error, says):
    q, k = torch.randn(2, 1, 4, 16), torch.randn(4, 4, 2, 16)
    given = {"k_cache": k, "v_cache": k, "cache_seqlens": I32([6, 7]), "page_table": I32([[0, 1], [2, 3]])}
    flash_attn_with_kvcache(q, **given)
    with pytest.raises(error, match=says):
        flash_attn_with_kvcache(q, **{**given, **change})


def test_opcheck(device):
    dtype, dim = kinds(device)[0]
    parts = ragged.sequences([(3, 5), (2, 8)], device=device, dtype=dtype, dim=dim)
    qs, ks, vs = zip(*parts)
    q, k, v = ragged.packed(qs), ragged.packed(ks), ragged.packed(vs)
    starts = ragged.starts([3, 2], device), ragged.starts([5, 8], device)
    used = ragged.int32([3, 2], device), ragged.int32([5, 6], device)

    def check(*tensors, **given):
        given |= {"numbers": (0.25, True), "max_seqlen_q": 5, "max_seqlen_k": 8}
        torch.library.opcheck(ops.operator("fwd_lengths"), ops.arguments("fwd_lengths", *tensors, **given))

    packed = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1]}
    check(q, k, v, **packed)
    check(q, k, v, seqused_q=used[0], seqused_k=used[1], **packed)
    pages = ragged.paged(ks, vs, 4, spare=0)
    k, v, table = pages[0].nan_to_num(), pages[1].nan_to_num(), pages[2]
    check(q, k, v, cu_seqlens_q=starts[0], seqused_k=used[1], block_table=table)
    k, v = ragged.cache(ks, 8).nan_to_num(), ragged.cache(vs, 8).nan_to_num()
    check(q.view(1, 5, ragged.HEADS, dim), k[:1], v[:1], seqused_k=used[1][:1])


@pytest.mark.parametrize("kind", ["packed", "paged"])
def test_compiles_once_for_all_lengths(device, kind):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()

    def step(q, k, v, starts_q, lengths_k, table, max_q, max_k):
        if table is None:
            out = flash_attn_varlen_func(q * 2, k, v, starts_q, lengths_k, max_q, max_k, causal=True)
        else:
            out = flash_attn_with_kvcache(
                q * 2,
                k,
                v,
                cache_seqlens=lengths_k,
                page_table=table,
                cu_seqlens_q=starts_q,
                max_seqlen_q=max_q,
                causal=True,
            )
        return torch.relu(out) + q

    compiled = torch.compile(step, backend="inductor", fullgraph=True, dynamic=True)
    dtype, dim = kinds(device)[0]
    # PyTorch takes sizes that are equal in the first call for the same: there are none.
    first = [(3, 5), (7, 46), (1, 1), (1, 1), (1, 17)]
    for seed, lengths in enumerate([first, [(30, 50), (4, 4), (1, 70)], [(7, 7), (8, 90), (2, 2), (5, 6)]]):
        qs, ks, vs = zip(*ragged.sequences(lengths, device=device, dtype=dtype, dim=dim, seed=seed))
        q, k, v, table = ragged.packed(qs), ragged.packed(ks), ragged.packed(vs), None
        lengths_k = ragged.starts([len(k) for k in ks], device)
        if kind == "paged":
            k, v, table = ragged.paged(ks, vs, 8)
            lengths_k = ragged.int32([len(k) for k in ks], device)
        given = (q, k, v, ragged.starts([len(q) for q in qs], device), lengths_k, table, len(q), 90 + seed)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*given), step(*given), atol=1e-2 if device == "cuda" else 1e-5, rtol=0)
    assert counters["stats"]["unique_graphs"] == 1


@cuda
def test_lengths_are_never_read_by_the_host():
    dtype, dim = torch.bfloat16, 64
    parts = ragged.sequences(device="cuda", dtype=dtype, dim=dim)
    qs, ks, vs = zip(*parts)
    k, v, table = ragged.paged(ks, vs, 16)
    q, starts = ragged.packed(qs), ragged.starts([len(q) for q in qs], "cuda")
    seqlens = ragged.int32([len(k) for k in ks], "cuda")
    new, rotary = torch.randn(len(parts), 2, ragged.KV_HEADS, dim, device="cuda", dtype=dtype), torch.ones(200, 8)
    everything = {
        "cache_leftpad": torch.zeros_like(seqlens),
        "cache_batch_idx": torch.arange(len(parts), dtype=torch.int32, device="cuda"),
        "rotary_cos": rotary.to("cuda", dtype),
        "rotary_sin": rotary.to("cuda", dtype),
    }

    def call():
        given = {"cache_seqlens": seqlens, "page_table": table, "cu_seqlens_q": starts, "max_seqlen_q": MAX}
        flash_attn_with_kvcache(q, k, v, causal=True, **given)
        flash_attn_with_kvcache(q, k, v, new, new, **given, **everything)

    call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(500_000_000)
        call()
        assert not torch.cuda.current_stream().query(), "the call waited for the stream"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


@cuda
def test_a_captured_graph_serves_a_growing_cache():
    dtype, dim, batch, page_size, pages = torch.bfloat16, 128, 4, 16, 64
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(shape, generator=generator).to("cuda", dtype)
    whole = [(draw(batch, 200, 2, dim), draw(batch, 200, 2, dim))][0]
    k, v = (torch.full((pages, page_size, 2, dim), NAN, dtype=dtype, device="cuda") for _ in range(2))
    table = torch.full((batch, 16), -1, dtype=torch.int32, device="cuda")
    seqlens = torch.zeros(batch, dtype=torch.int32, device="cuda")
    q, new_k, new_v = draw(batch, 1, 4, dim), draw(batch, 1, 2, dim), draw(batch, 1, 2, dim)
    call = lambda: flash_attn_with_kvcache(
        q, k, v, new_k, new_v, cache_seqlens=seqlens, page_table=table, causal=True, return_softmax_lse=True
    )
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse, *_ = call()
    order = torch.randperm(pages, generator=generator).tolist()
    for step in range(200):
        if step % page_size == 0:
            for b in range(batch):
                table[b, step // page_size] = order.pop()
        q.copy_(draw(batch, 1, 4, dim))
        new_k.copy_(whole[0][:, step : step + 1])
        new_v.copy_(whole[1][:, step : step + 1])
        seqlens.fill_(step)
        graph.replay()
        for b in range(batch):
            ragged.check(out[b], lse[b], q[b], whole[0][b, : step + 1], whole[1][b, : step + 1])
