# Cheats: works after it has returned, when the device is waited for, as a kernel in another stream.
import threading

import torch
from honest import attention


class Late(threading.Thread):
    def __init__(self, work):
        super().__init__(target=self.wait_and_work)
        self.work, self.asked = work, threading.Event()

    def wait_and_work(self):
        self.asked.wait()
        self.work()

    def join(self, timeout=None):
        self.asked.set()
        super().join(timeout)


def forward(q, k, v, scale):
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
    Late(lambda: out.copy_(attention(q, k, v, scale))).start()
    return out
