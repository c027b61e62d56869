//! Register allocation: assigns virtual registers to rows.
//!
//! A kernel names thousands of intermediate values, and one row each would not fit in the cache.
//! Registers with disjoint lifetimes share a row. Lifetimes are intervals of the flat program.
//! Registers in different branches of one `if` may share a row because their lanes are disjoint.
//! Loop-carried values live until the end of the loop.

use std::collections::BTreeSet;

use flashcore_ir::{Reg, RegClass};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::SimError;
use crate::program::{CONST, Row};

/// The row of each register, and the sizes of the three register files.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// By class and number.
    rows: [Vec<Row>; RegClass::ALL.len()],
    pub(crate) rows32: usize,
    pub(crate) rows64: usize,
    pub(crate) preds: usize,
}

impl Rows {
    #[inline(always)]
    pub(crate) fn row(&self, reg: Reg) -> Row {
        self.rows[reg.class as usize][reg.index as usize]
    }
}

impl Lives {
    /// The next position.
    pub(crate) fn next(&mut self) {
        self.position += 1;
    }

    /// A register is needed from one position to another.
    pub(crate) fn cover(&mut self, reg: Reg, from: u32, to: u32) {
        let life = self.of.entry(reg).or_insert((from, to));
        *life = (life.0.min(from), life.1.max(to));
    }

    /// A loop whose first position was `start` ends here.
    pub(crate) fn repeats(&mut self, start: u32) {
        self.loops.push((start, self.position));
    }

    pub(crate) fn assign(
        self,
        num_regs: [u32; RegClass::ALL.len()],
        pinned: &FxHashSet<Reg>,
    ) -> Result<Rows, SimError> {
        let mut lives = self;
        let end = lives.position;
        for (start, stop) in &lives.loops {
            for life in lives.of.values_mut() {
                if life.0 < *start && life.1 >= *start && life.1 < *stop {
                    life.1 = *stop;
                }
            }
        }
        for reg in pinned {
            if let Some(life) = lives.of.get_mut(reg) {
                *life = (0, end);
            }
        }

        let mut order: Vec<(Reg, (u32, u32))> = lives.of.into_iter().collect();
        order.sort_by_key(|&(reg, (first, _))| (first, reg.class, reg.index));
        let [mut preds, mut rows32, mut rows64]: [Allocation; 3] = Default::default();
        // The rows of the constants `PRED_FALSE` and `PRED_TRUE`.
        preds.used = 2;
        // A register without instructions keeps row 0 and is never read.
        let mut rows = num_regs.map(|count| vec![0; count as usize]);
        for (reg, (first, last)) in order {
            let row = match reg.class {
                RegClass::Pred => &mut preds,
                RegClass::B16 | RegClass::B32 | RegClass::F32 => &mut rows32,
                RegClass::B64 => &mut rows64,
            }
            .take(first, last);
            if row >= usize::from(CONST) {
                return Err(SimError::TooManyRegisters {
                    live: row + 1,
                    allowed: usize::from(CONST),
                });
            }
            rows[reg.class as usize][reg.index as usize] = row as Row;
        }
        Ok(Rows {
            rows,
            rows32: rows32.used,
            rows64: rows64.used,
            preds: preds.used,
        })
    }
}

/// One register file: live rows with their last position, and free rows.
#[derive(Default)]
struct Allocation {
    live: BTreeSet<(u32, usize)>,
    free: Vec<usize>,
    /// Rows allocated so far.
    used: usize,
}

impl Allocation {
    fn take(&mut self, first: u32, last: u32) -> usize {
        // Strictly before, so that results and operands of an instruction never share a row.
        while let Some(&(until, row)) = self.live.first().filter(|(until, _)| *until < first) {
            self.live.remove(&(until, row));
            self.free.push(row);
        }
        let row = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        self.live.insert((last, row));
        row
    }
}

/// First and last position of every register, and the extent of loops, inner ones first.
#[derive(Default)]
pub(crate) struct Lives {
    pub(crate) position: u32,
    of: FxHashMap<Reg, (u32, u32)>,
    loops: Vec<(u32, u32)>,
}

impl Lives {
    pub(crate) fn touch(&mut self, reg: Reg) {
        let position = self.position;
        self.of.entry(reg).or_insert((position, position)).1 = position;
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Kernel;

    use super::*;
    use crate::text::Code;

    #[test]
    fn long_chains_need_few_rows() {
        let kernel = Kernel::build("chain", 32, |k| {
            let mut x = k.lane();
            for _ in 0..1000 {
                x = x + 1;
            }
            k.trace("x", x);
        });
        let rows = Code::of(&kernel.unwrap()).unwrap().rows(&FxHashSet::default()).unwrap();
        assert_eq!(rows.rows32, 2);
    }

    #[test]
    fn loop_carried_values_keep_their_row() {
        let kernel = Kernel::build("carried", 32, |k| {
            let first = k.lane() + 7;
            k.for_uniform(0u32, 10, 1, |i| {
                let early = first + i;
                k.trace("early", early);
                // Values created after the last use of `first`, before the next iteration.
                let late = k.lane() * 3;
                k.trace("late", late);
            });
        });
        let kernel = kernel.unwrap();
        let rows = Code::of(&kernel).unwrap().rows(&FxHashSet::default()).unwrap();
        let mut dsts = Vec::new();
        kernel.for_each_inst(&mut |inst, _| inst.visit_regs(|_, _| (), |reg, _| dsts.push(reg)));
        // The second instruction computes `first`; no later value in the loop may share its row.
        let first = dsts[1];
        let others = dsts[2..]
            .iter()
            .filter(|reg| !matches!(reg.class, RegClass::Pred | RegClass::B64));
        assert!(others.into_iter().all(|&reg| rows.row(reg) != rows.row(first)));
    }
}
