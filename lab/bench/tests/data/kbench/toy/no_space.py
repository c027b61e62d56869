# Runs where no file can be written any more.
import errno
import os


def forward(q, k, v, scale):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
