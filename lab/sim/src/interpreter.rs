//! The interpreter loop.

use flashcore_ir::inst::Special;
use pulp::{Arch, Simd, WithSimd};

use crate::alu;
use crate::cluster::Cluster;
use crate::cold::{division_by_zero, never_written, not_uniform, record};
use crate::program::{Bin32, Bin64, Op, PredOp};
use crate::registers::{FULL, map1};
use crate::tensor;
use crate::warp::{Frame, Warp};

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
    Arch::new().dispatch(TimeSlice { cluster, warp, slice })
}

struct TimeSlice<'a, 'm> {
    cluster: &'a mut Cluster<'m>,
    warp: &'a mut Warp,
    slice: u32,
}

impl WithSimd for TimeSlice<'_, '_> {
    type Output = Stop;
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Stop {
        interpret(self.cluster, self.warp, self.slice)
    }
}

#[inline(always)]
fn interpret<'m>(cluster: &mut Cluster<'m>, warp: &mut Warp, slice: u32) -> Stop {
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
        let count = &mut cluster.executed[at as usize];
        count.warps += 1;
        count.lanes += u64::from(active.count_ones());
        let r = &mut warp.registers;
        match ops[at as usize] {
            // Structure
            Op::If {
                pred,
                uniform,
                otherwise,
            } => {
                let holds = r.pred(pred) & active;
                let fails = active & !holds;
                if uniform && holds != 0 && fails != 0 {
                    not_uniform(cluster, warp, at, holds);
                }
                warp.frames.push(Frame {
                    before: active,
                    other: fails,
                });
                if holds != 0 {
                    warp.active = holds;
                } else {
                    // Without another branch this is the end of the structure, which restores all
                    // lanes.
                    warp.active = fails;
                    pc = otherwise;
                }
            }
            Op::Else { end } => {
                let other = warp.frames.last().map_or(0, |frame| frame.other);
                if other != 0 {
                    warp.active = other;
                } else {
                    pc = end;
                }
            }
            Op::EndIf => {
                if let Some(frame) = warp.frames.pop() {
                    warp.active = frame.before;
                }
            }
            Op::LoopBegin => warp.frames.push(Frame {
                before: active,
                other: 0,
            }),
            Op::BreakIf { pred, uniform, end } => {
                let leave = r.pred(pred) & active;
                let stay = active & !leave;
                if uniform && leave != 0 && stay != 0 {
                    not_uniform(cluster, warp, at, leave);
                }
                warp.active = stay;
                if stay == 0 {
                    if let Some(frame) = warp.frames.pop() {
                        warp.active = frame.before;
                    }
                    pc = end;
                }
            }
            Op::LoopEnd { start } => {
                pc = start;
                warp.executed += u64::from(at - start) + 1;
                if warp.executed > budget {
                    warp.pc = at;
                    return Stop::Livelock;
                }
            }
            Op::Exit => {
                warp.pc = at;
                cluster.exit(warp, at);
                return Stop::SliceEnd;
            }
            Op::CheckWritten { tracked } => {
                let missing = active & !warp.written[tracked as usize];
                if missing != 0 {
                    never_written(cluster, warp, at, tracked, missing);
                }
            }
            Op::MarkWritten { tracked } => warp.written[tracked as usize] |= active,

            // Arithmetic
            Op::Un32 { f, d, a } => alu::un32(r, k, active, f, d, a),
            Op::Bin32 { f, d, a, b } => {
                if matches!(f, Bin32::DivU | Bin32::DivS | Bin32::RemU | Bin32::RemS) {
                    let zero = crate::registers::test2(r.get(k, b), &[0; 32], |x, y| x == y) & active;
                    if zero != 0 {
                        division_by_zero(cluster, warp.index, at, zero);
                    }
                }
                alu::bin32(r, k, active, f, [d, a, b]);
            }
            Op::Tri32 { f, d, a, b, c } => alu::tri32(r, k, active, f, [d, a, b, c]),
            Op::Lop3 { d, a, b, c, table } => alu::lop3(r, k, active, [d, a, b, c], table),
            Op::Un64 { f, d, a } => alu::un64(r, k, active, f, d, a),
            Op::Bin64 { f, d, a, b } => {
                if matches!(f, Bin64::DivU | Bin64::DivS | Bin64::RemU | Bin64::RemS) {
                    let zero = crate::registers::test2(r.get64(k, b), &[0; 32], |x, y| x == y) & active;
                    if zero != 0 {
                        division_by_zero(cluster, warp.index, at, zero);
                    }
                }
                alu::bin64(r, k, active, f, [d, a, b]);
            }
            Op::Shift64 { left, signed, d, a, b } => alu::shift64(r, k, active, left, signed, [d, a, b]),
            Op::Mad64 { d, a, b, c } => {
                let (a, b, c) = (r.get64(k, a), r.get64(k, b), r.get64(k, c));
                let mut value = [0; 32];
                for i in 0..32 {
                    value[i] = a[i].wrapping_mul(b[i]).wrapping_add(c[i]);
                }
                r.set64(d, active, &value);
            }
            Op::MulWide { signed, d, a, b } => alu::mad_wide(r, k, active, signed, [d, a, b], None),
            Op::MadWide { signed, d, a, b, c } => alu::mad_wide(r, k, active, signed, [d, a, b], Some(c)),
            Op::Widen { signed, d, a } => {
                let a = r.get(k, a);
                let mut value = [0; 32];
                for i in 0..32 {
                    value[i] = if signed { a[i] as i32 as i64 as u64 } else { a[i] as u64 };
                }
                r.set64(d, active, &value);
            }
            Op::Narrow { d, a } => {
                let a = r.get64(k, a);
                let mut value = [0; 32];
                for i in 0..32 {
                    value[i] = a[i] as u32;
                }
                r.set(d, active, &value);
            }
            Op::Unpack16 { lo, hi, a } => {
                map1(r, k, active, lo, a, |x| x & 0xffff);
                map1(r, k, active, hi, a, |x| x >> 16);
            }
            Op::Pack64 { d, lo, hi } => {
                let (lo, hi) = (r.get(k, lo), r.get(k, hi));
                let mut value = [0; 32];
                for i in 0..32 {
                    value[i] = lo[i] as u64 | (hi[i] as u64) << 32;
                }
                r.set64(d, active, &value);
            }
            Op::Unpack64 { lo, hi, a } => {
                let a = *r.get64(k, a);
                r.set(lo, active, &a.map(|x| x as u32));
                r.set(hi, active, &a.map(|x| (x >> 32) as u32));
            }
            Op::Setp32 { cmp, number, d, a, b } => {
                let value = alu::setp32(r, k, cmp, number, a, b);
                r.set_pred(d, active, value);
            }
            Op::Setp64 { cmp, number, d, a, b } => {
                let value = alu::setp64(r, k, cmp, number, a, b);
                r.set_pred(d, active, value);
            }
            Op::Selp32 { d, cond, a, b } => {
                let cond = r.pred(cond);
                let (a, b) = (r.get(k, a), r.get(k, b));
                let mut value = [0; 32];
                for i in 0..32 {
                    value[i] = if cond >> i & 1 != 0 { a[i] } else { b[i] };
                }
                r.set(d, active, &value);
            }
            Op::Selp64 { d, cond, a, b } => {
                let cond = r.pred(cond);
                let (a, b) = (r.get64(k, a), r.get64(k, b));
                let mut value = [0; 32];
                for i in 0..32 {
                    value[i] = if cond >> i & 1 != 0 { a[i] } else { b[i] };
                }
                r.set64(d, active, &value);
            }
            Op::Pred { f, d, a, b } => {
                let (a, b) = (r.pred(a), r.pred(b));
                let value = match f {
                    PredOp::And => a & b,
                    PredOp::Or => a | b,
                    PredOp::Xor => a ^ b,
                };
                r.set_pred(d, active, value);
            }
            Op::PredNot { d, a } => {
                let value = !r.pred(a);
                r.set_pred(d, active, value);
            }
            Op::PredMov { d, a } => {
                let value = r.pred(a);
                r.set_pred(d, active, value);
            }
            Op::Special { d, which } => {
                let value = special(cluster, warp.index, which);
                r.set(d, active, &value);
            }
            Op::Param32 { d, index } => r.set(d, active, &[machine.args[usize::from(index)] as u32; 32]),
            Op::Param64 { d, index } => r.set64(d, active, &[machine.args[usize::from(index)]; 32]),

            // Memory
            Op::LdShared { d, width, at: addr } => cluster.load_shared(warp, at, &d, width, addr),
            Op::StShared { s, width, at: addr } => cluster.store_shared(warp, at, &s, width, addr),
            Op::LdGlobal {
                d,
                width,
                at: addr,
                cache,
            } => cluster.load_global(warp, at, &d, width, addr, cache),
            Op::StGlobal { s, width, at: addr } => cluster.store_global(warp, at, &s, width, addr),
            Op::CpAsync {
                dst,
                src,
                bytes,
                src_bytes,
                past_l1,
            } => cluster.cp_async(warp, at, (dst, src), u32::from(bytes), src_bytes, past_l1),
            Op::CpAsyncCommit => cluster.cp_async_commit(warp),
            Op::CpAsyncWait { pending } => cluster.cp_async_wait(warp, pending),
            Op::LdMatrix {
                d,
                count,
                transposed,
                at: addr,
            } => cluster.load_matrix(warp, at, &d, count, transposed, addr),
            Op::AtomShared {
                op,
                ty,
                d,
                at: addr,
                value,
            } => cluster.atomic_shared(warp, at, (op, ty), d, addr, value),
            Op::AtomGlobal {
                op,
                ty,
                d,
                at: addr,
                value,
            } => cluster.atomic_global(warp, at, (op, ty), d, addr, value),

            // Warp, block, cluster
            Op::Mma { bf16, d, a, b, c } => {
                cluster.check_members(warp, at, FULL, "mma.sync");
                tensor::mma(
                    &mut warp.registers,
                    k,
                    bf16,
                    cluster.machine.options.tensor_sums,
                    (&d, &a, &b, &c),
                );
            }
            Op::MmaF16 { d, a, b, c } => {
                cluster.check_members(warp, at, FULL, "mma.sync");
                tensor::mma_f16(
                    &mut warp.registers,
                    k,
                    cluster.machine.options.tensor_sums,
                    (&d, &a, &b, &c),
                );
            }
            Op::Shfl {
                mode,
                d,
                src,
                lane,
                members,
            } => cluster.shfl(warp, at, mode, [d, src, lane], members),
            Op::Vote { mode, d, pred, members } => cluster.vote(warp, at, mode, d, pred, members),
            Op::Redux { f, d, src, members } => cluster.redux(warp, at, f, d, src, members),
            Op::BarSync { id, threads } => {
                warp.pc = pc;
                let id = cluster.barrier_number(warp, at, id);
                let released = cluster.arrive(warp, at, id, threads, true);
                return Stop::Barrier { id, released };
            }
            Op::BarArrive { id, threads } => {
                warp.pc = pc;
                let id = cluster.barrier_number(warp, at, id);
                let released = cluster.arrive(warp, at, id, threads, false);
                return Stop::Barrier { id, released };
            }
            Op::BarWarp { members } => cluster.sync_lanes(warp, at, members),
            Op::Nothing => {}
            Op::SharedBase { d } => {
                let base = warp.shared_start.wrapping_add(warp.shared_first);
                r.set(d, active, &[base; 32]);
            }
            Op::Touch { fragment, write } => cluster.touch(warp, at, fragment, write),
            Op::Trace { label, file, src } => {
                if machine.options.trace {
                    record(cluster, warp, label, file, src);
                }
            }
            // Asynchronous and cluster operations
            _ => {
                if !asynchronous(cluster, warp, at) {
                    warp.pc = at;
                    return Stop::SliceEnd;
                }
            }
        }
    }
}

/// Executes an asynchronous or cluster operation. Returns false if the warp must wait and retry. A
/// separate function to keep the interpreter loop small.
#[inline(never)]
fn asynchronous(cluster: &mut Cluster<'_>, warp: &mut Warp, pc: u32) -> bool {
    match cluster.machine.program.ops[pc as usize] {
        Op::Fence { cluster: true } => warp.asynchronous.remote_store = None,
        Op::Elect { d } => cluster.elect(warp, pc, d),
        Op::TrapIf { pred } => cluster.trap_if(warp, pc, pred),
        Op::DependencyWait => cluster.dependency_wait(warp),
        Op::FenceProxyAsync => cluster.fence_proxy(warp),
        Op::FenceMbarrierInit => cluster.fence_mbarriers(warp),
        Op::StMatrix {
            s,
            count,
            transposed,
            at,
        } => cluster.store_matrix(warp, pc, &s, count, transposed, at),
        Op::Mapa { d, addr, rank } => cluster.mapa(warp, pc, d, addr, rank),
        Op::ClusterArrive { release, aligned } => cluster.cluster_arrive(warp, pc, release, aligned),
        Op::ClusterWait { aligned } => return cluster.cluster_wait(warp, pc, aligned),
        Op::MbarInit { at, arrivals } => cluster.mbarrier_init(warp, pc, at, arrivals),
        Op::MbarArrive { at, cluster: wide, tx } => cluster.mbarrier_arrive(warp, pc, at, wide, tx),
        Op::MbarExpect { at, tx } => cluster.mbarrier_expect(warp, pc, at, tx),
        Op::MbarTest {
            d,
            at,
            parity,
            blocking,
        } => return cluster.mbarrier_test(warp, pc, d, at, parity, blocking),
        Op::BulkLoad { copy } => cluster.bulk_load(warp, pc, copy),
        Op::BulkStore { copy } => cluster.bulk_store(warp, pc, copy),
        Op::BulkCommit => cluster.bulk_commit(warp),
        Op::BulkWait { pending, read } => cluster.bulk_wait(warp, pending, read),
        Op::WgmmaFence => cluster.wgmma_fence(warp, pc),
        Op::WgmmaCommit => cluster.wgmma_commit(warp, pc),
        Op::Wgmma { product } => cluster.wgmma(warp, pc, product),
        Op::WgmmaWait { pending } => return cluster.wgmma_wait(warp, pc, pending),
        Op::SetMaxRegs { regs, raise } => return cluster.set_max_registers(warp, pc, u32::from(regs), raise),
        // All other operations are handled by the loop.
        _ => {}
    }
    true
}

#[inline(always)]
fn special(cluster: &Cluster<'_>, warp: usize, which: Special) -> [u32; 32] {
    let launch = cluster.machine.launch;
    let mut value = [0; 32];
    let uniform = match which {
        Special::Tid(0) => {
            for (lane, value) in value.iter_mut().enumerate() {
                *value = (32 * (warp % cluster.machine.warps_per_block()) + lane) as u32;
            }
            return value;
        }
        Special::LaneId => {
            for (lane, value) in value.iter_mut().enumerate() {
                *value = lane as u32;
            }
            return value;
        }
        // Blocks are one-dimensional.
        Special::Tid(_) => 0,
        Special::Ntid(dim) => launch.block[usize::from(dim.min(2))],
        Special::Ctaid(dim) => cluster.actor(warp, 0).block[usize::from(dim.min(2))],
        Special::Nctaid(dim) => launch.grid[usize::from(dim.min(2))],
        // Any nonzero number is valid; this is Hopper's.
        Special::MaxWarps => 64,
        Special::ClusterRank => (warp / cluster.machine.warps_per_block()) as u32,
        Special::ClusterBlocks => cluster.machine.blocks as u32,
    };
    value.fill(uniform);
    value
}
