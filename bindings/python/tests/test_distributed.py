"""FlashCore's operators split over two processes: the same results as in one, and an error when one is lost."""

import os
import pathlib
import subprocess
import sys

import flashcore_attn
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available() or not hasattr(torch.library, "get_kernel"):
    pytest.skip("this PyTorch has no torch.distributed or no torch.library.get_kernel", allow_module_level=True)

PATIENCE = 600  # seconds; a hang, not a slow machine


def start(tmp_path, case):
    folder = pathlib.Path(flashcore_attn.__file__).parent.parent
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, pathlib.Path(__file__).with_name("distributed_rank.py")]
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen([*command, str(rank), str(tmp_path / case), case], **options) for rank in range(2)]


def said(processes):
    try:
        return [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_two_processes_compute_what_one_does(tmp_path):
    for words in said(start(tmp_path, "right")):
        assert words.splitlines()[-1:] == ["passed"], words


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_lost_process_is_an_error(tmp_path, how):
    processes = start(tmp_path, how)
    try:
        (words,) = said(processes[:1])  # it ends, though the other one is gone or stopped
    finally:
        processes[1].kill()
        processes[1].wait()
    assert "failed:" in words and processes[0].returncode == 0, words
