#!/usr/bin/env python3
"""Faults in the CUDA kernels of lab/check/corpus, by operators at sites drawn by a seed, for `flashcore check` and
compute-sanitizer.

usage: scripts/plant_faults.py draw [--races]
       scripts/plant_faults.py show [--races]
       scripts/plant_faults.py build FOLDER [--races]
       scripts/plant_faults.py ours FOLDER --flashcore PROGRAM
       scripts/plant_faults.py table FOLDER RESULTS

`draw` writes lab/check/faults/planted.json: SITES sites of each operator, at most one of an operator in a kernel.
`show` prints each with its line before and after. `build` makes sources, PTX and cubins of the drawn faults that
lab/check/faults/equivalent.json does not exclude, of the faults in lab/check/faults/unseen, and of what they are faults
of; scripts/run_sanitizer.py runs these on a GPU. `ours` runs `flashcore check` on them. `table` compares the results.
With --races it is lab/check/faults/races.json, of the operators of races in shared memory, in the corpus and in the
twins of its faults, and in place of `unseen` the corpus's races.

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
import struct
import subprocess
import sys
import tomllib
import zlib

import compile_corpus

try:
    import corpus_reference
except ImportError:  # NumPy
    python = compile_corpus.environment().parents[5] / "bin" / "python"
    os.execv(python, [python, *sys.argv])

ROOT = compile_corpus.ROOT
FAULTS = ROOT / "lab" / "check" / "faults"
SEED, SITES = 58, 7
TARGET = "sm_90"
LISTS = {False: "planted.json", True: "races.json"}


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


def kernels(has_twins):
    found = sorted(compile_corpus.CORPUS.glob("*.cu"))
    return found + (sorted((compile_corpus.CORPUS / "faults").glob("*.twin.cu")) if has_twins else [])


def mutants(operator, is_race):
    """All sites of an operator: kernel, first line, the lines there, those in their place."""
    only, sites = RACES[operator] if is_race else ("", OPERATORS[operator])
    for file in kernels(is_race):
        text = file.read_text(encoding="utf-8")
        lines = text.split("\n")
        for number, after in sites(lines) if re.search(only, text) else ():
            yield {
                "kernel": file.relative_to(compile_corpus.CORPUS).as_posix().removesuffix(".cu"),
                "operator": operator,
                "line": number + 1,
                "before": lines[number : number + len(after)],
                "after": after,
            }


def draw(is_race):
    drawn = []
    for operator in RACES if is_race else OPERATORS:
        rng = random.Random(f"{SEED} {operator}")
        sites = list(mutants(operator, is_race))
        rng.shuffle(sites)
        taken = {}
        for site in sites:
            taken.setdefault(site["kernel"], site)
        drawn += list(taken.values())[:SITES]
        print(f"{operator}: {len(sites)} sites in {len(taken)} kernels")
    text = ",\n".join(json.dumps(one) for one in drawn)
    (FAULTS / LISTS[is_race]).write_text(f"[\n{text}\n]\n", encoding="utf-8")
    print(f"{len(drawn)} faults of {len({fault['operator'] for fault in drawn})} operators")


def plain(kernel):
    return pathlib.PurePath(kernel).name.replace(".", "_")


def name_of(fault):
    return f"{plain(fault['kernel'])}-{fault['operator']}"


def planted(is_race):
    return json.loads((FAULTS / LISTS[is_race]).read_text(encoding="utf-8"))


def excluded():
    return json.loads((FAULTS / "equivalent.json").read_text(encoding="utf-8"))


def mutated(fault):
    file = compile_corpus.CORPUS / f"{fault['kernel']}.cu"
    lines = file.read_text(encoding="utf-8").split("\n")
    at = slice(fault["line"] - 1, fault["line"] - 1 + len(fault["before"]))
    if lines[at] != fault["before"]:
        raise SystemExit(f"{file.name}: line {fault['line']} is not what it was when it was drawn")
    lines[at] = fault["after"]
    return "\n".join(lines)


def show(is_race):
    for fault in planted(is_race):
        print(f"{name_of(fault)}:{fault['line']}")
        for sign, lines in (("-", fault["before"]), ("+", fault["after"])):
            for line in lines:
                print(f"  {sign} {line.strip()}")


def sources(is_race):
    """Name, text, launch file and whether it is a fault, of each that is built."""
    out = set(excluded())
    used = []

    def whole(file, is_fault):
        return plain(file.stem), file.read_text(encoding="utf-8"), compile_corpus.declaration(file), is_fault

    for fault in planted(is_race):
        if name_of(fault) not in out:
            file = compile_corpus.CORPUS / f"{fault['kernel']}.cu"
            yield name_of(fault), mutated(fault), compile_corpus.declaration(file), True
            used.append(file)
    for file in sorted((compile_corpus.CORPUS / "faults").glob("*.cu")) if is_race else ():
        if file.read_text(encoding="utf-8").startswith("// fault: shared-race"):
            yield whole(file, True)
            used.append(file.with_suffix(".twin.cu"))
    for file in sorted(set(used)):
        yield whole(file, False)
    if is_race:
        return
    unseen = FAULTS / "unseen"
    for file in sorted(unseen.glob("*.cu")):
        is_twin = file.stem.endswith("_twin")
        yield file.stem, file.read_text(encoding="utf-8"), unseen / f"{file.stem.removesuffix('_twin')}.toml", not is_twin


FORMATS = {"f16": "e", "f32": "f", "f64": "d", "i8": "b", "i16": "h", "i32": "i", "i64": "q"}


class Launch:
    """A launch file as the driver takes it: the bytes of each parameter, and the buffers that they point to."""

    def __init__(self, table, ptx):
        self.buffers, self.seed = [], 0
        head = re.search(r"\.visible \.entry (\w+)\s*\((.*?)\)", ptx, re.DOTALL)
        params = re.findall(r"\.param (?:\.align \d+ )?\.(\w+)[^,\[]*(?:\[(\d+)\])?", head[2])
        self.entry = head[1]
        given = zip(table.get("args", []), params, strict=True)
        self.args = [self.argument(argument, ty, int(size or 0)) for argument, (ty, size) in given]
        self.variables = [[v["name"], self.made(v).bytes().hex()] for v in table.get("symbols", [])]

    def made(self, table):
        self.seed += 1
        usual = {"type": "f32", "fill": "values" if "values" in table else "uniform"}
        return corpus_reference.Buffer.of(usual | table, self.seed)

    def field(self, table, ty, data, pointers):
        """Appends an argument, or a field of one, aligned to its size."""
        if "value" not in table:
            buffer = self.made(table)
            data += bytes(-len(data) % 8)
            pointers.append([len(data), len(self.buffers)])
            data += bytes(8)
            kept = None if buffer.fill == "unwritten" else base64.b64encode(zlib.compress(buffer.bytes())).decode()
            self.buffers.append({"name": table["name"], "bytes": buffer.stored.nbytes, "data": kept})
            return
        ty = table.get("type", ty)
        if ty in ("bf16",):
            stored = int(corpus_reference.to_bf16(table["value"])).to_bytes(2, "little")
        elif ty in ("f16", "f32", "f64"):
            stored = struct.pack(f"<{FORMATS[ty]}", table["value"])
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
    launch = Launch(table, (folder / f"{name}.ptx").read_text(encoding="utf-8"))
    axes = {key: (table[key] + [1, 1])[:3] for key in ("grid", "block")}
    told = {"name": name, "fault": is_fault, "entry": launch.entry, "shared": table.get("shared", 0)}
    return told | axes | {"args": launch.args, "variables": launch.variables, "buffers": launch.buffers}


def build(folder, jobs, is_race):
    """Leaves NAME.cu, NAME.toml, NAME.ptx, NAME.cubin, built.json with what did not compile, and cases.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = compile_corpus.environment()

    def one(given):
        name, text, declaration, is_fault = given
        source = folder / f"{name}.cu"
        launch = declaration.read_text(encoding="utf-8")
        (folder / f"{name}.toml").write_text(launch, encoding="utf-8")
        source.write_text(text, encoding="utf-8")
        arch = tomllib.loads(launch).get("arch", "sm_80")
        told = {"name": name, "fault": is_fault, "why": None}
        for command in (
            [tools / "nvcc", *compile_corpus.FLAGS, f"-arch={arch}", source.name, "-o", f"{name}.ptx"],
            [tools / "ptxas", f"-arch={TARGET}", "--generate-line-info", f"{name}.ptx", "-o", f"{name}.cubin"],
        ):
            ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
            if ran.returncode:
                return told | {"why": ran.stderr.strip()[:300]}
        return told

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        told = list(pool.map(one, sources(is_race)))
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
        command = [program, "check", f"{name}.ptx", "--launch", f"{name}.toml", "--json"]
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
    usage.add_argument("--races", action="store_true", help="races in shared memory")
    options = usage.parse_args()
    if options.what == "draw":
        draw(options.races)
    elif options.what == "show":
        show(options.races)
    elif options.what == "build" and options.folder:
        build(options.folder, options.jobs, options.races)
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
