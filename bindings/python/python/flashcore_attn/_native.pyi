"""The compiled half; `flashcore_attn`'s stub describes what the package exports of it."""

from typing import Any

def __getattr__(name: str) -> Any: ...
