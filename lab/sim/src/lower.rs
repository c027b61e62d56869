//! Lowers a kernel's tree to a flat [`Program`].

use std::collections::{HashMap, HashSet};

use flashcore_ir::inst::{BulkInst, Inst, Object, Space, StoreSource};
use flashcore_ir::{Kernel, Node, Operand, Reg, RegClass, SiteId};

use crate::assigned;
use crate::error::SimError;
use crate::program::{CONST, Op, PRED_FALSE, PRED_TRUE, Program, Row};
use crate::report::Class;
use crate::rows::Rows;

pub(crate) fn lower(kernel: &Kernel) -> Result<Program, SimError> {
    let unproven = assigned::unproven(kernel);
    let rows = Rows::assign(kernel, &unproven)?;
    let params = kernel.params().len();
    let mut lowering = Lowering {
        kernel,
        program: Program {
            rows32: rows.rows32,
            rows64: rows.rows64,
            preds: rows.preds,
            granule_shift: 2,
            stored: vec![false; params],
            loaded: vec![false; params],
            atomics: vec![false; params],
            ..Program::default()
        },
        rows,
        consts32: HashMap::new(),
        consts64: HashMap::new(),
        unproven,
        tracked: HashMap::new(),
        breaks: Vec::new(),
        fragments: HashMap::new(),
        touched: HashSet::new(),
    };
    lowering.find_fragments();
    lowering.nodes(kernel.body())?;
    let site = lowering.program.sites.last().copied().unwrap_or(SiteId(0));
    lowering.push(Op::Exit, Class::Structure, site);
    let constants = lowering.program.consts32.len().max(lowering.program.consts64.len());
    if constants > usize::from(CONST) {
        return Err(SimError::TooManyConstants {
            constants,
            allowed: usize::from(CONST),
        });
    }
    Ok(lowering.program)
}

pub(crate) struct Lowering<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) program: Program,
    rows: Rows,
    consts32: HashMap<u32, Row>,
    consts64: HashMap<u64, Row>,
    unproven: HashSet<Reg>,
    tracked: HashMap<Reg, u32>,
    /// For each open loop, the positions of its `BreakIf`s, whose target is not known yet.
    breaks: Vec<Vec<usize>>,
    /// The fragment of each register that products use.
    pub(crate) fragments: HashMap<Reg, u16>,
    /// Fragments read or written since products last started or ended.
    touched: HashSet<(u16, bool)>,
}

impl Lowering<'_> {
    fn push(&mut self, op: Op, class: Class, site: SiteId) -> usize {
        if class == Class::Control || matches!(op, Op::LoopBegin | Op::EndIf) {
            self.touched.clear();
        }
        self.program.ops.push(op);
        self.program.classes.push(class);
        self.program.sites.push(site);
        self.program.ops.len() - 1
    }

    /// Marks the next operation as the start of the next node.
    fn note_node(&mut self) {
        self.program.nodes.push(self.program.ops.len() as u32);
    }

    fn nodes(&mut self, nodes: &[Node]) -> Result<(), SimError> {
        for node in nodes {
            match node {
                Node::Inst { inst, site } => self.inst(inst, *site)?,
                Node::If {
                    condition,
                    then,
                    otherwise,
                    site,
                } => {
                    self.check_reads(&[(condition.pred, 1)], *site);
                    let pred = self.rows.row(condition.pred);
                    let uniform = condition.uniform;
                    self.note_node();
                    let begin = self.push(
                        Op::If {
                            pred,
                            uniform,
                            otherwise: 0,
                        },
                        Class::Control,
                        *site,
                    );
                    self.nodes(then)?;
                    let mut to_end = None;
                    if !otherwise.is_empty() {
                        to_end = Some(self.push(Op::Else { end: 0 }, Class::Control, *site));
                    }
                    let otherwise_at = self.program.ops.len() as u32;
                    self.nodes(otherwise)?;
                    let end = self.push(Op::EndIf, Class::Structure, *site) as u32;
                    self.program.ops[begin] = Op::If {
                        pred,
                        uniform,
                        otherwise: otherwise_at,
                    };
                    if let Some(at) = to_end {
                        self.program.ops[at] = Op::Else { end };
                    }
                }
                Node::Loop { body, site } => {
                    self.note_node();
                    self.push(Op::LoopBegin, Class::Structure, *site);
                    let start = self.program.ops.len() as u32;
                    self.breaks.push(Vec::new());
                    self.nodes(body)?;
                    self.push(Op::LoopEnd { start }, Class::Control, *site);
                    let after = self.program.ops.len() as u32;
                    for at in self.breaks.pop().unwrap_or_default() {
                        if let Op::BreakIf { end, .. } = &mut self.program.ops[at] {
                            *end = after;
                        }
                    }
                }
                Node::BreakIf { condition, site } => {
                    self.check_reads(&[(condition.pred, 1)], *site);
                    let op = Op::BreakIf {
                        pred: self.rows.row(condition.pred),
                        uniform: condition.uniform,
                        end: 0,
                    };
                    self.note_node();
                    let at = self.push(op, Class::Control, *site);
                    if let Some(breaks) = self.breaks.last_mut() {
                        breaks.push(at);
                    }
                }
            }
        }
        Ok(())
    }

    fn inst(&mut self, inst: &Inst, site: SiteId) -> Result<(), SimError> {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        inst.visit_regs(|reg, n| reads.push((reg, n)), |reg, n| writes.push((reg, n)));
        self.check_reads(&reads, site);
        self.note(inst);
        match inst {
            Inst::Wgmma(_) => self.touched.clear(),
            _ => self.touch(&reads, &writes, site),
        }
        let (op, class) = self.decode(inst).ok_or_else(|| SimError::NoSuchInstruction {
            instruction: flashcore_ir::ptx::mnemonic(inst),
        })?;
        self.note_node();
        self.push(op, class, site);
        for (first, n) in writes {
            for reg in (0..n).map(|i| first.plus(i)) {
                if self.unproven.contains(&reg) {
                    let tracked = self.tracked(reg);
                    self.push(Op::MarkWritten { tracked }, Class::Structure, site);
                }
            }
        }
        Ok(())
    }

    /// Emits checks before an instruction that touches product registers. One check is enough until
    /// products start or end.
    fn touch(&mut self, reads: &[(Reg, u32)], writes: &[(Reg, u32)], site: SiteId) {
        if self.fragments.is_empty() {
            return;
        }
        for (regs, write) in [(reads, false), (writes, true)] {
            for reg in regs.iter().flat_map(|&(first, n)| (0..n).map(move |i| first.plus(i))) {
                if let Some(&fragment) = self.fragments.get(&reg)
                    && self.touched.insert((fragment, write))
                {
                    self.push(Op::Touch { fragment, write }, Class::Structure, site);
                }
            }
        }
    }

    fn check_reads(&mut self, reads: &[(Reg, u32)], site: SiteId) {
        for &(first, n) in reads {
            for reg in (0..n).map(|i| first.plus(i)) {
                if self.unproven.contains(&reg) {
                    let tracked = self.tracked(reg);
                    self.push(Op::CheckWritten { tracked }, Class::Structure, site);
                }
            }
        }
    }

    fn tracked(&mut self, reg: Reg) -> u32 {
        if let Some(&index) = self.tracked.get(&reg) {
            return index;
        }
        let index = self.program.tracked.len() as u32;
        let name = self.kernel.reg_name(reg).unwrap_or("a variable").to_string();
        self.program.tracked.push(name);
        self.tracked.insert(reg, index);
        index
    }

    /// Records which memory features an instruction needs.
    fn note(&mut self, inst: &Inst) {
        let program = &mut self.program;
        let param = |object: &Object| match object {
            Object::Param(index) => Some(*index as usize),
            Object::Shared(_) => None,
        };
        match inst {
            Inst::Ld { space, dst, addr, .. } => {
                if *space != Space::Global && dst.class == RegClass::B16 {
                    program.granule_shift = 1;
                }
                if let Some(index) = param(&addr.object) {
                    program.loaded[index] = true;
                }
            }
            Inst::St { space, src, addr, .. } => {
                let narrow = match src {
                    StoreSource::Regs(reg) => reg.class == RegClass::B16,
                    StoreSource::Imm(ty, _) => ty.bytes() == 2,
                };
                if *space != Space::Global && narrow {
                    program.granule_shift = 1;
                }
                if let Some(index) = param(&addr.object) {
                    program.stored[index] = true;
                }
            }
            Inst::CpAsync { src, .. } => {
                program.uses_cp_async = true;
                if let Some(index) = param(&src.object) {
                    program.loaded[index] = true;
                }
            }
            Inst::Bulk(BulkInst::Load { map, .. }) => {
                program.uses_async_proxy = true;
                if let Some(index) = param(&map.object) {
                    program.loaded[index] = true;
                }
            }
            Inst::Bulk(BulkInst::Store { map, .. }) => {
                program.uses_async_proxy = true;
                program.uses_bulk_stores = true;
                if let Some(index) = param(&map.object) {
                    program.stored[index] = true;
                }
            }
            Inst::Bulk(BulkInst::Commit | BulkInst::Wait { .. }) => program.uses_bulk_stores = true,
            Inst::Wgmma(_) => {
                program.uses_async_proxy = true;
                program.uses_products = true;
            }
            Inst::DependencyWait => program.uses_dependency = true,
            Inst::SetMaxRegs { .. } => program.sets_registers = true,
            Inst::Atom { dst, addr, .. } => {
                if let Some(index) = param(&addr.object) {
                    program.atomics[index] = true;
                    program.returning_atomics |= dst.is_some();
                }
            }
            _ => {}
        }
    }

    // ---- Operands

    pub(crate) fn reg(&self, reg: Reg) -> Row {
        self.rows.row(reg)
    }

    /// The rows of `N` contiguous registers; entries past `count` repeat the first.
    pub(crate) fn regs<const N: usize>(&self, first: Reg, count: u32) -> [Row; N] {
        let mut rows = [self.reg(first); N];
        for (i, row) in rows.iter_mut().enumerate().take(count as usize) {
            *row = self.reg(first.plus(i as u32));
        }
        rows
    }

    pub(crate) fn bits32(&mut self, operand: Operand) -> Row {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(bits) => {
                let bits = bits as u32;
                let program = &mut self.program;
                *self.consts32.entry(bits).or_insert_with(|| {
                    program.consts32.push(bits);
                    CONST | (program.consts32.len() - 1) as Row
                })
            }
        }
    }

    pub(crate) fn bits64(&mut self, operand: Operand) -> Row {
        match operand {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(bits) => {
                let program = &mut self.program;
                *self.consts64.entry(bits).or_insert_with(|| {
                    program.consts64.push(bits);
                    CONST | (program.consts64.len() - 1) as Row
                })
            }
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
