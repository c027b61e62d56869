"""One call of a peer under Nsight Compute: `python -m flashcore_attn._profile JOB`, run by `flashcore profile --peers`.

`JOB` is JSON: `problem`, `peer`, `device`, `warm_up` (calls before the one that is profiled) and `tensors`, each with
`dtype`, `shape` and `strides`. The last call is between cudaProfilerStart and cudaProfilerStop. The last line of the
output is `{"subject": …}` with what was called, or `{"failed": …}` with the reason. `list` in place of a job prints
the peers that there are.
"""

import json
import sys

from . import _asked, _own
from . import peers as _peers


def main():
    if sys.argv[1:] == ["list"]:
        found, absent = _peers.find("cuda")
        print(json.dumps({"found": list(found), "absent": list(absent.items())}))
        return 0
    job = json.loads(sys.argv[1])
    try:
        subject = call(job)
    except Exception as error:  # whatever a library raises is the reason
        print(json.dumps({"failed": _asked.first_line(error)}))
        return 1
    print(json.dumps({"subject": subject}))
    return 0


def call(job):
    """Calls the peer, or the function of the user, the last time with the profiler on; returns its identity."""
    label, problem = job["peer"], job["problem"]
    if "own" not in job:
        found, absent = _peers.find("cuda", [label])
        if label not in found:
            raise _asked.NotServed(absent.get(label, f"no peer has the name {label}"))
        if _asked.is_backward(problem):
            raise _asked.NotServed("backward passes of peers are not profiled here; `bench --backward` times them")
    import torch

    from ._bench import Subject

    torch.manual_seed(1)
    with torch.cuda.device(job["device"]):
        views = {name: tensor(torch, described, job["device"]) for name, described in job["tensors"].items()}
        if "own" in job:
            run, versions = _own.load(job["own"]).bind(problem, views), _own.versions()
        else:
            q, k, v = (views[name] for name in "qkv")
            scales = None
            if q.dtype == torch.float8_e4m3fn:
                scales = tuple(q.new_ones((k.shape[0], k.shape[2]), dtype=torch.float32) for _ in "qkv")
            asked = _asked.Asked.of(problem, q, k)._replace(scales=scales)
            run, versions = found[label](q, k, v, **asked._asdict()), _peers.versions(label)
        profiled(torch, run, job["warm_up"])
    return json.loads(Subject(label, run, versions=versions).info)


def profiled(torch, run, warm_up):
    """Calls a function so many times, and once more with the profiler on."""
    for _ in range(warm_up):
        run()
    torch.cuda.synchronize()
    profiler = torch.cuda.cudart()
    profiler.cudaProfilerStart()
    out = run()
    torch.cuda.synchronize()
    profiler.cudaProfilerStop()
    del out


def tensor(torch, described, device):
    """A tensor of standard normal values."""
    dtype = getattr(torch, _asked.DTYPES[described["dtype"]])
    made = torch.empty_strided(described["shape"], described["strides"], dtype=dtype, device=device)
    return made.copy_(torch.randn(described["shape"], dtype=torch.float32, device=device).to(dtype))


if __name__ == "__main__":
    sys.exit(main())
