"""Transformers' continuous batching with `fc_attention`: `generate_batch` of tiny models.

On a machine with a GPU it takes no model on the CPU.
"""

import inspect
import types

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", minversion="5.0", reason="Transformers 5 is not installed")

import flashcore_attn.transformers as fc  # noqa: E402
import transformers  # noqa: E402
from flashcore_attn import _continuous  # noqa: E402

configuration = pytest.importorskip("transformers.generation.configuration_utils")
Options = getattr(configuration, "ContinuousBatchingConfig", None)
pytestmark = pytest.mark.skipif(Options is None, reason="this version of Transformers has no continuous batching")

SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
MODELS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES)),
    "sliding window": (transformers.MistralForCausalLM, transformers.MistralConfig(**SIZES, sliding_window=8)),
    "soft cap and windows": (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(**SIZES, sliding_window=8, attn_logit_softcapping=0.5),
    ),
    "sinks and windows": (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig(**SIZES, **EXPERTS, sliding_window=8),
    ),
}
NEW = 10
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(params=MODELS)
def model(request):
    kind, config = MODELS[request.param]
    torch.manual_seed(0)
    return kind(config).eval().to(DEVICE)


@pytest.fixture(autouse=True)
def strict():
    fc.register(strict=True)
    yield
    fc.register()


def prompts():
    """Of uneven lengths, one of which is longer than a batch."""
    draws = torch.Generator().manual_seed(1)
    return [torch.randint(3, 64, (length,), generator=draws).tolist() for length in (5, 37, 1, 90, 12)]


def greedy():
    return transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)


def one_by_one(model):
    model.set_attn_implementation("eager")
    ids = [torch.tensor([prompt], device=DEVICE) for prompt in prompts()]
    return [model.generate(x, generation_config=greedy())[0, x.shape[1] :].tolist() for x in ids]


def in_batches(model, graphs=False):
    """What `generate_batch` gives for each prompt; the batches have at most 64 tokens."""
    known = inspect.signature(Options).parameters
    page = "page_size" if "page_size" in known else "block_size"
    given = {page: 4, "num_blocks": 64, "max_batch_tokens": 64}
    if "use_cuda_graph" in known:  # on a GPU they are the default, and fill batches up
        given["use_cuda_graph"] = graphs
    options = Options(**given)
    model.set_attn_implementation(fc.NAME)
    try:
        results = model.generate_batch(prompts(), generation_config=greedy(), continuous_batching_config=options)
    except MemoryError:
        pytest.skip("Transformers does not see how much memory there is without psutil")
    assert model.config._attn_implementation == fc.NAME, "it is given back"
    return list(results.values())


def test_the_same_tokens_as_one_by_one(model, monkeypatch):
    calls, steps = [], []
    packed, step = fc._packed, _continuous.step
    monkeypatch.setattr(fc, "_packed", lambda *given: calls.append(given[0].shape[1]) or packed(*given))
    monkeypatch.setattr(_continuous, "step", lambda *given: steps.append(given[0].shape[2]) or step(*given))
    results = in_batches(model)
    assert [result.error for result in results] == [None] * 5
    assert [result.generated_tokens for result in results] == one_by_one(model)
    assert len(prompts()) in calls or steps, "a query of each request; on a GPU, over a table of pages"
    assert max(calls) == 64, "parts of prompts"


@pytest.mark.skipif(DEVICE == "cpu", reason="no GPU")
def test_the_same_tokens_in_graphs(model):
    if isinstance(model, transformers.GptOssForCausalLM):
        pytest.skip("its experts are not captured")
    results = in_batches(model, graphs=True)
    assert [result.error for result in results] == [None] * 5
    assert [result.generated_tokens for result in results] == one_by_one(model)


def test_what_is_not_served_raises_with_its_name():
    config = transformers.LlamaConfig(**{**SIZES, "head_dim": 12})
    for strict in (True, False):
        fc.register(strict=strict)
        fc._warned.clear()
        results = in_batches(transformers.LlamaForCausalLM(config).eval().to(DEVICE))
        assert all("head_dim is 12" in str(result.error) for result in results)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_steps_by_a_table_of_pages(device):
    """Keys are read where they are. Two requests have keys; in graphs of a GPU others fill the batch up."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    draws = torch.Generator().manual_seed(2)
    rand = lambda *shape: torch.randn(shape, generator=draws).to(device)
    count = 2 if device == "cpu" else 4
    past, size, pages = [6, 3], 4, [[5, 2], [7, -1], [-1, -1], [-1, -1]][:count]
    q, k, v = rand(1, 4, count, 16), rand(1, 2, count, 16), rand(1, 2, count, 16)
    caches = rand(9, size, 2, 16), rand(9, size, 2, 16)
    before = [cache.clone() for cache in caches]
    starts = torch.tensor([0, 7, 11, 11, 11][: count + 1], device=device)
    table = torch.tensor(pages, dtype=torch.int32, device=device)
    kwargs = {"cu_seq_lens_q": torch.arange(count + 1), "cu_seq_lens_k": starts, "max_length_q": 1, "max_length_k": 1}
    kwargs |= {"k_cache": caches[0], "v_cache": caches[1], "block_table": table}
    with torch.no_grad():
        out, _ = fc.attention(types.SimpleNamespace(is_causal=True), q, k, v, None, softcap=2.0, **kwargs)
    assert out.shape == (1, count, 4, 16) and (out[:, 2:] == 0).all()
    written = torch.zeros(9, size, dtype=torch.bool)
    for request, seen in enumerate(past):
        page, row = pages[request][seen // size], seen % size
        written[page, row] = True
        keys, values = (
            torch.cat((cache[pages[request]].flatten(0, 1)[:seen], new[0, :, request][None])).transpose(0, 1)[None]
            for cache, new in zip(before, (k, v))
        )
        for cache, new in zip(caches, (k, v)):
            torch.testing.assert_close(cache[page, row], new[0, :, request])
        want, _ = fc.attention(
            types.SimpleNamespace(is_causal=True), q[:, :, request][:, :, None], keys, values, None, softcap=2.0
        )
        torch.testing.assert_close(out[:, request : request + 1], want)
    for cache, old in zip(caches, before):
        assert torch.equal(cache[~written], old[~written])


def test_only_continuous_batching_takes_it_for_flash_attention():
    from transformers.generation.continuous_batching import continuous_api
    from transformers.utils import generic

    ask = continuous_api.is_flash_attention_requested
    fc.register()
    assert continuous_api.is_flash_attention_requested is ask, "it is admitted once"
    for name, flash in ((fc.NAME, True), ("flash_attention_2", True), ("sdpa", False), (None, False)):
        assert ask(requested_attention_implementation=name) == flash
    assert not generic.is_flash_attention_requested(requested_attention_implementation=fc.NAME)
