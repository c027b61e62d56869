"""Forward passes of other libraries over sequences of different lengths, as functions to be timed with ours.

Each maker takes `tensors`, the bench's tensors by name (`q`, `k`, `v`, and the i32 arrays of lengths that the problem
has: `cu_seqlens_q`, `seqused_q`, `cu_seqlens_k`, `seqused_k`, `block_table`), the `Problem` as a dict, and the options
of peers. It returns a function without arguments that gives the output in the shape of the problem's, or raises
`NotServed`. What a library plans from lengths is planned once and kept, as the layers of a model do.
"""

import math


class NotServed(ValueError):
    """A peer does not compute what is asked."""


def kinds(problem):
    """The kinds of lengths of Q and of K and V: `equal`, `packed`, `cache` or `paged`."""
    axes = (problem.get(name, "equal") for name in ("q_lengths", "kv_lengths"))
    return tuple(kind if isinstance(kind, str) else next(iter(kind)) for kind in axes)


def _starts(torch, rows, each, device):
    return torch.arange(0, rows * each + 1, each, dtype=torch.int32, device=device)


def _packed_q(torch, tensors, problem):
    """Rows of Q as `[total, heads, head_dim]`, and where sequences begin."""
    q = tensors["q"]
    if "seqused_q" in tensors:
        raise NotServed("rows that sequences leave unused are not passed on to this peer")
    if "cu_seqlens_q" in tensors:
        return q[0], tensors["cu_seqlens_q"]
    batch, rows = q.shape[:2]
    return q.reshape(batch * rows, *q.shape[2:]), _starts(torch, batch, rows, q.device)


def _shaped(run, q):
    """The output in the shape of Q's tensor, whatever its head_dim."""
    return lambda: (out := run()).reshape(*q.shape[:3], out.shape[-1])


def of_torch(torch, backend, dense):
    """PyTorch's own kernels: FlashAttention-2 over packed sequences and caches, cuDNN over packed ones, and over caches
    that are full (`dense` makes it)."""

    def flash(tensors, problem, *, causal, window, softcap, scale, scales):
        _, kv = kinds(problem)
        if softcap is not None or scales is not None:
            raise NotServed("PyTorch's flash kernel has neither a soft cap nor fp8")
        if kv == "paged":
            raise NotServed("pages are not passed on to PyTorch's flash kernel")
        q, starts = _packed_q(torch, tensors, problem)
        k, v = tensors["k"], tensors["v"]
        batch, keys = k.shape[:2]
        used = tensors.get("seqused_k")
        if "cu_seqlens_k" in tensors:
            k, v, of_k = k[0], v[0], tensors["cu_seqlens_k"]
        else:
            k, v = (x.view(batch * keys, *x.shape[2:]) for x in (k, v))
            of_k = _starts(torch, batch, keys, q.device)
        left, right = window or (None, None)
        options = {"scale": scale, "seqused_k": used, "window_size_left": left, "window_size_right": right}
        bounds = problem["seq_len_q"], problem["seq_len_kv"]
        forward = torch.ops.aten._flash_attention_forward
        run = lambda: forward(q, k, v, starts, of_k, *bounds, 0.0, causal, False, **options)[0]
        return _shaped(run, tensors["q"])

    def cudnn(tensors, problem, *, causal, window, softcap, scale, scales):
        if window is not None or softcap is not None or scales is not None:
            raise NotServed("cuDNN is called without window, soft cap and fp8")
        if kinds(problem) == ("equal", "cache") and bool((tensors["seqused_k"] == tensors["k"].shape[1]).all()):
            return dense(*(tensors[name] for name in "qkv"), causal=causal, scale=scale)
        if kinds(problem) != ("packed", "packed") or "seqused_k" in tensors:
            raise NotServed("cuDNN is called for packed prompts and full caches only")
        q, starts = _packed_q(torch, tensors, problem)
        of_k = tensors["cu_seqlens_k"]
        if causal and not torch.equal(starts, of_k):
            raise NotServed("cuDNN aligns causal masks at the top left; sequences have more keys than rows")
        k, v = tensors["k"][0], tensors["v"][0]
        bounds = problem["seq_len_q"], problem["seq_len_kv"]
        forward = torch.ops.aten._cudnn_attention_forward
        run = lambda: forward(q, k, v, None, starts, of_k, *bounds, False, 0.0, causal, False, scale=scale)[0]
        return _shaped(run, tensors["q"])

    def none(tensors, problem, **how):
        raise NotServed("SDPA takes equal lengths")

    return {"FLASH_ATTENTION": flash, "CUDNN_ATTENTION": cudnn}.get(backend, none)


def of_fa3(torch, operators, options_of):
    """FlashAttention-3. Where K and V have `seqused_k`, its scheduler's metadata is computed once and kept.

    Of a contiguous cache it reads rows past the end of a sequence, with a probability of 0, and the bench has NaN
    there: it gets a copy with zeros.
    """

    def make(tensors, problem, *, scales, **how):
        if scales is not None:
            raise NotServed("scales are not passed on with lengths")
        q, k, v = (tensors[name] for name in "qkv")
        is_packed, kv = kinds(problem)
        options = options_of(**how)
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
                is_causal=options["is_causal"], window_size_left=options["window_size_left"],
                window_size_right=options["window_size_right"], has_softcap="softcap" in options,
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


def of_flashinfer(torch, flashinfer, workspace, default_page):
    """FlashInfer's wrappers, planned once: decode, ragged prefill, paged prefill."""

    def make(tensors, problem, *, causal, window, softcap, scale, scales):
        q, k, v = (tensors[name] for name in "qkv")
        if q.dtype not in (torch.float16, torch.bfloat16) or scales is not None:
            raise NotServed("FlashInfer is called for fp16 and bf16 only")
        left, right = window or (None, None)
        if right is not None and not causal:
            raise NotServed("FlashInfer has no window to the right")
        of_q, of_kv = kinds(problem)
        heads, kv_heads, head_dim = q.shape[2], k.shape[2], q.shape[3]
        options = {"window_left": -1 if left is None else left, "logits_soft_cap": softcap, "sm_scale": scale}
        options.update(q_data_type=q.dtype, kv_data_type=k.dtype)
        rows, starts = _packed_q(torch, tensors, problem)
        if of_kv == "packed":
            if "seqused_k" in tensors:
                raise NotServed("keys that sequences leave unused are not passed on to this peer")
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace(q.device), "NHD")
            of_k = tensors["cu_seqlens_k"]
            wrapper.plan(
                starts, of_k, heads, kv_heads, head_dim, head_dim_vo=v.shape[3], causal=causal, **options
            )
            return _shaped(lambda: wrapper.run(rows, k[0], v[0]), q)
        if v.shape[3] != head_dim:
            raise NotServed("FlashInfer's caches have one head_dim for K and V")
        cache, pages = _paged(torch, tensors, of_kv, default_page)
        page_size = cache[0].shape[1]
        if of_q == "equal" and q.shape[1] == 1:
            # The one row is the last position: a causal mask hides no key.
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(q.device), "NHD", use_tensor_cores=True)
            wrapper.plan(*pages, heads, kv_heads, head_dim, page_size, **options)
        else:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(q.device), "NHD")
            wrapper.plan(starts, *pages, heads, kv_heads, head_dim, page_size, causal=causal, **options)
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
        cache = tuple(x.view(batch * keys // page, page, *x.shape[2:]) for x in (k, v))
        table = torch.arange(batch * keys // page, dtype=torch.int32, device=k.device).view(batch, keys // page)
    filled = (used + page - 1) // page
    starts = torch.cat([filled.new_zeros(1), filled.cumsum(0)]).to(torch.int32)
    is_filled = torch.arange(table.shape[1], device=table.device)[None] < filled[:, None]
    last = torch.where(used > 0, (used - 1) % page + 1, 0).to(torch.int32)
    return cache, (starts, table[is_filled].contiguous(), last)
