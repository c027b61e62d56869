"""float8 tensors in packed sequences and caches, with scales of each sequence, on the CPU and, where there is one that
serves them, on a GPU. NaN lies past every end."""

import pathlib

import flashcore_attn
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ops  # noqa: E402  (needs PyTorch)
import ragged  # noqa: E402
import reference  # noqa: E402
from flashcore_attn.flash_attn_interface import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    get_scheduler_metadata,
)

HAS_CUDA = not flashcore_attn.why_not_cuda() and torch.cuda.is_available()
NO_HOPPER = "fp8 is served on Hopper"
hopper = pytest.mark.skipif(not HAS_CUDA or torch.cuda.get_device_capability() != (9, 0), reason=NO_HOPPER)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=hopper)])
def device(request):
    return request.param


FORMS = ["packed", "cache", "slots", "padded", "padded pages", "pages of 16", "pages of 1", "pages of 3", "pages of 12"]


@pytest.mark.parametrize("form", FORMS)
def test_fp8_with_scales_of_sequences(device, form):
    """The values that float8 tensors stand for, in bfloat16: an element times the scale of its sequence and head."""
    lengths = [(3, 50), (1, 7), (40, 129), (2, 0), (17, 64)]
    parts = ragged.sequences(lengths, device=device, dtype=torch.float32, dim=64)
    qs, ks, vs = ([x.to(torch.float8_e4m3fn) for x in xs] for xs in zip(*parts))
    generator = torch.Generator().manual_seed(1)
    scales = [(0.25 + torch.rand(len(lengths), 2, generator=generator)).to(device) for _ in range(3)]
    widened = [
        [x.float() * scale[b].repeat_interleave(x.shape[1] // 2)[:, None] for b, x in enumerate(xs)]
        for xs, scale in zip((qs, ks, vs), scales)
    ]
    as_bytes = lambda xs: [x.view(torch.uint8) for x in xs]  # PyTorch has no cat, no full and no copies of float8
    nan = lambda *shape: torch.full(shape, 0x7F, dtype=torch.uint8, device=device)
    counts = ragged.int32([keys for _, keys in lengths], device)
    starts_q = ragged.starts([rows for rows, _ in lengths], device)
    q = torch.cat(as_bytes(qs)).view(torch.float8_e4m3fn)
    options = {"q_descale": scales[0], "k_descale": scales[1], "v_descale": scales[2], "causal": True}
    if form == "packed":
        k, v = (torch.cat([*as_bytes(xs), nan(5, 2, 64)]).view(torch.float8_e4m3fn) for xs in (ks, vs))
        starts_k = ragged.starts([keys for _, keys in lengths], device)
        out, lse = flash_attn_varlen_func(q, k, v, starts_q, starts_k, 40, 129, return_attn_probs=True, **options)
    else:
        slots = [3, 0, 6, 2, 5] if form == "slots" else range(5)
        padding = [0, 3, 7, 60, 80] if form.startswith("padded") else [0] * 5
        # With slots a page has all keys of a sequence: no multiple of 8 of them.
        whole = [nan(max(slots) + 1, 145 if form == "slots" else 144, 2, 64) for _ in range(2)]
        for to, xs in zip(whole, (ks, vs)):
            for slot, pad, x in zip(slots, padding, as_bytes(xs)):
                to[slot, pad : pad + len(x)] = x
        k, v = (x.view(torch.float8_e4m3fn) for x in whole)
        options |= {"cu_seqlens_q": starts_q, "max_seqlen_q": 40, "return_softmax_lse": True}
        options["cache_seqlens"] = counts + ragged.int32(padding, device)
        if form == "slots":
            options["cache_batch_idx"] = ragged.int32(slots, device)
        if any(padding):
            options["cache_leftpad"] = ragged.int32(padding, device)
        if "pages" in form:
            size = int(form.split()[-1]) if form.startswith("pages") else 6
            k, v = (x.view(-1, size, 2, 64) for x in (k, v))
            options["page_table"] = torch.arange(k.shape[0], dtype=torch.int32, device=device).view(5, -1)
        out, lse, *_ = flash_attn_with_kvcache(q, k, v, **options)
    assert out.dtype == torch.bfloat16
    at = 0
    for b, (rows, keys) in enumerate(lengths):
        want, want_lse = (torch.zeros(rows, 4, 64), torch.full((4, rows), float("-inf")))
        if keys:
            one = (x[b][None].cpu().double().numpy() for x in widened)
            want, want_lse = (torch.from_numpy(x)[0] for x in reference.attention(*one, causal=True))
        # P is rounded to fp8 on a GPU: some times the values' standard deviation.
        atol = 8e-3 if device == "cpu" else 0.06 * max(1.0, float(want.abs().max()))
        part = slice(at, at + rows)
        torch.testing.assert_close(out[part].cpu().double(), want.double(), atol=atol, rtol=8e-3)
        torch.testing.assert_close(lse[:, part].cpu().double(), want_lse.double(), atol=0.05, rtol=1e-3)
        at += rows


@pytest.mark.parametrize("size", [1, 4, 32])
def test_fp8_caches_take_new_rows_after_padding(device, size):
    """The same as rows of a cache without padding."""
    draw = lambda *shape: torch.randn(*shape, device=device).to(torch.float8_e4m3fn)
    q, new, cache = draw(2, 1, 4, 64), draw(2, 1, 2, 64), draw(2, 32, 2, 64)
    padded = torch.full((2, 32, 2, 64), 0x7F, dtype=torch.uint8, device=device)
    padding, counts = [6, 0], [5, 31]
    for b, (pad, count) in enumerate(zip(padding, counts)):
        padded[b, pad : pad + count] = cache.view(torch.uint8)[b, :count]
    whole = [padded.clone() for _ in range(2)]
    for b, (pad, count) in enumerate(zip(padding, counts)):
        for x in whole:
            x[b, pad + count] = new.view(torch.uint8)[b, 0]
    pages = [padded.clone().view(torch.float8_e4m3fn).view(-1, size, 2, 64) for _ in range(2)]
    padding, counts = ragged.int32(padding, device), ragged.int32(counts, device)
    out = flash_attn_with_kvcache(
        q, *pages, new, new, cache_seqlens=counts + padding, cache_leftpad=padding,
        page_table=torch.arange(pages[0].shape[0], dtype=torch.int32, device=device).view(2, -1),
    )  # fmt: skip
    for x, want in zip(pages, whole):
        assert torch.equal(x.view(torch.uint8).view_as(want), want)
    k, v = (_with_rows(cache.view(torch.uint8).clone().view(torch.float8_e4m3fn), new, (5, 31)) for _ in range(2))
    want = flash_attn_with_kvcache(q, k, v, cache_seqlens=counts + 1)
    torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)


def odd_pages(device, size=3):
    """q, pages of a few keys for three sequences of up to 60, the table and the numbers of keys."""
    draw = lambda *shape: torch.randn(*shape, device=device).to(torch.float8_e4m3fn)
    table = torch.randperm(3 * 60 // size, device=device).int().view(3, -1)
    return draw(3, 2, 4, 64), *(draw(table.numel(), size, 2, 64) for _ in "kv"), table, ragged.int32([60, 7, 0], device)


@hopper
def test_keys_are_gathered_in_a_graph():
    """Lengths and pages are those that the tensors hold when the graph runs."""
    q, k, v, table, counts = odd_pages("cuda")
    call = lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=counts, page_table=table, causal=True)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for lengths in ([60, 7, 0], [1, 0, 33], [0, 60, 60]):
        counts.copy_(ragged.int32(lengths))
        table.copy_(table.flip(1))
        graph.replay()
        assert torch.equal(out, call()), lengths


@hopper
def test_gathered_keys_are_told_once():
    import subprocess
    import sys

    script = """
import warnings
from test_fp8_lengths import flash_attn_with_kvcache, odd_pages
q, k, v, table, counts = odd_pages("cuda")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for size in (1, 3):
        cache = [x.view(-1, 1, 2, 64)[:60].view(-1, size, 2, 64) for x in (k, v)]
        flash_attn_with_kvcache(q[:1], *cache, cache_seqlens=counts[1:2], page_table=table.view(1, -1)[:, :20] % 20)
print([str(x.message) for x in told])
"""
    at = {"cwd": pathlib.Path(__file__).parent}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, **at)
    assert (done.stdout + done.stderr).count("copy the keys in use") == 1


def test_fp8_caches_take_new_rows(device):
    draw = lambda *shape: torch.randn(*shape, device=device).to(torch.float8_e4m3fn)
    q, new, cache = draw(2, 1, 4, 64), draw(2, 1, 2, 64), draw(2, 32, 2, 64)
    counts = ragged.int32([5, 31], device)
    given, whole = (cache.view(torch.uint8).clone().view(torch.float8_e4m3fn) for _ in range(2))
    for b, count in enumerate((5, 31)):
        whole.view(torch.uint8)[b, count] = new.view(torch.uint8)[b, 0]
    metadata = get_scheduler_metadata(2, 1, 32, 4, 2, 64, counts, qkv_dtype=torch.float8_e4m3fn)
    out = flash_attn_with_kvcache(q, given, given.clone(), new, new, cache_seqlens=counts, scheduler_metadata=metadata)
    assert torch.equal(given.view(torch.uint8), whole.view(torch.uint8))
    plain = cache.view(torch.uint8).clone().view(torch.float8_e4m3fn)
    assert torch.equal(out, flash_attn_with_kvcache(q, whole, _with_rows(plain, new, (5, 31)), cache_seqlens=counts + 1))


def _with_rows(cache, new, counts):
    for b, count in enumerate(counts):
        cache.view(torch.uint8)[b, count] = new.view(torch.uint8)[b, 0]
    return cache


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_fp8_new_rows_are_rotated(device, scaled, interleaved, causal):
    """What float32 computes, rounded once and at most 448, bit by bit; scales change nothing of it."""
    draw = lambda *shape: torch.randn(*shape, device=device).to(torch.float8_e4m3fn)
    copied = lambda x: x.view(torch.uint8).clone().view(torch.float8_e4m3fn)
    q, k, v, k_cache, v_cache = draw(2, 3, 4, 64), *(draw(2, n, 2, 64) for n in (3, 3, 32, 32))
    k.view(torch.uint8)[0, 1] = 0x7E  # 448, of which pairs are longer
    angle, counts = 6.3 * torch.rand(32, 16, device=device), (5, 29)
    cos, sin = (table.to(torch.float8_e4m3fn) for table in (angle.cos(), angle.sin()))

    def rotated(x, at_one_position):
        rows = torch.tensor([[n + i * (not at_one_position) for i in range(3)] for n in counts], device=device)
        c, s = (table.float()[rows][:, :, None] for table in (cos, sin))
        halves = (slice(0, 32, 2), slice(1, 32, 2)) if interleaved else (slice(0, 16), slice(16, 32))
        (a, b), out = (x.float()[..., half] for half in halves), x.float()
        out[..., halves[0]], out[..., halves[1]] = a * c - b * s, a * s + b * c
        return out.clamp(-448, 448).to(x.dtype)

    options = {"causal": causal}
    if scaled:
        scale = torch.tensor([[0.5, 2.0], [1.0, 3.0]], device=device)
        options |= {"q_descale": scale, "k_descale": scale, "v_descale": scale}
    tables = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
    given, lengths = [copied(k_cache), copied(v_cache)], ragged.int32(counts, device)
    out = flash_attn_with_kvcache(q, *given, k, v, cache_seqlens=lengths, **tables, **options)
    want = rotated(k, False)
    assert (want.view(torch.uint8) & 0x7F == 0x7E).any()
    for b, n in enumerate(counts):
        for cache, rows in ((k_cache, want), (v_cache, v)):
            cache.view(torch.uint8)[b, n : n + 3] = rows.view(torch.uint8)[b]
    assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(given, (k_cache, v_cache)))
    q = rotated(q, not causal)
    assert torch.equal(out, flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths + 3, **options))


def test_what_fp8_with_lengths_does_not_take_is_named(device):
    """Before new rows are written: a call that is refused leaves the cache as it was."""
    draw = lambda *shape: torch.randn(*shape, device=device).to(torch.float8_e4m3fn)
    q, cache, new = draw(2, 1, 4, 64), draw(2, 16, 2, 64), draw(2, 1, 2, 64)
    table, count = torch.ones(16, 32, device=device), ragged.int32([5, 5], device)
    sizes = (2, 1, 16, 4, 2, 64, count)
    made = get_scheduler_metadata(*sizes, qkv_dtype=torch.bfloat16, max_seqlen_k_new=1)
    cases = [
        (RuntimeError, "rotary_cos holds f32 and q e4m3; convert one", {"rotary_cos": table, "rotary_sin": table}),
        (RuntimeError, r"k_descale has shape \[2, 4\].*\[2, 2\]", {"k_descale": torch.ones(2, 4, device=device)}),
        (RuntimeError, "v_descale holds float16; it must hold float32", {"v_descale": torch.ones(2, 2, device=device).half()}),
    ]
    if made.numel():
        cases.append((NotImplementedError, "scheduler_metadata is given; calls with float8", {"scheduler_metadata": made}))
        with pytest.raises(ValueError, match="qkv_dtype is torch.float8_e4m3fn"):
            get_scheduler_metadata(*sizes, qkv_dtype=torch.float8_e4m3fn, out=made)
    for error, says, change in cases:
        given = {"k_cache": cache.clone(), "v_cache": cache.clone(), "k": new, "v": new, "cache_seqlens": count, **change}
        before = [given[name].view(torch.uint8).clone() for name in ("k_cache", "v_cache")]
        with pytest.raises(error, match=says):
            flash_attn_with_kvcache(q, **given)
        after = [given[name].view(torch.uint8) for name in ("k_cache", "v_cache")]
        assert all(torch.equal(x, y) for x, y in zip(before, after)), says
    with pytest.raises(RuntimeError, match=r"^k_descale has shape \[2, 4\]"):
        flash_attn_with_kvcache(q, cache, cache, cache_seqlens=5, k_descale=torch.ones(2, 4, device=device))
    wide = [x.to(torch.float32 if device == "cpu" else torch.bfloat16) for x in (q, cache, cache)]
    with pytest.raises(RuntimeError, match="k_descale was given, but q holds"):
        flash_attn_with_kvcache(*wide, cache_seqlens=5, k_descale=torch.ones(2, 2, device=device))
    with pytest.raises(RuntimeError, match="cache_seqlens has 0 dimensions"):
        flash_attn_with_kvcache(*wide, cache_seqlens=torch.tensor(5, dtype=torch.int32, device=device))


def test_fp8_without_keys_and_with_used_rows(device):
    draw = lambda *shape: torch.randn(*shape, device=device).to(torch.float8_e4m3fn)
    q, k = draw(5, 4, 64), draw(9, 2, 64)
    starts, starts_k, used = (ragged.int32(x, device) for x in ([0, 2, 5], [0, 4, 9], [3, 2]))
    none, lse = flash_attn_varlen_func(q, k[:0], k[:0], starts, 0 * starts, 3, 0, return_attn_probs=True)
    assert (none == 0).all() and lse.isneginf().all()
    out = flash_attn_varlen_func(q, k, k, starts, starts_k, 3, 5, seqused_k=used, window_size=(2, 0), softcap=5.0)
    options = {"window_size": (2, 0), "softcap": 5.0}
    for first, end, key, count in [(0, 2, 0, 3), (2, 5, 4, 2)]:
        of = k[key : key + count]
        want = flash_attn_varlen_func(
            q[first:end], of, of, starts[:1].new_tensor([0, end - first]), starts.new_tensor([0, count]), 3, 5, **options
        )
        torch.testing.assert_close(out[first:end], want, atol=2e-2, rtol=2e-2)


def test_compiled_and_checked_operators():
    q, k = (torch.randn(2 * n, heads, 64).to(torch.float8_e4m3fn) for n, heads in ((3, 4), (16, 2)))
    starts, starts_k = ragged.int32([0, 2, 6]), ragged.int32([0, 9, 32])
    scales = [torch.full((2, 2), scale) for scale in (0.5, 1.0, 2.0)]
    # test_schema needs arithmetic on float8_e4m3fn, which PyTorch has none of.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    of_scales = dict(zip(ops.SCALES, scales))
    bounds = {"max_seqlen_q": 4, "max_seqlen_k": 23, "numbers": (0.25, True)}

    def check(*tensors, **given):
        args = ops.arguments("fwd_lengths", *tensors, **{**of_scales, **bounds, **given})
        torch.library.opcheck(ops.operator("fwd_lengths"), args, test_utils=checks)

    check(q, k, k, cu_seqlens_q=starts, cu_seqlens_k=starts_k)
    cache = k.view(2, 16, 2, 64)
    check(q, cache, cache, cu_seqlens_q=starts, seqused_k=ragged.int32([9, 16]))
    q3, *pages, table, counts = odd_pages("cpu")
    ones = {name: torch.ones(3, 2) for name in ops.SCALES}
    check(q3, *pages, seqused_k=counts, block_table=table, max_seqlen_k=60, **ones)
    call = lambda scale: flash_attn_varlen_func(q, k, k, starts, starts_k, 4, 23, causal=True, k_descale=scale)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(scales[0]), call(scales[0]))


def test_padded_caches_compile(device):
    q, k, v, _, counts = odd_pages(device, 60)
    padding = ragged.int32([6, 0, 0], device)
    call = lambda q: flash_attn_with_kvcache(q, k, v, cache_seqlens=counts, cache_leftpad=padding)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), call(q))


def test_other_queries_over_a_cache_of_float8(device):
    """Which are not served, with scales or without."""
    q = torch.randn(2, 1, 4, 64, dtype=torch.bfloat16, device=device)
    cache = torch.randn(2, 16, 2, 64, device=device).to(torch.float8_e4m3fn)
    ones, new = torch.ones(2, 2, device=device), cache[:, :1].clone()
    says = "float8 keys and values with queries of another dtype are not served: convert q to float8_e4m3fn, too"
    for more in ({}, {"k": new, "v": new}, {"cache_batch_idx": ragged.int32([0, 1], device)}):
        with pytest.raises(RuntimeError, match=f"k(_cache)? holds .* and q .*; {says}"):
            flash_attn_with_kvcache(q, cache, cache, cache_seqlens=5, **more)
        with pytest.raises((ValueError, RuntimeError), match=says):
            flash_attn_with_kvcache(q, cache, cache, cache_seqlens=5, k_descale=ones, **more)
    with pytest.raises(RuntimeError, match=says):
        flash_attn_func(q, cache, cache)
    with pytest.raises(TypeError, match=says):
        flashcore_attn.attention(q, cache, cache)
