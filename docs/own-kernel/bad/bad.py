"""Functions that are not attention, to show that each costs one candidate and nothing else."""

import os
import time


def hangs(q, k, v):
    while True:
        time.sleep(60)


def aborts(q, k, v):
    os.abort()


def raises(q, k, v):
    raise RuntimeError("not today")


def wrong(q, k, v, out):
    """A tensor of the right shape that has nothing to do with K and Q."""
    out[...] = v[:, : q.shape[1], :1]


def hangs_when_timed(q, k, v, out, causal=False, calls=[0]):
    """Right while it is inspected, and then no more."""
    calls[0] += 1
    if calls[0] > 40:
        time.sleep(3600)
    import sys

    sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
    from attention_numpy import attention

    out[...] = attention(q, k, v, causal)
