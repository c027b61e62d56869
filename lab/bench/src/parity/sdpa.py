"""Attention by PyTorch's SDPA in float64 on the host, for another process. Needs PyTorch alone.

Says {"version": ...} first. Then, again and again, reads a line of JSON, in which "data" has q, k and v as float32, dense
[batch, seq, heads, head_dim], in hexadecimal digits; answers a line {"out": ...}, the output as float64 in the same order
and digits; or {"error": ...}. Masks are worked out here from the positions of rows and keys, apart from how the caller
works them out.
"""

import ctypes
import json
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention



def say(line):
    print(json.dumps(line), flush=True)


def read(digits, shape):
    data = bytearray.fromhex(digits)
    return torch.frombuffer(data, dtype=torch.float32).reshape(shape).transpose(1, 2).double()


def visible(asked, rows, keys):
    """Which keys each row sees: positions are offsets plus indices, aligned at the last or the first of both."""
    shift = keys - rows if asked["align"] == "bottom_right" else 0
    row = torch.arange(rows)[:, None] + asked["q_offset"] + shift
    key = torch.arange(keys)[None, :] + asked["kv_offset"]
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if asked["window_left"] is not None:
        seen &= key >= row - asked["window_left"]
    if asked["window_right"] is not None:
        seen &= key <= row + asked["window_right"]
    return seen


def attend(asked):
    q, k, v = (read(digits, asked[name]) for name, digits in zip("qkv", asked["data"]))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    mask = visible(asked, q.shape[2], k.shape[2])
    # A row without keys is zeros here; SDPA's own result for it differs between releases.
    some = mask.any(dim=1)
    mask[~some] = True
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=asked["scale"])
    return (out * some[:, None]).transpose(1, 2).contiguous()


say({"version": torch.__version__})
for line in sys.stdin:
    try:
        out = attend(json.loads(line))
        # The memory itself: NumPy need not be there.
        say({"out": ctypes.string_at(out.data_ptr(), out.numel() * out.element_size()).hex()})
    except (RuntimeError, ValueError) as error:
        say({"error": str(error)})
