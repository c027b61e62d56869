# Honest, and for the sizes of the task alone.
from honest import ROWS, attention


def forward(q, k, v, scale):
    if len(k) // (len(q) // ROWS) != 10:
        raise ValueError("made for 10 keys")
    return attention(q, k, v, scale)
