#!/usr/bin/env python3
"""Makes what candle's `cuda` feature needs at build time on a machine without CUDA.

usage: cuda_stubs.py FOLDER

FOLDER/lib   link stubs of the CUDA libraries, with the SONAMEs of CUDA 13. They have every function
             that cudarc declares; a call aborts and names the function. At run time the real
             libraries take their place.
FOLDER/bin/nvcc
             a stand-in for nvcc. It makes empty kernels, for builds that only run on the CPU: CI
             compiles and tests the CUDA code of bindings/candle with it. With REAL_NVCC, that
             compiler makes candle's PTX (scripts/build-candle-cuda.sh), and the kernels of
             quantised and mixture-of-experts models, most of the time, are still stubs.

Names come from the sources of cudarc and candle-kernels in bindings/candle/Cargo.lock. Needs gcc.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Library, SONAME, the module of cudarc that declares its functions.
LIBRARIES = [
    ("cuda", "libcuda.so.1", "driver"),
    ("cudart", "libcudart.so.13", "runtime"),
    ("nvrtc", "libnvrtc.so.13", "nvrtc"),
    ("curand", "libcurand.so.10", "curand"),
    ("cublas", "libcublas.so.13", "cublas"),
    ("cublasLt", "libcublasLt.so.13", "cublaslt"),
]
DECLARATION = re.compile(r"^\s*pub (?:unsafe )?fn (\w+)\(", re.MULTILINE)


def sources(package):
    """The folder of a package of bindings/candle, as Cargo unpacked it."""
    command = ["cargo", "metadata", "--locked", "--all-features", "--format-version=1"]
    command.append(f"--manifest-path={ROOT}/bindings/candle/Cargo.toml")
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    (found,) = [one for one in json.loads(out)["packages"] if one["name"] == package]
    return pathlib.Path(found["manifest_path"]).parent


def aborting(names):
    """C functions of these names that abort."""
    lines = ["#include <stdio.h>", "#include <stdlib.h>"]
    lines.append('static void stub(const char *name) { fprintf(stderr, "%s is a link stub\\n", name); abort(); }')
    return "\n".join(lines + [f'void {name}(void) {{ stub("{name}"); }}' for name in names]) + "\n"


def compile_c(code, out, *flags):
    command = ["gcc", "-fPIC", "-O0", "-w", *flags, "-x", "c", "-", "-o", str(out)]
    subprocess.run(command, check=True, input=code, text=True)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    for part in ("lib", "bin"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    cudarc = sources("cudarc")
    for library, soname, module in LIBRARIES:
        text = (cudarc / "src" / module / "sys" / "mod.rs").read_text(encoding="utf-8")
        # A method of a Rust type has no prefix of the library.
        names = sorted({name for name in DECLARATION.findall(text) if re.match("cu|nvrtc", name)})
        assert names, f"cudarc declares no function in {module}"
        compile_c(aborting(names), folder / "lib" / soname, "-shared", f"-Wl,-soname,{soname}")
        link = folder / "lib" / f"lib{library}.so"
        link.unlink(missing_ok=True)
        link.symlink_to(soname)
    declared = (sources("candle-kernels") / "src" / "ffi.rs").read_text(encoding="utf-8")
    kernels = folder / "lib" / "kernels.o"
    compile_c(aborting(sorted(set(DECLARATION.findall(declared)))), kernels, "-c")
    shutil.copy(ROOT / "scripts" / "stub-nvcc.sh", folder / "bin" / "nvcc")


main()
