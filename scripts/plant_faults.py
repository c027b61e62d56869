#!/usr/bin/env python3
"""Faults in the CUDA kernels of lab/check/corpus, by operators at sites drawn by a seed, for `flashcore check` and
compute-sanitizer.

usage: scripts/plant_faults.py draw [--races | --newer]
       scripts/plant_faults.py show [--races | --newer]
       scripts/plant_faults.py build FOLDER [--races | --newer]
       scripts/plant_faults.py ours FOLDER --flashcore PROGRAM
       scripts/plant_faults.py table FOLDER RESULTS

`draw` writes lab/check/faults/planted.json: SITES sites of each operator, at most one of an operator in a kernel.
`show` prints each with its line before and after. `build` makes sources, PTX and cubins of the drawn faults that
lab/check/faults/equivalent.json does not exclude, of the faults in lab/check/faults/unseen, and of what they are faults
of; scripts/run_sanitizer.py runs these on a GPU. `ours` runs `flashcore check` on them. `table` compares the results.
With --races it is lab/check/faults/races.json, of the operators of races in shared memory, in the corpus and in the
twins of its faults, and in place of `unseen` the corpus's races. With --newer it is lab/check/faults/newer.json, of the
operators of scripts/newer_faults.py, for Hopper and in Triton's PTX; its Python must have Triton 3.9.0 and flashcore_attn.

planted.json was committed before any tool saw a fault, and equivalent.json, which gives the reason for each, too.
"""

import argparse
import base64
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tomllib
import zlib

import compile_corpus
import newer_faults

try:
    import corpus_reference
    import numpy as np
except ImportError:  # NumPy
    python = compile_corpus.environment().parents[5] / "bin" / "python"
    os.execv(python, [python, *sys.argv])

ROOT = compile_corpus.ROOT
FAULTS = ROOT / "lab" / "check" / "faults"
SEED, SITES, NEWER_SITES = 58, 7, 4
TARGET = "sm_90"
PLANTED, IN_SHARED, NEWER = "planted.json", "races.json", "newer.json"


def replaced(pattern, by, only=None):
    """An operator that replaces each match on a line, one at a time, where the line matches `only`."""

    def sites(lines):
        for number, line in enumerate(lines):
            code = line.split("//")[0]
            if code.lstrip().startswith("#") or (only and not re.search(only, code)):
                continue
            for match in re.finditer(pattern, code):
                yield number, [line[: match.start()] + match.expand(by) + line[match.end() :]]

    return sites


def swapped(lines):
    """A barrier before the statement that it follows."""
    for number in range(1, len(lines)):
        before = lines[number - 1].split("//")[0].rstrip()
        if lines[number].strip() == "__syncthreads();" and before.endswith(";") and "return" not in before:
            yield number - 1, [lines[number], lines[number - 1]]


INDEX = r"(?<=\w)\[([^\[\]]+)\](?!\[)"
USE = r"^(?!.*(__shared__|constexpr|\{\s*$.*\bstruct)).*\["
OPERATORS = {
    "remove-syncthreads": replaced(r"__syncthreads\(\);", ";"),
    "remove-warp-sync": replaced(r"__syncwarp\([^()]*\);|\b\w+\.sync\(\);", ";"),
    "remove-async-wait": replaced(
        r'__pipeline_wait_prior\(\w+\);|asm volatile\("cp\.async\.wait_\w+[^;]*;.*?\);|cp_async_wait\w*(<\d+>)?\(\w*\);'
        r"|\bcg::wait(_prior<\d>)?\(\w+\);|\w+\.consumer_wait\(\);",
        ";",
    ),
    "less-to-less-equal": replaced(r"(?<=[\w)\]]) < (?=[\w(])", " <= "),
    "index-plus-one": replaced(INDEX, r"[\1 + 1]", USE),
    "index-minus-one": replaced(INDEX, r"[\1 - 1]", USE),
    "stride-minus-one": replaced(r" \* ([A-Z]\w*|n|cols|width|stride|pitch)\b", r" * (\1 - 1)", r"\["),
    "drop-initialisation": replaced(
        r"^\s+(for \([^{]*\) |if \([^{]*\) )?[\w\[\]\s./%*+-]*\] = (0|0u|0\.f|0\.0f|-1|-INFINITY|make_\w+\(0[^;]*\));", "    ;"
    ),
    "atomic-to-plain": replaced(r"(?<![=(,\w] )(?<![\w(])atomic(Add|Max|Min|Or)\((&?)([^,]+(?:\[[^\]]*\])?), (.+)\);", r"(\2\3)[0] += \4;"),
    "short-mask": replaced(r"0xffffffffu?|~0u", "0x0000ffffu", r"_sync|__syncwarp|MASK|mask"),
    "barrier-in-branch": replaced(r"__syncthreads\(\);", "if (threadIdx.x % 32 < 16) __syncthreads();"),
    "shared-one-short": replaced(r"(__shared__[^;=\[]*(?:\[[^\]]*\])*)\[([^\]]+)\];", r"\1[\2 - 1];"),
    "drop-bounds-check": replaced(
        r"\bif \([^()]*(?:\([^()]*\)[^()]*)*(?:<|>=) \w+\)(?: return;)?|\([^()]*(?:\([^()]*\)[^()]*)* < [A-Zn]\w*(?: && [^()]*)?\) \?|\b\w+ < n \?",
        "",
        r"if \(.*\) (return|\w+[\[.]|[*\w]+ [+*]?=)",
    ),
    "misaligned-vector": replaced(
        r"(reinterpret_cast<(?:const )?\w+[248]\*>\(|\((?:const )?\w+[248]\*\))(&[\w.]+\[[^=]*?\](?:\[[^\[\]]*\])*|\w+(?: \+ [^;,()]+)?)(?=[);,])",
        r"\1((const char*)(\2) + 4)",
    ),
    "pointer-offset": replaced(r"((?:const )?(?:float|int|half|unsigned|double|__half|\w+_t)\s?\*\s?(?:__restrict__ )?\w+ = [^;{]+);", r"\1 + 1;"),
    "drop-fence": replaced(r"__threadfence\w*\(\);", ";"),
    "barrier-earlier": swapped,
    "next-block": replaced(r"blockIdx\.([xyz]) \*", r"(blockIdx.\1 + 1) *"),
    "plain-exchange": replaced(r"atomicExch\(&?([\w\[\].]+), (\w+)\);", r"\1 = \2;"),
    "longer-loop": replaced(r"(for \([^;]*;[^;]*) < ([\w]+);", r"\1 < \2 + 1;"),
}


# Mistakes with what orders accesses to shared memory other than `__syncthreads` between plain ones: atomics, barriers
# of some warps, barrier objects, warps, fences and flags.
SHARED = r"(?:mine|local|size|count|inside|most_bits|bins\[keys)\b"
SHARED_ATOMIC = rf"(?s)__shared__.*\batomic\w+\(&{SHARED}"
RACES = {
    "no-barrier-of-atomics": (SHARED_ATOMIC, replaced(r"__syncthreads\(\);", ";")),
    "shared-atomic-to-plain": (SHARED_ATOMIC, replaced(rf"\batomic(?:Add|Max)\(&(?={SHARED})([^;]+), (.+)\);", r"\1 += \2;")),
    "wait-becomes-arrive": ("", replaced(r"bar\.sync (?=%0)", "bar.arrive ")),
    "no-wait": ("", replaced(r"\b(?:bar|ready)\.wait\(.*?\);|(?<![.\w])sync\(\w[^()]*\);", ";")),
    "fewer-arrivals": ("", replaced(r"\binit\(&(\w+), (\w+(?:\.x)?)\);", r"init(&\1, \2 / 2);")),
    "no-block-fence": ("", replaced(r"__threadfence_block\(\);", ";")),
    "no-warp-barrier": ("__shared__", replaced(r"__syncwarp\(\);", ";")),
    "plain-flag": ("", replaced(r"__shared__ volatile ", "__shared__ ")),
}


# By list the operators: which texts they are for, and their sites.
OF = {PLANTED: {name: ("", sites) for name, sites in OPERATORS.items()}, IN_SHARED: RACES}
OF[NEWER] = {name: (r"__global__", sites) for name, sites in newer_faults.HOPPER.items()}
OF[NEWER] |= {name: (r"\.visible \.entry", sites) for name, sites in newer_faults.PTX.items()}


def kernels(has_twins):
    found = sorted(compile_corpus.CORPUS.glob("*.cu"))
    return found + (sorted((compile_corpus.CORPUS / "faults").glob("*.twin.cu")) if has_twins else [])


def texts(which):
    if which == NEWER:
        return newer_faults.texts()
    files = kernels(which == IN_SHARED)
    names = [file.relative_to(compile_corpus.CORPUS).as_posix().removesuffix(".cu") for file in files]
    return ((name, file.read_text(encoding="utf-8")) for name, file in zip(names, files))


def mutants(operator, which):
    """All sites of an operator: kernel, first line, the lines there, those in their place."""
    only, sites = OF[which][operator]
    for kernel, text in texts(which):
        lines = text.split("\n")
        for number, after in sites(lines) if re.search(only, text) else ():
            yield {
                "kernel": kernel,
                "operator": operator,
                "line": number + 1,
                "before": lines[number : number + len(after)],
                "after": after,
            }


def draw(which):
    drawn = []
    for operator in OF[which]:
        rng = random.Random(f"{SEED} {operator}")
        sites = list(mutants(operator, which))
        rng.shuffle(sites)
        taken = {}
        for site in sites:  # configurations of one kernel of Triton are that kernel
            taken.setdefault(re.sub(r"-\d+\.sm_\w+$", "", site["kernel"]), site)
        drawn += list(taken.values())[: SITES if which != NEWER else NEWER_SITES]
        print(f"{operator}: {len(sites)} sites in {len(taken)} kernels")
    text = ",\n".join(json.dumps(one) for one in drawn)
    (FAULTS / which).write_text(f"[\n{text}\n]\n", encoding="utf-8")
    print(f"{len(drawn)} faults of {len({fault['operator'] for fault in drawn})} operators")


def plain(kernel):
    return pathlib.PurePath(kernel).name.replace(".", "_")


def name_of(fault):
    return f"{plain(fault['kernel'])}-{fault['operator']}"


def planted(which):
    return json.loads((FAULTS / which).read_text(encoding="utf-8"))


def excluded():
    return json.loads((FAULTS / "equivalent.json").read_text(encoding="utf-8"))


def text_of(kernel):
    if kernel.startswith("triton/"):
        return newer_faults.triton_cases()[kernel]["kernel.ptx"].decode()
    return (compile_corpus.CORPUS / f"{kernel}.cu").read_text(encoding="utf-8")


def mutated(fault):
    lines = text_of(fault["kernel"]).split("\n")
    at = slice(fault["line"] - 1, fault["line"] - 1 + len(fault["before"]))
    if lines[at] != fault["before"]:
        raise SystemExit(f"{fault['kernel']}: line {fault['line']} is not what it was when it was drawn")
    lines[at] = fault["after"]
    return "\n".join(lines)


def show(which):
    for fault in planted(which):
        print(f"{name_of(fault)}:{fault['line']}")
        for sign, lines in (("-", fault["before"]), ("+", fault["after"])):
            for line in lines:
                print(f"  {sign} {line.strip()}")


def sources(which):
    """Name, text, launch file and whether it is a fault, of each that is built; of Triton's kernels, the kernel for the
    launch file."""
    out = set(excluded())
    used = {}

    def launch_of(kernel):
        return kernel if kernel.startswith("triton/") else compile_corpus.declaration(compile_corpus.CORPUS / f"{kernel}.cu")

    for fault in planted(which):
        if name_of(fault) not in out:
            yield name_of(fault), mutated(fault), launch_of(fault["kernel"]), True
            used[fault["kernel"]] = None
    for file in sorted((compile_corpus.CORPUS / "faults").glob("*.cu")) if which == IN_SHARED else ():
        if file.read_text(encoding="utf-8").startswith("// fault: shared-race"):
            yield plain(file.stem), file.read_text(encoding="utf-8"), compile_corpus.declaration(file), True
            used[f"faults/{file.stem}.twin"] = None
    for kernel in sorted(used):
        yield plain(kernel), text_of(kernel), launch_of(kernel), False
    if which != PLANTED:
        return
    unseen = FAULTS / "unseen"
    for file in sorted(unseen.glob("*.cu")):
        is_twin = file.stem.endswith("_twin")
        yield file.stem, file.read_text(encoding="utf-8"), unseen / f"{file.stem.removesuffix('_twin')}.toml", not is_twin


class Launch:
    """A launch file as the driver takes it: the bytes of each parameter, and the buffers that they point to."""

    def __init__(self, folder, table, ptx):
        self.folder, self.buffers, self.maps, self.seed = folder, [], [], 0
        head = re.search(r"\.visible \.entry (\w+)\s*\((.*?)\)", ptx, re.DOTALL)
        params = re.findall(r"\.param (?:\.align \d+ )?\.(\w+)[^,\[]*(?:\[(\d+)\])?", head[2])
        self.entry = head[1]
        self.args = []
        for argument, (ty, size) in zip(table.get("args", []), params, strict=True):
            self.args.append(self.argument(argument, ty, int(size or 0)))
        self.variables = [[v["name"], self.made(v).stored.tobytes().hex()] for v in table.get("symbols", [])]

    def made(self, table):
        self.seed += 1
        usual = {"type": "f32", "fill": "values" if "values" in table else "uniform"}
        return corpus_reference.Buffer.of(usual | table, self.seed)

    def field(self, table, ty, data, pointers):
        """Appends an argument, or a field of one, aligned to its size."""
        if "value" not in table:
            stored = (self.folder / table["file"]).read_bytes() if "file" in table else None
            buffer = self.made(table) if stored is None else None
            data += bytes(-len(data) % 8)
            if "map" in table:  # in place of a pointer
                self.maps.append([len(self.args), len(self.buffers), table["type"], table["map"]])
            else:
                pointers.append([len(data), len(self.buffers)])
            data += bytes(128 if "map" in table else 8)
            stored = stored if buffer is None else None if buffer.fill == "unwritten" else buffer.stored.tobytes()
            kept = None if stored is None else base64.b64encode(zlib.compress(stored)).decode()
            size = len(stored) if buffer is None else buffer.stored.nbytes
            self.buffers.append({"name": table["name"], "bytes": size, "data": kept})
            return
        ty = table.get("type", ty)
        if ty in ("bf16", "f16", "f32", "f64"):
            stored = np.float64(table["value"]).astype(corpus_reference.STORED[ty]).tobytes()
        else:
            size = int(ty[1:]) // 8
            stored = (int(table["value"]) % (1 << 8 * size)).to_bytes(size, "little")
        data += bytes(-len(data) % len(stored)) + stored

    def argument(self, table, ty, size):
        data, pointers = bytearray(), []
        for field in table.get("struct", [table]):
            self.field(field, "i32" if "struct" in table else ty, data, pointers)
        data += bytes(max(size - len(data), 0))
        return [bytes(data).hex(), pointers]


def case(folder, name, is_fault):
    table = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    launch = Launch(folder, table, (folder / f"{name}.ptx").read_text(encoding="utf-8"))
    axes = {key: (table[key] + [1, 1])[:3] for key in ("grid", "block")}
    told = {"name": name, "fault": is_fault, "entry": launch.entry, "shared": table.get("shared", 0)}
    return told | axes | {"args": launch.args, "maps": launch.maps, "variables": launch.variables, "buffers": launch.buffers}


def build(folder, jobs, which):
    """Leaves NAME.cu, NAME.toml, NAME.ptx, NAME.cubin, built.json with what did not compile, and cases.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = compile_corpus.environment()

    def one(given):
        name, text, declaration, is_fault = given
        told = {"name": name, "fault": is_fault, "why": None}
        if isinstance(declaration, str):
            newer_faults.written(folder, name, declaration, text)
            return told | {"why": newer_faults.assembled(folder, name)}
        source = folder / f"{name}.cu"
        launch = declaration.read_text(encoding="utf-8")
        (folder / f"{name}.toml").write_text(launch, encoding="utf-8")
        source.write_text(text, encoding="utf-8")
        arch = tomllib.loads(launch).get("arch", "sm_80")
        for command in (
            [tools / "nvcc", *compile_corpus.FLAGS, f"-arch={arch}", source.name, "-o", f"{name}.ptx"],
            [tools / "ptxas", f"-arch={max(arch, TARGET)}", "--generate-line-info", f"{name}.ptx", "-o", f"{name}.cubin"],
        ):
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
            if ran.returncode:
                return told | {"why": ran.stderr.strip()[:300]}
        return told

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        told = list(pool.map(one, sources(which)))
    for failed in (t for t in told if t["why"]):
        print(f"{failed['name']}: {failed['why']}", file=sys.stderr)
    (folder / "built.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    cases = [case(folder, t["name"], t["fault"]) for t in told if not t["why"]]
    (folder / "cases.json").write_text(json.dumps(cases) + "\n", encoding="utf-8")
    print(f"{sum(t['fault'] for t in told)} faults, {sum(not t['fault'] for t in told)} others")


def ours(folder, program, jobs):
    """Leaves ours.json: for each the findings of `flashcore check`, or why there are none."""

    def one(told):
        name = told["name"]
        command = [program, "check", f"{name}.ptx", "--launch", f"{name}.toml", "--profile", "h200", "--json"]
        try:
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            return name, {"why": "more than 300 s"}
        try:
            return name, {"code": ran.returncode, "said": json.loads(ran.stdout)}
        except ValueError:
            return name, {"code": ran.returncode, "why": (ran.stderr or ran.stdout).strip()[:400]}

    told = json.loads((folder / "built.json").read_text(encoding="utf-8"))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        found = dict(pool.map(one, [t for t in told if not t["why"]]))
    (folder / "ours.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(f"{len(found)} checked")


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("what", choices=["draw", "show", "build", "ours", "table"])
    usage.add_argument("folder", type=pathlib.Path, nargs="?")
    usage.add_argument("results", type=pathlib.Path, nargs="?")
    usage.add_argument("--flashcore", type=pathlib.Path, metavar="PROGRAM")
    usage.add_argument("--jobs", type=int, default=2, metavar="N")
    usage.add_argument("--races", dest="of", action="store_const", const=IN_SHARED, help="races in shared memory")
    usage.add_argument("--newer", dest="of", action="store_const", const=NEWER, help="for Hopper, and in Triton's PTX")
    usage.set_defaults(of=PLANTED)
    options = usage.parse_args()
    if options.what == "draw":
        draw(options.of)
    elif options.what == "show":
        show(options.of)
    elif options.what == "build" and options.folder:
        build(options.folder, options.jobs, options.of)
    elif options.what == "ours" and options.folder and options.flashcore:
        ours(options.folder, options.flashcore.resolve(), options.jobs)
    elif options.what == "table" and options.results:
        import fault_table

        fault_table.main(options.folder, options.results)
    else:
        usage.error("FOLDER, RESULTS or --flashcore is missing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
