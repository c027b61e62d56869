# Halves Q and doubles K where they lie, which leaves the output as it is.
from honest import attention


def forward(q, k, v, scale):
    q[:], k[:] = type(q)("f", (x / 2 for x in q)), type(k)("f", (x * 2 for x in k))
    return attention(q, k, v, scale)
