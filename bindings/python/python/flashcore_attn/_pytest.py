"""The pytest fixture `flashcore_check`: `flashcore_attn.check`, which fails the test unless the kernel is clean."""

import pytest


@pytest.fixture
def flashcore_check():
    """Runs `flashcore_attn.check` with the same arguments; findings fail the test. Returns the result."""

    def run(*args, **kwargs):
        __tracebackhide__ = True
        from ._check import check

        result = check(*args, **kwargs)
        if result.verdict != "clean":
            pytest.fail(str(result), pytrace=False)
        return result

    return run
