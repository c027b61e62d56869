"""`python -m flashcore_attn ARGUMENT...` runs the command `flashcore`, which wheels have and source distributions do not."""

import importlib.metadata
import os
import subprocess
import sys

NO_COMMAND = (
    "flashcore_attn: this package was installed without the command `flashcore`, as packages built from sources are. "
    "Install a wheel of this version, or the command itself: in a clone, `cargo install --path lab/cli`"
)


def command():
    """The path of the command that was installed with this package; None if there is none."""
    try:
        files = importlib.metadata.files("flashcore-attn") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()  # imported from a folder
    scripts = (file for file in files if file.name in ("flashcore", "flashcore.exe") and file.parent.name in ("bin", "Scripts"))
    return next((str(file.locate()) for file in scripts if file.locate().is_file()), None)


def main():
    found = command()
    if found is None:
        sys.exit(NO_COMMAND)
    if os.name == "posix":
        os.execv(found, [found, *sys.argv[1:]])
    sys.exit(subprocess.run([found, *sys.argv[1:]]).returncode)


if __name__ == "__main__":
    main()
