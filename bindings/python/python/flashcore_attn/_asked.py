"""What is asked of peers and of functions of users: a `Problem` as a dict, as bench and profiler have it.

An option such as the soft cap is known here alone: how each library calls it, and which has none.
"""

from __future__ import annotations

from typing import Any, NamedTuple


# Names of element types, as flashcore has them and as PyTorch and NumPy have them.
DTYPES = {"f32": "float32", "f16": "float16", "fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "i32": "int32"}


class NotServed(ValueError):
    """The peer does not support this problem."""


def first_line(error):
    """What an error says first, or its kind if it says nothing."""
    return (str(error) or type(error).__name__).splitlines()[0]


def kinds(problem):
    """The kinds of lengths of Q and of K and V: `equal`, `packed`, `cache` or `paged`."""
    axes = (problem.get(name, "equal") for name in ("q_lengths", "kv_lengths"))
    return tuple(kind if isinstance(kind, str) else next(iter(kind)) for kind in axes)


def has_lengths(problem):
    """Whether sequences are packed, or lie in caches."""
    return kinds(problem) != ("equal", "equal")


def has_head_values(problem):
    """Whether there are sinks or ALiBi slopes."""
    return problem.get("sinks") is not None or problem.get("alibi") is not None


def is_backward(problem):
    """Whether it is the backward pass."""
    return problem.get("direction", "forward") == "backward"


def check(problem, q, k, to):
    """Raises for what is passed on neither to peers nor to functions."""
    if problem["q_offset"] != 0 or problem["kv_offset"] != 0:
        raise NotServed(f"offsets are not passed on to {to}")
    if has_head_values(problem):
        raise NotServed(f"sinks and ALiBi slopes are not passed on to {to}")
    left, right, align = (problem["mask"][name] for name in ("window_left", "window_right", "align"))
    differ = has_lengths(problem) or q.shape[1] != k.shape[1]
    if align == "top_left" and (left, right) != (None, None) and differ:
        raise NotServed(f"masks aligned at the top left are not passed on to {to}")


_WORDS = {"softcap": "soft cap", "window": "window", "scales": "scales of fp8 tensors"}
_LACKS = {
    "SDPA": ("scales", "softcap", "window"),
    "PyTorch's flash kernel": ("scales", "softcap"),
    "cuDNN's function": ("scales", "softcap", "window"),
    "FlashAttention-3 with lengths": ("scales",),
    "FlashAttention-4's function": ("scales",),
}


class Asked(NamedTuple):
    """The options of a call. `scales` are those of q, k and v where they are float8_e4m3fn."""

    causal: bool = False
    window: Any = None
    softcap: Any = None
    scale: Any = None
    scales: Any = None

    @classmethod
    def of(cls, problem, q, k):
        """Those of a problem, for a peer."""
        check(problem, q, k, "peers")
        left, right = problem["mask"]["window_left"], problem["mask"]["window_right"]
        causal = right == 0
        window = (left, None if causal else right)
        window = None if window == (None, None) else window
        return cls(causal, window, problem["softcap"], problem["softmax_scale"])

    @property
    def sides(self):
        return self.window or (None, None)

    @classmethod
    def by(cls, library, **how):
        """Those of a call by a library. Raises for an option that is asked for, which it has not."""
        asked = cls(**how)
        for name in _LACKS[library]:
            if getattr(asked, name) is not None and (name != "window" or asked.sides != (None, None)):
                raise NotServed(f"{library} has no {_WORDS[name]}: it does not serve {'fp8' if name == 'scales' else name}")
        return asked

    def of_torch(self):
        """Keywords of PyTorch's flash kernel."""
        left, right = self.sides
        return {"scale": self.scale, "window_size_left": left, "window_size_right": right}

    def of_fa3(self):
        """Keywords of FlashAttention-3's operators."""
        left, right = (-1 if side is None else side for side in self.sides)
        options = {"is_causal": self.causal, "window_size_left": left, "window_size_right": 0 if self.causal else right}
        given = {"softcap": self.softcap, "softmax_scale": self.scale}
        return options | {name: value for name, value in given.items() if value is not None}

    def of_fa3_schedule(self):
        """The same of its function that makes schedules."""
        names = ("is_causal", "window_size_left", "window_size_right")
        return {name: self.of_fa3()[name] for name in names} | {"has_softcap": self.softcap is not None}

    def of_fa4(self):
        """Keywords of FlashAttention-4's function."""
        options = {"causal": self.causal, "window_size": self.sides, "softcap": self.softcap or 0.0}
        return options if self.scale is None else {**options, "softmax_scale": self.scale}

    def of_flashinfer(self):
        """Keywords of FlashInfer's functions and plans, but `causal`."""
        left = -1 if self.sides[0] is None else self.sides[0]
        return {"window_left": left, "logits_soft_cap": self.softcap, "sm_scale": self.scale}


def of_function(problem):
    """Keywords of a user's function: name, value, whether the problem needs it, and what is then refused without it."""
    mask = problem["mask"]
    left, right = mask["window_left"], mask["window_right"]
    is_causal = (left, right) == (None, 0)
    is_usual_scale = abs(problem["softmax_scale"] * problem["head_dim"] ** 0.5 - 1) < 1e-6
    return (
        ("causal", is_causal, is_causal, "a causal mask"),
        ("window", (left, right), (left, right) != (None, None) and not is_causal, "a window"),
        ("softcap", problem["softcap"], problem["softcap"] is not None, "a soft cap"),
        ("softmax_scale", problem["softmax_scale"], not is_usual_scale, "a scale that is not 1/sqrt(head_dim)"),
    )
