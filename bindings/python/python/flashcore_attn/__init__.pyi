"""Fused attention on NVIDIA GPUs, and on the CPU where there is none."""

from typing import Any, Literal, Optional, Protocol, Tuple, TypedDict, TypeVar, Union, overload

__version__: str

class SupportsDLPack(Protocol):
    """A tensor of PyTorch, JAX, CuPy, NumPy, or anything else that speaks DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Tuple[Any, Any]: ...

Tensor = TypeVar("Tensor", bound=SupportsDLPack)
Window = Tuple[Optional[int], Optional[int]]
Layout = Literal["bshd", "bhsd"]

class Plan(TypedDict, total=False):
    problem: str
    device: str
    kernel: str
    why: str
    row: Optional[Tuple[str, int]]
    notes: list[str]
    flops: float
    target: str
    grid: Tuple[int, int, int]
    block: Tuple[int, int, int]
    cluster: Tuple[int, int, int]
    shared_bytes: int
    workspace_bytes: int
    before: list[str]
    then: list[str]
    considered: list[Tuple[str, Optional[str]]]

class DeviceInfo(TypedDict, total=False):
    device: str
    name: str
    uuid: str
    compute_capability: Tuple[int, int]
    multiprocessors: int
    total_memory: int
    driver: Optional[str]
    cuda_version: Tuple[int, int]

@overload
def attention(
    q: Tensor,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    causal: bool = False,
    window: Optional[Window] = None,
    softcap: Optional[float] = None,
    scale: Optional[float] = None,
    out: Optional[SupportsDLPack] = None,
    return_lse: Literal[False] = False,
    kernel: Optional[str] = None,
    layout: Layout = "bshd",
    stream: Union[int, Any, None] = None,
    q_scale: Optional[SupportsDLPack] = None,
    k_scale: Optional[SupportsDLPack] = None,
    v_scale: Optional[SupportsDLPack] = None,
    sinks: Optional[SupportsDLPack] = None,
    alibi_slopes: Optional[SupportsDLPack] = None,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    causal: bool = False,
    window: Optional[Window] = None,
    softcap: Optional[float] = None,
    scale: Optional[float] = None,
    out: Optional[SupportsDLPack] = None,
    return_lse: Literal[True],
    kernel: Optional[str] = None,
    layout: Layout = "bshd",
    stream: Union[int, Any, None] = None,
    q_scale: Optional[SupportsDLPack] = None,
    k_scale: Optional[SupportsDLPack] = None,
    v_scale: Optional[SupportsDLPack] = None,
    sinks: Optional[SupportsDLPack] = None,
    alibi_slopes: Optional[SupportsDLPack] = None,
) -> Tuple[Tensor, Any]: ...
def plan(
    q: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    causal: bool = False,
    window: Optional[Window] = None,
    softcap: Optional[float] = None,
    scale: Optional[float] = None,
    out: Optional[SupportsDLPack] = None,
    return_lse: bool = False,
    kernel: Optional[str] = None,
    layout: Layout = "bshd",
    stream: Union[int, Any, None] = None,
    q_scale: Optional[SupportsDLPack] = None,
    k_scale: Optional[SupportsDLPack] = None,
    v_scale: Optional[SupportsDLPack] = None,
    sinks: Optional[SupportsDLPack] = None,
    alibi_slopes: Optional[SupportsDLPack] = None,
) -> Plan: ...
def explain(
    q: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
    *,
    causal: bool = False,
    window: Optional[Window] = None,
    softcap: Optional[float] = None,
    scale: Optional[float] = None,
    out: Optional[SupportsDLPack] = None,
    return_lse: bool = False,
    kernel: Optional[str] = None,
    layout: Layout = "bshd",
    stream: Union[int, Any, None] = None,
    q_scale: Optional[SupportsDLPack] = None,
    k_scale: Optional[SupportsDLPack] = None,
    v_scale: Optional[SupportsDLPack] = None,
    sinks: Optional[SupportsDLPack] = None,
    alibi_slopes: Optional[SupportsDLPack] = None,
) -> str: ...
def devices() -> list[DeviceInfo]: ...
def why_not_cuda() -> Optional[str]: ...
