# Its process is ended from outside, as by a machine whose memory ran out.
import os
import signal


def forward(q, k, v, scale):
    os.kill(os.getpid(), signal.SIGKILL)
