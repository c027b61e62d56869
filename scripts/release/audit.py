#!/usr/bin/env python3
"""Checks what is in artefacts, without running them: licences, and what their programs and libraries need of a system.

usage: audit.py FILE...    wheels, source distributions, archives of the command, crates; needs pyelftools

Each artefact has both licences, the same bytes as the repository's. Each ELF file of a wheel or archive needs at most
GLIBC_2.17, and no libraries but glibc's and libgcc_s. A package of sources has the revision that it was made from, and a
wheel with the command has it as a script. Prints a line for each artefact; exits with 1 if anything is wrong.
"""

import io
import pathlib
import re
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NEWEST_GLIBC = (2, 17)
# glibc 2.17's own, by the names that programs ask for, and the unwinder that each Linux with a compiled program has.
ALLOWED_NEEDED = re.compile(r"(lib(c|m|dl|pthread|rt|util|resolv)\.so\.\d+|ld-linux[-\w]*\.so\.\d+|libgcc_s\.so\.1)$")
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")


def contents(path):
    """Names and bytes of the files in an archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}


def elf_problems(name, data):
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    for section in ELFFile(io.BytesIO(data)).iter_sections():
        if isinstance(section, DynamicSection):
            needed = [tag.needed for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
            yield from (f"{name} needs {library}" for library in needed if not ALLOWED_NEEDED.match(library))
        if isinstance(section, GNUVerNeedSection):
            versions = {version.name for _, all_of in section.iter_versions() for version in all_of}
            for version in sorted(versions):
                number = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version)
                if number and tuple(map(int, number.groups()[:2])) > NEWEST_GLIBC:
                    yield f"{name} needs {version}; at most GLIBC_{'.'.join(map(str, NEWEST_GLIBC))}"


def problems(path, files):
    for licence in LICENCES:
        found = [data for name, data in files.items() if name.endswith(f"/{licence}")]
        wanted = (ROOT / licence).read_bytes()
        if not found or any(data != wanted for data in found):
            yield f"{licence} is {'not the repository’s' if found else 'missing'}"
    if path.suffix in (".whl", ".xz"):
        if not any(re.search(r"(^|/)flashcore(\.exe)?$", name) for name in files):
            yield "the command is missing"
        for name, data in files.items():
            if data.startswith(b"\x7fELF"):
                yield from elf_problems(name, data)
    elif not any(name.endswith(".cargo_vcs_info.json") for name in files):
        yield "no .cargo_vcs_info.json says which revision it is"


def main(names):
    if not names:
        sys.exit(__doc__)
    wrong = 0
    for path in map(pathlib.Path, names):
        files = contents(path)
        found = list(problems(path, files))
        wrong += len(found)
        elves = sum(data.startswith(b"\x7fELF") for data in files.values())
        print(f"{path.name}: {path.stat().st_size:,} bytes, {len(files)} files, {elves} of them ELF")
        for problem in found:
            print(f"{path.name}: {problem}")
    sys.exit(1 if wrong else 0)


main(sys.argv[1:])
