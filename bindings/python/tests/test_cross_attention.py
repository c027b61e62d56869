"""Hugging Face models whose masks are of other tokens than the queries, or a part of what the model computes."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", minversion="5.0", reason="Transformers 5 is not installed")

import flashcore_attn.transformers as fc  # noqa: E402
import transformers  # noqa: E402
from test_transformers import PADDING, SIZES, close, fresh, generated, logits, padding, tokens  # noqa: E402, F401
from transformers import masking_utils  # noqa: E402


@pytest.mark.parametrize("length", [1, 9, 21, 30])
@pytest.mark.parametrize("side", PADDING)
def test_cross_attention_over_a_padded_source(side, length):
    """The padding is the keys', also where the target is as long as the source: its queries are all in use."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 64, "max_position_embeddings": 64}
    for part in ("encoder", "decoder"):
        sizes |= {f"{part}_layers": 1, f"{part}_attention_heads": 4, f"{part}_ffn_dim": 64}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    given = {"attention_mask": padding(side), "decoder_input_ids": tokens(batch=3, length=length)}
    want = logits(model, "sdpa", tokens(batch=3), **given)
    fc.register(strict=True)
    if side == "all":  # a sequence without keys: sdpa weighs all alike, and here the output is 0
        want = want[1:]
    close(logits(model, fc.NAME, tokens(batch=3), **given)[-len(want) :], want)


def test_a_model_that_computes_with_its_mask_gets_one():
    """Also where it would be None, or only what is padding, for attention."""
    full = {"mask_function": masking_utils.bidirectional_mask_function}
    for used in (None, padding("left").bool()):
        assert fc.mask(3, 21, 21, attention_mask=used, allow_is_causal_skip=False).shape == (3, 1, 21, 21)
        given = {"attention_mask": used, "allow_is_causal_skip": False}  # as all full masks have it
        assert fc.mask(3, 9, 21, **full, **given, allow_is_bidirectional_skip=False).shape == (3, 1, 9, 21)
        shape = getattr(fc.mask(3, 9, 21, **full, **given, allow_is_bidirectional_skip=True), "shape", None)
        assert shape == (None if used is None else (3, 21))


@pytest.mark.parametrize("q_length", [1, 21])
def test_the_mask_says_whether_it_is_causal(q_length):
    """Splinter's modules do not say that they are not, and other implementations look at the mask alone."""
    fc.register(strict=True)
    module = torch.nn.Module()
    q, k = torch.randn(3, 4, q_length, 16), torch.randn(3, 2, 21, 16)
    used = padding("both").bool()
    for function in (masking_utils.bidirectional_mask_function, masking_utils.causal_mask_function):
        mask = fc.mask(3, q_length, 21, 21 - q_length, mask_function=function, attention_mask=used)
        assert mask.shape == (3, 21)
        visible = used[:, None, None].expand(3, 1, q_length, 21)
        if function is masking_utils.causal_mask_function:
            visible = visible & torch.ones(q_length, 21).tril(21 - q_length).bool()
        want = torch.nn.functional.scaled_dot_product_attention(q, k, k, visible, enable_gqa=True).transpose(1, 2)
        rows = used[:, -q_length:] if function is masking_utils.causal_mask_function else slice(None)
        for says in (None, True, False):
            close(fc.attention(module, q, k, k, mask, is_causal=says)[0][rows], want[rows])


def test_a_static_cache_of_a_window_has_padding():
    """`generate` makes masks of static caches, and the model makes its mask of that one. Padding is in the first windows."""
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=8)).eval()
    fc.register(strict=True)
    mask = torch.ones(2, 21, dtype=torch.long)
    mask[0, :18] = 0
    options = {"attention_mask": mask, "cache_implementation": "static", "disable_compile": True}
    close(generated(model, fc.NAME, **options), generated(model, "sdpa", **options))
