//! Instructions that the kernel language has, but for something: bulk copies of other types and ways.

use flashcore_ir::inst::{BulkInst, Inst};
use flashcore_ptx::Operand as Written;

use super::cold::{Unlike, Update, What};
use super::forms::{ADDRESS, IMM};
use super::memory::{items, update_of};
use super::numbers::Ty;
use super::operands::Filled;
use super::{Reader, Step};
use crate::report::Class;

impl Reader<'_> {
    /// An instruction of the kernel language with these operands, but for something.
    pub(super) fn like(&mut self, form: Inst, operands: &[Written], unlike: Unlike) -> Filled<()> {
        let inst = self.fill(&form, operands)?;
        let is_other = unlike.types.is_some() || !unlike.values.is_empty();
        inst.impossible().filter(|_| !is_other).map_or(Ok(()), Err)?;
        self.push(Step::Like(inst, unlike));
        Ok(())
    }

    /// Reads bulk copies that the kernel language has not, and stores that an mbarrier counts.
    pub(super) fn bulk(&mut self, operands: &[Written], words: &[&str]) -> Filled<bool> {
        let has = |word: &str| words.contains(&word);
        let (dst, bytes) = (ADDRESS, IMM);
        let (map, src, bar) = (dst, dst, dst);
        let (mut unlike, mut operands) = (Unlike::default(), operands.to_vec());
        let form = match &operands[..] {
            // It makes later copies faster.
            _ if has("prefetch") => {
                self.cold(What::Nothing, Class::CopyAsync, Vec::new(), Vec::new());
                return Ok(true);
            }
            [Written::Tensor(parts), _] if has("reduce") => {
                let Some(Written::List(coordinates)) = parts.get(1) else {
                    return Ok(false);
                };
                let at = vec![IMM; coordinates.len()];
                // The map says what its elements are.
                unlike.update = Some(Update::ADD_F32);
                BulkInst::Store { map, at, src }
            }
            [_, _, _, _] if has("reduce") => BulkInst::Send { dst, src, bytes, bar },
            [_, _, _] if has("reduce") => BulkInst::Reduce { dst, src, bytes },
            [_, _, _, _, mask] if has("multicast::cluster") => {
                unlike.ranks = Some(self.operand(mask, Ty::Int(16, false))?);
                operands.truncate(4);
                BulkInst::LoadBytes { dst, src, bytes, bar }
            }
            // Of values in registers.
            [to, value, bar_given] if !has("bulk") => {
                let (ty, values) = (Ty::last(words)?, items(value, words)?);
                let values = values.iter().map(|value| self.operand(value, ty));
                (unlike.values, unlike.size) = (values.collect::<Filled<_>>()?, ty.bytes() as usize);
                let bytes_given = Written::Integer((unlike.size * unlike.values.len()) as u64);
                operands = vec![to.clone(), to.clone(), bytes_given, bar_given.clone()];
                BulkInst::Send { dst, src, bytes, bar }
            }
            _ => return Ok(false),
        };
        if unlike.update.is_none() && (has("reduce") || has("relaxed")) {
            unlike.update = Some(update_of(words)?);
        }
        self.like(Inst::Bulk(form), &operands, unlike)?;
        Ok(true)
    }
}
