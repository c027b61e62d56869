//! What making a [`Program`] keeps: rows, constants, tracked registers, fragments of products.

use std::hash::Hash;

use flashcore_ir::inst::{Inst, WgmmaA, WgmmaInst};
use flashcore_ir::{Kernel, Operand, Reg, SiteId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::assigned;
use crate::error::SimError;
use crate::program::{CONST, NOTHING, Op, PRED_FALSE, PRED_TRUE, Program, Row, Used};
use crate::report::Class;
use crate::rows::Rows;
use crate::text::cold::{Cold, Unlike, What};
use crate::text::{Code, Step};
use crate::undefined::{self, Flow, Halves, Moves};

/// The runs of registers of a product: its accumulator, and its operand A.
pub(crate) fn fragments(inst: &Inst) -> Vec<(Reg, u32)> {
    match inst {
        Inst::Wgmma(WgmmaInst::Mma { n, d, a, .. }) => {
            let a = match a {
                WgmmaA::Regs(first) => Some((*first, 4)),
                WgmmaA::Shared(_) => None,
            };
            std::iter::once((*d, n / 2)).chain(a).collect()
        }
        _ => Vec::new(),
    }
}

pub(crate) struct Lowering<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) program: Program<'a>,
    consts32: FxHashMap<u32, Row>,
    consts64: FxHashMap<u64, Row>,
    unproven: FxHashSet<Reg>,
    /// Whether what is not defined moves with values, and by local memory.
    pub(crate) moves: bool,
    has_local: bool,
    pub(crate) halves: Halves,
    tracked: FxHashMap<Reg, u32>,
    /// Fragments read or written since products last started or ended.
    touched: FxHashSet<(u16, bool)>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(kernel: &'a Kernel, code: &Code, rows: Rows, unproven: FxHashSet<Reg>) -> Lowering<'a> {
        Lowering {
            kernel,
            program: Program {
                rows,
                granule_shift: 2,
                used: vec![Used::default(); kernel.params().len()],
                ..Program::default()
            },
            consts32: FxHashMap::default(),
            consts64: FxHashMap::default(),
            unproven,
            moves: code.extra.is_some(),
            has_local: code.local > 0,
            halves: Halves::default(),
            tracked: FxHashMap::default(),
            touched: FxHashSet::default(),
        }
    }

    /// Ends the program. `begins` has the first operation of each instruction of the text, and their end.
    pub(crate) fn finish(mut self, begins: &[u32]) -> Result<Program<'a>, SimError> {
        let classes = &self.program.classes;
        let mut counts = vec![NOTHING; classes.len() + 1];
        let counted = (0u32..).zip(begins.windows(2)).map(|(number, range)| {
            let op = (range[0]..range[1]).find(|&op| classes[op as usize] != Class::Structure)?;
            counts[op as usize] = number;
            Some(op)
        });
        self.program.counted = counted.collect();
        self.program.counts = counts;
        let site = self.program.sites.last().copied().unwrap_or(SiteId(0));
        self.push(Op::Exit, Class::Structure, site);
        let constants = self.program.consts32.len().max(self.program.consts64.len());
        if constants > usize::from(CONST) {
            return Err(SimError::TooManyConstants {
                constants,
                allowed: usize::from(CONST),
            });
        }
        Ok(self.program)
    }

    pub(crate) fn push(&mut self, op: Op<'a>, class: Class, site: SiteId) -> usize {
        if class == Class::Control || matches!(op, Op::Head | Op::Join(_)) {
            self.touched.clear();
        }
        self.program.ops.push(op);
        self.program.classes.push(class);
        self.program.sites.push(site);
        self.program.ops.len() - 1
    }

    pub(crate) fn inst(&mut self, inst: &'a Inst, site: SiteId) -> Result<(), SimError> {
        let [reads, writes] = assigned::accessed(inst);
        if matches!(inst, Inst::Wgmma(_)) {
            self.touched.clear();
        } else {
            self.touch(&reads, &writes, site);
        }
        let (op, class) = self.decode(inst).ok_or_else(|| SimError::NoSuchInstruction {
            instruction: flashcore_ir::ptx::mnemonic(inst),
        })?;
        self.push(op, class, site);
        Ok(())
    }

    pub(crate) fn like(&mut self, inst: &'a Inst, unlike: &'a Unlike, site: SiteId) -> Result<(), SimError> {
        self.inst(inst, site)?;
        self.program.uses_flags |= unlike.update.is_some();
        if let Some(op) = self.program.ops.last_mut() {
            *op = Op::Like(inst, unlike);
        }
        Ok(())
    }

    pub(crate) fn cold(&mut self, cold: &'a Cold, site: SiteId) {
        let [reads, writes] = cold.accessed();
        self.touch(&reads, &writes, site);
        let op = match &cold.what {
            What::Fast(op, types) => self.numbered(*op, types, cold),
            _ => Op::Cold(cold),
        };
        self.note_cold(cold);
        self.push(op, cold.class, site);
    }

    /// Before the operation of a step: checks what it reads, and moves what is not defined.
    pub(crate) fn begin(&mut self, step: &'a Step, site: SiteId) {
        if self.unproven.is_empty() {
            return;
        }
        if !self.moves {
            let [reads, _] = Code::accessed(step);
            return self.check_reads(&reads, site);
        }
        let parts = undefined::parts(step, self.has_local, &self.halves);
        self.check_reads(&parts.checked, site);
        let writes: Vec<u32> = parts.to.iter().filter_map(|reg| self.tracked(*reg)).collect();
        if writes.is_empty() && !matches!(parts.moves, Moves::Store(..)) {
            return;
        }
        let reads = parts.from.iter().map(|reg| self.tracked((*reg)?)).collect();
        let number = self.program.flows.len() as u32;
        let moves = parts.moves;
        self.program.flows.push(Flow { moves, reads, writes });
        self.push(Op::Flow(number), Class::Structure, site);
    }

    /// After the operation of a step.
    pub(crate) fn end(&mut self, step: &Step, site: SiteId) {
        if !self.moves && !self.unproven.is_empty() {
            self.mark_writes(&Code::accessed(step)[1], site);
        }
    }

    fn mark_writes(&mut self, writes: &[Reg], site: SiteId) {
        for &reg in writes {
            if let Some(tracked) = self.tracked(reg) {
                self.push(Op::MarkWritten(tracked), Class::Structure, site);
            }
        }
    }

    /// Checks accesses to product registers, once until products start or end.
    fn touch(&mut self, reads: &[Reg], writes: &[Reg], site: SiteId) {
        for (regs, write) in [(reads, false), (writes, true)] {
            for reg in regs {
                if let Some(&fragment) = self.program.fragment_of.get(reg)
                    && self.touched.insert((fragment, write))
                {
                    self.push(Op::Touch(fragment, write), Class::Structure, site);
                }
            }
        }
    }

    pub(crate) fn check_reads(&mut self, reads: &[Reg], site: SiteId) {
        for &reg in reads {
            if let Some(tracked) = self.tracked(reg) {
                self.push(Op::CheckWritten(tracked), Class::Structure, site);
            }
        }
    }

    /// The number of a register whose reads are checked at run time; `None` for others.
    fn tracked(&mut self, reg: Reg) -> Option<u32> {
        if !self.unproven.contains(&reg) {
            return None;
        }
        let tracked = &mut self.program.tracked;
        Some(*self.tracked.entry(reg).or_insert_with(|| {
            tracked.push(reg);
            tracked.len() as u32 - 1
        }))
    }

    /// Numbers the fragments: the registers of one accumulator or of one operand A.
    pub(crate) fn find_fragments(&mut self, mut runs: Vec<(Reg, u32)>) {
        // Merge overlapping runs into one fragment. In sorted order a run overlaps its predecessor
        // or nothing.
        runs.sort_by_key(|(reg, count)| (reg.class, reg.index, *count));
        let mut merged: Vec<(Reg, u32)> = Vec::new();
        for (reg, count) in runs {
            match merged.last_mut() {
                Some((first, n)) if first.class == reg.class && reg.index < first.index + *n => {
                    *n = (*n).max(reg.index + count - first.index);
                }
                _ => merged.push((reg, count)),
            }
        }
        for (number, run) in merged.iter().enumerate() {
            let name = self.kernel.reg_name(run.0).unwrap_or("operand A");
            self.program.fragments.push(name.to_string());
            let regs = (0..run.1).map(|i| (run.0.plus(i), number as u16));
            self.program.fragment_of.extend(regs);
        }
    }

    // ---- Operands

    pub(crate) fn reg(&self, reg: Reg) -> Row {
        self.program.rows.row(reg)
    }

    pub(crate) fn bits32(&mut self, operand: Operand) -> Row {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(bits) => constant(&mut self.consts32, &mut self.program.consts32, bits as u32),
        }
    }

    pub(crate) fn bits64(&mut self, operand: Operand) -> Row {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(bits) => constant(&mut self.consts64, &mut self.program.consts64, bits),
        }
    }

    pub(crate) fn pred(&self, operand: Operand) -> Row {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(0) => PRED_FALSE,
            Operand::Imm(_) => PRED_TRUE,
        }
    }
}

/// The row of a constant, added to `values` if it is new.
fn constant<T: Copy + Eq + Hash>(rows: &mut FxHashMap<T, Row>, values: &mut Vec<T>, bits: T) -> Row {
    *rows.entry(bits).or_insert_with(|| {
        values.push(bits);
        CONST | (values.len() - 1) as Row
    })
}
