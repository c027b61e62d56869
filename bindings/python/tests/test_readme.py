"""The README's examples run, one after another, as far as what they import is installed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
FIRST = README.parent.parent.parent / "README.md"


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
