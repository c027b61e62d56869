"""Evaluates kernels for OpenEvolve (https://pypi.org/project/openevolve), which rewrites the text of a kernel of yours.

    FLASHCORE_KERNEL=attention.toml FLASHCORE_PROBLEM="--seq 64" openevolve-run attention.ptx evolve.py --config config.yaml

The declaration stays as it is; the program that evolves takes the place of the file that its line `ptx` or `source`
names. It is compiled in a sandbox (SECURITY.md), simulated, and compared with float64 on inputs that it does not know:
none of its code runs on the host. A wrong one scores 0, whatever its speed.

FLASHCORE_KERNEL    the declaration
FLASHCORE_PROBLEM   the problem to check on, as `flashcore check` takes it; a small one, since it is simulated
FLASHCORE_TIMED     a problem to time on, with a GPU: `flashcore bench` runs the kernel there. Without it the score is
                    from the warp instructions that were simulated, not from a time
FLASHCORE           the command, by default `flashcore`

In the configuration of OpenEvolve set `file_suffix` to `.ptx` or `.cu`, and `cascade_evaluation: false`.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

# Bytes of a message that the model is told.
MOST_WORDS = 4000
# Seconds for a command, which ends kernels that hang well before.
LIMIT = 1800


def run(*words):
    """A command of flashcore: its exit code, its JSON if it printed any, and its messages."""
    command = [*shlex.split(os.environ.get("FLASHCORE", "flashcore")), *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    try:
        return ran.returncode, json.loads(ran.stdout), ran.stderr
    except json.JSONDecodeError:
        return ran.returncode, None, ran.stderr or ran.stdout


def declared(program, folder):
    """A declaration of a copy of the program, in a folder without files of others, which its compiler could read."""
    given = pathlib.Path(os.environ["FLASHCORE_KERNEL"]).resolve()
    text, count = re.subn(
        r'^(ptx|source)\s*=\s*".*"', lambda key: f"{key[1]} = {json.dumps(program.name)}", given.read_text(), flags=re.M
    )
    if count != 1:
        raise ValueError(f'{given}: it needs one line ptx = "FILE" or source = "FILE"')
    shutil.copyfile(program, pathlib.Path(folder) / program.name)
    here = pathlib.Path(folder) / given.name
    here.write_text(text)
    return str(here)


def failed(what, why):
    return {"combined_score": 0.0, "correct": 0.0}, {what: why[-MOST_WORDS:]}


def judge(program_path):
    """Metrics, and what the model is told of them."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = declared(pathlib.Path(program_path).resolve(), folder)
        checks = shlex.split(os.environ.get("FLASHCORE_PROBLEM", "--seq 64"))
        code, report, said = run("check", *checks, "--kernel", kernel, "--json")
        if report is None:
            return failed("refused", said)
        if report["verdict"] != "clean":
            found = {key: report[key] for key in ("verdict", "refusals", "findings", "gate")}
            return failed("findings", json.dumps(found))
        if code != 0:
            return failed("refused", said)
        instructions = sum(kind["warps"] for kind in report["counts"].values())
        metrics = {"correct": 1.0, "warp_instructions": float(instructions), "combined_score": 1e6 / instructions}
        if timed := os.environ.get("FLASHCORE_TIMED"):
            words = ("--kernel", kernel, "--trust", "--peers", "none", "--store", "none", "--json")
            code, report, said = run("bench", *shlex.split(timed), *words)
            results = report["report"]["results"] if report else []
            subjects = [result["measurement"]["subjects"] for result in results]
            # Kernels of this project are timed with it.
            own = [subject for those in subjects for subject in those if subject["info"]["label"].startswith("own/")]
            times = [subject["summary"]["p50"] for subject in own if subject["summary"]]
            if code != 0 or not times or len(times) != len(results):
                return failed("not timed", said)
            metrics |= {"us": sum(times), "combined_score": 1e3 / sum(times)}
        return metrics, {}


def evaluate(program_path):
    """What OpenEvolve calls."""
    metrics, artifacts = judge(program_path)
    try:
        from openevolve.evaluation_result import EvaluationResult
    except ImportError:  # called by another program
        return metrics
    return EvaluationResult(metrics=metrics, artifacts=artifacts)
