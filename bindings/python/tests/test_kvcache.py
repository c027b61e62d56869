"""What flash_attn_with_kvcache does around attention: new keys, rotary embeddings, padding."""

import flashcore_attn
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ragged  # noqa: E402  (needs PyTorch)
from flashcore_attn.flash_attn_interface import flash_attn_with_kvcache, get_scheduler_metadata  # noqa: E402

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA)))]
PAGES = [None, 1, 8]
LENGTHS = [5, 0, 33, 20]  # keys in the cache
ROWS = [3, 1, 4, 2]  # new ones, and queries, where they differ
CAPACITY = 40


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


class Cache:
    """A cache of `LENGTHS` keys, its logical content, and its tensors with NaN in all other rows."""

    def __init__(self, device, page_size, *, leftpad=(0, 0, 0, 0), order=None, seed=0):
        self.dtype, self.dim = (torch.float32, 16) if device == "cpu" else (torch.bfloat16, 64)
        generator = torch.Generator().manual_seed(seed)
        self.draw = lambda *shape: torch.randn(shape, generator=generator).to(device, self.dtype)
        self.page_size, self.device, self.leftpad = page_size, device, list(leftpad)
        self.k, self.v = ([self.draw(n, 2, self.dim) for n in LENGTHS] for _ in range(2))
        nan = lambda shape: torch.full(shape, float("nan"), dtype=self.dtype, device=device)
        count = len(LENGTHS)
        self.order = list(range(count)) if order is None else order
        rows = max(self.order) + 1
        if page_size is None:
            self.table, shape = None, (rows, CAPACITY, 2, self.dim)
        else:
            each = CAPACITY // page_size
            table = np.random.default_rng(seed).permutation(rows * each + 2)[: rows * each].reshape(rows, each)
            self.table = ragged.int32(table.tolist(), device)
            shape = (rows * each + 2, page_size, 2, self.dim)
        self.k_cache, self.v_cache = nan(shape), nan(shape)
        for b in range(count):
            for i in range(self.leftpad[b], LENGTHS[b]):
                self.k_cache[self.place(b, i)], self.v_cache[self.place(b, i)] = self.k[b][i], self.v[b][i]

    def place(self, b, key):
        b = self.order[b]
        if self.table is None:
            return b, key
        return int(self.table[b, key // self.page_size]), key % self.page_size

    def arguments(self):
        given = {"cache_seqlens": ragged.int32(LENGTHS, self.device), "page_table": self.table}
        if self.order != list(range(len(LENGTHS))):
            given["cache_batch_idx"] = ragged.int32(self.order, self.device)
        if any(self.leftpad):
            given["cache_leftpad"] = ragged.int32(self.leftpad, self.device)
        return given

    def check(self, out, lse, qs, ks, vs, **options):
        """Of sequences of queries, with these new keys."""
        for b, q in enumerate(qs):
            k, v = (torch.cat((old[b][self.leftpad[b] :], new[b])) for old, new in ((self.k, ks), (self.v, vs)))
            ragged.check(out[b][: len(q)], lse[b][:, : len(q)], q, k, v, **options)

    def check_written(self, ks, vs, exact=True):
        """That the new rows are in the cache behind the old ones, and nothing else was written."""
        for cache, old, new in ((self.k_cache, self.k, ks), (self.v_cache, self.v, vs)):
            cache = cache.clone()
            for b, rows in enumerate(new):
                for i in range(self.leftpad[b], LENGTHS[b]):
                    assert torch.equal(cache[self.place(b, i)], old[b][i])
                    cache[self.place(b, i)] = float("nan")
                for i, row in enumerate(rows):
                    place = self.place(b, LENGTHS[b] + i)
                    # A rotated element may round to the other neighbour of what it is in float64.
                    rounded = {torch.float32: 1e-6, torch.bfloat16: 2**-8}[self.dtype]
                    close = {"atol": 0, "rtol": 0} if exact else {"atol": 1e-6, "rtol": 2 * rounded}
                    torch.testing.assert_close(cache[place], row, **close)
                    cache[place] = float("nan")
            assert cache.isnan().all(), "a row was written that is not of a new key"


def unpacked(out, lse, counts):
    """Results of packed queries, by sequence."""
    return out.split(counts), lse.split(counts, dim=1)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (6, 2)}], ids=str)
@pytest.mark.parametrize("order", [None, [3, 5, 0, 2]], ids=["", "batch_idx"])
@pytest.mark.parametrize("leftpad", [(0, 0, 0, 0), (2, 0, 9, 20)], ids=["", "leftpad"])
@pytest.mark.parametrize("page_size", PAGES)
def test_new_keys_are_written_and_seen(device, page_size, leftpad, order, options):
    cache = Cache(device, page_size, leftpad=leftpad, order=order)
    q, k, v = cache.draw(4, 3, 4, cache.dim), cache.draw(4, 2, 2, cache.dim), cache.draw(4, 2, 2, cache.dim)
    out, lse, *empty = flash_attn_with_kvcache(
        q, cache.k_cache, cache.v_cache, k, v, **cache.arguments(), **options, return_softmax_lse=True
    )
    cache.check(out, lse, q, k, v, **options)
    cache.check_written(k, v)
    assert [x.numel() for x in empty] == [0, 0]


@pytest.mark.parametrize("leftpad", [(0, 0, 0, 0), (2, 0, 9, 20)], ids=["", "leftpad"])
@pytest.mark.parametrize("page_size", PAGES)
def test_packed_queries_and_new_keys(device, page_size, leftpad):
    cache = Cache(device, page_size, leftpad=leftpad)
    counts, counts_k = ROWS, [2, 0, 5, 1]
    qs = [cache.draw(n, 4, cache.dim) for n in counts]
    ks, vs = ([cache.draw(n, 2, cache.dim) for n in counts_k] for _ in range(2))
    out, lse, *_ = flash_attn_with_kvcache(
        torch.cat(qs),
        cache.k_cache,
        cache.v_cache,
        torch.cat((*ks, cache.draw(3, 2, cache.dim))),  # with rows of no sequence at the end
        torch.cat((*vs, cache.draw(3, 2, cache.dim))),
        cu_seqlens_q=ragged.starts(counts, device),
        cu_seqlens_k_new=ragged.starts(counts_k, device),
        max_seqlen_q=max(counts),
        causal=True,
        return_softmax_lse=True,
        **cache.arguments(),
    )
    cache.check(*unpacked(out, lse, counts), qs, ks, vs, causal=True)
    cache.check_written(ks, vs)


def rotated(x, cos, sin, first, interleaved, at_one_place=False):
    """Rows ``[rows, heads, dim]`` rotated at the positions `first` and on, as complex numbers in float64."""
    half = cos.shape[1]
    x = x.double().cpu().numpy()
    head, tail = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else (head[..., :half], head[..., half:])
    positions = first + np.arange(len(x)) * (not at_one_place)
    turn = (cos.double().cpu().numpy() + 1j * sin.double().cpu().numpy())[positions][:, None]
    turned = (a + 1j * b) * turn
    pair = (turned.real, turned.imag)
    head = np.stack(pair, axis=-1).reshape(head.shape) if interleaved else np.concatenate(pair, axis=-1)
    return torch.from_numpy(np.concatenate((head, tail), axis=-1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("own_positions", [False, True])
def test_rotary_embeddings(device, packed, interleaved, causal, own_positions):
    cache = Cache(device, 8, leftpad=(2, 0, 9, 20))
    angle = torch.rand(CAPACITY, 4, generator=torch.Generator().manual_seed(3)) * 6.3
    cos, sin = (table.to(device, cache.dtype) for table in (angle.cos(), angle.sin()))
    counts = ROWS if packed else [3, 3, 3, 3]
    qs = [cache.draw(n, 4, cache.dim) for n in counts]
    ks, vs = ([cache.draw(n, 2, cache.dim) for n in counts] for _ in range(2))
    join = torch.cat if packed else torch.stack
    given = cache.arguments()
    if packed:
        given |= {"cu_seqlens_q": ragged.starts(counts, device), "max_seqlen_q": max(counts)}
        given |= {"cu_seqlens_k_new": given["cu_seqlens_q"]}
    first = [7, 1, 0, 30] if own_positions else LENGTHS
    if own_positions:
        given["rotary_seqlens"] = ragged.int32(first, device)
    out, lse, *_ = flash_attn_with_kvcache(
        join(qs), cache.k_cache, cache.v_cache, join(ks), join(vs), rotary_cos=cos, rotary_sin=sin, causal=causal,
        rotary_interleaved=interleaved, return_softmax_lse=True, **given,
    )  # fmt: skip
    out, lse = unpacked(out, lse, counts) if packed else (out, lse)
    turn = lambda xs, **how: [rotated(x, cos, sin, first[b], interleaved, **how).to(x) for b, x in enumerate(xs)]
    qs, ks = turn(qs, at_one_place=not causal), turn(ks)
    cache.check_written(ks, vs, exact=False)
    if device == "cpu":  # in 16 bits a rotated element may round to its other neighbour
        ks = [
            torch.stack([cache.k_cache[cache.place(b, LENGTHS[b] + i)] for i in range(len(k))])
            for b, k in enumerate(ks)
        ]
        for b, q in enumerate(qs):
            k, v = (
                torch.cat((cache.k[b][cache.leftpad[b] :], ks[b])),
                torch.cat((cache.v[b][cache.leftpad[b] :], vs[b])),
            )
            out_want, lse_want = ragged.want(q, k, v, causal=causal)
            np.testing.assert_allclose(out[b].numpy(), out_want, atol=1e-4)
            np.testing.assert_allclose(lse[b].numpy(), lse_want, atol=1e-4)


@pytest.mark.parametrize("page_size", PAGES)
def test_rows_that_do_not_fit_are_not_written(device, page_size):
    cache = Cache(device, page_size)
    k, v = cache.draw(4, 9, 2, cache.dim), cache.draw(4, 9, 2, cache.dim)  # 33 + 9 are more than 40
    if page_size is not None:
        cache.table[3, 24 // page_size :] = -1
    call = lambda: flash_attn_with_kvcache(
        cache.draw(4, 1, 4, cache.dim), cache.k_cache, cache.v_cache, k, v, **cache.arguments()
    )
    fits = [9, 9, 7, 9 if page_size is None else 4]
    if device == "cpu":  # the host reads the values first, and writes nothing
        with pytest.raises(RuntimeError, match="cache_seqlens has 33 for sequence 2, which appends 9 rows"):
            call()
        fits = [0, 0, 0, 0]
    else:
        call()
    cache.check_written([x[:n] for x, n in zip(k, fits)], [x[:n] for x, n in zip(v, fits)])


def test_no_row_fits(device):
    cache = Cache(device, None)
    full = {"cache_seqlens": ragged.int32([CAPACITY] * 4, device)}
    before = cache.k_cache.clone()
    k = cache.draw(4, 2, 2, cache.dim)
    call = lambda: flash_attn_with_kvcache(
        cache.draw(4, 1, 4, cache.dim), cache.k_cache, cache.v_cache, k, k, **full
    )
    if device == "cpu":
        with pytest.raises(RuntimeError, match="cache_seqlens has 40 for sequence 0, which appends 2 rows"):
            call()
    else:
        call()
    assert torch.equal(cache.k_cache.isnan(), before.isnan()) and torch.equal(
        cache.k_cache.nan_to_num(), before.nan_to_num()
    )


def test_a_page_that_is_missing_is_named():
    cache = Cache("cpu", 8)
    cache.table[2, 33 // 8] = -1
    k = cache.draw(4, 1, 2, cache.dim)
    with pytest.raises(RuntimeError, match="page_table has -1 in entry 4 of sequence 2, which gets new rows there"):
        flash_attn_with_kvcache(cache.draw(4, 1, 4, cache.dim), cache.k_cache, cache.v_cache, k, k, **cache.arguments())


@pytest.mark.parametrize("page_size", PAGES)
def test_tensors_that_are_written_are_apart(device, page_size):
    cache = Cache(device, page_size)
    both = torch.stack((cache.k_cache, cache.v_cache), dim=1)
    k = cache.draw(4, 1, 2, cache.dim)
    q, given = cache.draw(4, 1, 4, cache.dim), cache.arguments()
    call = lambda k_cache, v_cache, k, v: flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **given)
    if device == "cpu":
        with pytest.raises(RuntimeError, match="k_cache shares memory with v_cache: .* bytes between .* make both contiguous"):
            call(both[:, 0], both[:, 1], k, k)
        with pytest.raises(RuntimeError, match="v_cache shares memory with v: both have bytes between"):
            call(cache.k_cache, cache.v_cache, k, cache.v_cache.view(-1, 1, 2, cache.dim)[:4])
    else:
        call(both[:, 0], both[:, 1], k, k)
        cache.k_cache, cache.v_cache = both[:, 0].clone(), both[:, 1].clone()
        cache.check_written(k, k)


def test_q_is_rotated_in_place(device):
    cache = Cache(device, None)
    none, lengths = ragged.int32([], device), ragged.int32(LENGTHS, device)
    angles = torch.rand(CAPACITY, 4, generator=torch.Generator().manual_seed(1))
    cos, sin = (table.to(device, cache.dtype) for table in (angles.cos(), angles.sin()))
    q, k = cache.draw(4, 3, 4, cache.dim), cache.draw(4, 3, 2, cache.dim)
    in_place, apart = q.clone(), torch.empty_like(q)
    for from_, to in ((q, apart), (in_place, in_place)):
        torch.ops.flashcore.append_kv(
            cache.k_cache, cache.v_cache, k, k, lengths, none, none, none, torch.zeros_like(lengths), cos, sin, from_,
            to, none, none, False, False,
        )  # fmt: skip
    assert torch.equal(in_place, apart) and not torch.equal(q, apart)


@pytest.mark.parametrize("page_size", PAGES)
def test_the_operator_is_one_of_pytorchs(device, page_size):
    cache = Cache(device, page_size)
    none = ragged.int32([], device)
    absent = lambda x: none if x is None else x
    draw = lambda heads: cache.draw(4, 1, heads, cache.dim)
    lengths, q, table = ragged.int32(LENGTHS, device), draw(4), torch.rand(CAPACITY, 4).to(device, cache.dtype)
    arguments = (
        torch.zeros_like(cache.k_cache), torch.zeros_like(cache.v_cache), draw(2), draw(2), lengths, none, none,
        absent(cache.table), torch.zeros_like(lengths), table, table, q, torch.zeros_like(q), none, none, False, True,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.flashcore.append_kv.default, arguments)


@pytest.mark.parametrize("packed", [False, True])
def test_no_new_rows(device, packed):
    cache = Cache(device, 8)
    shape = (0, 2, cache.dim) if packed else (4, 0, 2, cache.dim)
    none = [cache.draw(0, 2, cache.dim)] * 4
    given = {"cu_seqlens_k_new": ragged.int32([0] * 5, device)} if packed else {}
    q = cache.draw(4, 1, 4, cache.dim)
    tables = (torch.ones(CAPACITY, 4), torch.zeros(CAPACITY, 4))
    cos, sin = (table.to(device, cache.dtype) for table in tables)  # turn nothing
    out, lse, *_ = flash_attn_with_kvcache(
        q, cache.k_cache, cache.v_cache, cache.draw(*shape), cache.draw(*shape), rotary_cos=cos, rotary_sin=sin,
        **cache.arguments(), **given, return_softmax_lse=True,
    )  # fmt: skip
    cache.check(out, lse, q, none, none)
    cache.check_written(none, none)


def test_strided_tensors_are_not_copied(device):
    """q, k and v of one tensor, and a cache of heads first."""
    cache = Cache(device, None)
    qkv = cache.draw(4, 2, 8, cache.dim)
    q, k, v = qkv.split([4, 2, 2], dim=2)
    cache.k_cache, cache.v_cache = (
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in (cache.k_cache, cache.v_cache)
    )
    out, lse, *_ = flash_attn_with_kvcache(
        q, cache.k_cache, cache.v_cache, k, v, causal=True, **cache.arguments(), return_softmax_lse=True
    )
    cache.check(out, lse, q, k, v, causal=True)
    cache.check_written(k, v)


def test_gradients_through_new_keys_are_refused(device):
    cache = Cache(device, 8)
    q, k = cache.draw(4, 1, 4, cache.dim), cache.draw(4, 1, 2, cache.dim)
    for which in (q, k):
        which.requires_grad_()
        out = flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, k, k, **cache.arguments())
        with pytest.raises(NotImplementedError, match="gradients through a cache are not computed"):
            out.sum().backward()
        which.requires_grad_(False)


def test_a_graph_follows_lengths_that_grow():
    """Nothing of a call is done on the host: one CUDA graph serves a cache that grows."""
    if NO_CUDA is not None:
        pytest.skip(str(NO_CUDA))
    cache, other = Cache("cuda", 8), Cache("cuda", 8)
    angle = torch.rand(CAPACITY, 16)
    cos, sin = (x.to("cuda", cache.dtype) for x in (angle.cos(), angle.sin()))
    q, k, v = cache.draw(4, 1, 4, cache.dim), cache.draw(4, 1, 2, cache.dim), cache.draw(4, 1, 2, cache.dim)
    given = cache.arguments()
    lengths = given["cache_seqlens"]
    call = lambda of: flash_attn_with_kvcache(
        q, of.k_cache, of.v_cache, k, v, rotary_cos=cos, rotary_sin=sin, causal=True, **given
    )
    with torch.no_grad():
        call(other)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call(cache)
        for step in range(5):
            for x in (q, k, v):
                x.copy_(cache.draw(*x.shape))
            graph.replay()
            torch.testing.assert_close(out, call(other), atol=0, rtol=0)
            assert torch.equal(cache.k_cache.nan_to_num(), other.k_cache.nan_to_num()), step
            lengths += 1


@pytest.mark.parametrize(
    "change, says",
    [
        ({"v": None}, "v is not given"),
        ({"cache_seqlens": None}, "cache_seqlens is not given, but k is"),
        ({"k": (3, 1, 2, 16)}, "k has shape"),
        ({"k": (4, 1, 1, 16)}, "k has shape"),
        ({"k": torch.ones(4, 1, 2, 16).half()}, "k holds fp16 and k_cache f32"),
        ({"v": (4, 2, 2, 16)}, "v has shape"),
        ({"rotary_cos": (40, 4)}, "rotary_sin is not given"),
        ({"rotary_sin": (40, 4)}, "rotary_cos is not given"),
        ({"rotary_cos": (1, 40, 4), "rotary_sin": (1, 40, 4)}, "rotary_cos has 3 dimensions; it must have 2"),
        ({"rotary_cos": (40, 4), "rotary_sin": (40, 5)}, r"rotary_sin has shape \[40, 5\]; this call needs \[40, 4\]"),
        ({"rotary_cos": (40, 9), "rotary_sin": (40, 9)}, "rotary_dim is 18; it is even, 2 or more, and at most head_dim"),
        ({"rotary_cos": (39, 4), "rotary_sin": (39, 4)}, "rotary_cos has 39 positions; keys can have 40 of them"),
    ],
    ids=str,
)
def test_errors_name_the_argument(change, says):
    cache = Cache("cpu", None)
    given = {"k": cache.draw(4, 1, 2, 16), "v": cache.draw(4, 1, 2, 16), **cache.arguments()}
    given |= {name: torch.ones(x) if isinstance(x, tuple) else x for name, x in change.items()}
    with pytest.raises((ValueError, RuntimeError), match=says):
        flash_attn_with_kvcache(cache.draw(4, 1, 4, 16), cache.k_cache, cache.v_cache, **given)
    assert cache.k_cache[0, 5:].isnan().all(), "rows were written before the error"


@pytest.mark.parametrize(
    "change, says",
    [
        ({"q": (4, 1, 3, 16)}, "3 query heads are not a multiple of 2 K/V heads"),
        ({"q": (4, 1, 4, 8)}, r"k_cache has shape \[4, 40, 2, 16\]; this problem needs \[4, 40, 2, 8\]"),
        ({"q": (4, 4, 16)}, "q has 3 dimensions and cu_seqlens_q was not given"),
        ({"q": torch.ones(4, 1, 4, 16).half()}, "k_cache holds f32 and q fp16"),
        ({"v_cache": (4, 40, 1, 16)}, "v_cache has shape"),
        ({"cache_seqlens": ragged.int32(LENGTHS).long()}, "cache_seqlens holds int64; it must be int32"),
        ({"cu_seqlens_q": ragged.starts([1] * 4), "q": (4, 4, 16)}, "max_seqlen_q was not given"),
        ({"cache_leftpad": ragged.int32([0] * 3)}, "cache_leftpad holds torch.int32 of shape"),
        ({"softmax_scale": -1.0}, "softmax_scale is -1"),
        ({"softcap": -2.0}, "softcap is -2"),
        ({"window_size": (1.5, 0)}, "window_size has 1.5"),
        ({"sm_margin": 3}, "sm_margin is 3; the CPU has no multiprocessors"),
        ({"batch_invariant": 0}, "batch_invariant is 0"),
        ({"batch_invariant": 1.5}, "batch_invariant is 1.5; it must be an int"),
        ({"batch_invariant": 2**40}, "batch_invariant is 1099511627776; .* at most 268435456"),
        ({"window_size": (2**70, 0)}, "window_size has 1180591620717411303424 on the left"),
        ({"causal": "x"}, "causal is 'x'; it must be a bool"),
        ({"softmax_scale": "x"}, "softmax_scale is 'x'; it must be a float"),
        ({"softcap": "a"}, "softcap is 'a'; it must be a float"),
        ({"num_splits": "x"}, "num_splits is 'x'; it must be an int"),
        ({"cache_leftpad": ragged.int32([0, -1, 0, 0])}, "cache_leftpad has -1 for sequence 1; allowed are 0 to 40"),
    ],
    ids=lambda of: next(iter(of)) if isinstance(of, dict) else "",
)
def test_a_refused_call_leaves_the_cache_as_it_was(change, says):
    cache = Cache("cpu", None)
    k = cache.draw(4, 1, 2, 16)
    given = {"q": cache.draw(4, 1, 4, 16), "k_cache": cache.k_cache, "v_cache": cache.v_cache, "k": k, "v": k}
    given |= cache.arguments()
    given |= {name: torch.ones(x) if isinstance(x, tuple) and len(x) > 2 else x for name, x in change.items()}
    with pytest.raises((TypeError, ValueError, RuntimeError, NotImplementedError), match=says):
        flash_attn_with_kvcache(**given)
    assert cache.k_cache[0, 5:].isnan().all(), "rows were written before the error"


def test_leftpad_over_a_cache_of_heads_first(device):
    cache = Cache(device, None, leftpad=(2, 0, 9, 20))
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (cache.k_cache, cache.v_cache))
    q = cache.draw(4, 1, 4, cache.dim)
    out, lse, *_ = flash_attn_with_kvcache(q, k, v, **cache.arguments(), return_softmax_lse=True)
    none = [cache.draw(0, 2, cache.dim)] * 4
    cache.check(out, lse, q, none, none)
    with pytest.raises(NotImplementedError, match="cache_leftpad is given; it is served where"):
        flash_attn_with_kvcache(q, k, cache.v_cache, **cache.arguments())


def test_compiles_with_new_keys(device):
    cache, other = Cache(device, 8), Cache(device, 8)
    cos, sin = (x.to(device, cache.dtype) for x in (torch.rand(CAPACITY, 4), torch.rand(CAPACITY, 4)))
    q, k, v = cache.draw(4, 2, 4, cache.dim), cache.draw(4, 2, 2, cache.dim), cache.draw(4, 2, 2, cache.dim)

    def step(q, k, v, k_cache, v_cache, **given):
        rotary = {"rotary_cos": cos, "rotary_sin": sin}
        return flash_attn_with_kvcache(q * 2, k_cache, v_cache, k, v, causal=True, **rotary, **given) + q

    torch._dynamo.reset()
    with torch.no_grad():
        out = torch.compile(step, fullgraph=True)(q, k, v, cache.k_cache, cache.v_cache, **cache.arguments())
        want = step(q, k, v, other.k_cache, other.v_cache, **other.arguments())
    tolerance = {"atol": 1e-5 if device == "cpu" else 5e-2, "rtol": 0, "equal_nan": True}
    torch.testing.assert_close(out, want, **tolerance)
    torch.testing.assert_close(cache.k_cache, other.k_cache, **tolerance)


def test_metadata_and_wishes_change_nothing(device):
    cache = Cache(device, 8)
    q = cache.draw(4, 1, 4, cache.dim)
    call = lambda **wish: flash_attn_with_kvcache(q, cache.k_cache, cache.v_cache, **cache.arguments(), **wish)
    expected = call()
    sizes = (4, 1, CAPACITY, 4, 2, cache.dim, cache.arguments()["cache_seqlens"])
    metadata = get_scheduler_metadata(*sizes, qkv_dtype=q.dtype, page_size=8)
    assert metadata.dtype == torch.int32 and metadata.device.type == device
    for wish in [{"scheduler_metadata": metadata}, {"num_splits": 3}, {"pack_gqa": True}]:
        assert torch.equal(call(**wish), expected)
    with pytest.raises(NotImplementedError, match="^attention_chunk is 3"):
        get_scheduler_metadata(4, 1, CAPACITY, 4, 2, 16, torch.zeros(4), attention_chunk=3)
