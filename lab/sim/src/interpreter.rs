//! The interpreter loop.

use flashcore_ir::RegClass;
use flashcore_ir::inst::{BinOp, Cache, FenceInst, Inst, Scope, Space};
use pulp::{Arch, Simd, WithSimd};

use crate::alu;
use crate::cluster::Cluster;
use crate::cold::{division_by_zero, never_written, not_uniform, record, special};
use crate::float::{f, result};
use crate::machine::Machine;
use crate::program::{Access, At, NOTHING, OPERANDS, Op, Row};
use crate::registers::{Word, lanes, map1, map2, map3, select, test2};
use crate::resident::inst_changes_the_block;
use crate::text::cold::{Mbarrier, Unlike, What};
use crate::undefined;
use crate::warp::Warp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Its time slice ended, or the warp exited.
    SliceEnd,
    /// It arrived at a barrier; `released` if it was the last warp.
    Barrier { id: u8, released: bool },
    /// It exceeded its instruction budget.
    Livelock,
}

/// Runs a warp for at most `slice` operations, compiled for the best available instruction set.
pub(crate) fn run_warp<'m>(cluster: &mut Cluster<'m>, warp: &mut Warp, slice: u32) -> Stop {
    if cluster.machine.options.path > 0 {
        return Arch::new().dispatch(TimeSlice::<true> { cluster, warp, slice });
    }
    Arch::new().dispatch(TimeSlice::<false> { cluster, warp, slice })
}

/// With `PATH` it records what the warp executes.
struct TimeSlice<'a, 'm, const PATH: bool> {
    cluster: &'a mut Cluster<'m>,
    warp: &'a mut Warp,
    slice: u32,
}

impl<const PATH: bool> WithSimd for TimeSlice<'_, '_, PATH> {
    type Output = Stop;
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Stop {
        interpret::<PATH>(self.cluster, self.warp, self.slice)
    }
}

/// Notes an operation in a warp's path.
fn record_path(machine: &Machine<'_>, warp: &mut Warp, at: u32) {
    let is_test = match machine.program.ops[at as usize] {
        Op::Cold(cold) => matches!(cold.what, What::Mbarrier(Mbarrier::Test { .. }, _)),
        _ => false,
    };
    match machine.program.counts[at as usize] {
        NOTHING => {}
        _ if warp.path.len() >= machine.options.path => warp.unrecorded += 1,
        number => warp.record(number, is_test),
    }
}

#[inline(always)]
fn interpret<'m, const PATH: bool>(cluster: &mut Cluster<'m>, warp: &mut Warp, slice: u32) -> Stop {
    let machine = cluster.machine;
    let k = &machine.constants;
    let ops = &machine.program.ops[..];
    let budget = machine.options.max_instructions;
    let mut left = slice;
    let mut pc = warp.pc;
    loop {
        if left == 0 {
            warp.pc = pc;
            return Stop::SliceEnd;
        }
        left -= 1;
        let at = pc;
        pc += 1;
        let active = warp.active;
        let count = &mut cluster.out.executed[at as usize];
        count.warps += 1;
        count.lanes += u64::from(active.count_ones());
        if PATH {
            record_path(machine, warp, at);
        }
        let r = &mut warp.registers;
        match ops[at as usize] {
            // Structure
            Op::Head => {}
            Op::Jump(jump) => {
                let holds = r.pred(jump.pred) & active;
                let taken = if jump.negated { active & !holds } else { holds };
                let stays = active & !taken;
                if jump.uniform && taken != 0 && stays != 0 {
                    not_uniform(cluster, warp, at, holds);
                }
                let goes = if stays == 0 {
                    warp.splits.arrive(jump.place, jump.target, active)
                } else if taken != 0 {
                    warp.splits.part(&jump, pc, taken, stays)
                } else {
                    continue;
                };
                (pc, warp.active) = goes;
                if pc <= at && turns_back(warp, active, at, &mut pc, budget) {
                    return Stop::Livelock;
                }
            }
            Op::Goto(target) => {
                pc = target;
                if pc <= at && turns_back(warp, active, at, &mut pc, budget) {
                    return Stop::Livelock;
                }
            }
            Op::Gather(mask) => {
                let needed = r.get::<u32>(k, mask);
                let needed = lanes(active).fold(0, |all, lane| all | needed[lane]) & warp.live;
                if active & needed != needed {
                    (pc, warp.active) = warp.splits.gather(at, active, needed);
                }
            }
            Op::Join(place) => (pc, warp.active) = warp.splits.arrive(place, pc, active),
            Op::Guard(pred, negated, end) => {
                let holds = r.pred(pred) & active;
                warp.guarded = active;
                warp.active = if negated { active & !holds } else { holds };
                if warp.active == 0 {
                    warp.active = active;
                    pc = end;
                }
            }
            Op::GuardEnd => warp.active = warp.guarded,
            Op::ExitIf(pred, negated) => {
                let holds = r.pred(pred) & active;
                let leaves = if negated { active & !holds } else { holds };
                warp.live &= !leaves;
                warp.active = active & !leaves;
                if warp.active == 0 {
                    match warp.splits.next() {
                        Some(next) => (pc, warp.active) = next,
                        None => return cluster.exit(warp, at),
                    }
                }
            }
            Op::Exit => {
                if let Some(next) = warp.splits.next() {
                    warp.live &= !active;
                    (pc, warp.active) = next;
                    continue;
                }
                return cluster.exit(warp, at);
            }
            Op::CheckWritten(tracked) => {
                let missing = active & !warp.written[tracked as usize];
                if missing != 0 {
                    never_written(cluster, warp, at, tracked, missing);
                }
            }
            Op::MarkWritten(tracked) => warp.written[tracked as usize] |= active,
            Op::Flow(number) => {
                undefined::flow(machine, warp, at, number);
                // The schedule is that of the kernel without it.
                left += 1;
            }
            Op::Touch(fragment, write) => cluster.touch(warp, at, fragment, write),

            // Arithmetic
            Op::Mov32(rows) => map1(r, k, active, rows, |x: u32| x),
            Op::Mov64(rows) => map1(r, k, active, rows, |x: u64| x),
            Op::Un32(op, rows) => alu::un32(r, k, active, op, rows),
            Op::AbsS64(rows) => map1(r, k, active, rows, |x: u64| (x as i64).wrapping_abs() as u64),
            Op::Cvt(op, rows) => alu::cvt(r, k, active, op, rows),
            Op::Int32(op, signed, rows) => {
                if matches!(op, BinOp::Div | BinOp::Rem) {
                    check_divisor::<u32>(cluster, warp, at, rows[2]);
                }
                alu::int32(&mut warp.registers, k, active, op, signed, rows);
            }
            Op::Int64(op, signed, rows) => {
                if matches!(op, BinOp::Div | BinOp::Rem) {
                    check_divisor::<u64>(cluster, warp, at, rows[2]);
                }
                alu::int64(&mut warp.registers, k, active, op, signed, rows);
            }
            Op::F32(op, rows) => alu::f32s(r, k, active, op, rows),
            Op::Halves(op, ty, rows) => alu::halves(r, k, active, op, ty, rows),
            Op::FmaF32(rows) => map3(r, k, active, rows, |x, y, z| result(f(x).mul_add(f(y), f(z)))),
            Op::FmaHalves(ty, rows) => alu::halves_fma(r, k, active, ty, rows),
            Op::Mad32(rows) => map3(r, k, active, rows, |x: u32, y: u32, z: u32| {
                x.wrapping_mul(y).wrapping_add(z)
            }),
            Op::Mad64(rows) => map3(r, k, active, rows, |x: u64, y: u64, z: u64| {
                x.wrapping_mul(y).wrapping_add(z)
            }),
            Op::MadWide(false, rows) => map3(r, k, active, rows, |x: u32, y: u32, z: u64| {
                (x as u64 * y as u64).wrapping_add(z)
            }),
            Op::MadWide(true, rows) => map3(r, k, active, rows, |x: u32, y: u32, z: u64| {
                ((x as i32 as i64 * y as i32 as i64) as u64).wrapping_add(z)
            }),
            Op::CvtHalves(to, rows) => alu::cvt_halves(r, k, active, to, rows),
            Op::CvtE4m3(rows) => alu::cvt_e4m3(r, k, active, rows),
            Op::Pack16(rows) => map2(r, k, active, rows, |lo: u32, hi: u32| lo & 0xffff | hi << 16),
            Op::Pack64(rows) => map2(r, k, active, rows, |lo: u32, hi: u32| lo as u64 | (hi as u64) << 32),
            Op::Unpack16([lo, hi, a]) => {
                map1(r, k, active, [lo, a], |x: u32| x & 0xffff);
                map1(r, k, active, [hi, a], |x: u32| x >> 16);
            }
            Op::Unpack64([lo, hi, a]) => {
                map1(r, k, active, [lo, a], |x: u64| x as u32);
                map1(r, k, active, [hi, a], |x: u64| (x >> 32) as u32);
            }
            Op::Lop3(table, rows) => alu::lop3(r, k, active, table, rows),
            Op::Prmt(rows) => map3(r, k, active, rows, alu::prmt),
            Op::Setp32(cmp, number, rows) => {
                let value = alu::setp32(r, k, cmp, number, rows);
                r.set_pred(rows[0], active, value);
            }
            Op::Setp64(cmp, number, rows) => {
                let value = alu::setp64(r, k, cmp, number, rows);
                r.set_pred(rows[0], active, value);
            }
            Op::Selp32(rows) => select::<u32>(r, k, active, rows),
            Op::Selp64(rows) => select::<u64>(r, k, active, rows),
            Op::PredAnd([d, a, b]) => r.set_pred(d, active, r.pred(a) & r.pred(b)),
            Op::PredOr([d, a, b]) => r.set_pred(d, active, r.pred(a) | r.pred(b)),
            Op::PredXor([d, a, b]) => r.set_pred(d, active, r.pred(a) ^ r.pred(b)),
            Op::Cold(cold) => {
                if let Some(stop) = cluster.cold(warp, at, cold) {
                    return stop;
                }
            }
            Op::Like(inst, unlike) => cluster.unlike(warp, at, inst, unlike),
            Op::Inst(inst, ref rows) => {
                if let Some(stop) = instruction(cluster, warp, at, inst, rows) {
                    return stop;
                }
            }
        }
    }
}

/// Executes an instruction other than arithmetic. Returns why the time slice ends, if it does.
#[inline(always)]
fn instruction<'m>(
    cluster: &mut Cluster<'m>,
    warp: &mut Warp,
    pc: u32,
    inst: &Inst,
    rows: &[Row; OPERANDS],
) -> Option<Stop> {
    let machine = cluster.machine;
    let active = warp.active;
    let [first, second, third, ..] = *rows;
    if machine.communicates && inst_changes_the_block(inst) {
        cluster.global.changes += 1;
    }
    match *inst {
        Inst::Ld {
            space,
            dst,
            count,
            ref addr,
            cache,
        } => {
            let count = count as usize & 7;
            let load = Access {
                regs: &rows[..count],
                size: dst.class.bytes(),
                base: rows[count],
                at: At::of(addr, space),
            };
            match space {
                Space::Global => cluster.load_global(warp, pc, load, cache),
                Space::Shared | Space::Cluster => cluster.load_shared(warp, pc, load),
            }
        }
        Inst::St {
            space,
            ref src,
            count,
            ref addr,
            ..
        } => {
            let store = Access {
                regs: &rows[1..1 + (count as usize & 7)],
                size: src.bytes(),
                base: first,
                at: At::of(addr, space),
            };
            match space {
                Space::Global => cluster.store_global(warp, pc, store),
                Space::Shared | Space::Cluster => cluster.store_shared(warp, pc, store),
            }
        }
        Inst::LdMatrix {
            count,
            transposed,
            ref addr,
            ..
        } => {
            let (regs, base) = rows.split_at(count as usize & 7);
            cluster.load_matrix(warp, pc, regs, transposed, (base[0], At::of(addr, Space::Shared)));
        }
        Inst::StMatrix {
            count,
            transposed,
            ref addr,
            ..
        } => {
            let regs = &rows[1..1 + (count as usize & 7)];
            cluster.store_matrix(warp, pc, regs, transposed, (first, At::of(addr, Space::Shared)));
        }
        Inst::Mma { input, acc, .. } => cluster.mma(warp, pc, (input, acc), rows),
        Inst::CpAsync {
            ref dst,
            ref src,
            bytes,
            src_bytes,
            cache,
        } => {
            let (dst, src) = (At::of(dst, Space::Shared), At::of(src, Space::Global));
            let sizes = src_bytes.map(|_| third);
            cluster.cp_async(
                warp,
                pc,
                (first, dst),
                (second, src),
                (bytes, sizes),
                cache == Cache::L2,
            );
        }
        Inst::CpAsyncCommit => cluster.cp_async_commit(warp),
        Inst::CpAsyncWait { pending } => cluster.cp_async_wait(warp, pending),
        Inst::AddFour { ref addr, .. } => {
            let (r, k) = (&warp.registers, &machine.constants);
            let base = *r.get(k, first);
            let values = [1, 2, 3, 4].map(|i| *r.get(k, rows[i]));
            cluster.add_four(warp, pc, At::of(addr, Space::Global), &base, &values);
        }
        Inst::Special { which, .. } => {
            let value = special(cluster, warp.index, which);
            warp.registers.set(first, active, &value);
        }
        Inst::Param { dst, index } => {
            let bits = machine.args[index as usize];
            match dst.class {
                RegClass::B64 => warp.registers.set(first, active, &[bits; 32]),
                _ => warp.registers.set(first, active, &[bits as u32; 32]),
            }
        }
        Inst::SharedBase { .. } => {
            let base = warp.shared_start.wrapping_add(warp.shared_first);
            warp.registers.set(first, active, &[base; 32]);
        }
        Inst::Elect { .. } => cluster.elect(warp, pc, first),
        // The simulator never reorders a thread's own accesses.
        Inst::Fence(FenceInst::Memory(Scope::Block)) => cluster.fence_here(warp),
        Inst::Fence(FenceInst::Memory(scope)) => {
            cluster.fence_here(warp);
            warp.asynchronous.remote_store = None;
            if scope == Scope::Device {
                cluster.fence_gpu(warp);
            }
        }
        Inst::Fence(FenceInst::ProxyAsync) => cluster.fence_proxy(warp),
        // Proxies are told apart in shared memory alone.
        Inst::Fence(FenceInst::ProxyAsyncGlobal) => {}
        Inst::Fence(FenceInst::MbarrierInit) => cluster.fence_mbarriers(warp),
        Inst::TrapIf { .. } => cluster.trap_if(warp, pc, first),
        Inst::DependencyWait => cluster.dependency_wait(warp),
        // Only one launch is simulated at a time.
        Inst::DependencyTrigger => {}
        Inst::Trace { label, src } if machine.options.trace => record(cluster, warp, label, src.class, first),
        Inst::Bulk(ref inst) => cluster.bulk(warp, pc, inst, &Unlike::default()),
        Inst::Wgmma(ref inst) => return stop_unless(cluster.wgmma(warp, pc, inst, None), warp, pc),
        Inst::Cluster(ref inst) => return stop_unless(cluster.across_blocks(warp, pc, inst), warp, pc),
        Inst::SetMaxRegs { regs, raise } => {
            return stop_unless(cluster.set_max_registers(warp, pc, regs, raise), warp, pc);
        }
        // A trace that was not asked for does nothing. Other instructions do not come here (`Class::of` refuses them).
        _ => {}
    }
    None
}

/// How often a warp asks for a word before lanes of it that wait for the others go on.
const POLLS: u32 = 256;

/// A warp whose lanes `came` to `at` goes back to `pc`, or on with lanes that waited if it polls. Whether it has spent
/// its budget.
#[inline(always)]
fn turns_back(warp: &mut Warp, came: u32, at: u32, pc: &mut u32, budget: u64) -> bool {
    if warp.polls >= POLLS {
        (*pc, warp.active) = release(warp, *pc);
        return false;
    }
    warp.executed += u64::from(at - *pc) + 1;
    // Lanes that got their turn at this jump keep it: else two paths would give it back and forth for ever.
    if warp.active & came != 0
        && let Some(next) = warp.splits.other_turn(*pc, warp.active)
    {
        (*pc, warp.active) = next;
    }
    let is_spent = warp.executed > budget;
    if is_spent {
        warp.pc = at;
    }
    is_spent
}

#[cold]
fn release(warp: &mut Warp, pc: u32) -> (u32, u32) {
    warp.polls = 0;
    warp.splits.release(pc, warp.active).unwrap_or((pc, warp.active))
}

/// Ends the time slice at an operation that must be executed again.
fn stop_unless(done: bool, warp: &mut Warp, pc: u32) -> Option<Stop> {
    (!done).then(|| {
        warp.pc = pc;
        Stop::SliceEnd
    })
}

/// Reports lanes that divide by zero.
#[inline(never)]
fn check_divisor<T: Word + PartialEq>(cluster: &mut Cluster<'_>, warp: &Warp, pc: u32, divisor: Row) {
    let divisor: &[T; 32] = warp.registers.get(&cluster.machine.constants, divisor);
    let zero = test2(divisor, &[T::default(); 32], |x, y| x == y) & warp.active;
    if zero != 0 {
        division_by_zero(cluster, warp.index, pc, zero);
    }
}
