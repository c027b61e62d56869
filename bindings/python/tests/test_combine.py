"""`flash_attn_combine`, FlashAttention-3's function that merges parts."""

import flashcore_attn
import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from flashcore_attn.flash_attn_interface import flash_attn_combine  # noqa: E402  (needs PyTorch)

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA)))]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("parts", [1, 2, 5, 33])
def test_combine(device, parts, dtype):
    generator = torch.Generator().manual_seed(parts)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(device)
    out_partial = draw(2 * parts, 3, 4, 7, 24).transpose(2, 3)[:parts]
    lse_partial = 5 * draw(parts, 3, 8, 7).transpose(-1, -2)[..., :4]
    lse_partial[parts // 2 :, 0] = float("-inf")
    out_partial[parts // 2 :, 0] = float("nan")  # of parts without a key
    lse_partial[:, 2, 3] = float("-inf")
    out, lse = flash_attn_combine(out_partial, lse_partial, out_dtype=dtype)
    l, o = lse_partial.double().cpu().numpy(), np.nan_to_num(out_partial.double().cpu().numpy())
    highest = np.maximum(l.max(0), -1e300)
    weight = np.exp(l - highest)
    total = weight.sum(0)
    want = (weight[..., None] * o).sum(0) / np.where(total > 0, total, 1)[..., None]
    reference.check(out.double().cpu().numpy(), want, str(dtype or torch.float32).removeprefix("torch."))
    with np.errstate(divide="ignore"):
        reference.check_lse(lse.cpu().numpy(), np.where(total > 0, np.log(total) + highest, -np.inf))
    assert (out[2, 3] == 0).all()
    given = torch.full_like(out, float("nan"))
    again, _ = flash_attn_combine(out_partial, lse_partial, out=given)
    assert again is given and torch.equal(given, out)


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"out_partial": torch.zeros(2, 1, 3, 4, 8).half()}, TypeError, "out_partial holds torch.float16"),
        ({"lse_partial": torch.zeros(2, 1, 4, 3)}, ValueError, r"lse_partial has shape \(2, 1, 4, 3\).*\(2, 1, 3, 4\)"),
        ({"out_partial": np.zeros((2, 1, 3, 4, 8), np.float32)}, TypeError, "out_partial is a ndarray"),
        ({"out": torch.zeros(1, 3, 4, 8).int()}, TypeError, "out holds torch.int32; it must be a floating-point"),
        ({"out": torch.zeros(1, 3, 4, 7)}, ValueError, "out holds torch.float32 of shape"),
        ({"out": torch.zeros(1, 3, 4, 8), "out_dtype": torch.float16}, ValueError, "it must hold torch.float16"),
    ],
)
def test_combine_names_the_argument(change, error, says):
    with pytest.raises(error, match=says):
        flash_attn_combine(
            **{"out_partial": torch.zeros(2, 1, 3, 4, 8), "lse_partial": torch.zeros(2, 1, 3, 4), **change}
        )


def test_combine_of_rows_without_a_part():
    out, lse = torch.randn(2, 1, 3, 4, 8), torch.randn(2, 1, 3, 4)
    lse[:, 0, 0] = lse[1, 0, 1] = float("-inf")
    out[1, 0, 1] = float("nan")
    out.requires_grad_(), lse.requires_grad_()
    merged, total = flash_attn_combine(out, lse)
    (merged.sum() + total[total > float("-inf")].sum()).backward()
    assert out.grad.isfinite().all() and lse.grad.isfinite().all()
    assert not out.grad[:, 0, 0].any() and not lse.grad[:, 0, 0].any()
