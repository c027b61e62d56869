"""Kernels for tensors without values refuse what those for others refuse."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ops  # noqa: E402  (needs PyTorch)
from flashcore_attn.flash_attn_interface import flash_attn_func  # noqa: E402

draw = torch.randn
int32 = lambda *values: torch.tensor(values, dtype=torch.int32)
NUMBERS = {"softmax_scale": 0.25, "causal": True, "window_left": -1, "window_right": -1, "softcap": 0.0}
EQUAL = {"q": draw(2, 3, 4, 16), "k": draw(2, 5, 2, 16), "v": draw(2, 5, 2, 24), **NUMBERS}
BHSD = {**EQUAL, **{name: EQUAL[name].transpose(1, 2).contiguous() for name in "qkv"}, "layout": ops.BHSD}
OUTPUTS = {"dout": draw(2, 3, 4, 24), "out": draw(2, 3, 4, 24), "lse": draw(2, 4, 3)}
HEADS = {"sinks": draw(4), "alibi_slopes": draw(2, 4).abs()}
BOUNDS = {**NUMBERS, "max_seqlen_q": 3, "max_seqlen_k": 5}
PACKED = {
    "q": draw(5, 4, 16), "k": draw(7, 2, 16), "v": draw(7, 2, 24), "cu_seqlens_q": int32(0, 2, 5),
    "seqused_q": int32(2, 3), "cu_seqlens_k": int32(0, 3, 7), "seqused_k": int32(2, 3), **BOUNDS,
}  # fmt: skip
PAGED = {
    "q": draw(2, 3, 4, 16), "k": draw(4, 8, 2, 16), "v": draw(4, 8, 2, 24), "seqused_k": int32(4, 5),
    "block_table": int32(0, 1, 2, 3).view(2, 2), **BOUNDS,
}  # fmt: skip
ROWS = {**BHSD, "seqused_k": int32(1, 2), "block_table": int32(0, 1, 2, 5, 6, 7).view(2, 3), "max_seqlen_k": 3}
OF_PACKED = {"dout": draw(5, 4, 24), "out": draw(5, 4, 24), "lse": draw(4, 5)}
SCALES = {name: torch.ones(2, 2) for name in ops.SCALES}
as_fp8 = lambda x: x.to(torch.float8_e4m3fn) if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x
scaled = lambda given: {**{name: as_fp8(x) for name, x in given.items()}, **SCALES}
CALLS = {
    "fwd": EQUAL, "fwd of scales": scaled(EQUAL), "fwd of values": {**EQUAL, **HEADS}, "fwd of heads first": BHSD,
    "fwd of heads first in memory": {**EQUAL, "layout": 4, "return_lse": False},
    "fwd_lengths": PACKED, "fwd_lengths of values": {**PACKED, **HEADS}, "fwd_lengths of scales": scaled(PACKED),
    "fwd_lengths of pages": PAGED, "fwd_lengths of pages and values": {**PAGED, **HEADS},
    "fwd_lengths of pages and scales": scaled(PAGED), "fwd_lengths of rows": ROWS,
    "bwd": {**OUTPUTS, **EQUAL}, "bwd of packed rows": {**OF_PACKED, **PACKED},
}  # fmt: skip
CHANGES = {
    "dtype": lambda x: x.to(torch.int64 if x.dtype == torch.int32 else torch.float64),
    "dims": lambda x: x[None],
    "first": lambda x: torch.cat((x, x))[: len(x) + 1],
    "heads": lambda x: torch.cat((x, x, x, x, x), -2)[..., :7, :] if x.dim() > 2 else x[..., :-1],
    "head_dim": lambda x: x[..., :-1],
}


def call(name, given):
    with torch.no_grad():
        return ops.call(name.split()[0], **given)


def to(device, given):
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}


@pytest.mark.parametrize("name", CALLS)
def test_they_refuse_what_kernels_refuse(name):
    given = CALLS[name]
    as_list = lambda results: [results] if isinstance(results, torch.Tensor) else results
    for real, fake in zip(as_list(call(name, given)), as_list(call(name, to("meta", given)))):
        assert fake.shape == real.shape and fake.dtype == real.dtype and fake.device.type == "meta"
    for argument, x in given.items():
        if not isinstance(x, torch.Tensor):
            continue
        with pytest.raises(RuntimeError, match="on meta and .* on cpu; move all tensors to one device|on cpu and"):
            call(name, {**given, argument: x.to("meta")})
        for change in CHANGES.values():
            changed = {**given, argument: change(x).contiguous()}
            try:
                call(name, changed)
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    call(name, to("meta", changed))
            else:
                call(name, to("meta", changed))
    for wrong in ({"softmax_scale": -1.0}, {"softmax_scale": 1e6}, {"softcap": -1.0}, {"softcap": float("nan")}):
        for device in ("cpu", "meta"):
            with pytest.raises(RuntimeError, match=f"{next(iter(wrong))} is "):
                call(name, to(device, {**given, **wrong}))


def test_export_refuses_other_heads_of_v():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return flash_attn_func(q, k, v)

    q, k, v = EQUAL["q"], EQUAL["k"], draw(2, 5, 3, 16)
    with pytest.raises(Exception, match=r"v has shape \[2, 5, 3, 16\]; this problem needs \[2, 5, 2, 16\]"):
        torch.export.export(Attention(), (q, k, v))
    torch.export.export(Attention(), (q, k, v[:, :, :2]))
