//! Tensor maps that a kernel makes: `tensormap.replace`, and the copy of one to global memory.

use flashcore_ir::Operand;
use flashcore_ir::inst::{BinOp, Cvt, Inst, Special};
use flashcore_ir::types::{Reg, RegClass, ScalarType};
use flashcore_ptx::{Operand as Written, Register};

use super::Reader;
use super::operands::Filled;
use crate::global::number;

/// Of each field of a map: where its first number is among the map's bytes, which PTX leaves open, and the bytes of a
/// number.
const FIELDS: [(&str, usize, usize); 10] = [
    ("global_address", 0, 8),
    ("global_stride", 8, 8),
    ("global_dim", 40, 4),
    ("box_dim", 60, 4),
    ("element_stride", 80, 4),
    ("rank", 100, 4),
    ("elemtype", 104, 4),
    ("interleave_layout", 108, 4),
    ("swizzle_mode", 112, 4),
    ("fill_mode", 116, 4),
];

/// The numbers of a field of a map, and of those after it.
pub(crate) fn field(map: &[u8], name: &str) -> Vec<u64> {
    let found = FIELDS.iter().find(|(known, ..)| *known == name);
    found.map_or(Vec::new(), |&(_, at, size)| {
        map[at..].chunks_exact(size).map(number).collect()
    })
}

impl Reader<'_> {
    /// A register with its name in the text, which it has not.
    fn named(&mut self, class: RegClass) -> (Reg, Written) {
        let reg = self.fresh(class, 1);
        self.registers.push(Some(reg));
        (reg, Written::Register(Register(self.registers.len() as u32 - 1)))
    }

    pub(super) fn tensor_map(&mut self, operands: &[Written], words: &[&str]) -> Filled<bool> {
        match operands {
            [dst, src, Written::Integer(128)] if words.contains(&"cp_fenceproxy") => self.copy_map(dst, src)?,
            [Written::Memory(base, offset), numbers @ .., value] => {
                let field = FIELDS.iter().find(|(name, ..)| words.contains(name));
                let &(_, at, size) = field.ok_or("its field is not read")?;
                let number = match numbers {
                    [] => 0,
                    [Written::Integer(number @ 0..5)] => *number as usize,
                    _ => return Ok(false),
                };
                let place = Written::Memory(base.clone(), offset + (at + size * number) as i64);
                self.store(&place, value, words)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Each lane of the warp copies a word.
    fn copy_map(&mut self, dst: &Written, src: &Written) -> Filled<()> {
        let (word, [lane, bytes]) = (
            self.named(RegClass::B32).1,
            [RegClass::B32, RegClass::B64].map(|class| self.fresh(class, 1)),
        );
        let (shl, b32, u64) = (BinOp::Shl, ScalarType::B32, ScalarType::U64);
        let widened = |dst, src| Inst::Cvt {
            op: Cvt::U64FromU32,
            dst,
            src,
        };
        let sum = |op, ty, dst, a, b| Inst::Bin { op, ty, dst, a, b };
        let which = Special::LaneId;
        self.out.extend([
            Inst::Special { dst: lane, which },
            sum(shl, b32, lane, Operand::Reg(lane), Operand::Imm(2)),
            widened(bytes, Operand::Reg(lane)),
        ]);
        for (written, space) in [(src, "shared::cta"), (dst, "global")] {
            let (base, offset) = self.place(written)?;
            let (address, name) = self.named(RegClass::B64);
            match base {
                Operand::Reg(reg) if reg.class == RegClass::B32 => self.out.push(widened(address, base)),
                _ => self.out.push(Inst::Mov {
                    dst: address,
                    src: base,
                }),
            }
            self.out.push(sum(
                BinOp::Add,
                u64,
                address,
                Operand::Reg(address),
                Operand::Reg(bytes),
            ));
            let place = Written::Memory(Box::new(name), offset);
            match space {
                "global" => self.store(&place, &word, &[space, "b32"])?,
                _ => self.load(&word, &place, &[space, "b32"])?,
            }
        }
        Ok(())
    }
}
