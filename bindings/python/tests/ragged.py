"""Sequences of different lengths, and the tensors that hold them, with NaN wherever no sequence has a row."""

import numpy as np
import reference
import torch

HEADS, KV_HEADS, DIM = 4, 2, 16
# Empty ones, single rows, more rows than keys, and lengths around the sizes of tiles.
LENGTHS = [(3, 5), (0, 7), (1, 1), (33, 33), (4, 0), (40, 70), (0, 0), (70, 40), (1, 129), (17, 64)]


def sequences(lengths=LENGTHS, *, device="cpu", dtype=torch.float32, heads=HEADS, kv_heads=KV_HEADS, dim=DIM, seed=0):
    """A list of q ``[rows, heads, dim]``, k and v ``[keys, kv_heads, dim]``."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(device, dtype)
    return [(draw(q, heads, dim), draw(k, kv_heads, dim), draw(k, kv_heads, dim)) for q, k in lengths]


def starts(lengths, device="cpu"):
    """`cu_seqlens` of these numbers of rows."""
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)


def int32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def packed(rows, unused=0, tail=0):
    """Rows one after another, after each sequence `unused` rows of NaN, and `tail` of them at the end."""
    nan = lambda n, like: like.new_full((n, *like.shape[1:]), float("nan"))
    return torch.cat([part for x in rows for part in (x, nan(unused, x))] + [nan(tail, rows[0])])


def cache(rows, capacity):
    """``[batch, capacity, heads, dim]`` with NaN after each sequence."""
    whole = rows[0].new_full((len(rows), capacity, *rows[0].shape[1:]), float("nan"))
    for b, x in enumerate(rows):
        whole[b, : len(x)] = x
    return whole


def paged(ks, vs, page_size, *, spare=3, seed=0, holes=()):
    """The pages of K and V in random order, and their table, -1 where a sequence has no page or `holes` says so."""
    per_sequence = [-(-len(k) // page_size) for k in ks]
    pages = sum(per_sequence) + spare
    order = iter(np.random.default_rng(seed).permutation(pages).tolist())
    shape = lambda x: (pages, page_size, *x.shape[1:])
    k_pages, v_pages = (x[0].new_full(shape(x[0]), float("nan")) for x in (ks, vs))
    table = torch.full((len(ks), max(per_sequence) + 1), -1, dtype=torch.int32)
    for b, (k, v) in enumerate(zip(ks, vs)):
        for i in range(per_sequence[b]):
            if (b, i) in holes:
                continue
            table[b, i] = page = next(order)
            part = slice(i * page_size, min((i + 1) * page_size, len(k)))
            k_pages[page, : part.stop - part.start] = k[part]
            v_pages[page, : part.stop - part.start] = v[part]
    return k_pages, v_pages, table.to(ks[0].device)


def want(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, softmax_scale=None):
    """The output ``[rows, heads, dim]`` of a sequence and its log-sum-exp ``[heads, rows]``, in float64."""
    if len(k) == 0:
        return np.zeros((len(q), q.shape[1], v.shape[2])), np.full((q.shape[1], len(q)), -np.inf)
    window = tuple(None if side < 0 else side for side in window_size)
    q, k, v = (x.detach().double().cpu().numpy()[None] for x in (q, k, v))
    options = {"causal": causal, "window": window, "softcap": softcap or None, "scale": softmax_scale}
    out, lse = reference.attention(q, k, v, **options)
    return out[0], lse[0]


def check(out, lse, q, k, v, **options):
    """Of one sequence: out ``[rows, heads, dim]``, lse ``[heads, rows]``."""
    out_want, lse_want = want(q, k, v, **options)
    assert not out.isnan().any() and not lse.isnan().any()
    reference.check(out.detach().double().cpu().numpy(), out_want, str(q.dtype).removeprefix("torch."))
    reference.check_lse(lse.detach().cpu().numpy(), lse_want)


def check_packed(out, lse, parts, unused=0, **options):
    """Of packed sequences: out ``[total, heads, dim]``, lse ``[heads, total]``."""
    row = 0
    for q, k, v in parts:
        rows = slice(row, row + len(q))
        check(out[rows], lse[:, rows], q, k, v, **options)
        row += len(q) + unused
