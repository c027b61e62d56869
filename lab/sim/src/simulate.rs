//! [`simulate`]: runs all blocks of a launch.

use flashcore_ir::{Kernel, Launch};
use rayon::prelude::*;

use crate::cluster::{ClusterResult, Outcome, Running};
use crate::error::SimError;
use crate::finding::Line;
use crate::global::Global;
use crate::machine::Machine;
use crate::merge::Merged;
use crate::report::{Class, Counts, InstructionCount, MemorySite, SimOptions, SimReport, lines};
use crate::resident;
use crate::rng::Rng;
use crate::text::{Code, PtxKernel};
use crate::traffic::Traffic;

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
///     programmatic: false,
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
pub fn simulate<B: AsRef<[u8]> + AsMut<[u8]>>(
    kernel: &Kernel,
    launch: &Launch,
    buffers: &mut [B],
    options: &SimOptions,
) -> Result<SimReport, SimError> {
    let code = Code::of(kernel)?;
    run_code(kernel, &code, launch, buffers, options)
}

impl PtxKernel {
    /// Runs its launch and reports its errors, as [`simulate`] does. `buffers` are those of the launch, in order.
    ///
    /// # Errors
    /// The launch does not fit the kernel.
    pub fn simulate<B: AsRef<[u8]> + AsMut<[u8]>>(
        &self,
        buffers: &mut [B],
        options: &SimOptions,
    ) -> Result<SimReport, SimError> {
        let mut all: Vec<Vec<u8>> = buffers.iter().map(|buffer| buffer.as_ref().to_vec()).collect();
        all.extend(self.variables.iter().cloned());
        let report = run_code(&self.kernel, &self.code, &self.launch, &mut all, options)?;
        for (buffer, bytes) in buffers.iter_mut().zip(all) {
            buffer.as_mut().copy_from_slice(&bytes);
        }
        Ok(report)
    }
}

fn run_code<B: AsRef<[u8]> + AsMut<[u8]>>(
    kernel: &Kernel,
    code: &Code,
    launch: &Launch,
    buffers: &mut [B],
    options: &SimOptions,
) -> Result<SimReport, SimError> {
    let bytes: Vec<u64> = buffers.iter().map(|b| b.as_ref().len() as u64).collect();
    let machine = Machine::new(kernel, code, launch, &bytes, options)?;
    let tables: Vec<Vec<u8>> = launch
        .tables()
        .map(|table| table.iter().flat_map(|number| number.to_le_bytes()).collect())
        .collect();
    let given = buffers.iter().take(launch.buffers.len()).map(|b| b.as_ref());
    let base: Vec<&[u8]> = given.chain(tables.iter().map(Vec::as_slice)).collect();
    let (merged, mut out) = match options.host_threads {
        0 => run(&machine, &base),
        threads => match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
            Ok(pool) => pool.install(|| run(&machine, &base)),
            // Without a dedicated pool the run uses rayon's global one; the result is the same.
            Err(_) => run(&machine, &base),
        },
    };
    merged.check_reads(&machine, &mut out.findings);
    let mut counts = Counts::default();
    for (class, count) in machine.program.classes.iter().zip(&out.executed) {
        counts.add(*class, *count);
    }
    let report = SimReport {
        kernel: kernel.name().to_string(),
        counts,
        memory: memory_sites(&machine, &out),
        instructions: instruction_counts(&machine, &out),
        registers: machine.program.registers(),
        findings: out.findings.into_vec(),
        traces: out.traces,
        printed: out.printed,
        log: out.log,
        path: out.path,
        unrecorded: out.unrecorded,
        loads: out.loads,
        written: merged.written(),
    };
    merged.store(buffers);
    Ok(report)
}

/// Runs the blocks that the options ask for.
fn run(machine: &Machine<'_>, base: &[&[u8]]) -> (Merged, Outcome) {
    let (mut merged, mut out) = (Merged::default(), Outcome::new(machine));
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
    if machine.communicates {
        let pages = resident::run(machine, base, first..clusters, &mut out);
        merged.add(machine, first, pages, base, &mut out.findings);
        return (merged, out);
    }
    while first < clusters && !out.findings.is_fatal() {
        let last = clusters.min(first + WAVE);
        let run = |linear| {
            let result = Running::new(machine, Global::new(base, machine.unit()), linear).run();
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
    (merged, out)
}

fn instruction_counts(machine: &Machine<'_>, out: &Outcome) -> Vec<InstructionCount> {
    let of = |op: u32| InstructionCount {
        warps: out.executed[op as usize].warps,
        lanes: out.executed[op as usize].lanes,
        transactions: out.traffic.get(op as usize).map_or(0, |traffic| traffic.transactions),
        shared: out.traffic.get(op as usize).map_or(0, |traffic| traffic.shared),
    };
    let counted = machine.program.counted.iter();
    counted.map(|op| op.map_or(InstructionCount::default(), of)).collect()
}

/// Memory accesses and their cost, in program order.
fn memory_sites(machine: &Machine<'_>, out: &Outcome) -> Vec<MemorySite> {
    let mut sites: Vec<(Line, Class, Traffic)> = Vec::new();
    let accesses = out.traffic.iter().zip(&out.landings).enumerate();
    let accesses = accesses.flat_map(|(pc, (traffic, landing))| {
        [
            (pc, machine.program.classes[pc], traffic),
            (pc, Class::StoreShared, landing),
        ]
    });
    for (pc, class, traffic) in accesses.filter(|(_, _, traffic)| traffic.requests > 0) {
        let line = lines(machine.kernel, machine.program.sites[pc])[0];
        match sites.iter_mut().find(|site| (site.0, site.1) == (line, class)) {
            Some((_, _, sum)) => sum.add(*traffic),
            None => sites.push((line, class, *traffic)),
        }
    }
    let site = |(line, class, traffic): (Line, Class, Traffic)| MemorySite {
        line,
        class,
        requests: traffic.requests,
        transactions: traffic.transactions,
        ideal: traffic.ideal,
    };
    sites.into_iter().map(site).collect()
}
