"""How other libraries are called with sequences of different lengths: stand-ins made of NumPy compute what their arguments
say, so that every branch runs without a GPU and without their packages."""

import types

import numpy as np
import pytest
import reference
from flashcore_attn import _peers_backward as backward
from flashcore_attn import _peers_serving as serving
from flashcore_attn import peers
from flashcore_attn._asked import has_lengths

PAGE = 4
ROWS, KEYS = [3, 1, 5], [9, 4, 5]


class Tensor(np.ndarray):
    """An array with the methods of tensors that are called."""

    device = "cuda:0"

    def view(self, *shape):
        return super().view(*shape) if not all(isinstance(size, int) for size in shape) else self.reshape(shape)

    def to(self, dtype):
        return self.astype(dtype)

    def new_zeros(self, size):
        return tensor(np.zeros(size, self.dtype))

    def contiguous(self):
        return tensor(np.ascontiguousarray(self))


def tensor(array):
    return np.asarray(array).view(Tensor)


def packed(starts, used=None):
    return [(a, b if used is None else a + used[i]) for i, (a, b) in enumerate(zip(starts, starts[1:]))]


def attend(rows, keys, **how):
    """One output of all sequences: `rows` and `keys` give the Q, K and V of each."""
    outs = [reference.attention(q[None], k[None], v[None], **how)[0][0] for q, (k, v) in zip(rows, keys)]
    return tensor(np.concatenate(outs))


def of_pages(cache, table, used):
    """K and V of each sequence of a cache of pages."""
    flat = lambda x, pages, n: x[pages].reshape(-1, *x.shape[2:])[:n]
    pages = [[page for page in row if page >= 0] for row in table.tolist()]
    return [tuple(flat(x, pages[i], n) for x in cache) for i, n in enumerate(used.tolist())]


class Torch(types.ModuleType):
    def __init__(self):
        super().__init__("torch")
        self.int32, self.float16, self.bfloat16 = np.dtype("i4"), np.dtype("f2"), np.dtype("V2")
        self.arange = lambda *bounds, dtype=None, device: tensor(np.arange(*bounds, dtype=dtype))
        self.cat, self.equal = lambda parts: tensor(np.concatenate(parts)), np.array_equal
        self.empty_like = lambda like: tensor(np.empty_like(like))
        self.where = lambda mask, a, b: tensor(np.where(mask, a, b))
        aten = types.SimpleNamespace(_flash_attention_forward=self.flash, _cudnn_attention_forward=self.cudnn)
        self.ops = types.SimpleNamespace(aten=aten)

    def flash(self, q, k, v, of_q, of_k, max_q, max_k, dropout, causal, debug, *, scale, seqused_k, window_size_left,
              window_size_right):  # fmt: skip
        assert max_q == max(b - a for a, b in packed(of_q))
        assert (max_k, dropout, debug) == (max(KEYS), 0.0, False)
        rows = [q[a:b] for a, b in packed(of_q)]
        keys = [(k[a:b], v[a:b]) for a, b in packed(of_k, seqused_k)]
        window = None if window_size_left is None else (window_size_left, None)
        return attend(rows, keys, causal=causal, scale=scale, window=window), None

    def cudnn(self, q, k, v, bias, of_q, of_k, max_q, max_k, lse, dropout, causal, debug, *, scale):
        rows = [q[a:b] for a, b in packed(of_q)]
        return attend(rows, [(k[a:b], v[a:b]) for a, b in packed(of_k)], causal=causal, scale=scale), None


class Fa3:
    """FlashAttention-3's operators, with the names of their arguments."""

    def __init__(self):
        self.planned = []

    def get_scheduler_metadata(self, batch, max_q, max_k, heads, kv_heads, dim, dim_v, dtype, seqused_k, *,
                               cu_seqlens_q, seqused_q, page_size, is_causal, window_size_left, window_size_right,
                               has_softcap):  # fmt: skip
        assert (max_k, heads, kv_heads, dim, dim_v) == (max(KEYS), 4, 2, 8, 8) and seqused_k is not None
        self.planned.append(page_size)
        return "metadata"

    def fwd(self, q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None, max_seqlen_q=None,
            max_seqlen_k=None, page_table=None, scheduler_metadata=None, is_causal, window_size_left,
            window_size_right):  # fmt: skip
        assert (scheduler_metadata is None) == (seqused_k is None)
        assert (cu_seqlens_q is None) == (max_seqlen_q is None) and (cu_seqlens_k is None) == (max_seqlen_k is None)
        rows = list(q) if cu_seqlens_q is None else [q[a:b] for a, b in packed(cu_seqlens_q, seqused_q)]
        if page_table is not None:
            keys = of_pages((k, v), page_table, seqused_k)
        elif cu_seqlens_k is not None:
            keys = [(k[a:b], v[a:b]) for a, b in packed(cu_seqlens_k)]
        else:
            assert not (np.isnan(k).any() or np.isnan(v).any())  # it reads rows past the end of a sequence
            keys = [(x[:n], y[:n]) for x, y, n in zip(k, v, seqused_k)]
        out = attend(rows, keys, causal=is_causal)
        return (out if cu_seqlens_q is not None else out.reshape(q.shape), None)


class FlashInfer:
    """FlashInfer's wrappers, with the names, the order and the defaults of their arguments."""

    class Wrapper:
        def __init__(self, workspace, layout, use_tensor_cores=False):
            assert (workspace, layout) == ("workspace", "NHD")

        def keys(self, cache):
            parts = []
            for i, (a, b) in enumerate(zip(self.indptr, self.indptr[1:])):
                count = max(b - a - 1, 0) * self.page + self.last[i]
                parts.append(tuple(x[self.indices[a:b]].reshape(-1, *x.shape[2:])[:count] for x in cache))
            return parts

    class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
        def plan(self, indptr, indices, last_page_len, heads, kv_heads, head_dim, page_size, *, window_left,
                 logits_soft_cap, sm_scale, q_data_type, kv_data_type):  # fmt: skip
            self.indptr, self.indices, self.last, self.page = indptr, indices, last_page_len, page_size

        def run(self, q, cache):
            return attend([row[None] for row in q], self.keys(cache))

    class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
        def plan(self, qo_indptr, indptr, indices, last_page_len, heads, kv_heads, head_dim, page_size, *, causal,
                 window_left, logits_soft_cap, sm_scale, q_data_type, kv_data_type):  # fmt: skip
            self.indptr, self.indices, self.last, self.page = indptr, indices, last_page_len, page_size
            self.starts, self.causal = qo_indptr, causal

        def run(self, q, cache):
            return attend([q[a:b] for a, b in packed(self.starts)], self.keys(cache), causal=self.causal)

    class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
        def plan(self, qo_indptr, kv_indptr, heads, kv_heads, head_dim, *, head_dim_vo, causal, window_left,
                 logits_soft_cap, sm_scale, q_data_type, kv_data_type):  # fmt: skip
            self.starts, self.causal = (qo_indptr, kv_indptr), causal

        def run(self, q, k, v):
            keys = [(k[a:b], v[a:b]) for a, b in packed(self.starts[1])]
            return attend([q[a:b] for a, b in packed(self.starts[0])], keys, causal=self.causal)


def case(of_q, of_kv):
    """The bench's tensors and the problem: rows packed or one each, keys packed, in caches or in pages."""
    random = np.random.default_rng(3)
    draw = lambda *shape: random.standard_normal(shape).astype(np.float16)
    int32 = lambda values: tensor(np.array(values, np.int32))
    starts = lambda lengths: int32([0, *np.cumsum(lengths)])
    rows = ROWS if of_q == "packed" else [1] * len(KEYS)
    qs = [draw(n, 4, 8) for n in rows]
    kvs = [(draw(n, 2, 8), draw(n, 2, 8)) for n in KEYS]
    tensors = {"q": tensor(np.concatenate(qs)[None] if of_q == "packed" else np.stack(qs))}
    if of_q == "packed":
        tensors["cu_seqlens_q"] = starts(rows)
    capacity = max(KEYS)
    if of_kv == "packed":
        k, v = (np.concatenate(parts)[None] for parts in zip(*kvs))
        tensors["cu_seqlens_k"] = starts(KEYS)
    elif of_kv == "cache":
        k, v = (np.full((len(KEYS), capacity, 2, 8), np.nan, np.float16) for _ in "kv")
        for b, (one_k, one_v) in enumerate(kvs):
            k[b, : len(one_k)], v[b, : len(one_v)] = one_k, one_v
    else:
        table = np.full((len(KEYS), -(-capacity // PAGE)), -1)
        k, v = (np.full((9, PAGE, 2, 8), np.nan, np.float16) for _ in "kv")
        order = iter(random.permutation(9).tolist())
        for b, (one_k, one_v) in enumerate(kvs):
            for entry, at in enumerate(range(0, len(one_k), PAGE)):
                table[b, entry] = page = next(order)
                part = one_k[at : at + PAGE], one_v[at : at + PAGE]
                k[page, : len(part[0])], v[page, : len(part[1])] = part
        tensors["block_table"] = int32(table)
    if of_kv != "packed":
        tensors["seqused_k"] = int32(KEYS)
    tensors.update(k=tensor(k), v=tensor(v))
    kind = lambda name: name if name in ("equal", "cache") else {name: {}}
    problem = {
        "batch": len(KEYS), "seq_len_q": max(rows), "seq_len_kv": capacity, "num_heads": 4, "num_kv_heads": 2,
        "q_lengths": kind(of_q), "kv_lengths": kind(of_kv),
    }  # fmt: skip
    expected = attend(qs, kvs, causal=True).reshape(tensors["q"].shape)
    return tensors, problem, expected


OPTIONS = {"causal": True, "window": None, "softcap": None, "scale": None, "scales": None}
KINDS = [("packed", "packed"), ("packed", "paged"), ("packed", "cache"), ("equal", "cache"), ("equal", "paged")]


def makers(dense=None):
    torch, fa3 = Torch(), Fa3()
    return {
        "torch/flash": serving.of_torch(torch, "FLASH_ATTENTION", dense),
        "torch/cudnn": serving.of_torch(torch, "CUDNN_ATTENTION", dense),
        "torch/math": serving.of_torch(torch, "MATH", dense),
        "fa3": serving.of_fa3(torch, fa3),
        "flashinfer": serving.of_flashinfer(torch, FlashInfer, lambda device: "workspace", 2),
    }, fa3


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_a_peer_computes_what_is_asked(kinds):
    served = []
    tensors, problem, expected = case(*kinds)
    assert has_lengths(problem)
    for name, make in makers()[0].items():
        try:
            run = make(tensors, problem, **OPTIONS)
        except peers.NotServed:
            continue
        out = run()
        assert out.shape == expected.shape
        np.testing.assert_allclose(out, expected, atol=1e-6, err_msg=name)
        served.append(name)
    flash = [] if kinds[1] == "paged" else ["torch/flash"]
    assert served == [*flash, "fa3", "flashinfer"]


def test_flash_attention_3_gets_zeros_past_the_end_of_a_sequence_of_a_cache():
    tensors, problem, expected = case("equal", "cache")
    run = makers()[0]["fa3"](tensors, problem, **OPTIONS)
    tensors["k"][1, KEYS[1] :] = tensors["v"][2, KEYS[2] :] = np.nan  # the bench has new inputs
    run.refresh()
    np.testing.assert_allclose(run(), expected, atol=1e-6)
    for other in "kv":  # others must not read what is there
        assert np.isnan(tensors[other]).any()


def test_the_schedule_of_flash_attention_3_is_kept():
    made, fa3 = makers()
    tensors, problem, _ = case("packed", "paged")
    run = made["fa3"](tensors, problem, **OPTIONS)
    run(), run()
    assert fa3.planned == [PAGE]


def test_cudnn_serves_prompts_and_full_caches():
    made, _ = makers(dense=lambda q, k, v, **how: ("dense", k.shape, how))
    tensors, problem, _ = case("packed", "packed")
    with pytest.raises(peers.NotServed, match="aligns causal masks at the top left"):
        made["torch/cudnn"](tensors, problem, **OPTIONS)
    out = made["torch/cudnn"](tensors, problem, **{**OPTIONS, "causal": False})()
    assert out.shape == tensors["q"].shape
    tensors, problem, _ = case("equal", "cache")
    with pytest.raises(peers.NotServed, match="full caches only"):
        made["torch/cudnn"](tensors, problem, **OPTIONS)
    tensors["seqused_k"][:] = max(KEYS)
    assert made["torch/cudnn"](tensors, problem, **OPTIONS)[0] == "dense"


def test_what_peers_do_not_serve():
    made, _ = makers()
    tensors, problem, _ = case("packed", "packed")
    for name, change, why in [
        ("torch/math", {}, "equal lengths"),
        ("torch/flash", {"softcap": 3.0}, "soft cap"),
        ("flashinfer", {"window": (2, 2), "causal": False}, "no window to the right"),
        ("fa3", {"scales": (1, 1, 1)}, "scales"),
    ]:
        with pytest.raises(peers.NotServed, match=why):
            made[name](tensors, problem, **{**OPTIONS, **change})
    tensors["seqused_q"] = tensors["cu_seqlens_q"][1:]
    with pytest.raises(peers.NotServed, match="leave unused"):
        made["flashinfer"](tensors, problem, **OPTIONS)


def test_backward_passes_of_packed_sequences_get_rows_and_lengths():
    tensors, problem, _ = case("packed", "packed")
    tensors.update({name: tensors["q"] for name in ("out", "dout", "dq")}, lse=tensor(np.zeros((1, 4, 9), np.float32)))
    tensors.update(dk=tensors["k"], dv=tensors["v"])
    lengths = (tensors["cu_seqlens_q"], tensors["cu_seqlens_k"], max(ROWS), max(KEYS))
    called, torch, fa3 = [], Torch(), Fa3()
    row = lambda name: tensors[name][0]

    def forward(*given, **options):
        called.append((given, options))
        return "out", "lse", *saved

    def gradients(*given, **options):
        called.append((given, options))
        return row("dq"), row("dk"), row("dv")

    def same(given, wanted):
        assert len(given) == len(wanted), (given, wanted)
        for one, other in zip(given, wanted):
            assert type(one) is type(other) and np.array_equal(one, other), (one, other)

    torch.ops.aten = types.SimpleNamespace(
        _flash_attention_forward=forward, _flash_attention_backward=gradients,
        _cudnn_attention_forward=forward, _cudnn_attention_backward=gradients,
    )  # fmt: skip
    qkv, options = [row(name) for name in "qkv"], {**OPTIONS, "causal": False, "scale": 0.5}
    for backend, saved, of_forward, of_backward in [
        ("FLASH_ATTENTION", ("state", "unused", "debug"), (*qkv, *lengths, 0.0, False, False),
         (row("dout"), *qkv, "out", "lse", *lengths, 0.0, False, "state", "unused")),
        ("CUDNN_ATTENTION", ("starts", "starts", 5, 9, "seed", "offset", "debug"),
         (*qkv, None, *lengths, True, 0.0, False, False),
         (row("dout"), *qkv, "out", "lse", "seed", "offset", None, *lengths, 0.0, False)),
    ]:  # fmt: skip
        made = backward.of_torch_packed(torch, backend)(tensors, problem, **options)
        assert [gradient.shape for gradient in made.run()] == [tensors[name].shape for name in ("dq", "dk", "dv")]
        made.refresh()
        assert len(called) == 3
        for (given, how), wanted in zip(called, (of_forward, of_backward, of_forward)):
            same(given, wanted)
            assert how["scale"] == 0.5
        called.clear()
    fa3.bwd = gradients
    for deterministic in (False, True):
        _, make = peers._fa3_backward(fa3, deterministic)
        assert make(tensors, problem, **OPTIONS)() is None
        given, how = called.pop()
        same(given, [row(name) for name in ("dout", "q", "k", "v", "out", "lse")])
        for name in ("dq", "dk", "dv"):
            assert np.shares_memory(how.pop(name), tensors[name])
        same([how.pop(name) for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")], lengths)
        assert how == {
            "is_causal": True, "window_size_left": -1, "window_size_right": 0, "deterministic": deterministic,
        }  # fmt: skip
    for kinds, change, why in [
        (("packed", "cache"), {}, "only packed ones"),
        (("packed", "packed"), {"seqused_q": 1}, "leave unused"),
    ]:
        tensors, problem, _ = case(*kinds)
        with pytest.raises(peers.NotServed, match=why):
            make({**tensors, **change}, problem, **OPTIONS)
    cudnn = backward.of_torch_packed(torch, "CUDNN_ATTENTION")
    tensors["dout"] = tensors["q"]
    with pytest.raises(peers.NotServed, match="aligns causal masks at the top left"):
        cudnn(tensors, problem, **OPTIONS)
    with pytest.raises(peers.NotServed, match="equal lengths"):
        backward.of_torch_packed(torch, "MATH")(tensors, problem, **OPTIONS)
