//! Rarely used parts of the interpreter loop: findings and traces.

use flashcore_ir::RegClass;
use flashcore_ir::inst::Special;

use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::Row;
use crate::record::Details;
use crate::registers::lanes;
use crate::report::TraceRecord;
use crate::trace;
use crate::undefined::Origin;
use crate::warp::Warp;

#[cold]
#[inline(never)]
pub(crate) fn not_uniform(cluster: &mut Cluster<'_>, warp: &Warp, pc: u32, holds: u32) {
    cluster.report(FindingKind::NotUniform, pc, None, |cluster| {
        let message = format!(
            "a condition declared uniform holds only in lanes {holds:#010x} of {:#010x}",
            warp.active
        );
        Details::new(message, cluster.actor(warp.index, warp.active))
            .help("declare it `divergent`, or compute it from values that all lanes share")
    });
}

#[cold]
#[inline(never)]
pub(crate) fn never_written(cluster: &mut Cluster<'_>, warp: &Warp, pc: u32, tracked: u32, lanes: u32) {
    let (origin, machine) = (warp.origins[tracked as usize], cluster.machine);
    let line = || machine.kernel.kernel_line(machine.program.sites[pc as usize]);
    if let Origin::Lanes { pc: shuffle, absent } = origin {
        return cluster.report(FindingKind::MissingLanes, shuffle, None, |cluster| {
            let message = format!(
                "`shfl.sync` reads from lanes {absent:#010x}, which are not active, and what it gives is used ({})",
                line()
            );
            Details::new(message, cluster.actor(warp.index, lanes))
        });
    }
    if let Origin::Local { pc: load } = origin {
        return cluster.report(FindingKind::NeverWritten, load, None, |cluster| {
            let message = format!(
                "loads bytes of local memory that these threads have not written, and uses them ({})",
                line()
            );
            Details::new(message, cluster.actor(warp.index, lanes))
                .object("local memory".to_string())
                .help("initialise the array or the variable where it is declared")
        });
    }
    let Origin::Register(source) = origin else { return };
    cluster.report(FindingKind::NeverWritten, pc, None, |cluster| {
        let reg = machine.program.tracked[source as usize];
        let name = machine.kernel.reg_name(reg).unwrap_or("a variable");
        let uses = if source == tracked { "reads" } else { "depends on" };
        let message = format!("{uses} register `{name}`, which these lanes have not written");
        Details::new(message, cluster.actor(warp.index, lanes))
            .object(name.to_string())
            .help("initialise it where it is declared")
    });
}

#[cold]
#[inline(never)]
pub(crate) fn division_by_zero(cluster: &mut Cluster<'_>, warp: usize, pc: u32, lanes: u32) {
    cluster.report(FindingKind::DivisionByZero, pc, None, |cluster| {
        let message = "divides an integer by zero; PTX does not specify the result";
        Details::new(message, cluster.actor(warp, lanes))
    });
}

#[cold]
#[inline(never)]
pub(crate) fn record(cluster: &mut Cluster<'_>, warp: &Warp, label: u32, class: RegClass, src: Row) {
    let (k, r) = (&cluster.machine.constants, &warp.registers);
    let bits: Vec<u64> = match class {
        RegClass::Pred => (0..32).map(|lane| u64::from(r.pred(src) >> lane & 1)).collect(),
        RegClass::B64 => r.get::<u64>(k, src).to_vec(),
        RegClass::B16 | RegClass::B32 | RegClass::F32 => r.get::<u32>(k, src).iter().map(|&x| x.into()).collect(),
    };
    let actor = cluster.actor(warp.index, warp.active);
    let options = cluster.machine.options;
    if options.trace_of.is_some_and(|of| of != (actor.block, actor.warp)) {
        return;
    }
    if !options.nonfinite.is_empty() {
        let Some(&ty) = options.nonfinite.get(label as usize) else {
            return;
        };
        let there = lanes(warp.active).any(|lane| trace::nonfinite(ty, bits[lane]).is_some());
        if !there || cluster.out.traces.iter().any(|record| record.index == label) {
            return;
        }
    }
    cluster.out.traces.push(TraceRecord {
        index: label,
        label: cluster.machine.kernel.traces()[label as usize].clone(),
        block: actor.block,
        warp: actor.warp,
        lanes: warp.active,
        class: if class == RegClass::B16 { RegClass::B32 } else { class },
        bits,
    });
}

/// A special register in each lane.
#[inline(never)]
pub(crate) fn special(cluster: &Cluster<'_>, warp: usize, which: Special) -> [u32; 32] {
    let launch = cluster.machine.launch;
    let uniform = match which {
        Special::Tid(dim) => {
            let first = 32 * (warp % cluster.machine.warps_per_block()) as u32;
            let [x, y, _] = cluster.machine.block;
            return std::array::from_fn(|lane| {
                let thread = first + lane as u32;
                [thread % x, thread / x % y, thread / (x * y)][usize::from(dim.min(2))]
            });
        }
        Special::LaneId => return std::array::from_fn(|lane| lane as u32),
        Special::Ntid(dim) => cluster.machine.block[usize::from(dim.min(2))],
        Special::Ctaid(dim) => cluster.actor(warp, 0).block[usize::from(dim.min(2))],
        Special::Nctaid(dim) => launch.grid[usize::from(dim.min(2))],
        // Any nonzero number is valid; this is Hopper's.
        Special::MaxWarps => 64,
        Special::ClusterRank => (warp / cluster.machine.warps_per_block()) as u32,
        Special::ClusterBlocks => cluster.machine.blocks as u32,
    };
    [uniform; 32]
}
