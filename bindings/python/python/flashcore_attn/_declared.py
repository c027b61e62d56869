"""Declarations of kernels of users, for `flashcore tune`."""


def declared(**declaration):
    """Decorates a function of Triton with a declaration: `flashcore tune FILE.py:FUNCTION` searches its parameters.

    The keywords are the keys of a declaration in TOML but `source` and `entry`: `dtype`, `args`, `grid`, `requires`,
    `parameters`, `constraints`, `tolerance`, `name` (docs/own-kernel.md). Write it above `@triton.jit`.

    >>> @flashcore_attn.declared(dtype=["fp16"], args=["q", "k", "v", "out", "heads", "seq_q", "scale"],
    ...                          grid=["ceil(seq_q / M)", "batch * heads"], requires=["head_dim == D"],
    ...                          parameters={"M": [32, 64], "D": [64], "num_warps": [4, 8]})
    ... @triton.jit
    ... def attend(Q, K, V, O, heads, rows, scale, M: tl.constexpr, D: tl.constexpr): ...
    """

    def decorated(function):
        function.flashcore_declaration = declaration
        return function

    return decorated
