"""`python -m flashcore_attn` runs the command of this installation, or says that there is none."""

import importlib.metadata
import os
import subprocess
import sys

import pytest
from flashcore_attn import __main__ as module


def test_it_runs_the_installed_command_or_says_that_there_is_none():
    ran = subprocess.run([sys.executable, "-m", "flashcore_attn", "--version"], capture_output=True, text=True, timeout=600)
    if module.command() is None:
        assert ran.returncode == 1 and "cargo install --path lab/cli" in ran.stderr and not ran.stdout
    else:
        assert ran.returncode == 0 and ran.stdout.startswith("flashcore "), ran


@pytest.mark.skipif(os.name != "posix", reason="the command is a script here")
def test_the_command_gets_the_arguments_and_gives_its_exit_code(tmp_path):
    scripts, packages = tmp_path / "bin", tmp_path / "lib"
    info = packages / "flashcore_attn-1.dist-info"
    for folder in (scripts, info):
        folder.mkdir(parents=True)
    script = scripts / "flashcore"
    script.write_text('#!/bin/sh\necho "$# $2"\nexit 3\n')
    script.chmod(0o755)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flashcore-attn\nVersion: 1\n")
    (info / "RECORD").write_text("../bin/flashcore,,\n")
    program = f"import sys; sys.path.insert(0, {str(packages)!r}); from flashcore_attn.__main__ import main; main()"
    ran = subprocess.run([sys.executable, "-c", program, "run", "a b"], capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stdout) == (3, "2 a b\n"), ran


def test_a_package_that_was_not_installed_has_no_command(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    assert module.command() is None
