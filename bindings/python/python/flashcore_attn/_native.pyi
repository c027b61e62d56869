"""The compiled half; `flashcore_attn`'s stub describes what the package exports of it."""

from typing import Any, Optional, Sequence

def register_operators(cpu: str, cuda: Optional[str]) -> None: ...
def slow_backward(
    device: int,
    dtype: str,
    q: Sequence[int],
    k: Sequence[int],
    head_dim_v: int,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    packed: bool = False,
    deterministic: bool = False,
) -> Optional[str]: ...
def __getattr__(name: str) -> Any: ...
