"""What CI asks of a run. Where FLASHCORE_REQUIRE_TORCH is set, a test that is skipped because PyTorch or Transformers is
missing fails, and each reason to skip other tests is printed with their number."""

import collections
import os
import re
import textwrap

import pytest

REQUIRED = bool(os.environ.get("FLASHCORE_REQUIRE_TORCH"))
NOT_THERE = re.compile(r"(PyTorch|Transformers).* is not installed|(the rest needs|could not import) '?(torch|transformers|triton)")


def reason(report):
    """Why a test, or a module of tests, was skipped."""
    longrepr = report.longrepr
    return (longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)).removeprefix("Skipped: ")


def required(report):
    if REQUIRED and report.skipped and NOT_THERE.search(reason(report)):
        report.outcome, report.longrepr = "failed", f"FLASHCORE_REQUIRE_TORCH is set, and a test was skipped: {reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return required((yield))


def pytest_terminal_summary(terminalreporter):
    if REQUIRED:
        skipped = collections.Counter(reason(report) for report in terminalreporter.stats.get("skipped", []))
        for why, number in skipped.most_common():
            terminalreporter.write_line(f"NOT CHECKED: {number} Python tests: {textwrap.shorten(why, 120)}")
