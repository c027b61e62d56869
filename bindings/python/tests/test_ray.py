"""`flashcore_attn.ray`: a search whose workers are in a Ray cluster of two nodes on this machine, one of which is lost."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest

COMMAND = os.environ.get("FLASHCORE_COMMAND") or shutil.which("flashcore")
ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.skipif(COMMAND is None, reason="neither FLASHCORE_COMMAND nor the PATH names a flashcore")

SEARCH = ["tune", "small", "--trials", "40", "--strategy", "elite", "--seed", "3", "--deadline", "120", "--json"]
# Passes lines to a worker and back. On the node that is to be lost, it stops for good after a few answers.
STOPS = """
import os, subprocess, sys
mark, *command = sys.argv[1:]
worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for number, line in enumerate(sys.stdin):
    worker.stdin.write(line)
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if os.environ.get("IS_LOST") and number == 8:
        open(mark, "w").close()
        sys.stdin.read()  # until the node is gone
        break
    sys.stdout.write(answer)
    sys.stdout.flush()
"""


@pytest.fixture
def cluster():
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    yield nodes
    nodes.shutdown()


def search(tmp_path, name, address, flashcore):
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "flashcore_attn.ray", "--address", address, "--workers", "2", "--flashcore", flashcore]
    command += ["--device", "replay:shipped", *SEARCH, "--folder", tmp_path / name]
    with open(tmp_path / f"{name}.json", "w") as out, open(tmp_path / f"{name}.txt", "w") as errors:
        return subprocess.Popen([str(word) for word in command], stdout=out, stderr=errors, env=environment)


def result(tmp_path, name, process):
    code = process.wait(timeout=900)
    said = (tmp_path / f"{name}.txt").read_text()
    assert code == 0, said
    return json.loads((tmp_path / f"{name}.json").read_text()), said


def essence(found):
    return [(trial["number"], trial["id"], trial["verdict"]) for trial in found["trials"]]


def test_a_lost_node_loses_no_trial(cluster, tmp_path):
    second = cluster.add_node(num_cpus=1, num_gpus=0, env_vars={"IS_LOST": "1"})
    cluster.wait_for_nodes()
    undisturbed, _ = result(tmp_path, "whole", search(tmp_path, "whole", cluster.address, COMMAND))
    assert undisturbed["workers_started"] == 2

    stops, mark = tmp_path / "stops.py", tmp_path / "mark"
    stops.write_text(STOPS)
    process = search(tmp_path, "cut", cluster.address, f"{sys.executable} {stops} {mark} {COMMAND}")
    while not mark.exists():
        assert process.poll() is None, (tmp_path / "cut.txt").read_text()
        time.sleep(0.05)
    cluster.remove_node(second, allow_graceful=False)
    disturbed, said = result(tmp_path, "cut", process)
    assert "a worker is lost" in said
    assert essence(disturbed) == essence(undisturbed)
    assert disturbed["board"]["winner"] == undisturbed["board"]["winner"] is not None


def test_what_is_missing_is_said(tmp_path):
    run = lambda *words: subprocess.run([sys.executable, "-m", "flashcore_attn.ray", *words], capture_output=True, text=True)
    ran = run("--flashcore", COMMAND, "bench", "small-set")
    assert ran.returncode == 2 and "begin with tune" in ran.stderr
