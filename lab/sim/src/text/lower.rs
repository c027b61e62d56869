//! From steps to a [`Program`].

use flashcore_ir::inst::{ClusterInst, Inst};
use flashcore_ir::types::Reg;
use flashcore_ir::{Kernel, Operand};
use rustc_hash::FxHashSet;

use super::cold::What;
use super::{Code, Item, Step};
use crate::assigned::accessed;
use crate::error::SimError;
use crate::lower::{Lowering, fragments};
use crate::program::{self, Op, PRED_TRUE, Program};
use crate::registers::FULL;
use crate::report::Class;
use crate::rows::{Lives, Rows};
use crate::undefined::Halves;

/// A place that is never reached.
const NOWHERE: u32 = u32::MAX;

/// The program of a kernel's text. `kernel` says what stands outside its body.
/// With `is_late` what needs lanes together waits for them.
pub(crate) fn lower<'k>(kernel: &'k Kernel, code: &'k Code, is_late: bool) -> Result<Program<'k>, SimError> {
    let suspects: FxHashSet<Reg> = kernel.maybe_unwritten().collect();
    let is_foreign = code.extra.is_some();
    let pinned = if is_foreign { suspects } else { code.unproven(suspects) };
    let rows = code.rows(&pinned)?;
    let halves = if is_foreign {
        Halves::of_code(code)
    } else {
        Halves::default()
    };
    let tracked = if is_foreign {
        code.undefined(&pinned, &halves)
    } else {
        pinned
    };
    let mut lowering = Lowering::new(kernel, code, rows, tracked);
    lowering.halves = halves;
    let products = code
        .items
        .iter()
        .filter_map(|item| item.step.inst())
        .flat_map(fragments);
    lowering.find_fragments(products.collect());
    let places = Places::of(code);
    let sums = is_foreign.then(|| code.sums());
    // By label the operation that a jump ahead goes to, and that of a jump back.
    let (mut ahead, mut back) = (vec![NOWHERE; code.labels.len()], vec![NOWHERE; code.labels.len()]);
    let mut jumps = Vec::new();
    let joins: FxHashSet<u32> = code.items.iter().filter_map(|item| item.step.join()).collect();
    let (mut number, mut guard, mut is_guarded) = (0, 0, false);
    let mut begins = Vec::with_capacity(code.begins.len());
    for (index, Item { step, site }) in (0u32..).zip(&code.items) {
        while code.begins.get(number as usize) == Some(&index) {
            begins.push(lowering.program.ops.len() as u32);
            if places.meets[number as usize] {
                lowering.push(Op::Join(number), Class::Structure, *site);
            }
            number += 1;
        }
        // A guard is left with the lanes that it was entered with.
        is_guarded = matches!(step, Step::Guard(..)) || is_guarded && !matches!(step, Step::GuardEnd);
        if let Some(members) = step.members().filter(|_| is_late && !is_guarded) {
            let op = Op::Gather(lowering.bits32(members));
            lowering.push(op, Class::Structure, *site);
        }
        match step {
            Step::Inst(inst) => {
                lowering.begin(step, *site);
                lowering.inst(inst, *site)?;
                lowering.end(step, *site);
            }
            Step::Like(inst, unlike) => {
                lowering.begin(step, *site);
                lowering.like(inst, unlike, *site)?;
                lowering.end(step, *site);
            }
            Step::Cold(cold) => {
                lowering.begin(step, *site);
                lowering.cold(cold, *site);
                lowering.end(step, *site);
            }
            Step::Guard(pred, negated) => {
                lowering.check_reads(&[*pred], *site);
                let op = Op::Guard(lowering.reg(*pred), *negated, 0);
                guard = lowering.push(op, Class::Structure, *site);
            }
            Step::GuardEnd => {
                let end = lowering.push(Op::GuardEnd, Class::Structure, *site) as u32 + 1;
                if let Op::Guard(_, _, to) = &mut lowering.program.ops[guard] {
                    *to = end;
                }
            }
            Step::Exit(None) if index as usize + 1 == code.items.len() => {}
            Step::Exit(None) => _ = lowering.push(Op::Exit, Class::Control, *site),
            Step::Exit(Some((pred, negated))) => {
                lowering.check_reads(&[*pred], *site);
                let op = Op::ExitIf(lowering.reg(*pred), *negated);
                lowering.push(op, Class::Control, *site);
            }
            Step::Label(label) => {
                let label = *label as usize;
                ahead[label] = lowering.program.ops.len() as u32;
                if places.is_join[label] {
                    lowering.push(Op::Join(code.labels[label]), Class::Structure, *site);
                }
                if places.is_head[label] {
                    lowering.push(Op::Head, Class::Structure, *site);
                }
                back[label] = lowering.program.ops.len() as u32;
            }
            Step::Jump(jump) => {
                if let Some((pred, _)) = jump.guard {
                    lowering.check_reads(&[pred], *site);
                }
                let (pred, negated) = jump
                    .guard
                    .map_or((PRED_TRUE, false), |(pred, not)| (lowering.reg(pred), not));
                let op = Op::Jump(program::Jump {
                    pred,
                    negated,
                    uniform: jump.uniform && jump.guard.is_some(),
                    falls_to_join: jump.join == Some(number),
                    target: jump.label,
                    place: code.labels[jump.label as usize],
                    join: jump.join.unwrap_or(NOWHERE),
                });
                jumps.push(lowering.push(op, Class::Control, *site));
            }
        }
        if let Some(bits) = sums.as_ref().and_then(|sums| sums.stored(step)) {
            lowering
                .program
                .sums
                .insert(lowering.program.ops.len() as u32 - 1, bits);
        }
    }
    for at in jumps {
        let Op::Jump(mut jump) = lowering.program.ops[at] else {
            continue;
        };
        let label = jump.target as usize;
        jump.target = if ahead[label] <= at as u32 {
            back[label]
        } else {
            ahead[label]
        };
        let is_plain = jump.pred == PRED_TRUE && !joins.contains(&jump.place);
        lowering.program.ops[at] = if is_plain {
            Op::Goto(jump.target)
        } else {
            Op::Jump(jump)
        };
    }
    begins.resize(code.begins.len(), lowering.program.ops.len() as u32);
    lowering.finish(&begins)
}

/// Where paths may meet.
struct Places {
    /// By instruction: whether they do so before it at no label, some by falling through.
    meets: Vec<bool>,
    /// By label: whether paths may meet there, some by falling through.
    is_join: Vec<bool>,
    /// Whether jumps go back there.
    is_head: Vec<bool>,
}

impl Places {
    fn of(code: &Code) -> Places {
        let mut order: Vec<u32> = (0..code.labels.len() as u32).collect();
        order.sort_by_key(|&label| code.labels[label as usize]);
        let (mut is_ahead, mut is_head) = (vec![false; order.len()], vec![false; order.len()]);
        let mut ends = vec![false; code.begins.len() + 1];
        let mut meets = vec![false; code.begins.len() + 1];
        for number in 0..code.begins.len() - 1 {
            for item in &code.items[code.begins[number] as usize..code.begins[number + 1] as usize] {
                match &item.step {
                    Step::Jump(jump) => {
                        let label = jump.label as usize;
                        let is_back = code.labels[label] <= number as u32;
                        is_ahead[label] |= !is_back;
                        is_head[label] |= is_back;
                        ends[number + 1] = jump.guard.is_none();
                        if let Some(join) = jump.join.filter(|_| jump.guard.is_some()) {
                            meets[join as usize] = true;
                        }
                    }
                    Step::Exit(guard) => ends[number + 1] = guard.is_none(),
                    Step::Inst(_)
                    | Step::Like(..)
                    | Step::Cold(_)
                    | Step::Guard(..)
                    | Step::GuardEnd
                    | Step::Label(_) => {}
                }
            }
        }
        meets.iter_mut().zip(&ends).for_each(|(meets, ends)| *meets &= !ends);
        let mut is_join = vec![false; order.len()];
        let mut last = None;
        let mut falls = true;
        for &label in &order {
            let number = code.labels[label as usize];
            if last != Some(number) {
                falls = !ends[number as usize];
            }
            last = Some(number);
            is_join[label as usize] = falls && is_ahead[label as usize];
            falls |= is_ahead[label as usize];
            meets[number as usize] &= !is_join[label as usize];
        }
        Places {
            meets,
            is_join,
            is_head,
        }
    }
}

impl Step {
    /// Where the paths meet that part here.
    fn join(&self) -> Option<u32> {
        match self {
            Step::Jump(jump) => jump.join.filter(|_| jump.guard.is_some()),
            _ => None,
        }
    }

    /// The mask of the lanes that it needs together.
    fn members(&self) -> Option<Operand> {
        let all = Operand::Imm(u64::from(FULL));
        match self {
            Step::Like(Inst::Wgmma(_), _)
            | Step::Inst(
                Inst::Mma { .. }
                | Inst::LdMatrix { .. }
                | Inst::StMatrix { .. }
                | Inst::Elect { .. }
                | Inst::Wgmma(_)
                | Inst::Cluster(ClusterInst::Arrive { aligned: true, .. } | ClusterInst::Wait { aligned: true })
                | Inst::SetMaxRegs { .. },
            ) => Some(all),
            Step::Cold(cold) => match cold.what {
                What::Shfl(_) | What::Vote(_) | What::Match(_) | What::Redux(..) | What::Elect | What::WarpSync => {
                    cold.reads.last().copied()
                }
                What::Product(_) | What::Move(_) | What::Transpose | What::Barrier(_) => Some(all),
                _ => None,
            },
            _ => None,
        }
    }
}

impl Code {
    /// The registers that an item reads, and those that it writes.
    pub(crate) fn accessed(step: &Step) -> [Vec<Reg>; 2] {
        match step {
            Step::Inst(inst) => accessed(inst),
            Step::Like(inst, unlike) => {
                let [mut reads, writes] = accessed(inst);
                reads.extend(unlike.reads());
                [reads, writes]
            }
            Step::Jump(jump) => [jump.guard.iter().map(|(pred, _)| *pred).collect(), Vec::new()],
            Step::Cold(cold) => cold.accessed(),
            Step::Guard(pred, _) | Step::Exit(Some((pred, _))) => [vec![*pred], Vec::new()],
            Step::GuardEnd | Step::Label(_) | Step::Exit(None) => Default::default(),
        }
    }

    pub(crate) fn rows(&self, pinned: &FxHashSet<Reg>) -> Result<Rows, SimError> {
        let mut lives = Lives::default();
        if self.extra.is_some() {
            self.live(&mut lives);
            lives.position = self.items.len() as u32 + 1;
            return lives.assign(self.num_regs, pinned);
        }
        for item in &self.items {
            lives.next();
            Code::accessed(&item.step)
                .concat()
                .into_iter()
                .for_each(|reg| lives.touch(reg));
            if let Step::Jump(jump) = &item.step {
                let start = self.begins[self.labels[jump.label as usize] as usize] + 1;
                if start <= lives.position {
                    lives.repeats(start);
                }
            }
        }
        lives.next();
        lives.assign(self.num_regs, pinned)
    }

    /// The lives of registers, whatever the control flow: from the first place where a value may be needed later, to
    /// the last, in the order of the text. Gives the registers that may be read before they are written.
    pub(super) fn live(&self, lives: &mut Lives) -> FxHashSet<Reg> {
        let items = |block: &flashcore_ptx::Block| {
            let [from, to] = [block.instructions.start, block.instructions.end].map(|at| self.begins[at as usize]);
            from as usize..to as usize
        };
        // By block the registers that are read there before they are written, and those that are written.
        let (mut needed, mut killed) = (Vec::new(), Vec::new());
        for block in &self.flow {
            let (mut reads_here, mut writes_here) = (FxHashSet::default(), FxHashSet::default());
            let mut guarded = false;
            for (at, item) in items(block).zip(&self.items[items(block)]) {
                guarded = matches!(item.step, Step::Guard(..)) || guarded && !matches!(item.step, Step::GuardEnd);
                let [reads, writes] = Code::accessed(&item.step);
                reads
                    .iter()
                    .chain(&writes)
                    .for_each(|reg| lives.cover(*reg, at as u32, at as u32));
                reads_here.extend(reads.into_iter().filter(|reg| !writes_here.contains(reg)));
                if !guarded {
                    writes_here.extend(writes);
                }
            }
            needed.push(reads_here);
            killed.push(writes_here);
        }
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.flow.len() + 1];
        for (number, block) in self.flow.iter().enumerate() {
            block
                .next
                .iter()
                .flatten()
                .for_each(|&next| before[next as usize].push(number));
        }
        // A register that is needed at the begin of a block is so at the end of those before it, and at their begin
        // unless they write it.
        let mut open: Vec<(usize, Reg)> = Vec::new();
        for (number, regs) in needed.iter().enumerate() {
            open.extend(regs.iter().map(|&reg| (number, reg)));
        }
        while let Some((number, reg)) = open.pop() {
            lives.cover(
                reg,
                items(&self.flow[number]).start as u32,
                items(&self.flow[number]).start as u32,
            );
            for &from in &before[number] {
                let end = items(&self.flow[from]).end.saturating_sub(1) as u32;
                lives.cover(reg, end, end);
                if !killed[from].contains(&reg) && needed[from].insert(reg) {
                    open.push((from, reg));
                }
            }
        }
        needed.into_iter().next().unwrap_or_default()
    }

    /// Those of some registers that may be read before they are written.
    fn unproven(&self, mut suspects: FxHashSet<Reg>) -> FxHashSet<Reg> {
        if !suspects.is_empty() {
            let unwritten = self.live(&mut Lives::default());
            suspects.retain(|reg| unwritten.contains(reg));
        }
        suspects
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::KernelBuilder;

    use super::*;

    fn unproven_of(body: impl FnOnce(&KernelBuilder)) -> usize {
        let kernel = Kernel::build("test", 32, body).unwrap();
        Code::of(&kernel)
            .unwrap()
            .unproven(kernel.maybe_unwritten().collect())
            .len()
    }

    #[test]
    fn writes_on_every_path_are_proved() {
        let both = unproven_of(|k| {
            let x = k.var_unwritten::<u32>("x");
            k.if_else(k.lane().lt(5).divergent(), || x.set(1), || x.set(2));
            k.trace("x", x.get());
        });
        let one = unproven_of(|k| {
            let x = k.var_unwritten::<u32>("x");
            k.if_(k.lane().lt(5).divergent(), || x.set(1));
            k.trace("x", x.get());
        });
        let in_loop = unproven_of(|k| {
            let x = k.var_unwritten::<u32>("x");
            k.for_uniform(0u32, 4, 1, |i| x.set(i));
            k.trace("x", x.get());
        });
        assert_eq!((both, one, in_loop), (0, 1, 1));
        // Accumulators are declared unwritten and then zeroed, so no check remains.
        assert_eq!(unproven_of(|k| k.trace("acc", k.acc("acc", 4).var(3).get())), 0);
    }
}
