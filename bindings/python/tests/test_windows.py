"""Hugging Face models whose sliding windows show keys on both sides of a query."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", minversion="5.0", reason="Transformers 5 is not installed")

import flashcore_attn.transformers as fc  # noqa: E402
import transformers  # noqa: E402
from test_transformers import PADDING, close, fresh, padding, tokens  # noqa: E402, F401
from transformers import masking_utils  # noqa: E402

WINDOW = 3


@pytest.fixture
def modernbert():
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    config = transformers.ModernBertConfig(
        **sizes, num_attention_heads=4, local_attention=2 * WINDOW, global_attn_every_n_layers=2, pad_token_id=0
    )
    return transformers.ModernBertModel(config).eval()


def hidden(model, implementation, ids, **options):
    model.set_attn_implementation(implementation)
    return model(ids, **options).last_hidden_state


def of_window(function=None, **options):
    function = function or masking_utils.sliding_window_bidirectional_mask_function(WINDOW)
    given = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True, "use_vmap": False}
    return {"mask_function": function, "local_size": WINDOW} | given | options


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 21])
def test_a_model_with_windows_of_both_sides(modernbert, length, recorded, monkeypatch):
    ids = tokens(length=length)
    with torch.set_grad_enabled(recorded):
        want = hidden(modernbert, "sdpa", ids)
        fc.register(strict=True)
        monkeypatch.setattr(fc, "sdpa_attention_forward", None)
        close(hidden(modernbert, fc.NAME, ids), want)


@pytest.mark.parametrize("side", PADDING)
def test_padded_batches_with_windows_of_both_sides(modernbert, side):
    """Queries are packed as keys are: a window counts from a row's own place."""
    ids, mask = tokens(batch=3), padding(side)
    with torch.no_grad():
        want = hidden(modernbert, "sdpa", ids, attention_mask=mask)
        fc.register(strict=True)
        out = hidden(modernbert, fc.NAME, ids, attention_mask=mask)
    close(out[mask.bool()], want[mask.bool()])
    assert out.isfinite().all()


def test_gradients_with_windows_of_both_sides(modernbert):
    def gradient(implementation, **given):
        modernbert.zero_grad()
        hidden(modernbert, implementation, tokens(batch=3), **given)[:, 5:16].square().sum().backward()
        return modernbert.layers[1].attn.Wqkv.weight.grad.clone()

    for given in ({}, {"attention_mask": padding("right")}):
        if given:
            given["attention_mask"][:, :16] = 1
        want = gradient("sdpa", **given)
        fc.register(strict=True)
        torch.testing.assert_close(gradient(fc.NAME, **given), want, atol=1e-4, rtol=1e-4)


def test_a_compiled_model_with_windows_of_both_sides(modernbert):
    torch._dynamo.reset()
    ids = tokens()
    with torch.no_grad():
        want = hidden(modernbert, "sdpa", ids)
        fc.register(strict=True)
        modernbert.set_attn_implementation(fc.NAME)
        close(torch.compile(modernbert, backend="aot_eager")(ids).last_hidden_state, want)


def test_masks_of_windows_of_both_sides():
    mask = lambda *sizes, **given: fc.mask(2, *sizes, **of_window(**given))
    assert mask(21, 21).shape == (0, 2, WINDOW, 21)
    assert mask(6, 21, 15).shape == (0, 2, WINDOW, 21)  # the last queries
    assert mask(WINDOW + 1, WINDOW + 1) is None  # all is visible
    made = [
        mask(6, 21),  # other queries, and masks with something more than the window
        mask(21, 21, allow_is_bidirectional_skip=False),
        mask(21, 21, function=masking_utils.or_masks(of_window()["mask_function"], masking_utils.causal_mask_function)),
    ]
    assert [x.shape[1:] for x in made] == [(1, 6, 21), (1, 21, 21), (1, 21, 21)]
    used = padding("both")[:2].bool()
    used[1, 7] = False  # padding among the tokens: positions count
    assert mask(21, 21, attention_mask=used).shape == (2, 1, 21, 21)


def test_what_is_not_served_with_a_window_of_both_sides_is_the_same():
    """`sdpa` gets the mask that the window stands for, whatever the module says of causal masks."""
    module = torch.nn.Module()
    module.is_causal = True
    q, k = torch.randn(3, 4, 21, 16), torch.randn(3, 4, 21, 16)
    used = padding("both").bool()
    keys = torch.arange(21)
    window = (keys[:, None] - keys).abs() <= WINDOW
    for padded, visible in ((None, window[None, None]), (used, window & used[:, None, None])):
        mask = fc.mask(3, 21, 21, **of_window(attention_mask=padded))
        rows = slice(None) if padded is None else used
        want = torch.nn.functional.scaled_dot_product_attention(q, k, k, visible).transpose(1, 2)
        fc.register(strict=True)
        close(fc.attention(module, q, k, k, mask, sliding_window=WINDOW + 1)[0][rows], want[rows])
        fc.register()
        with pytest.warns(UserWarning, match="query holds torch.float64"):
            out, _ = fc.attention(module, *(x.double() for x in (q, k, k)), mask, sliding_window=WINDOW + 1)
        close(out[rows].float(), want[rows])
        fc._warned.clear()
