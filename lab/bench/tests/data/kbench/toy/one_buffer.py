# Returns the same array each time.
import array

from honest import attention

out = array.array("f")


def forward(q, k, v, scale):
    out[:] = attention(q, k, v, scale)
    return out
