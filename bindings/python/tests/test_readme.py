"""The README's examples run, one after another, as far as what they import is installed."""

import importlib
import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
FIRST = README.parent.parent.parent / "README.md"
PAGE = FIRST.parent / "docs" / "python.md"


def test_the_first_program_prints_what_the_first_page_says(capsys):
    found = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", FIRST.read_text(encoding="utf-8"), re.DOTALL)
    exec(found[1], {})
    assert capsys.readouterr().out == found[2]


def test_examples():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    names = {}
    for block in blocks:
        for module in re.findall(r"^(?:import|from) (torch|transformers)", block, re.MULTILINE):
            pytest.importorskip(module, reason=f"the rest needs {module}")
        exec(block, names)
        if "same" in names and "losses" not in names:
            assert names["out"].shape == (2, 128, 8, 64)
            assert names["torch"].equal(names["out"].transpose(1, 2), names["same"])
    assert names["losses"][-1] < names["losses"][0]


NEEDS = ["numpy", "torch", "torch", "torch", "distributed", "transformers", "torch"]


@pytest.mark.parametrize("n, of", list(enumerate(NEEDS)))
def test_programs_of_the_page_are_whole(n, of):
    """Each runs alone: nothing is used that it does not define. Two need a group of processes, or a name of a model."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == len(NEEDS)
    if of in ("distributed", "transformers"):
        assert f"flashcore_attn.{of}.register()" in blocks[n]
        return
    pytest.importorskip(of, reason=f"it needs {of}")
    names = {}
    try:
        exec(blocks[n], names)
    finally:
        if "flashcore_attn.torch" in blocks[n]:
            importlib.import_module("flashcore_attn.torch").deactivate()
    if "flash_attn_with_kvcache" in names:
        assert names["lengths"].tolist() == [2, 2] and (names["k_cache"][[0, 4], :2] != 0).any(-1).all()
        assert not names["k_cache"][[0, 4], 2:].any()
