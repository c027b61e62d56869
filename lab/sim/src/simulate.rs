//! [`simulate`]: runs all blocks of a launch.

use flashcore_ir::{Kernel, Launch};
use rayon::prelude::*;

use crate::cluster::{ClusterResult, Outcome, Running};
use crate::error::SimError;
use crate::finding::Line;
use crate::global::Global;
use crate::machine::Machine;
use crate::merge::Merged;
use crate::report::{Class, Counts, MemorySite, NodeCount, SimOptions, SimReport};
use crate::resident;
use crate::rng::Rng;

/// Clusters that run before a merge. Constant, so that fatal runs report the same on every machine.
const WAVE: u64 = 64;

/// Runs a kernel and reports its errors. `buffers` are in the order of the launch's slots; written
/// ones hold the results afterwards.
///
/// ```
/// use flashcore_ir::{Arg, BufferSpec, Kernel, Launch};
/// use flashcore_sim::{SimOptions, simulate};
/// let kernel = Kernel::build("add_one", 32, |k| {
///     let data = k.param_ptr_mut::<f32>("data");
///     let at = data.offset(k.thread_idx());
///     at.store(at.load() + 1.0);
/// })?;
/// let launch = Launch {
///     grid: [1, 1, 1],
///     block: [32, 1, 1],
///     cluster: [1, 1, 1],
///     dynamic_shared_bytes: 0,
///     buffers: vec![BufferSpec { name: "data", bytes: 128, written: true, align: 16 }],
///     args: vec![Arg::Buffer { slot: 0, byte_offset: 0 }],
/// };
/// let mut data = vec![0u8; 128];
/// let report = simulate(&kernel, &launch, &mut [&mut data], &SimOptions::default())?;
/// assert!(report.is_clean());
/// assert_eq!(data[..4], 1f32.to_le_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The launch does not fit the kernel, or needs a feature that the simulator does not support.
pub fn simulate<B>(
    kernel: &Kernel,
    launch: &Launch,
    buffers: &mut [B],
    options: &SimOptions,
) -> Result<SimReport, SimError>
where
    B: AsRef<[u8]> + AsMut<[u8]>,
{
    let bytes: Vec<u64> = buffers.iter().map(|b| b.as_ref().len() as u64).collect();
    let machine = Machine::new(kernel, launch, &bytes, options)?;
    let tables: Vec<Vec<u8>> = launch
        .tables()
        .map(|table| table.iter().flat_map(|number| number.to_le_bytes()).collect())
        .collect();
    let given = buffers.iter().take(launch.buffers.len()).map(|b| b.as_ref());
    let base: Vec<&[u8]> = given.chain(tables.iter().map(Vec::as_slice)).collect();
    let mut run = Run {
        merged: Merged::default(),
        out: Outcome::new(&machine),
    };
    match options.host_threads {
        0 => run.all(&machine, &base),
        threads => match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
            Ok(pool) => pool.install(|| run.all(&machine, &base)),
            // Without a dedicated pool the run uses rayon's global one; the result is the same.
            Err(_) => run.all(&machine, &base),
        },
    }
    run.merged.check_reads(&machine, &mut run.out.findings);
    let mut counts = Counts::default();
    for (class, count) in machine.program.classes.iter().zip(&run.out.executed) {
        counts.add(*class, *count);
    }
    let report = SimReport {
        kernel: kernel.name().to_string(),
        counts,
        memory: memory_sites(&machine, &run.out),
        nodes: node_counts(&machine, &run.out),
        registers: machine.program.registers(),
        findings: run.out.findings.into_vec(),
        traces: run.out.traces,
        log: run.out.log,
        written: run.merged.written(),
    };
    run.merged.store(buffers);
    Ok(report)
}

struct Run {
    merged: Merged,
    out: Outcome,
}

impl Run {
    fn all(&mut self, machine: &Machine<'_>, base: &[&[u8]]) {
        let all = machine.clusters();
        let (mut first, clusters) = match machine.options.only_block {
            Some(block) => {
                let only = machine.cluster_of(block);
                (only.min(all), only.saturating_add(1).min(all))
            }
            None => (0, all),
        };
        let cluster_blocks = machine.blocks as u64;
        let most = machine.options.first_blocks.unwrap_or(u64::MAX);
        let clusters = clusters.min(most.div_ceil(cluster_blocks));
        let (merged, out) = (&mut self.merged, &mut self.out);
        if machine.communicates {
            let pages = resident::run(machine, base, first..clusters, out);
            merged.add(machine, first, pages, base, &mut out.findings);
            return;
        }
        while first < clusters && !out.findings.is_fatal() {
            let last = clusters.min(first + WAVE);
            let run = |linear| {
                let result = Running::new(machine, Global::new(base), linear).run();
                machine.note_progress();
                result
            };
            let results: Vec<ClusterResult> = (first..last).into_par_iter().map(run).collect();
            let mut atomics = Vec::new();
            for done in results {
                out.add(done.linear, done.out);
                merged.add(machine, done.linear, done.pages, base, &mut out.findings);
                atomics.push((done.linear, done.atomics));
            }
            merged.reduce(&atomics, base, &mut Rng::new(machine.options.seed, !first));
            first = last;
        }
    }
}

fn node_counts(machine: &Machine<'_>, out: &Outcome) -> Vec<NodeCount> {
    let of = |&op: &u32| NodeCount {
        warps: out.executed[op as usize].warps,
        lanes: out.executed[op as usize].lanes,
        transactions: out.traffic.get(op as usize).map_or(0, |traffic| traffic.transactions),
    };
    machine.program.nodes.iter().map(of).collect()
}

/// Memory accesses and their cost, in program order.
fn memory_sites(machine: &Machine<'_>, out: &Outcome) -> Vec<MemorySite> {
    let mut sites: Vec<MemorySite> = Vec::new();
    let accesses = out.traffic.iter().zip(&out.landings).enumerate();
    let accesses = accesses.flat_map(|(pc, (traffic, landing))| {
        [
            (pc, machine.program.classes[pc], traffic),
            (pc, Class::StoreShared, landing),
        ]
    });
    for (pc, class, traffic) in accesses.filter(|(_, _, traffic)| traffic.requests > 0) {
        let line = machine.kernel.kernel_line(machine.program.sites[pc]);
        let line = Line {
            file: line.file,
            line: line.line,
            column: line.column,
            verb: None,
        };
        let at = sites.iter().position(|s| s.line == line && s.class == class);
        let at = at.unwrap_or_else(|| {
            sites.push(MemorySite {
                line,
                class,
                requests: 0,
                transactions: 0,
                ideal: 0,
            });
            sites.len() - 1
        });
        sites[at].requests += traffic.requests;
        sites[at].transactions += traffic.transactions;
        sites[at].ideal += traffic.ideal;
    }
    sites
}
