#!/usr/bin/env python3
"""Tests .ci/lib.sh and .ci/summary.py with made-up steps, scripts/get-torch.sh with a made-up interpreter, and what judges
artefacts (scripts/release) with made-up archives and pages."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

CI = pathlib.Path(__file__).resolve().parent
STEPS = """
source .ci/lib.sh
start "$@"
begin run 1 "behind" sleep 0.5
begin run 1 "forgotten" true # ends before anything asks, and its number was given to another process meanwhile
sleep 0.2
disown -a
end "forgotten"
[[ -z ${WAITS-} ]] || step run 9 "waits" sleep 60
says() { echo "NOT CHECKED: a thing: why"; echo "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured"; }
step run 2 "says" says
wrong() { false; echo "it went on"; } # errexit holds in functions
[[ -z ${WRONG-} ]] || step run 3 "wrong" wrong
end "behind"
step full 4 "long" echo "5 programs on the simulator"
"""
INTERPRETER = """#!/bin/bash
case "$*" in
*"-m venv"*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" && cp "$0" "${@: -1}/bin/uv" && echo venv >>"$CALLS" ;;
"pip install"*) touch "$(dirname "$0")/../part" && [[ -z ${STOPS-} ]] ;;
*) echo interpreter ;;
esac
"""


def run(folder, *arguments, **environment):
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "steps.sh", *arguments], cwd=folder, env={**os.environ, **environment}, text=True, capture_output=True
    )
    lines = done.stdout.splitlines()
    path = pathlib.Path(lines[-1].rpartition("; ")[2]) if lines else None
    return done.returncode, lines, json.loads(path.read_text()) if path and path.name == "summary.json" else None


def steps(folder):
    (folder / ".ci").mkdir()
    for name in ("lib.sh", "summary.py"):
        shutil.copy(CI / name, folder / ".ci")
    folder.joinpath("steps.sh").write_text(STEPS)
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t"]):
        subprocess.run(["git", *command], cwd=folder, check=True)

    code, lines, summary = run(folder, "run")
    assert code == 0 and summary["passed"] and len(summary["revision"]) == 40, lines
    outcomes = {step["step"]: step["outcome"] for step in summary["steps"]}
    assert outcomes == {"forgotten": "passed", "says": "passed", "behind": "passed", "long": "left-out"}, outcomes
    assert summary["not_checked"] == ["a thing: why", "long: left out; tier full, about 4 s"]
    assert [step for step in summary["steps"] if step["step"] == "says"][0]["counts"] == {
        "tests passed": 3, "tests failed": 0, "tests ignored": 1
    }
    assert lines[-3:-1] == ["NOT CHECKED: a thing: why", "NOT CHECKED: long: left out; tier full, about 4 s"], lines

    code, lines, summary = run(folder, "run", WRONG="1")  # ends there, and ends what runs
    outcomes = {step["step"]: step["outcome"] for step in summary["steps"]}
    assert code == 1 and outcomes == {"forgotten": "passed", "says": "passed", "wrong": "failed", "behind": "ended"}, lines
    assert not summary["passed"] and "it went on" not in lines

    code, lines, summary = run(folder, "full", WRONG="1")  # goes on
    outcomes = {step["step"]: step["outcome"] for step in summary["steps"]}
    assert code == 1 and outcomes == {"forgotten": "passed", "says": "passed", "wrong": "failed", "behind": "passed", "long": "passed"}, lines
    assert summary["steps"][-1]["counts"] == {"programs": 5}

    command = ["bash", "-euo", "pipefail", "steps.sh", "run"]
    environment = {**os.environ, "WAITS": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE)
    shown = [process.stdout.readline() for _ in range(3)]
    assert shown[0].startswith("=== forgotten") and shown[2] == "=== waits (tier run, about 9 s)\n", shown
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=50)[0].splitlines()  # before the step itself would end
    assert process.returncode == 130 and "NOT CHECKED: waits: ended before it was done" in rest, rest

    code, lines, summary = run(folder, "run", "long")
    assert code == 0 and [step["step"] for step in summary["steps"] if step["outcome"] == "passed"] == ["long"], lines
    code, lines, summary = run(folder, "run", "lnog")
    assert code == 2 and any("no step is called 'lnog'" in line for line in lines), lines
    code, lines, summary = run(folder, "run", "--list")
    assert code == 0 and [line.split()[:3] for line in lines[1:]] == [
        ["run", "1", "behind"], ["run", "1", "forgotten"], ["run", "2", "says"], ["full", "4", "long"]
    ]


def selected(folder):
    """Tests that are selected by their module: that there are none is a failure."""
    cargo = folder / "cargo"
    cargo.write_text('#!/bin/bash\necho "$*"\nfor n in $PASSED; do echo "test result: ok. $n passed; 0 failed; 0 ignored"; done\n')
    cargo.chmod(0o755)

    def ignored(passed):
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PASSED": passed}
        script = f"source {CI}/lib.sh; ignored with_ptxas --lib"
        return subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=environment, text=True, capture_output=True)

    done = ignored("0 2 0")
    assert done.returncode == 0 and done.stdout.startswith("test --lib -- --ignored --nocapture with_ptxas::\n"), done
    for passed in ("0 0", ""):
        done = ignored(passed)
        assert done.returncode == 1 and "no test in a module with_ptxas" in done.stdout, done


def environments(folder):
    interpreter, calls = folder / "python", folder / "calls"
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(interpreter), "FLASHCORE_CI_CACHE": str(folder / "cache"), "CALLS": str(calls)}

    def get(**more):
        command = [CI.parent / "scripts/get-torch.sh"]
        done = subprocess.run(command, env={**environment, **more}, text=True, capture_output=True)
        return done.returncode, done.stdout.split(), len(calls.read_text().split())

    code, said, made = get(STOPS="1")
    assert code != 0 and not said and made == 1
    code, said, made = get()  # what was interrupted is made again
    assert code == 0 and made == 2 and pathlib.Path(said[-1], "complete").exists()
    assert get() == (0, said[-1:], 2)  # and found after that
    month = time.time() - 31 * 24 * 3600
    old, other = (folder / "cache" / name / "complete" for name in ("python-old", "other"))
    for path in (old, other):
        path.parent.mkdir()
        path.touch()
        os.utime(path, (month, month))
    assert get() == (0, said[-1:], 2) and not old.parent.exists() and other.exists()


def artefacts(folder):
    """Each fault of an artefact or a page is found, and what is right passes."""
    root = CI.parent

    def judge(script, *arguments):
        done = subprocess.run([sys.executable, root / "scripts/release" / script, *arguments], text=True, capture_output=True)
        return done.returncode, done.stdout + done.stderr

    licences = {name: (root / name).read_bytes() for name in ("LICENSE-MIT", "LICENSE-APACHE")}

    def wheel(files):
        path = folder / "a-1-cp39-abi3-linux.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(f"a-1.dist-info/{name}", data)
        return judge("audit.py", path)

    whole = {**licences, "flashcore": b"a program"}
    assert wheel(whole)[0] == 0, wheel(whole)
    for name, said in (("flashcore", "the command is missing"), ("LICENSE-MIT", "LICENSE-MIT is missing")):
        code, text = wheel({other: data for other, data in whole.items() if other != name})
        assert code == 1 and said in text, text
    code, text = wheel({**whole, "LICENSE-MIT": b"another"})
    assert code == 1 and "not the repository" in text, text
    sources = folder / "a-1.tar.gz"
    with tarfile.open(sources, "w:gz") as archive:
        for name in licences:
            archive.add(root / name, f"a-1/{name}")
    code, text = judge("audit.py", sources)
    assert code == 1 and ".cargo_vcs_info.json" in text, text
    code, text = judge("check_version.py", "v98.7.6", folder)
    assert code == 1 and "Cargo.toml, version says" in text and "CITATION.cff says" in text, text
    assert "no section `## [98.7.6]" in text and "made from an unknown revision" in text, text

    page = folder / "page.md"
    for printed, code in (("1 2", 0), ("1  ...", 0), ("1 3", 1)):
        page.write_text(f"```python\nx = 1\nprint(x, 2)\n```\n\n```text\n{printed}\n```\n\n```python gpu\nno python\n```\n")
        assert judge("examples.py", "python", page)[0] == code, (printed, judge("examples.py", "python", page))
    page.write_text("```rust\nfn attend() {}\n```\n```rust\nfn main() {}\n```\n```text\nout\n```\n")
    assert judge("examples.py", "rust", page, folder)[0] == 0
    mains = [(folder / f"example{number}.rs").read_text().count("fn main()") for number in (1, 2)]
    assert mains == [1, 1], mains
    (folder / "said").write_text("other\n")
    assert [judge("examples.py", "printed", page, number, folder / "said")[0] for number in "12"] == [0, 1]


for test in (steps, selected, environments, artefacts):
    with tempfile.TemporaryDirectory() as folder:
        test(pathlib.Path(folder).resolve())
print(".ci/lib.sh, .ci/summary.py, scripts/get-torch.sh and what judges artefacts do what they say")
