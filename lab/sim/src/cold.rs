//! Rarely used parts of the interpreter loop: findings and traces.

use flashcore_ir::RegClass;

use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::program::{Row, TraceFile};
use crate::record::Details;
use crate::report::TraceRecord;
use crate::trace;
use crate::warp::Warp;

#[cold]
#[inline(never)]
pub(crate) fn not_uniform(cluster: &mut Cluster<'_>, warp: &Warp, pc: u32, holds: u32) {
    cluster.report(FindingKind::NotUniform, pc, |cluster| {
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
    let name = cluster.machine.program.tracked[tracked as usize].clone();
    cluster.report(FindingKind::NeverWritten, pc, |cluster| {
        let message = format!("reads register `{name}`, which these lanes have not written");
        Details::new(message, cluster.actor(warp.index, lanes))
            .object(name)
            .help("initialise it where it is declared")
    });
}

#[cold]
#[inline(never)]
pub(crate) fn division_by_zero(cluster: &mut Cluster<'_>, warp: usize, pc: u32, lanes: u32) {
    cluster.report(FindingKind::DivisionByZero, pc, |cluster| {
        let message = "divides an integer by zero; PTX does not specify the result";
        Details::new(message, cluster.actor(warp, lanes))
    });
}

#[cold]
#[inline(never)]
pub(crate) fn record(cluster: &mut Cluster<'_>, warp: &Warp, label: u32, file: TraceFile, src: Row) {
    let k = &cluster.machine.constants;
    let r = &warp.registers;
    let (class, bits) = match file {
        TraceFile::Pred => {
            let pred = r.pred(src);
            (
                RegClass::Pred,
                (0..32).map(|lane| u64::from(pred >> lane & 1)).collect(),
            )
        }
        TraceFile::Bits32 => (RegClass::B32, r.get(k, src).iter().map(|&x| u64::from(x)).collect()),
        TraceFile::Float => (RegClass::F32, r.get(k, src).iter().map(|&x| u64::from(x)).collect()),
        TraceFile::Bits64 => (RegClass::B64, r.get64(k, src).to_vec()),
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
        let bits: &Vec<u64> = &bits;
        let there = (0..32).any(|lane| warp.active >> lane & 1 != 0 && trace::is_nonfinite(ty, bits[lane as usize]));
        if !there || cluster.traces.iter().any(|record| record.index == label) {
            return;
        }
    }
    cluster.traces.push(TraceRecord {
        index: label,
        label: cluster.machine.kernel.traces()[label as usize].clone(),
        block: actor.block,
        warp: actor.warp,
        lanes: warp.active,
        class,
        bits,
    });
}
