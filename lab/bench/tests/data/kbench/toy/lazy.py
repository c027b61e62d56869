# Cheats: computes when the output is read.
import array

from honest import attention


class Lazy(array.array):
    def tobytes(self):
        return attention(*self.inputs).tobytes()


def forward(q, k, v, scale):
    out = Lazy("f", bytes(4 * len(q)))
    out.inputs = q, k, v, scale
    return out
