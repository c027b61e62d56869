"""The shapes of the canonical grid by their names, such as d64-s2048-causal: 16k tokens, and 2,048 columns of Q."""

import re

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
NAMES = [f"d{head_dim}-s{length}{mask}" for head_dim in (64, 128, 256) for mask in ("", "-causal") for length in LENGTHS]


def sizes(name):
    """Batch, heads, length, head_dim and whether it is causal; None of a name that is no shape of the grid."""
    found = re.fullmatch(r"d(\d+)-s(\d+)(-causal)?", name)
    if not found:
        return None
    head_dim, length = int(found[1]), int(found[2])
    return 16384 // length, 2048 // head_dim, length, head_dim, bool(found[3])
