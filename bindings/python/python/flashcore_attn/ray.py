"""A search by `flashcore tune` on every GPU of a Ray cluster.

    python3 -m flashcore_attn.ray [--address ADDRESS] [--workers N] [--flashcore COMMAND] tune PROBLEM [ARGUMENTS OF TUNE]

It starts ``flashcore tune`` with ``--workers``, and for each of its workers an actor that reserves a GPU and runs
``flashcore worker`` on that node; lines of JSON are passed between the two (docs/tune-protocols.md), and the files that
a worker writes are carried over. The command must be at the same place on every node, and of the same build; the
machine that searches needs a GPU of the kind of the cluster's, or ``--device cpu`` or ``replay:FILE``. When a node is
lost, the search tries its candidate on another one, and goes on without it.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import select
import shlex
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from typing import Any

from . import _extras


class Worker:
    """An actor: a process ``flashcore worker`` on a node."""

    def __init__(self, command: list[str]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="flashcore-")
        kernels = str(pathlib.Path(tempfile.gettempdir(), f"flashcore-kernels-{os.getuid()}"))
        caches = {"CUDA_CACHE_PATH": kernels, "FLASHCORE_CACHE_DIR": kernels}  # a search has caches of its own
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([*command, "worker"], env={**os.environ, **caches}, **pipes)

    def ask(self, line: str) -> tuple[str, bytes | None]:
        """A line's answer, and the content of the file that it asked for; an empty line if the process has ended."""
        question, written = json.loads(line), None
        form = question.get("form")
        if isinstance(form, dict):  # its kind, and what belongs to it
            (details,) = form.values()
            written = details["file"] = str(pathlib.Path(self.folder.name, "written"))
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return "", None
        answer = self.process.stdout.readline()
        is_written = written is not None and "ok" in json.loads(answer or "{}")
        return answer, pathlib.Path(written).read_bytes() if is_written else None


class Connection(socketserver.StreamRequestHandler):
    """One worker of the search, on the side of the cluster."""

    server: Cluster

    def handle(self) -> None:
        cluster, actor, ray = self.server, None, self.server.ray
        cluster.live.add(self)
        options = {**cluster.needs, "scheduling_strategy": "SPREAD"}
        try:
            actor = ray.remote(Worker).options(**options).remote(cluster.command)
            for line in self.rfile:
                answer, written = self.answer_of(actor.ask.remote(line.decode()))
                if written is not None:
                    (details,) = json.loads(line)["form"].values()
                    pathlib.Path(details["file"]).write_bytes(written)
                if not answer:
                    break
                self.wfile.write(answer.encode())
        except (ray.exceptions.RayError, ConnectionError) as lost:
            print(f"flashcore_attn.ray: a worker is lost: {str(lost).splitlines()[0]}", file=sys.stderr)
        finally:
            cluster.live.discard(self)
            if actor is not None:
                ray.kill(actor)

    def answer_of(self, coming: Any) -> tuple[str, bytes | None]:
        """Waits for the actor as long as the search waits, and a node can be free for it."""
        ray = self.server.ray
        while not ray.wait([coming], timeout=0.5)[0]:
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionError("the search has given it up")
            there = ray.cluster_resources().get(self.server.resource, 0)
            if len(self.server.live) > there:
                raise ConnectionError(f"{there:g} {self.server.resource} are left for {len(self.server.live)} workers")
        return ray.get(coming)


class Cluster(socketserver.ThreadingUnixStreamServer):
    """Listens for the workers of a search at a path."""

    daemon_threads = True

    def __init__(self, ray: Any, path: str, command: list[str], on_gpus: bool) -> None:
        super().__init__(path, Connection)
        self.ray, self.command, self.live = ray, command, set()
        self.resource, self.needs = ("GPU", {"num_gpus": 1}) if on_gpus else ("CPU", {"num_cpus": 1})


def connect(path: str) -> None:
    """What the search starts as a worker: passes its lines to the cluster, one at a time, and the answers back."""
    with socket.socket(socket.AF_UNIX) as cluster:
        cluster.connect(path)
        answers = cluster.makefile("rb")
        for line in sys.stdin.buffer:
            cluster.sendall(line)
            answer = answers.readline()
            if not answer:
                sys.exit("flashcore_attn.ray: the worker is lost")
            os.write(1, answer)


def main() -> int:
    parser = argparse.ArgumentParser(prog="flashcore_attn.ray", description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="auto", help="of the cluster, as ray.init takes it")
    parser.add_argument("--workers", type=int, help="how many [default: one for each GPU]")
    parser.add_argument("--flashcore", help="the command on every node, quoted as for a shell")
    parser.add_argument("--device", default="cuda:0", help="of each worker: cuda:0, cpu or replay:FILE")
    parser.add_argument("tune", nargs=argparse.REMAINDER, help="tune and its arguments")
    options = parser.parse_args()
    command = shlex.split(options.flashcore or "") or [shutil.which("flashcore")]
    if command == [None]:
        parser.error("there is no command flashcore on the PATH: name it with --flashcore")
    if options.tune[:1] != ["tune"]:
        parser.error("the arguments of the search begin with tune")
    try:
        import ray
    except ModuleNotFoundError as error:
        parser.error(str(_extras.missing(error, "ray")))

    sys.stdout = sys.stderr  # Ray says there what happens to nodes; the search has the file itself
    ray.init(address=options.address, log_to_driver=False)
    on_gpus = options.device.startswith("cuda")
    count = options.workers or int(ray.cluster_resources().get("GPU", 0))
    if count < 1:
        parser.error("the cluster has no GPU: say how many --workers, and their --device")
    place = "/tmp" if len(tempfile.gettempdir().split()) > 1 else None  # tune splits a worker's command at spaces
    with tempfile.TemporaryDirectory(dir=place) as folder, Cluster(ray, f"{folder}/ray", command, on_gpus) as cluster:
        threading.Thread(target=cluster.serve_forever, daemon=True).start()
        devices = ",".join([options.device] * count)
        worker = [sys.executable, "-m", "flashcore_attn.ray", "--connect", f"{folder}/ray"]
        pathlib.Path(folder, "worker").write_text(f"exec {shlex.join(worker)}\n")
        search = subprocess.run([command[-1], *options.tune, "--device", devices, "--workers", f"sh {folder}/worker"])
        cluster.shutdown()
    return search.returncode


if __name__ == "__main__":
    sys.exit(connect(sys.argv[2]) if sys.argv[1:2] == ["--connect"] else main())
