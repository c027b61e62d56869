#!/usr/bin/env python3
"""Tests what scripts find in made-up machine code and PTX (CI's step "scripts")."""

import pathlib
import struct
import tempfile

import held_operands
import same_machine_code


def loop_of_two_products(computed, loaded_again=False):
    """A loop of two products: one reads the tile in R0 to R3, the other what each iteration computes."""
    lines = [
        "LDSM.16.M88.4 R0, [R12]",
        "HGMMA.64x8x16.F32 R4, R0, gdesc[UR4], RZ, !UPT",
        "@P0 BRA `(.L_x_1)",
        *(f"F2FP.F16.F32.PACK_AB R{register}, R5, R4" for register in range(computed, computed + 4)),
        f"HGMMA.64x8x16.F32 R16, R{computed}, gdesc[UR4], R16, gsb0",
        "@!P1 BRA `(.L_x_0)",
        "EXIT",
    ]
    text = [f"        /*{16 * place:04x}*/  {line} ;" for place, line in enumerate(lines)]
    text.insert(8, ".L_x_1:")
    text.insert(0 if loaded_again else 1, ".L_x_0:")
    return "\n".join(["//----- .text.kernel -----", *text])


def test_held_operands():
    faulty = loop_of_two_products(computed=0)
    assert list(held_operands.overwritten(faulty)) == ["R0 of HGMMA at 0010, loaded by LDSM at 0000, is overwritten by F2FP at 0030"]
    correct = {
        "operands in registers of their own": loop_of_two_products(computed=8),
        "a tile loaded again in each iteration": loop_of_two_products(computed=0, loaded_again=True),
        "no way back": faulty.replace("@!P1 BRA `(.L_x_0)", "NOP"),
    }
    for what, text in correct.items():
        assert not list(held_operands.overwritten(text)), what
    for line, registers in {
        "HGMMA.64x72x16.F32 R24, gdesc[UR24].tnspB, R24": range(24, 60),
        "HGMMA.64x64x16.F16 R24, R8, gdesc[UR24], RZ, !UPT": range(24, 40),
        "LDSM.16.MT88.2 R8, [R3+UR4]": range(8, 10),
        "LDS.U.128 R8, [R3]": range(8, 12),
        "IMAD.WIDE.U32 R8, R3, R4, RZ": range(8, 10),
        "LOP3.LUT P0, R8, R3, 0x1, RZ, 0xc0, !PT": range(8, 9),
        "SHFL.BFLY PT, R8, R3, 0x1, 0x1f": range(8, 9),
        "STS [R8], R3": range(0),
        "BAR.ARV R8, 0x100": range(0),
    }.items():
        opcode, operands = line.split(" ", 1)
        assert held_operands.Instruction("0000", False, opcode, f" {operands} ").written == registers, line
    try:
        list(held_operands.overwritten(faulty.replace("@!P1 BRA", "@!P1 BRX")))
    except RuntimeError:
        return
    raise AssertionError("code that cannot be followed passes")


def test_same_machine_code():
    kernel = """.version 8.0
.visible .entry {name}(
    .param .u64 {name}_param_0, .param .u32 scale
)
{{
    .reg .b32 %r<{count}>; // counts
    ld.param.u32 %r{a}, [scale];
    add.s32 %r{b}, %r{a}, %r{a};
    @%p{a} bra $L{a};
$L{a}:
    mov.u32 %r{a}, %tid.x;
}}"""
    text = lambda **names: same_machine_code.renumbered(kernel.format(**names))
    one = text(name="one", count=9, a=7, b=8)
    assert one == text(name="two", count=3, a=1, b=2), one
    assert "%tid.x" in one and "parameter1" in one and "%r#1" in one, one
    assert one != same_machine_code.renumbered(kernel.format(name="one", count=9, a=7, b=7)), "one register for two"
    assert one != one.replace("add.s32", "sub.s32")
    names = b"\0.text.kernel\0.strtab\0"
    elf = bytearray(64) + b"CODE" + names
    struct.pack_into("<Q", elf, 40, len(elf))
    struct.pack_into("<HHH", elf, 58, 64, 2, 1)
    for name, offset, size in [(1, 64, 4), (14, 68, len(names))]:
        elf += struct.pack("<IIQQQQ", name, 1, 0, 0, offset, size).ljust(64, b"\0")
    assert same_machine_code.machine_code(bytes(elf)) == [b"CODE"]
    with tempfile.TemporaryDirectory() as folder:
        old, new = pathlib.Path(folder, "old"), pathlib.Path(folder, "new")
        for top, lines in [(old, "a 1 2\nb 3\n"), (new, "a 1 2\nb 4\n")]:
            (top / "sm_80").mkdir(parents=True)
            (top / "sm_80" / "launches.txt").write_text(lines)
        assert same_machine_code.compared_launches(old, new) == (1, ["sm_80/b: other launches"])
        assert same_machine_code.compared_launches(old, old) == (2, [])
        (new / "sm_80" / "launches.txt").unlink()
        assert same_machine_code.compared_launches(old, new) == (0, ["sm_80: no launches to compare"])


for test in (test_held_operands, test_same_machine_code):
    test()
print("held_operands.py and same_machine_code.py find what they are for")
