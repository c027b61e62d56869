//! Tensor maps that a kernel makes: `tensormap.replace`, and the copy of one to global memory.

use flashcore_ir::Operand;
use flashcore_ir::inst::{Inst, Special};
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ptx::{Operand as Written, Register};

use super::Reader;
use super::cold::What;
use super::operands::Filled;
use crate::global::number;
use crate::report::Class;

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

    /// Each lane of the warp copies a word. What any of them does afterwards follows the whole copy, which is one of
    /// all lanes (`.sync.aligned`).
    fn copy_map(&mut self, dst: &Written, src: &Written) -> Filled<()> {
        let ((lane, _), (_, word)) = (self.named(RegClass::B32), self.named(RegClass::B32));
        let which = Special::LaneId;
        self.inst(Inst::Special { dst: lane, which });
        for (written, writes) in [(src, false), (dst, true)] {
            let (base, offset) = self.place(written)?;
            let (address, name) = self.named(RegClass::B64);
            let sum = What::Scalar(Box::new(|v| v[0].wrapping_add(4 * v[1])));
            self.cold(sum, Class::Alu, vec![address], vec![base, Operand::Reg(lane)]);
            let place = Written::Memory(Box::new(name), offset);
            if writes {
                self.store(&place, &word, &["global", "b32"])?;
            } else {
                self.load(&word, &place, &["shared::cta", "b32"])?;
            }
        }
        let all = vec![Operand::Imm(u64::from(u32::MAX))];
        self.cold(What::WarpSync, Class::Sync, Vec::new(), all);
        Ok(())
    }
}
