"""Fused attention on NVIDIA GPUs, and on the CPU where there is none."""

from typing import Any, Literal, Optional, Protocol, Tuple, TypedDict, TypeVar, Union, overload

from typing_extensions import Unpack

from ._check import CheckFailed as CheckFailed
from ._check import CheckResult as CheckResult
from ._check import Uninit as Uninit
from ._check import check as check
from ._declared import declared as declared

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

class OtherOptions(TypedDict, total=False):
    causal: bool
    window: Optional[Window]
    softcap: Optional[float]
    scale: Optional[float]
    out: Optional[SupportsDLPack]
    kernel: Optional[str]
    layout: Layout
    stream: Union[int, Any, None]
    q_scale: Optional[SupportsDLPack]
    k_scale: Optional[SupportsDLPack]
    v_scale: Optional[SupportsDLPack]
    sinks: Optional[SupportsDLPack]
    alibi_slopes: Optional[SupportsDLPack]

class Options(OtherOptions, total=False):
    return_lse: bool

class OptionsOfOutput(OtherOptions, total=False):
    return_lse: Literal[False]

class OptionsOfBoth(OtherOptions):
    return_lse: Literal[True]

@overload
def attention(q: Tensor, k: SupportsDLPack, v: SupportsDLPack, **options: Unpack[OptionsOfOutput]) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: SupportsDLPack, v: SupportsDLPack, **options: Unpack[OptionsOfBoth]
) -> Tuple[Tensor, Any]: ...
def plan(q: SupportsDLPack, k: SupportsDLPack, v: SupportsDLPack, **options: Unpack[Options]) -> Plan: ...
def explain(q: SupportsDLPack, k: SupportsDLPack, v: SupportsDLPack, **options: Unpack[Options]) -> str: ...
def devices() -> list[DeviceInfo]: ...
def why_not_cuda() -> Optional[str]: ...
