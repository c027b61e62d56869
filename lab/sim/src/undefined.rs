//! What is not defined moves with values, as in Valgrind's memcheck, in kernels of other compilers: registers that were
//! not written, bytes of local memory likewise, and what a shuffle takes from lanes that are not active. It is reported
//! where it decides something: at addresses, branches, operands of synchronisation, and stores to other memory.

use std::collections::HashMap;

use flashcore_ir::Operand;
use flashcore_ir::inst::{Inst, ShflMode, WgmmaInst};
use flashcore_ir::types::{Reg, RegClass};
use rustc_hash::FxHashSet;

use crate::access::{bits, source_of};
use crate::machine::Machine;
use crate::program::Op;
use crate::registers::{FULL, lanes};
use crate::report::Class;
use crate::text::cold::{Access, Cold, LOCAL_WINDOW, Memory, What};
use crate::text::numbers::Ty;
use crate::text::{Code, Step};
use crate::warp::Warp;

/// Where a value that is not defined comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A tracked register that was not written.
    Register(u32),
    /// A shuffle that took the values of these lanes.
    Lanes { pc: u32, absent: u32 },
    /// A load from local memory.
    Local { pc: u32 },
}

/// How the results of an operation depend on its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moves<'k> {
    /// In each lane on all of them.
    Each,
    /// In each lane on this predicate, the first operand, and on the second or the third as it holds or does not.
    Chosen(Reg),
    /// In all lanes on those of all lanes.
    Together,
    Shuffle(ShflMode, &'k Cold),
    /// From local memory, and to it.
    Load(&'k Cold, &'k Access),
    Store(&'k Cold, &'k Access),
}

/// What moves by an operation, by numbers of tracked registers; none for operands that are always defined.
#[derive(Debug)]
pub(crate) struct Flow<'k> {
    pub(crate) moves: Moves<'k>,
    pub(crate) reads: Vec<Option<u32>>,
    pub(crate) writes: Vec<u32>,
}

/// The registers of a step.
pub(crate) struct Parts<'k> {
    pub(crate) moves: Moves<'k>,
    /// Whose values the results depend on.
    pub(crate) from: Vec<Option<Reg>>,
    /// That must be defined.
    pub(crate) checked: Vec<Reg>,
    pub(crate) to: Vec<Reg>,
}

impl<'k> Parts<'k> {
    fn new(
        moves: Moves<'k>,
        from: impl IntoIterator<Item = Option<Reg>>,
        checked: Vec<Reg>,
        to: Vec<Reg>,
    ) -> Parts<'k> {
        Parts {
            moves,
            from: from.into_iter().collect(),
            checked,
            to,
        }
    }
}

fn register(operand: &Operand) -> Option<Reg> {
    match operand {
        Operand::Reg(reg) => Some(*reg),
        Operand::Imm(_) => None,
    }
}

/// The registers of a step; `has_local` says that the kernel has local memory.
pub(crate) fn parts<'k>(step: &'k Step, has_local: bool, halves: &Halves) -> Parts<'k> {
    let [reads, to] = Code::accessed(step);
    if let Some((Op::Pack16(_), _, reads)) = fast(step) {
        let used = halves.of(to[0]);
        let of = |(at, operand): (usize, &Operand)| register(operand).filter(|_| used >> at & 1 != 0);
        return Parts::new(Moves::Each, reads.iter().enumerate().map(of), Vec::new(), to);
    }
    let all = |moves, reads: Vec<Reg>, to| Parts::new(moves, reads.into_iter().map(Some), Vec::new(), to);
    // The first operand moves.
    let first = |moves, cold: &Cold, to| {
        let checked = cold.reads[1..].iter().filter_map(register).collect();
        Parts::new(moves, [register(&cold.reads[0])], checked, to)
    };
    match step {
        Step::Inst(inst) | Step::Like(inst, _) => match inst {
            Inst::Mma { .. } => all(Moves::Together, reads, to),
            // Whether old sums count, the predicate says when it runs.
            Inst::Wgmma(WgmmaInst::Mma {
                d,
                n,
                accumulate: Operand::Reg(_),
                ..
            }) => {
                let is_sum = |reg: &Reg| reg.class == d.class && (d.index..d.index + n / 2).contains(&reg.index);
                decides(reads.into_iter().filter(|reg| !is_sum(reg)).collect(), to)
            }
            _ if Class::of(inst) == Some(Class::Alu) => all(Moves::Each, reads, to),
            _ => decides(reads, to),
        },
        Step::Cold(cold) => match (&cold.what, &cold.reads[..]) {
            (What::Scalar(_) | What::Fast(..), [a, b, Operand::Reg(cond)]) if cond.class == RegClass::Pred => {
                let from = [Some(*cond), register(a), register(b)];
                Parts::new(Moves::Chosen(*cond), from, Vec::new(), to)
            }
            (What::Scalar(_) | What::Fast(..) | What::Test(..), _) => all(Moves::Each, reads, to),
            (What::Shfl(mode), _) => first(Moves::Shuffle(*mode, cold), cold, to[..1].to_vec()),
            (What::Vote(_) | What::Match(_) | What::Redux(..), _) => first(Moves::Together, cold, to),
            (What::Product(_) | What::Transpose, _) => all(Moves::Together, reads, to),
            (What::Access(access), [base, values @ ..]) if has_local && access.is_local() => {
                let is_generic = access.memory == Memory::Generic;
                let (moves, from, checked) = match (access.writes, is_generic) {
                    (false, _) => (Moves::Load(cold, access), Vec::new(), vec![register(base)]),
                    // Of other memory they must be defined.
                    (true, true) => (
                        Moves::Store(cold, access),
                        vec![None; values.len()],
                        cold.reads.iter().map(register).collect(),
                    ),
                    (true, false) => (
                        Moves::Store(cold, access),
                        values.iter().map(register).collect(),
                        vec![register(base)],
                    ),
                };
                Parts::new(
                    moves,
                    from,
                    checked.into_iter().flatten().collect(),
                    cold.writes.clone(),
                )
            }
            _ => decides(reads, to),
        },
        _ => decides(reads, to),
    }
}

/// An operation of a whole warp, with the types and registers of what it reads.
fn fast(step: &Step) -> Option<(Op<'static>, &[Ty], &[Operand])> {
    match step {
        Step::Cold(Cold {
            what: What::Fast(op, types),
            reads,
            ..
        }) => Some((*op, types, reads)),
        _ => None,
    }
}

/// Which halves of registers are used: bit 0 is the lower one. Compilers add pairs of which one is what a register
/// held before, and keep the other.
#[derive(Debug, Default)]
pub(crate) struct Halves(HashMap<Reg, u8>);

const BOTH: u8 = 3;
/// Passes over a program, each of which follows uses through one more turn of its loops: what takes more, which no
/// compiler writes, has all halves used.
const MOST_PASSES: usize = 32;

impl Halves {
    fn of(&self, reg: Reg) -> u8 {
        self.0.get(&reg).copied().unwrap_or(0)
    }

    pub(crate) fn of_code(code: &Code) -> Halves {
        let mut halves = Halves::default();
        for _ in 0..MOST_PASSES {
            let before: u32 = halves.0.values().map(|&used| u32::from(used)).sum();
            for item in code.items.iter().rev() {
                halves.use_of(&item.step);
            }
            if halves.0.values().map(|&used| u32::from(used)).sum::<u32>() == before {
                return halves;
            }
        }
        let reads = code.items.iter().flat_map(|item| {
            let [reads, _] = Code::accessed(&item.step);
            reads
        });
        Halves(reads.map(|reg| (reg, BOTH)).collect())
    }

    fn use_of(&mut self, step: &Step) {
        let [reads, to] = Code::accessed(step);
        let used = |at: usize| self.of(to[at]);
        let is_any = |used: u8| u8::from(used != 0);
        let moved = match fast(step) {
            Some((Op::Pack16(_), _, operands)) => {
                for (at, reg) in operands
                    .iter()
                    .enumerate()
                    .filter_map(|(at, of)| Some((at, register(of)?)))
                {
                    let half = BOTH * (self.of(to[0]) >> at & 1);
                    *self.0.entry(reg).or_default() |= half;
                }
                return;
            }
            Some((Op::Unpack16(_), ..)) => is_any(used(0)) | is_any(used(1)) << 1,
            Some((Op::Halves(..) | Op::FmaHalves(..), [Ty::Halves(_), ..], _)) => used(0),
            Some((Op::Mov32(_), ..)) => used(0),
            _ => BOTH,
        };
        for reg in reads {
            *self.0.entry(reg).or_default() |= moved;
        }
    }
}

/// A step that no value moves by.
fn decides<'k>(checked: Vec<Reg>, to: Vec<Reg>) -> Parts<'k> {
    Parts::new(Moves::Each, [], checked, to)
}

impl Code {
    /// The registers that may hold what is not defined, given those that may be read before they are written.
    pub(crate) fn undefined(&self, unwritten: &FxHashSet<Reg>, halves: &Halves) -> FxHashSet<Reg> {
        let mut found = unwritten.clone();
        for item in self.items.iter().filter(|_| self.local > 0) {
            if let Step::Cold(
                cold @ Cold {
                    what: What::Access(access),
                    ..
                },
            ) = &item.step
                && access.is_local()
            {
                found.extend(&cold.writes);
            }
        }
        let shuffled = self.items.iter().filter_map(|item| match &item.step {
            Step::Cold(
                cold @ Cold {
                    what: What::Shfl(_), ..
                },
            ) => Some(cold),
            _ => None,
        });
        let shuffled: Vec<&Cold> = shuffled.collect();
        if !shuffled.is_empty() {
            let constants = self.constants();
            let is_full = |operand: &Operand| match operand {
                Operand::Imm(bits) => *bits as u32 == FULL,
                Operand::Reg(reg) => constants.get(reg).copied().flatten() == Some(u64::from(FULL)),
            };
            let are_there = self.lanes_stay();
            let partial = shuffled.iter().filter(|cold| !(are_there && is_full(&cold.reads[3])));
            found.extend(partial.map(|cold| cold.writes[0]));
        }
        if found.is_empty() {
            return found;
        }
        let steps: Vec<Parts<'_>> = self
            .items
            .iter()
            .map(|item| parts(&item.step, self.local > 0, halves))
            .collect();
        let mut readers: HashMap<Reg, Vec<usize>> = HashMap::new();
        for (number, parts) in steps.iter().enumerate() {
            for reg in parts.from.iter().flatten() {
                readers.entry(*reg).or_default().push(number);
            }
        }
        let mut next: Vec<Reg> = found.iter().copied().collect();
        while let Some(reg) = next.pop() {
            for &reader in readers.get(&reg).into_iter().flatten() {
                next.extend(steps[reader].to.iter().filter(|reg| found.insert(**reg)));
            }
        }
        found
    }

    /// Registers that are written once, and with which constant if it is one.
    fn constants(&self) -> HashMap<Reg, Option<u64>> {
        let mut constants = HashMap::new();
        for item in &self.items {
            let value = match &item.step {
                Step::Cold(Cold {
                    what: What::Fast(Op::Mov32(_) | Op::Mov64(_), _),
                    reads,
                    ..
                }) => match reads[..] {
                    [Operand::Imm(bits)] => Some(bits),
                    _ => None,
                },
                _ => None,
            };
            for reg in Code::accessed(&item.step)[1].iter() {
                constants.entry(*reg).and_modify(|known| *known = None).or_insert(value);
            }
        }
        constants
    }

    /// Whether blocks have whole warps, and all of their threads end at the end of the text.
    fn lanes_stay(&self) -> bool {
        let threads = self.extra.iter().flat_map(|extra| extra.block).product::<u32>();
        let is_last = |at: usize| at + 1 == self.items.len();
        let mut steps = self.items.iter().map(|item| &item.step).enumerate();
        threads.is_multiple_of(32) && steps.all(|(at, step)| !matches!(step, Step::Exit(_)) || is_last(at))
    }
}

/// What is not defined moves by the operation after `pc`.
#[inline(never)]
pub(crate) fn flow(machine: &Machine<'_>, warp: &mut Warp, pc: u32, number: u32) {
    let flow = &machine.program.flows[number as usize];
    let active = warp.active;
    match flow.moves {
        Moves::Load(cold, access) => return load(machine, warp, pc, (flow, cold, access)),
        Moves::Store(cold, access) => return store(machine, warp, (flow, cold, access)),
        _ => {}
    }
    let (mut undefined, mut origin) = (0u32, None);
    let mut add = |read: Option<u32>, among: u32| {
        let Some(read) = read else { return };
        let missing = !warp.written[read as usize] & among;
        if missing != 0 {
            undefined |= missing;
            origin = Some(warp.origins[read as usize]);
        }
    };
    match flow.moves {
        Moves::Each => flow.reads.iter().for_each(|&read| add(read, active)),
        Moves::Chosen(cond) => {
            let holds = warp.registers.pred(machine.program.rows.row(cond));
            add(flow.reads[1], active & holds);
            add(flow.reads[2], active & !holds);
            add(flow.reads[0], active);
        }
        Moves::Together => {
            flow.reads.iter().for_each(|&read| add(read, active));
            undefined = if undefined == 0 { 0 } else { active };
        }
        Moves::Shuffle(mode, cold) => {
            let [by, clamps] = [1, 2].map(|at| bits(machine, warp, cold.reads[at]));
            let written = flow.reads[0].map_or(FULL, |read| warp.written[read as usize]);
            let mut absent = 0;
            for (lane, (source, _)) in lanes(active).map(|lane| (lane, source_of(mode, lane, by[lane], clamps[lane]))) {
                if active >> source & 1 == 0 {
                    (absent, undefined) = (absent | 1 << source, undefined | 1 << lane);
                } else if written >> source & 1 == 0 {
                    undefined |= 1 << lane;
                    origin = flow.reads[0].map(|read| warp.origins[read as usize]);
                }
            }
            if absent != 0 {
                origin = Some(Origin::Lanes { pc, absent });
            }
        }
        Moves::Load(..) | Moves::Store(..) => {}
    }
    for &write in &flow.writes {
        let written = &mut warp.written[write as usize];
        *written = *written & !active | active & !undefined;
        if let Some(origin) = origin {
            warp.origins[write as usize] = origin;
        }
    }
}

/// By active lane whose address is in local memory, the place of its first byte there.
fn places(machine: &Machine<'_>, warp: &Warp, cold: &Cold, access: &Access) -> Vec<(usize, usize)> {
    let base = bits(machine, warp, cold.reads[0]);
    let frame = machine.local as usize;
    let end = cold.values(access).len() * access.size as usize;
    let of_lane = |lane: usize| {
        let address = base[lane].wrapping_add_signed(access.offset);
        let is_there = access.memory == Memory::Local || Memory::of(address) == Memory::Local;
        let offset = (address & (LOCAL_WINDOW - 1)) as usize;
        (is_there && offset.saturating_add(end) <= frame).then_some((lane, lane * frame + offset))
    };
    lanes(warp.active).filter_map(of_lane).collect()
}

fn load(machine: &Machine<'_>, warp: &mut Warp, pc: u32, (flow, cold, access): (&Flow<'_>, &Cold, &Access)) {
    let (size, places) = (access.size as usize, places(machine, warp, cold, access));
    for (number, &write) in flow.writes.iter().enumerate() {
        warp.written[write as usize] |= warp.active;
        for &(lane, place) in &places {
            let at = place + number * size;
            if warp.local_written[at..at + size].contains(&false) {
                warp.written[write as usize] &= !(1 << lane);
                warp.origins[write as usize] = Origin::Local { pc };
            }
        }
    }
}

fn store(machine: &Machine<'_>, warp: &mut Warp, (flow, cold, access): (&Flow<'_>, &Cold, &Access)) {
    let size = access.size as usize;
    for (lane, place) in places(machine, warp, cold, access) {
        for (number, read) in flow.reads.iter().enumerate() {
            let is_defined = read.is_none_or(|read| warp.written[read as usize] >> lane & 1 != 0);
            let at = place + number * size;
            warp.local_written[at..at + size].fill(is_defined);
        }
    }
}
