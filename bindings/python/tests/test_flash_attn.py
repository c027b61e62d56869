"""FlashAttention-2's signatures, and what it and vLLM call differently from FlashAttention-3."""

import inspect

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from flashcore_attn import flash_attn as fa2  # noqa: E402
from flashcore_attn import flash_attn_interface as fa3  # noqa: E402
from ragged import int32  # noqa: E402

# The parameters of FlashAttention 2.8, in order.
OPTIONS = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs"
LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
FA2 = {
    "flash_attn_func": f"q k v {OPTIONS}",
    "flash_attn_kvpacked_func": f"q kv {OPTIONS}",
    "flash_attn_qkvpacked_func": f"qkv {OPTIONS}",
    "flash_attn_varlen_func": f"q k v {LENGTHS} {OPTIONS} block_table",
    "flash_attn_varlen_kvpacked_func": f"q kv {LENGTHS} {OPTIONS}",
    "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {OPTIONS}",
    "flash_attn_with_kvcache": "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad "
    "block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits return_softmax_lse",
}
# Those of FlashAttention-3.
SCALES = "q_descale k_descale v_descale"
FA3 = {
    "flash_attn_func": f"q k v softmax_scale causal qv {SCALES} window_size attention_chunk softcap num_splits pack_gqa "
    "deterministic sm_margin return_attn_probs",
    "flash_attn_qkvpacked_func": f"qkv softmax_scale causal {SCALES} window_size attention_chunk softcap deterministic "
    "num_heads_q sm_margin return_attn_probs",
    "flash_attn_varlen_func": f"q k v {LENGTHS} seqused_q seqused_k softmax_scale causal qv {SCALES} window_size "
    "attention_chunk softcap num_splits pack_gqa deterministic sm_margin return_attn_probs",
    "flash_attn_with_kvcache": "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx "
    f"cache_leftpad page_table cu_seqlens_q cu_seqlens_k_new max_seqlen_q rotary_seqlens {SCALES} softmax_scale causal "
    "window_size attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin "
    "return_softmax_lse",
}


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = draw(2, 3, 4, 16), draw(2, 7, 2, 16, seed=2), draw(2, 7, 2, 16, seed=3)
QKV = draw(2, 7, 3, 4, 16, seed=4)
STARTS_Q, STARTS_K = int32([0, 3, 6]), int32([0, 7, 14])
PACKED = (Q.flatten(0, 1), K.flatten(0, 1), V.flatten(0, 1), STARTS_Q, STARTS_K, 3, 7)


def positional(function):
    parameters = inspect.signature(function).parameters.values()
    return " ".join(x.name for x in parameters if x.kind is not inspect.Parameter.KEYWORD_ONLY)


def test_signatures():
    assert {name: positional(getattr(fa2, name)) for name in fa2.__all__} == FA2
    assert {name: positional(getattr(fa3, name)) for name in FA3} == FA3


@pytest.mark.parametrize("dropout_p", [0.1, 0.0, 0])
@pytest.mark.parametrize(
    "name, given, place",
    [
        ("flash_attn_func", (Q, K, V), "softmax_scale"),
        ("flash_attn_qkvpacked_func", (QKV,), "softmax_scale"),
        ("flash_attn_varlen_func", PACKED, "seqused_q"),
    ],
)
def test_a_number_in_the_place_of_dropout(name, given, place, dropout_p):
    """FlashAttention-3's interface has something else there. Whichever was meant, both ways to say it work."""
    says = f"^{name} has {dropout_p} as its positional argument {len(given) + 1}: that is {place} here.*"
    says += f"softmax_scale={dropout_p} or dropout_p={dropout_p}, or import {name} from flashcore_attn.flash_attn"
    with pytest.raises(TypeError, match=says):
        getattr(fa3, name)(*given, dropout_p)
    with pytest.raises(TypeError, match=says):
        getattr(fa3, name)(*given, dropout_p, 0.25, True)
    want = getattr(fa3, name)(*given)
    assert torch.equal(getattr(fa3, name)(*given, None), want)
    assert torch.equal(getattr(fa3, name)(*given, softmax_scale=0.25, dropout_p=0.0), want)
    assert torch.equal(getattr(fa2, name)(*given, 0.0, 0.25), want)


def test_results_are_those_of_the_other_interface():
    options = {"softmax_scale": 0.3, "causal": True, "window_size": (4, -1), "softcap": 3.0, "deterministic": True}
    same = lambda given, want: all(torch.equal(a, b) for a, b in zip(given, want))
    three = {**options, "return_attn_probs": True}
    for given, want in [
        (fa2.flash_attn_func(Q, K, V, **three), fa3.flash_attn_func(Q, K, V, **three)),
        (fa2.flash_attn_kvpacked_func(Q, torch.stack((K, V), 2), **three), fa3.flash_attn_func(Q, K, V, **three)),
        (fa2.flash_attn_qkvpacked_func(QKV, **three), fa3.flash_attn_qkvpacked_func(QKV, **three)),
        (fa2.flash_attn_varlen_func(*PACKED, **three), fa3.flash_attn_varlen_func(*PACKED, **three)),
        (
            fa2.flash_attn_varlen_kvpacked_func(PACKED[0], torch.stack(PACKED[1:3], 1), *PACKED[3:], **three),
            fa3.flash_attn_varlen_func(*PACKED, **three),
        ),
        (
            fa2.flash_attn_varlen_qkvpacked_func(QKV.flatten(0, 1), STARTS_K, 7, **three),
            fa3.flash_attn_varlen_func(*QKV.flatten(0, 1).unbind(1), STARTS_K, STARTS_K, 7, 7, **three),
        ),
    ]:
        assert same(given, want) and given[2].numel() == 0
    del options["deterministic"]
    options |= {"cache_seqlens": int32([4, 5]), "rotary_interleaved": False, "return_softmax_lse": True}
    tables = {"rotary_cos": draw(8, 4), "rotary_sin": draw(8, 4)}
    caches = [(K.clone(), V.clone()) for _ in range(2)]
    given, want = (
        module.flash_attn_with_kvcache(Q, *cache, draw(2, 2, 2, 16), draw(2, 2, 2, 16), **tables, **options)
        for module, cache in zip((fa2, fa3), caches)
    )
    assert len(given) == 2 and same(given, want) and same(*caches) and not torch.equal(caches[0][0], K)


def test_gradients_and_compiled_functions():
    kv = torch.stack((K, V), 2).requires_grad_()
    call = lambda kv: fa2.flash_attn_kvpacked_func(Q, kv, 0.0, None, True)
    (got,) = torch.autograd.grad(call(kv).square().sum(), kv)
    k, v = K.clone().requires_grad_(), V.clone().requires_grad_()
    want = torch.autograd.grad(fa3.flash_attn_func(Q, k, v, causal=True).square().sum(), (k, v))
    torch.testing.assert_close(got, torch.stack(want, 2))
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(kv), call(kv))


CALLS = {
    "flash_attn_func": (Q, K, V),
    "flash_attn_kvpacked_func": (Q, torch.stack((K, V), 2)),
    "flash_attn_qkvpacked_func": (QKV,),
    "flash_attn_varlen_func": PACKED,
    "flash_attn_varlen_kvpacked_func": (PACKED[0], torch.stack(PACKED[1:3], 1), *PACKED[3:]),
    "flash_attn_varlen_qkvpacked_func": (QKV.flatten(0, 1), STARTS_K, 7),
}


@pytest.mark.parametrize("name", CALLS)
def test_dropout_is_refused_by_name(name):
    for module in (fa2, fa3):
        function = getattr(module, name, None)
        assert (function is None) == (module is fa3 and "kvpacked" in name and name != "flash_attn_qkvpacked_func")
        if function is not None:
            with pytest.raises(NotImplementedError, match="^dropout_p is 0.1; dropout is not served: leave it 0.0"):
                function(*CALLS[name], dropout_p=0.1)


@pytest.mark.parametrize(
    "name, given, says",
    [
        ("flash_attn_kvpacked_func", (Q, QKV), r"kv has shape .*; it must be \[batch, seq_kv, 2, kv_heads, head_dim\]"),
        ("flash_attn_qkvpacked_func", (Q,), r"qkv has shape .*; it must be \[batch, seq, 3, heads, head_dim\]"),
        ("flash_attn_varlen_qkvpacked_func", (QKV, STARTS_K, 7), r"qkv has shape .*; it must be \[total, 3, heads"),
        ("flash_attn_varlen_qkvpacked_func", (QKV.flatten(0, 1), STARTS_K, None), "max_seqlen was not given"),
        ("flash_attn_kvpacked_func", (Q, [K, V]), "kv is a list; it must be a tensor"),
    ],
)
def test_arguments_are_named_as_the_function_has_them(name, given, says):
    with pytest.raises((TypeError, ValueError), match=f"^{says}"):
        getattr(fa2, name)(*given)


@pytest.mark.parametrize("name", [name for name in CALLS if "packed" in name])
def test_wrong_arguments_of_packed_functions(name):
    """A `TypeError` names the function that was called, and its parameters. `block_table`, which is not one, is refused."""
    function, given, parameters = getattr(fa2, name), CALLS[name], FA2[name].split()
    table = torch.zeros(2, 1, dtype=torch.int32)
    full = (*given, *(None for _ in parameters[len(given) :]))
    cases = [
        ((), {}, f"missing a required argument: '{parameters[0]}'"),
        (given[:-1], {}, f"missing a required argument: '{parameters[len(given) - 1]}'"),
        ((*full, table), {}, "too many positional arguments"),
        ((*full, *full), {}, "too many positional arguments"),
        (given, {"block_table": table}, "got an unexpected keyword argument 'block_table'"),
        (given, {"nothing": 1}, "got an unexpected keyword argument 'nothing'"),
        (given, {"k": K}, "got an unexpected keyword argument 'k'"),
        (given, {parameters[0]: Q}, f"multiple values for argument '{parameters[0]}'"),
        ((*given, 0.0), {"dropout_p": 0.0}, "multiple values for argument 'dropout_p'"),
    ]
    if name == "flash_attn_varlen_qkvpacked_func":
        cases.append((given, {"max_seqlen_q": 7}, "got an unexpected keyword argument 'max_seqlen_q'"))
    for wrong, options, says in cases:
        with pytest.raises(TypeError) as raised:
            function(*wrong, **options)
        assert str(raised.value) == f"{name}: {says}; its parameters are {', '.join(parameters)}"
    want = function(*given, causal=True)
    assert torch.equal(function(**dict(zip(parameters, given)), causal=True), want)
    assert torch.equal(function(*given, 0.0, None, True), want)


def with_slopes(slopes, causal):
    """Attention whose scores are lowered by slope times distance from the diagonal, which ends at the last key."""
    k, v = (x.repeat_interleave(2, 2) for x in (K, V))
    distance = torch.arange(3)[:, None] + 4 - torch.arange(7)
    scores = torch.einsum("bqhd,bkhd->bhqk", Q, k) / 4 - slopes.expand(2, 4)[:, :, None, None] * distance.abs()
    scores = scores.masked_fill(distance < 0, float("-inf")) if causal else scores
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_alibi_slopes(shape, causal):
    slopes = draw(*shape).abs()
    want = with_slopes(slopes, causal)
    table = int32([[1], [0]])
    for module in (fa3, fa2):
        given = {"causal": causal, "alibi_slopes": slopes}
        paged = {"page_table" if module is fa3 else "block_table": table}
        outs = [
            module.flash_attn_func(Q, K, V, **given),
            module.flash_attn_varlen_func(*PACKED, **given).view(Q.shape),
            module.flash_attn_with_kvcache(Q, K, V, cache_seqlens=7, **given),
            module.flash_attn_with_kvcache(Q, K.flip(0), V.flip(0), cache_seqlens=7, **paged, **given),
        ]
        for out in outs:
            torch.testing.assert_close(out, want, atol=2e-6, rtol=2e-6)
    out = fa2.flash_attn_func(Q.clone().requires_grad_(), K, V, alibi_slopes=slopes)
    with pytest.raises(NotImplementedError, match="gradients with sinks or ALiBi slopes are not computed"):
        out.sum().backward()
    for dtype in (torch.float16, torch.float64):
        holds = str(dtype).removeprefix("torch.")
        with pytest.raises(RuntimeError, match=f"^alibi_slopes holds {holds}; it must hold float32"):
            fa2.flash_attn_func(Q, K, V, alibi_slopes=slopes.to(dtype))
    with pytest.raises(TypeError, match="alibi_slopes is a list; it must be a tensor"):
        fa2.flash_attn_func(Q, K, V, alibi_slopes=[1.0] * 4)


def test_slopes_that_do_not_fit_are_refused_before_the_cache_changes():
    k_cache, new = K.clone(), draw(2, 1, 2, 16)
    with pytest.raises(RuntimeError, match=r"alibi_slopes has shape \[3\]"):
        fa2.flash_attn_with_kvcache(Q, k_cache, V.clone(), new, new, cache_seqlens=3, alibi_slopes=draw(3))
    assert torch.equal(k_cache, K)


def test_block_tables_of_packed_queries():
    """Pages of 4 keys, of which each sequence has two; vLLM gives `seqused_k`, FlashAttention-2 `cu_seqlens_k`."""
    pad = lambda x: torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 1)).view(4, 4, 2, 16)
    order, table = torch.tensor([2, 0, 3, 1]), int32([[1, 3], [0, 2]])
    pages = [pad(x)[order] for x in (K, V)]
    want = fa3.flash_attn_varlen_func(*PACKED, causal=True)
    out = fa2.flash_attn_varlen_func(PACKED[0], *pages, STARTS_Q, STARTS_K, 3, 7, causal=True, block_table=table)
    torch.testing.assert_close(out, want, atol=1e-6, rtol=1e-6)
    given = {"cu_seqlens_q": STARTS_Q, "max_seqlen_q": 3, "max_seqlen_k": 7, "causal": True, "block_table": table}
    assert torch.equal(fa3.flash_attn_varlen_func(PACKED[0], *pages, seqused_k=int32([7, 7]), **given), out)
    for lengths in ({}, {"seqused_k": int32([7, 7]), "cu_seqlens_k": STARTS_K}):
        with pytest.raises(ValueError, match="block_table is given; give seqused_k or cu_seqlens_k"):
            fa3.flash_attn_varlen_func(PACKED[0], *pages, **lengths, **given)
    for starts, says in (((0, 7, 3), "-4 for sequence 1"), ((0, 9, 12), "9 for sequence 0")):
        with pytest.raises(RuntimeError, match=rf"^cu_seqlens_k.diff\(\) has {says}; allowed are 0 to 7"):
            fa2.flash_attn_varlen_func(PACKED[0], *pages, STARTS_Q, int32(starts), 3, 7, block_table=table)
    with pytest.raises(ValueError, match="block_table and page_table are given"):
        fa3.flash_attn_with_kvcache(Q, *pages, cache_seqlens=7, page_table=table, block_table=table)
    outs = [fa3.flash_attn_with_kvcache(Q, *pages, cache_seqlens=7, **{n: table}) for n in ("page_table", "block_table")]
    assert torch.equal(*outs)
    with pytest.raises(ValueError, match=r"^block_table has shape \(2,\)"):
        fa2.flash_attn_with_kvcache(Q, *pages, cache_seqlens=7, block_table=table[:, 0])
    with pytest.raises(ValueError, match=r"^block_table has shape \(2,\)"):
        fa2.flash_attn_varlen_func(PACKED[0], *pages, STARTS_Q, STARTS_K, 3, 7, block_table=table[:, 0])
