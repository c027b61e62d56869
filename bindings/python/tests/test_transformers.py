"""Hugging Face models with `fc_attention`: random tiny ones on the CPU, against Transformers' own attention."""

import collections
import functools
import inspect
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", minversion="5.0", reason="Transformers 5 is not installed")

import flashcore_attn.transformers as fc  # noqa: E402
import transformers  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from transformers import masking_utils  # noqa: E402

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
MODELS = {  # the model, and which of Transformers' own implementations serves it
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES), "sdpa"),
    "sliding window": (transformers.MistralForCausalLM, transformers.MistralConfig(**SIZES, sliding_window=8), "sdpa"),
    "soft cap and windows": (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(**SIZES, sliding_window=8, attn_logit_softcapping=0.5),
        "eager",
    ),
}


@pytest.fixture(params=MODELS)
def model_and_own(request):
    kind, config, own = MODELS[request.param]
    torch.manual_seed(0)
    return kind(config).eval(), own


@pytest.fixture
def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(MODELS["llama"][1]).eval()


@pytest.fixture(autouse=True)
def fresh():
    fc._warned.clear()
    yield
    fc.register()  # not strict


def tokens(batch=2, length=21):
    return torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(1))


def logits(model, implementation, ids, **options):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(ids, **options).logits


def generated(model, implementation, **options):
    model.set_attn_implementation(implementation)
    ids = tokens()
    options = {"max_new_tokens": 14, "min_new_tokens": 14, "do_sample": False, **options}
    options.setdefault("attention_mask", torch.ones_like(ids))
    out = model.generate(ids, output_logits=True, return_dict_in_generate=True, **options)
    return torch.stack(out.logits)


def close(out, want):
    torch.testing.assert_close(out, want, atol=2e-5, rtol=2e-5)


def test_logits(model_and_own):
    model, own = model_and_own
    fc.register(strict=True)
    close(logits(model, fc.NAME, tokens()), logits(model, own, tokens()))


def test_attention_weights_that_are_not_computed_are_told_of(llama):
    fc.register()
    with pytest.warns(UserWarning, match="output_attentions is given, and fc_attention computes no attention weights"):
        logits(llama, fc.NAME, tokens(), output_attentions=True)
    fc.register(strict=True)
    with pytest.raises(NotImplementedError, match="output_attentions is given.*use eager"):
        logits(llama, fc.NAME, tokens(), output_attentions=True)


def test_logits_against_float64(llama):
    """The error is no larger than SDPA's by more than a tenth, both against the model in float64."""
    fc.register(strict=True)
    ids = tokens(length=100)
    ours, sdpa = logits(llama, fc.NAME, ids).double(), logits(llama, "sdpa", ids).double()
    want = logits(llama.double(), "eager", ids)
    assert (ours - want).abs().mean() <= 1.1 * (sdpa - want).abs().mean()


@pytest.mark.parametrize("cache", [None, "static"])
def test_generation(model_and_own, cache):
    model, own = model_and_own
    fc.register(strict=True)
    close(generated(model, fc.NAME, cache_implementation=cache), generated(model, own, cache_implementation=cache))


def test_inference_takes_the_short_way_and_all_else_the_long_one(llama, monkeypatch):
    """Both give the same bits."""
    module = llama.model.layers[0].self_attn
    q, k, v = (torch.randn(2, heads, 21, 16) for heads in (4, 2, 2))
    taken = []

    def spy(*args):
        taken.append(fc_forward_bhsd(*args))
        return taken[-1]

    fc_forward_bhsd = fc.forward_bhsd
    monkeypatch.setattr(fc, "forward_bhsd", spy)
    fc.register(strict=True)
    for options in [{}, {"scaling": 0.5}, {"is_causal": False}, {"sliding_window": 4}, {"softcap": 2.0}]:
        long, _ = fc.attention(module, q, k, v, None, **options)  # gradients could be recorded
        assert taken.pop() is None
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                out, _ = fc.attention(module, q, k, v, None, position_ids=None, **options)
            assert taken.pop() is out and torch.equal(out, long)

    class Subclass(torch.Tensor):
        pass

    strided = q.transpose(2, 3).contiguous().transpose(2, 3)
    with torch.no_grad():
        for query in (strided, q.as_subclass(Subclass)):
            out, _ = fc.attention(module, query, k, v, None)
            assert taken.pop() is None
            close(out.as_subclass(torch.Tensor), fc.attention(module, q, k, v, None)[0])
            taken.clear()
        with torch.autocast("cpu", torch.bfloat16):
            assert fc.attention(module, q, k, v, None)[0].dtype == torch.bfloat16
            assert taken.pop() is None
        fc.register()
        with pytest.warns(UserWarning, match="head_dim is 12"):
            fc.attention(module, q[..., :12], k[..., :12], v[..., :12], None)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, q)
            with pytest.raises(NotImplementedError, match="a derivative in forward mode"):
                fc.attention(module, dual, k, v, None)
    assert taken == [None, None]


def test_a_prompt_in_chunks(llama):
    from transformers import DynamicCache

    fc.register(strict=True)
    ids = tokens()
    cache, chunks = DynamicCache(), []
    for chunk in (ids[:, :5], ids[:, 5:6], ids[:, 6:]):
        chunks.append(logits(llama, fc.NAME, chunk, past_key_values=cache))
    close(torch.cat(chunks, dim=1), logits(llama, "sdpa", ids))


PADDING = {"left": [slice(0, 4)], "right": [slice(17, 21)], "both": [slice(0, 2), slice(12, 21)], "all": [slice(0, 21)]}


def padding(side, batch=3, length=21):
    mask = torch.ones(batch, length, dtype=torch.long)
    for columns in PADDING[side]:
        mask[0, columns] = 0
    return mask


@pytest.mark.parametrize("side", PADDING)
def test_padded_batches(model_and_own, side):
    """As packed sequences: what is at padding does not matter, and is a number."""
    model, own = model_and_own
    fc.register(strict=True)
    ids, mask = tokens(batch=3), padding(side)
    want = logits(model, own, ids, attention_mask=mask)
    out = logits(model, fc.NAME, ids, attention_mask=mask)
    close(out[mask.bool()], want[mask.bool()])
    assert out.isfinite().all()
    others = torch.where(mask.bool(), ids, 63)
    assert torch.equal(logits(model, fc.NAME, others, attention_mask=mask)[mask.bool()], out[mask.bool()])


@pytest.mark.parametrize("cache", [None, "static"])
def test_generation_from_padded_prompts(model_and_own, cache):
    model, own = model_and_own
    fc.register(strict=True)
    mask = padding("left", batch=2)
    options = {"cache_implementation": cache, "attention_mask": mask}
    close(generated(model, fc.NAME, **options), generated(model, own, **options))


class Operators(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.counts[operator.name()] += 1
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_step_of_a_padded_batch_takes_the_short_way(side, monkeypatch):
    """Which rows are in use is found once for all layers, with one read from the device; each layer is one operator."""
    fc.register(strict=True)
    ids, mask = tokens(batch=3, length=22), torch.cat((padding(side), torch.ones(3, 1, dtype=torch.long)), 1)
    found = []
    for layers in (1, 3):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, "num_hidden_layers": layers})).eval()
        want = logits(model, "sdpa", ids, attention_mask=mask)[:, -1:]
        for forward_bhsd in (fc.forward_bhsd, lambda *args: None):
            monkeypatch.setattr(fc, "forward_bhsd", forward_bhsd)
            cache = transformers.DynamicCache(config=model.config)
            logits(model, fc.NAME, ids[:, :-1], attention_mask=mask[:, :-1], past_key_values=cache)
            with Operators() as operators:
                out = logits(model, fc.NAME, ids[:, -1:], attention_mask=mask, past_key_values=cache)
            close(out, want)
            monkeypatch.undo()
            found.append(operators.counts)
    one, _, three, _ = found
    assert (one["flashcore::fwd_lengths"], three["flashcore::fwd_lengths"]) == (1, 3)
    for name in ("aten::argsort.stable", "aten::sort.stable", "aten::_local_scalar_dense", "aten::arange"):
        assert three[name] == one[name] <= 2, name


@pytest.mark.parametrize("side", PADDING)
def test_a_padded_prompt_is_packed_where_it_is(side):
    """The same bits and gradients as without the padding between its rows; also of a prompt's last chunk."""
    for rows in (21, 6):
        found = []
        for contiguous in (True, False):
            generator = torch.Generator().manual_seed(0)
            shapes = ((3, rows, 4, 16), (3, 21, 2, 16), (3, 21, 2, 24))
            q, k, v = (torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)
            used = padding(side).bool()
            fc._padding.keep_contiguous(used, contiguous)
            out = fc._padding.attend(q, k, v, used, causal=True)
            out.square().sum().backward()
            found.append((out, q.grad, k.grad, v.grad))
            assert (out[~used[:, -rows:]] == 0).all() and out.isfinite().all()
        assert all(torch.equal(a, b) for a, b in zip(*found))


def test_padding_inside_of_a_sequence(llama):
    """Causal attention sees the rest of it; a window would need the distance, so that mask is made."""
    fc.register(strict=True)
    mask = torch.ones(2, 21, dtype=torch.long)
    mask[0, 3:6] = mask[1, 10] = 0
    want = logits(llama, "sdpa", tokens(), attention_mask=mask)
    close(logits(llama, fc.NAME, tokens(), attention_mask=mask)[mask.bool()], want[mask.bool()])
    sliding = masking_utils.sliding_window_causal_mask_function(4)
    given = {"mask_function": sliding, "local_size": 4}
    assert fc.mask(2, 21, 21, attention_mask=mask.bool(), **given).shape == (2, 1, 21, 21)
    assert fc.mask(2, 21, 21, attention_mask=padding("left", 2).bool(), **given).shape == (2, 21)


def test_padded_batches_with_dropout_go_to_sdpa(llama):
    fc.register()
    module = llama.model.layers[0].self_attn
    q, k = torch.randn(3, 4, 21, 16, dtype=torch.float64), torch.randn(3, 2, 21, 16, dtype=torch.float64)
    mask = padding("left").bool()
    with pytest.warns(UserWarning, match="query holds torch.float64"):
        out, _ = fc.attention(module, q, k, k, mask)
    want, _ = fc.attention(module, q.float(), k.float(), k.float(), mask)
    assert out.isfinite().all() and (want[~mask] == 0).all()
    close(out[mask].float(), want[mask])


def test_bidirectional_attention_of_padded_batches(llama):
    fc.register(strict=True)
    module = llama.model.layers[0].self_attn
    q, k = torch.randn(3, 4, 21, 16), torch.randn(3, 2, 21, 16)
    full = {"mask_function": masking_utils.bidirectional_mask_function, "attention_mask": padding("both").bool()}
    mask = fc.mask(3, 21, 21, **full)
    assert mask.shape == (3, 21)
    out, _ = fc.attention(module, q, k, k, mask, is_causal=False)
    want, _ = fc.sdpa_attention_forward(module, q, k, k, mask[:, None, None], is_causal=False)
    close(out, want)


def test_packed_sequences_with_their_lengths(model_and_own):
    model, own = model_and_own
    fc.register(strict=True)
    ids = tokens(batch=1)
    positions = torch.cat((torch.arange(9), torch.arange(12)))[None]
    want = logits(model, own, ids, position_ids=positions, use_cache=False)
    starts = torch.tensor([0, 9, 21])  # of int64, as collators make them
    given = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 12, "max_length_k": 12}
    for max_length in (12, torch.tensor(12), None):
        given |= {"max_length_q": max_length, "max_length_k": max_length}
        close(logits(model, fc.NAME, ids, position_ids=positions, use_cache=False, **given), want)
    module = model.model.layers[0].self_attn
    x = torch.randn(2, 4, 21, 16)
    with pytest.raises(ValueError, match="cu_seq_lens_q is given for a batch of 2"):
        fc.attention(module, x, x, x, None, cu_seq_lens_q=starts)
    fc.register()
    with pytest.warns(UserWarning), pytest.raises(NotImplementedError, match="cu_seq_lens_q is given, which sdpa"):
        fc.attention(module, x[:1], x[:1], x[:1], None, dropout=0.5, cu_seq_lens_q=starts)


def test_packed_sequences_without_their_lengths_go_to_sdpa(llama):
    ids = tokens(batch=1)
    positions = torch.cat((torch.arange(9), torch.arange(12)))[None]
    want = logits(llama, "sdpa", ids, position_ids=positions, use_cache=False)
    fc.register()
    with pytest.warns(UserWarning, match="a mask is needed"):
        close(logits(llama, fc.NAME, ids, position_ids=positions, use_cache=False), want)


def gradient(model, implementation, **given):
    model.set_attn_implementation(implementation)
    model.zero_grad()
    model(tokens(), labels=tokens(), **given).loss.backward()
    return model.model.layers[0].self_attn.q_proj.weight.grad.clone()


@pytest.mark.parametrize("padded", [False, True])
def test_training(llama, padded):
    given = {"attention_mask": torch.ones_like(tokens())} if padded else {}
    if padded:
        given["attention_mask"][0, :5] = 0
    want = gradient(llama, "sdpa", **given)
    fc.register(strict=True)
    close(gradient(llama, fc.NAME, **given), want)


def test_training_in_lower_precision(llama):
    """Under autocast q and k are float32 and v is not; as PyTorch's SDPA, all are cast."""
    with torch.autocast("cpu", torch.bfloat16):
        want = gradient(llama, "sdpa")
        fc.register(strict=True)
        found = gradient(llama, fc.NAME)
    torch.testing.assert_close(found, want, atol=2e-4, rtol=2e-2)


def test_training_goes_to_sdpa_where_gradients_would_be_slow(llama, monkeypatch):
    want = gradient(llama, "sdpa")
    fc.register()
    monkeypatch.setattr(fc, "slow_backward", lambda *args, **options: "its kernel is slow")
    with pytest.warns(UserWarning, match="a gradient is asked for, and its kernel is slow"):
        close(gradient(llama, fc.NAME), want)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        llama(tokens())


@pytest.mark.parametrize("name", ["position_bias", "cache"])
def test_what_neither_serves_raises_with_its_name(llama, name):
    q, k = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 5, 16)
    module = llama.model.layers[0].self_attn
    with pytest.raises(NotImplementedError, match=f"{name} is given"):
        fc.attention(module, q, k, k, None, **{name: torch.zeros(4)})
    fc.register()
    with pytest.warns(UserWarning), pytest.raises(NotImplementedError, match="a mask is needed.*softcap is given"):
        fc.attention(module, q, k, k, torch.ones(1, 1, 5, 5, dtype=torch.bool), softcap=3.0)


def test_masks_that_are_not_served_are_made():
    """Chunks and unions of masks; which mask functions are plain is read from their closures."""
    chunked = masking_utils.chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long))
    either = masking_utils.or_masks(masking_utils.causal_mask_function, lambda b, h, q, k: k == 0)
    sliding = masking_utils.sliding_window_causal_mask_function(4)
    for function, local_size, served in [
        (masking_utils.causal_mask_function, None, True),
        (masking_utils.bidirectional_mask_function, None, True),
        (sliding, 4, True),
        (chunked, 4, False),
        (either, None, False),
        (masking_utils.sliding_window_bidirectional_mask_function(4), 4, False),
    ]:
        mask = fc.mask(1, 9, 9, mask_function=function, local_size=local_size)
        assert (mask is None) == served
        assert served or mask.shape == (1, 1, 9, 9)


def test_a_static_cache_says_how_many_keys_are_in_use():
    in_use = fc.mask(2, 1, 32, q_offset=torch.tensor(6))
    assert in_use.dtype == torch.int32 and in_use.shape == (2, 1, 1, 1) and (in_use == 7).all()
    ones = torch.ones(2, 32, dtype=torch.bool)
    assert torch.equal(fc.mask(2, 1, 32, q_offset=torch.tensor(6), attention_mask=ones), in_use)
    # A sliding window's cache counts on the host. Steps have the same shape there, too.
    window = {"mask_function": masking_utils.sliding_window_causal_mask_function(32), "local_size": 32}
    assert torch.equal(fc.mask(2, 1, 32, q_offset=6, attention_mask=ones, **window), in_use)
    assert fc.mask(2, 3, 32, q_offset=4).shape == (0, 1, 3, 7)
    assert fc.mask(2, 5, 32).shape == (0, 1, 5, 5)
    assert fc.mask(2, 1, 8, q_offset=40, kv_offset=33) is None  # a full window of 8 keys
    # A query that comes after a gap: that mask is made.
    assert fc.mask(2, 1, 8, q_offset=41, kv_offset=33).shape == (2, 1, 1, 8)


def test_keys_in_use_mean_the_same_to_sdpa(llama):
    fc.register()
    module = llama.model.layers[0].self_attn
    q, k, v = (torch.randn(2, heads, rows, 16) for heads, rows in ((4, 3), (2, 32), (2, 32)))
    in_use = torch.tensor([7, 30], dtype=torch.int32)[:, None, None, None]
    out, _ = fc.attention(module, q, k, v, in_use)
    with pytest.warns(UserWarning, match="query holds torch.float64"):
        want, _ = fc.attention(module, q.double(), k.double(), v.double(), in_use)
    close(out, want.float())
    with pytest.warns(UserWarning, match="a gradient is asked for through a cache"):
        out, _ = fc.attention(module, q.requires_grad_(), k, v, in_use)
    close(out, want.float())


def test_steps_of_a_static_cache_are_few_graphs(model_and_own):
    """One; with sliding windows another from where the window is full."""
    torch._dynamo.reset()
    fc.register(strict=True)
    model, own = model_and_own
    ids, graphs = tokens(), []

    def count(graph, example):
        graphs.append(graph)
        return graph

    want = logits(model, own, ids)
    model.set_attn_implementation(fc.NAME)
    compiled = torch.compile(model, fullgraph=True, backend=count)
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad():
        for i in range(16):
            close(compiled(ids[:, i : i + 1], past_key_values=cache).logits, want[:, i : i + 1])
    # The first step also allocates the cache; a window's counter becomes a variable.
    assert len(graphs) <= (2 if getattr(model.config, "sliding_window", None) is None else 4)


def test_other_masks_of_a_compiled_step_are_made():
    config = transformers.MistralConfig(**SIZES, sliding_window=8, attn_implementation=fc.NAME)
    fc.register()
    seen = lambda batch, head, q, k: k == 0
    for added in ({}, {"or_mask_function": seen}, {"and_mask_function": seen}, {"block_sequence_ids": torch.zeros(1, 1).long()}):
        cache = transformers.StaticCache(config=config, max_cache_len=32)
        cache.update(*(torch.zeros(1, 2, 3, 16) for _ in "kv"), 0)
        make = lambda x: masking_utils.create_sliding_window_causal_mask(config, x, None, cache, **added)
        torch._dynamo.reset()
        made = torch.compile(make, fullgraph=True, backend="eager")(torch.zeros(1, 1, 64))
        assert made.dtype == (torch.bool if added else torch.int32), added
    x, keys = torch.zeros(1, 1, 64), torch.zeros(1, 20, 64)
    across = lambda x: masking_utils.create_bidirectional_sliding_window_mask(config, x, None, encoder_hidden_states=keys)
    cached = lambda x: masking_utils.create_sliding_window_causal_mask(config, x, None, cache)
    window = masking_utils.sliding_window_causal_mask_function(8)
    direct = lambda function: lambda x: fc.mask(1, 1, 8, 3, mask_function=function, local_size=8, config=config)
    for make in (across, direct(masking_utils.and_masks(window, seen)), direct(functools.partial(window)), cached):
        config.is_causal = make is not cached
        torch._dynamo.reset()
        want = make(x)
        made = torch.compile(make, fullgraph=True, backend="eager")(x)
        want = torch.ones_like(made) if want is None or want.dtype != torch.bool else want.expand(made.shape)
        torch.testing.assert_close(made, want)


def test_a_model_compiles(model_and_own):
    """With a cache: without one Transformers looks for packed sequences, which a compiled model cannot rule out."""
    torch._dynamo.reset()
    fc.register(strict=True)
    model, own = model_and_own
    want = logits(model, own, tokens())
    model.set_attn_implementation(fc.NAME)
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad():
        close(compiled(tokens()).logits, want)


def test_a_compiled_model_warns_when_it_is_traced(llama):
    torch._dynamo.reset()
    ids, mask = tokens(), torch.ones(2, 21, dtype=torch.long)
    mask[0, :4] = 0
    want = logits(llama, "sdpa", ids, attention_mask=mask)
    fc.register()
    llama.set_attn_implementation(fc.NAME)
    compiled = torch.compile(llama, fullgraph=True, backend="eager")
    with torch.no_grad(), pytest.warns(UserWarning, match="a mask is needed"):
        out = compiled(ids, attention_mask=mask).logits
    close(out[mask.bool()], want[mask.bool()])
    torch._dynamo.reset()
    fc.register(strict=True)
    with torch.no_grad(), pytest.raises(Exception, match=f"a mask is needed.*{fc.NAME} does not serve it"):
        compiled(ids, attention_mask=mask)


def test_importing_registers_nothing():
    import subprocess
    import sys

    script = inspect.cleandoc("""
        import flashcore_attn.transformers
        from transformers import AttentionInterface
        assert "fc_attention" not in AttentionInterface()
        flashcore_attn.transformers.register()
        assert "fc_attention" in AttentionInterface()
    """)
    subprocess.run([sys.executable, "-c", script], check=True)
