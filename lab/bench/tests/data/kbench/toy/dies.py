# Ends the process, as a fault does.
import os


def forward(q, k, v, scale):
    os.abort()
