//! Kernels of other compilers: what a few of their blocks do, and where their warps wait.

use std::sync::Arc;

use flashcore_ir::Profile;
use flashcore_problem::{InputKind, Inputs, Problem};
use flashcore_ptx::Module;
use flashcore_sim::{FindingKind, PtxKernel, SimOptions};

use super::code::Code;
use super::lines::LineShare;
use super::observe::{LONGEST_PATH, Observation, Sample, SeenStep, Simulated};
use super::sm::Sm;
use super::span;
use crate::check::{CheckError, contents};
use crate::own::{Declared, OwnError};

impl Observation {
    /// Simulates five blocks of a launch, each alone: the first, the last, and three between them.
    ///
    /// # Errors
    /// The simulator cannot run them, one waits for another, or the model does not cover an instruction.
    pub fn of_text(
        module: &Module,
        read: &PtxKernel,
        contents: &[Vec<u8>],
        options: &SimOptions,
    ) -> Result<Observation, CheckError> {
        let (kernel, launch) = (read.kernel(), read.launch());
        let code = Code::of_text(module, read)?;
        let (blocks, cluster) = (launch.blocks(), launch.cluster.iter().product::<u32>().max(1));
        let last = blocks.saturating_sub(1);
        let mut chosen = [0, blocks / 4, blocks / 2, blocks - blocks / 4, last].to_vec();
        chosen.sort_unstable();
        chosen.dedup();
        let mut contents = contents.to_vec();
        let mut seen = Simulated::default();
        for block in chosen.into_iter().filter(|&block| block < blocks) {
            let options = SimOptions {
                memory_counts: true,
                path: LONGEST_PATH,
                only_block: Some(block),
                first_blocks: None,
                progress: None,
                ..options.clone()
            };
            let report = read.simulate(&mut contents, &options)?;
            let waits = |kind| matches!(kind, FindingKind::Deadlock | FindingKind::Livelock);
            if report.findings.iter().any(|finding| waits(finding.kind)) {
                return Err(CheckError::Waits);
            }
            let place = block as f64 / last.max(1) as f64;
            let loads = &report.loads;
            seen.samples.push(Sample {
                misses: match loads.sectors {
                    0 => 1.0,
                    asked => (loads.different as f64 / asked as f64).min(1.0),
                },
                ..Sample::of(place, block, &report, f64::from(cluster))
            });
            (seen.registers, seen.memory) = (report.registers, report.memory);
        }
        Ok(Observation {
            footprint_bytes: read.buffers().iter().map(|buffer| buffer.bytes).sum(),
            is_foreign: true,
            steps: vec![SeenStep {
                code: code.into(),
                kernel: Arc::new(kernel.clone()),
                blocks,
                threads: kernel.threads(),
                cluster,
                shared_bytes: launch.dynamic_shared_bytes.max(kernel.ledger().total_bytes()),
                seen,
                blocks_a_head: blocks,
                work_items: blocks,
                has_list: false,
                work_a_block: 1.0,
            }],
        })
    }

    /// As [`Self::of_text`] of a user's kernel on a problem.
    ///
    /// # Errors
    /// As there, or a problem that it does not serve.
    pub fn of_declared(declared: &Declared, problem: &Problem) -> Result<Observation, OwnError> {
        problem.check_host_memory(2, 3, 0).map_err(CheckError::from)?;
        let (module, read) = declared.kernel_of(problem)?;
        let inputs = Inputs::generate(problem, InputKind::Normal, 0);
        let buffers = read.buffers().iter().map(|spec| contents(problem, &inputs, spec));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        Ok(Observation::of_text(&module, &read, &buffers, &SimOptions::default())?)
    }

    /// The lines at which a warp of the main step's middle block waits on a card, as shares of its time, most of it
    /// first.
    pub fn waits(&self, profile: &Profile) -> Vec<LineShare> {
        let mut lines: Vec<LineShare> = Vec::new();
        let Some(step) = self.steps.first() else { return lines };
        let samples = &step.seen.samples;
        let Some(sample) = samples.get(samples.len() / 2) else {
            return lines;
        };
        let Some(path) = sample.paths.first() else { return lines };
        let waits = span::waits(&step.code, path, sample.misses, &Sm::of(profile, None));
        for (at, clocks) in waits.waited.iter().enumerate().filter(|(_, clocks)| **clocks > 0.0) {
            let (line, share) = (step.code.line(at), clocks / waits.clocks);
            match lines.iter_mut().find(|known| known.line == line) {
                Some(known) => known.share += share,
                None => lines.push(LineShare { line, share }),
            }
        }
        lines.sort_by(|a, b| b.share.total_cmp(&a.share));
        lines
    }
}
