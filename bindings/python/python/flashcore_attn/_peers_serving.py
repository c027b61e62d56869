"""Forward passes of other libraries over sequences of different lengths, as functions to be timed with ours.

Each maker takes `tensors`, the bench's tensors by name (`q`, `k`, `v`, and the i32 arrays of lengths that the problem
has: `cu_seqlens_q`, `seqused_q`, `cu_seqlens_k`, `seqused_k`, `block_table`), the `Problem` as a dict, and the options
of peers. It returns a function without arguments that gives the output in the shape of the problem's, or raises
`NotServed`. What a library plans from lengths is planned once and kept, as the layers of a model do.
"""

import math

from ._asked import Asked, NotServed, kinds


def _starts(torch, rows, each, device):
    return torch.arange(0, rows * each + 1, each, dtype=torch.int32, device=device)


def _viewed(tensor, *shape):
    """The same memory under another shape."""
    try:
        return tensor.view(*shape)
    except RuntimeError as error:
        raise NotServed("it takes sequences that follow each other in memory") from error


def _rows(x):
    """Rows of equal sequences, one after another."""
    return _viewed(x, x.shape[0] * x.shape[1], *x.shape[2:])


def _packed_q(torch, tensors, problem):
    """Rows of Q as `[total, heads, head_dim]`, and where sequences begin."""
    q = tensors["q"]
    if "seqused_q" in tensors:
        raise NotServed("rows that sequences leave unused are not passed on to this peer")
    if "cu_seqlens_q" in tensors:
        return q[0], tensors["cu_seqlens_q"]
    return _rows(q), _starts(torch, *q.shape[:2], q.device)


def _shaped(run, q):
    """The output in the shape of Q's tensor, whatever its head_dim."""
    return lambda: (out := run()).reshape(*q.shape[:3], out.shape[-1])


def of_torch(torch, backend, dense):
    """PyTorch's own kernels: FlashAttention-2 over packed sequences and caches, cuDNN over packed ones, and over caches
    that are full (`dense` makes it)."""

    def flash(tensors, problem, **how):
        asked = Asked.by("PyTorch's flash kernel", **how)
        if kinds(problem)[1] == "paged":
            raise NotServed("pages are not passed on to PyTorch's flash kernel")
        q, starts = _packed_q(torch, tensors, problem)
        k, v = tensors["k"], tensors["v"]
        if "cu_seqlens_k" in tensors:
            k, v, of_k = k[0], v[0], tensors["cu_seqlens_k"]
        else:
            k, v, of_k = _rows(k), _rows(v), _starts(torch, *k.shape[:2], q.device)
        options = {**asked.of_torch(), "seqused_k": tensors.get("seqused_k")}
        bounds = problem["seq_len_q"], problem["seq_len_kv"]
        forward = torch.ops.aten._flash_attention_forward
        run = lambda: forward(q, k, v, starts, of_k, *bounds, 0.0, asked.causal, False, **options)[0]
        return _shaped(run, tensors["q"])

    def cudnn(tensors, problem, **how):
        asked = Asked.by("cuDNN's function", **how)
        causal, scale = asked.causal, asked.scale
        if kinds(problem) == ("equal", "cache") and bool((tensors["seqused_k"] == tensors["k"].shape[1]).all()):
            return dense(*(tensors[name] for name in "qkv"), causal=causal, scale=scale)
        if kinds(problem) != ("packed", "packed") or "seqused_k" in tensors:
            raise NotServed("cuDNN is called for packed prompts and full caches only")
        q, starts = _packed_q(torch, tensors, problem)
        of_k = tensors["cu_seqlens_k"]
        check_cudnn(torch, asked, starts, of_k)
        k, v = tensors["k"][0], tensors["v"][0]
        bounds = problem["seq_len_q"], problem["seq_len_kv"]
        forward = torch.ops.aten._cudnn_attention_forward
        run = lambda: forward(q, k, v, None, starts, of_k, *bounds, False, 0.0, causal, False, scale=scale)[0]
        return _shaped(run, tensors["q"])

    return {"FLASH_ATTENTION": flash, "CUDNN_ATTENTION": cudnn}.get(backend, of_equal_lengths)


def check_cudnn(torch, asked, of_q, of_k):
    """Raises for a causal mask of sequences of other lengths."""
    if asked.causal and not torch.equal(of_q, of_k):
        raise NotServed("cuDNN aligns causal masks at the top left; sequences have more keys than rows")


def of_equal_lengths(tensors, problem, **how):
    """Of backends that have nothing else."""
    raise NotServed("SDPA takes equal lengths")


def of_fa3(torch, operators):
    """FlashAttention-3. Where K and V have `seqused_k`, its scheduler's metadata is computed once and kept.

    Of a contiguous cache it reads rows past the end of a sequence, with a probability of 0, and the bench has NaN
    there: it gets a copy with zeros.
    """

    def make(tensors, problem, **how):
        asked = Asked.by("FlashAttention-3 with lengths", **how)
        q, k, v = (tensors[name] for name in "qkv")
        is_packed, kv = kinds(problem)
        options = asked.of_fa3()
        options.update({name: tensors[name] for name in ("seqused_q", "seqused_k") if name in tensors})
        if is_packed == "packed":
            q = q[0]
            options.update(cu_seqlens_q=tensors["cu_seqlens_q"], max_seqlen_q=problem["seq_len_q"])
        if kv == "packed":
            k, v = k[0], v[0]
            options.update(cu_seqlens_k=tensors["cu_seqlens_k"], max_seqlen_k=problem["seq_len_kv"])
        page_size = None
        if kv == "paged":
            page_size = k.shape[1]
            options["page_table"] = tensors["block_table"]
        if kv in ("cache", "paged"):
            options["scheduler_metadata"] = operators.get_scheduler_metadata(
                problem["batch"], problem["seq_len_q"], problem["seq_len_kv"], problem["num_heads"],
                problem["num_kv_heads"], q.shape[-1], v.shape[-1], q.dtype, tensors["seqused_k"],
                cu_seqlens_q=options.get("cu_seqlens_q"), seqused_q=options.get("seqused_q"), page_size=page_size,
                **asked.of_fa3_schedule(),
            )  # fmt: skip

        def of(k, v):
            return _shaped(lambda: operators.fwd(q, k, v, **options)[0], tensors["q"])

        return _WithoutRest(torch, of, (k, v), tensors["seqused_k"]) if kv == "cache" else of(k, v)

    return make


class _WithoutRest:
    """A function of contiguous caches, on copies that have zeros past the ends of sequences.

    What the bench has there stays: other subjects must not read it.
    """

    def __init__(self, torch, of, caches, used):
        self.torch, self.caches, self.used = torch, caches, used
        self.copies = [torch.empty_like(cache) for cache in caches]
        self.run = of(*self.copies)
        self.refresh()

    def __call__(self):
        return self.run()

    def refresh(self):
        for copy, cache in zip(self.copies, self.caches):
            copy[:] = cache
            rows = self.torch.arange(copy.shape[1], device=copy.device)
            for sequence, used in zip(copy, self.used[:, None]):
                sequence[rows >= used] = 0


def check_flashinfer(torch, q, asked):
    """Raises for what FlashInfer's prefill has not."""
    if q.dtype not in (torch.float16, torch.bfloat16) or asked.scales is not None:
        raise NotServed("FlashInfer is called for fp16 and bf16 only")
    if asked.sides[1] is not None and not asked.causal and q.shape[1] > 1:
        raise NotServed("FlashInfer has no window to the right")


def of_flashinfer(torch, flashinfer, workspace, default_page):
    """FlashInfer's wrappers, planned once: decode, ragged prefill, paged prefill. Equal lengths are packed rows, or one row
    each over full caches."""

    def make(tensors, problem, **how):
        asked = Asked(**how)
        q, k, v = (tensors[name] for name in "qkv")
        check_flashinfer(torch, q, asked)
        of_q, of_kv = kinds(problem)
        is_decode = of_q == "equal" and q.shape[1] == 1
        if of_kv == "equal" and is_decode:
            of_kv = "cache"
            used = torch.full((k.shape[0],), k.shape[1], dtype=torch.int32, device=q.device)
            tensors = {**tensors, "seqused_k": used}
        heads, kv_heads, head_dim = q.shape[2], k.shape[2], q.shape[3]
        options = {**asked.of_flashinfer(), "q_data_type": q.dtype, "kv_data_type": k.dtype}
        rows, starts = _packed_q(torch, tensors, problem)
        if of_kv in ("packed", "equal"):
            if "seqused_k" in tensors:
                raise NotServed("keys that sequences leave unused are not passed on to this peer")
            of_k = tensors["cu_seqlens_k"] if of_kv == "packed" else _starts(torch, *k.shape[:2], q.device)
            k, v = (x[0] if of_kv == "packed" else _rows(x) for x in (k, v))
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(q.device), "NHD")
            sizes = {"head_dim_vo": v.shape[2], "causal": asked.causal}
            wrapper.plan(starts, of_k, heads, kv_heads, head_dim, **sizes, **options)
            return _shaped(lambda: wrapper.run(rows, k, v), q)
        if v.shape[3] != head_dim:
            raise NotServed("FlashInfer's caches have one head_dim for K and V")
        cache, pages = _paged(torch, tensors, of_kv, default_page)
        page_size = cache[0].shape[1]
        if is_decode:
            # The one row is the last position: a causal mask hides no key.
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(q.device), "NHD", use_tensor_cores=True)
            wrapper.plan(*pages, heads, kv_heads, head_dim, page_size, **options)
        else:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(q.device), "NHD")
            wrapper.plan(starts, *pages, heads, kv_heads, head_dim, page_size, causal=asked.causal, **options)
        return _shaped(lambda: wrapper.run(rows, cache), q)

    return make


def _paged(torch, tensors, kind, default_page):
    """A cache as pages, and FlashInfer's arrays: where the pages of sequences begin, which they are, and how many keys
    the last one has."""
    k, v, used = tensors["k"], tensors["v"], tensors["seqused_k"]
    if kind == "paged":
        cache, page = (k, v), k.shape[1]
        table = tensors["block_table"]
    else:
        batch, keys = k.shape[:2]
        page = math.gcd(keys, default_page)
        cache = tuple(_viewed(x, batch * keys // page, page, *x.shape[2:]) for x in (k, v))
        table = torch.arange(batch * keys // page, dtype=torch.int32, device=k.device).view(batch, keys // page)
    filled = (used + page - 1) // page
    starts = torch.cat([filled.new_zeros(1), filled.cumsum(0)]).to(torch.int32)
    is_filled = torch.arange(table.shape[1], device=table.device)[None] < filled[:, None]
    last = torch.where(used > 0, (used - 1) % page + 1, 0).to(torch.int32)
    return cache, (starts, table[is_filled].contiguous(), last)
