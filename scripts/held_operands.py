"""Finds operands of wgmma that ptxas overwrites while a loop still needs them.

scripts/assemble.py asks `check` about each kernel with wgmma.

wgmma reads operand A from shared memory or from registers. A tile that a loop reads in every iteration
can be loaded to registers once, before it. ptxas 12.4 to 13.0 gave such a tile the registers of another
product's operand, which every iteration computes: from the second iteration on the first product read
the other's operand (docs/hardware-notes.md). The PTX is right, and ptxas says nothing.

For each register of an operand A the instructions whose result may reach the product are collected over
all paths. A load together with an instruction that computes is the fault: kernels here load a tile or
compute it, never one on one path and one on another. Two operands that are both computed look alike.
"""

import re
import subprocess
from typing import NamedTuple

LOADS = {"LD", "LDG", "LDS", "LDSM"}
SPILLED = "LDL"  # the value may be either
# The only ones whose first operand is a register that they read.
WRITE_NONE = {"BAR", "WARPSYNC", "NANOSLEEP"}
NOT_FOLLOWED = {"BRX", "BRXU", "JMP", "JMX", "JMXU", "RET"}
REGISTERS_OF_A = 4  # 64 x 16 elements of 16 bits, or 64 x 32 of 8, in 128 threads
TIMEOUT_S = 120

# /*32c0*/  @!P0 HGMMA.64x64x16.F32 R60, R156, gdesc[UR20], R60 ;
INSTRUCTION = re.compile(
    r"\s*/\*(?P<at>[0-9a-f]{4,})\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);"
)
LABEL = re.compile(r"(?P<name>[.$\w]+):")
FUNCTION = re.compile(r"//-+ \.text\.")
# Predicates that are written come first.
RESULT = re.compile(r"\s*(?:!?U?P(?:\d|T), )*R(?P<number>\d+)\b")


class Instruction(NamedTuple):
    at: str
    conditional: bool
    opcode: str
    operands: str

    @property
    def name(self):
        return self.opcode.split(".")[0]

    @property
    def written(self):
        """Numbers of its registers."""
        first = RESULT.match(self.operands)
        if not first or self.name in WRITE_NONE:
            return range(0)
        kinds = self.opcode.split(".")[1:]
        if self.name.endswith("GMMA"):
            columns = int(re.match(r"64x(\d+)x", kinds[0])[1])
            count = columns // (4 if "F16" in kinds[1] else 2)
        elif self.name == "LDSM":
            count = int(kinds[-1]) if kinds[-1].isdigit() else 1
        elif "128" in kinds:
            count = 4
        else:
            count = 2 if "64" in kinds or "WIDE" in kinds or self.name == "CS2R" else 1
        return range(int(first["number"]), int(first["number"]) + count)

    @property
    def target(self):
        """The label that it may jump to. BSSY names only where threads meet again."""
        found = re.search(r"`\(([^)]+)\)", self.operands)
        return found[1] if found and self.name != "BSSY" else None

    @property
    def continues(self):
        """Whether the next instruction may follow."""
        conditional = self.conditional or self.operands.split("`")[0].strip()  # BRA.DIV UR4, `(.L_x_5)
        return self.name not in ("BRA", "EXIT") or bool(conditional)


def functions(text):
    """Instructions and labels of each function in what `nvdisasm -c` prints."""
    for part in FUNCTION.split(text)[1:]:
        code, labels = [], {}
        for line in part.splitlines():
            if label := LABEL.match(line):
                labels[label["name"]] = len(code)
            elif found := INSTRUCTION.match(line):
                code.append(Instruction(found["at"], bool(found["guard"]), found["opcode"], found["operands"]))
        lost = [i for i in code if i.name in NOT_FOLLOWED or i.target and i.target not in labels]
        if lost:
            raise RuntimeError(f"where {lost[0].opcode} at {lost[0].at} jumps to is not known")
        yield code, labels


def predecessors(code, labels):
    before = [[] for _ in code]
    for place, instruction in enumerate(code):
        following = [place + 1] if instruction.continues else []
        if instruction.target:
            following.append(labels[instruction.target])
        for other in following:
            if other < len(code):
                before[other].append(place)
    return before


def reaching(code, written, before, place, register):
    """The instructions whose value the register may have before the one at `place`."""
    found, seen, left = [], set(), list(before[place])
    while left:
        other = left.pop()
        if other in seen:
            continue
        seen.add(other)
        writes = register in written[other]
        if writes:
            found.append(code[other])
        if not writes or code[other].conditional:
            left += before[other]
    return found


def overwritten(text):
    """A sentence for each product with an operand A that is overwritten."""
    for code, labels in functions(text):
        before = predecessors(code, labels)
        written = [instruction.written for instruction in code]
        for place, product in enumerate(code):
            operand = re.match(r"\s*R\d+, R(\d+)", product.operands)
            if not product.name.endswith("GMMA") or not operand:
                continue
            first = int(operand[1])
            for register in range(first, first + REGISTERS_OF_A):
                sources = reaching(code, written, before, place, register)
                load = next((source for source in sources if source.name in LOADS), None)
                other = next((source for source in sources if source.name not in LOADS | {SPILLED}), None)
                if load and other:
                    yield (
                        f"R{register} of {product.name} at {product.at}, loaded by {load.name} at {load.at}, "
                        f"is overwritten by {other.name} at {other.at}"
                    )
                    break


def check(nvdisasm, cubin):
    """The sentences for a cubin. Raises RuntimeError where its code cannot be read, or what `subprocess` does."""
    run = subprocess.run([nvdisasm, "-c", "-ndf", str(cubin)], capture_output=True, text=True, timeout=TIMEOUT_S)
    if run.returncode != 0 or "GMMA" not in run.stdout:
        raise RuntimeError(f"nvdisasm shows no products: {run.stderr.strip() or run.stdout[:80]}")
    return list(overwritten(run.stdout))
