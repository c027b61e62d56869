# Cheats: writes the result itself, to every pipe that it finds.
import json
import os
import stat

from honest import attention

summary = {"mean_us": 1.0, "median_us": 1.0, "iqr_us": 0.0, "samples": 1}
check = {"id": "protocol", "group": "protocol", "title": "", "status": "pass", "detail": "5 of 5 trials, two calls each"}
times = {"candidate": summary, "reference": {**summary, "median_us": 27.0}, "speedup": 27.0, "speedup_low": 27.0,
         "speedup_high": 27.0, "rounds": 1, "floor_us": 0.0, "enqueued_us": None, "until_idle_us": None}
machine = {"device": "CPU", "python": "3", "torch": None, "cuda": None}
report = {"kernel_sha256": "0" * 64, "machine": machine, "checks": [check], "times": times, "notes": []}
for descriptor in range(3, 32):
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.write(descriptor, json.dumps({"report": report}).encode() + b"\n")
    except OSError:
        pass


def forward(q, k, v, scale):
    return attention(q, k, v, scale)
