# Forgets the scale.
from honest import attention


def forward(q, k, v, scale):
    return attention(q, k, v, 1.0)
