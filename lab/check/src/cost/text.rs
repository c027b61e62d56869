//! Kernels of other compilers: what a few of their blocks do, and where their warps wait.

use std::sync::Arc;

use flashcore_ir::Profile;
use flashcore_problem::{InputKind, Inputs, Problem};
use flashcore_ptx::Module;
use flashcore_sim::{FindingKind, PtxKernel, SimOptions};

use super::axes::Axes;
use super::code::Code;
use super::lines::{LineShare, by_line};
use super::observe::{LONGEST_PATH, Observation, Sample, SeenStep, Simulated};
use super::sm::Sm;
use super::span;
use crate::check::{CheckError, contents};
use crate::host_memory::check_host_memory;
use crate::own::{Declared, OwnError};

impl Observation {
    /// Simulates a few blocks of a launch, each alone: five on the only axis of the grid, or three on each of several.
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
        let axes = Axes::of(launch.grid);
        let mut contents = contents.to_vec();
        let mut seen = Simulated::default();
        for &block in &axes.blocks {
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
            let loads = &report.loads;
            seen.samples.push(Sample {
                misses: match loads.sectors {
                    0 => 1.0,
                    asked => (loads.different as f64 / asked as f64).min(1.0),
                },
                ..Sample::of(0.0, block, &report, f64::from(cluster))
            });
            (seen.registers, seen.memory) = (report.registers, report.memory);
        }
        seen.axes = Some(axes);
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
        check_host_memory(problem, 2, 3, 0).map_err(CheckError::from)?;
        let (module, read) = declared.kernel_of(problem)?;
        let inputs = Inputs::generate(problem, InputKind::Normal, 0);
        let buffers = read.buffers().iter().map(|spec| contents(problem, &inputs, spec));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        Ok(Observation::of_text(&module, &read, &buffers, &SimOptions::default())?)
    }

    /// The lines at which a warp of the main step's middle block waits on a card, as shares of its time, most of it
    /// first.
    pub fn waits(&self, profile: &Profile) -> Vec<LineShare> {
        let middle = self.steps.first().and_then(|step| {
            let samples = &step.seen.samples;
            let sample = samples.get(step.seen.middle())?;
            Some((step, sample, sample.paths.first()?))
        });
        let Some((step, sample, path)) = middle else {
            return Vec::new();
        };
        let waits = span::waits(&step.code, path, sample.misses, &Sm::of(profile, None));
        let waited = waits.waited.iter().enumerate().filter(|(_, clocks)| **clocks > 0.0);
        let mut lines = by_line(&step.code, waited.map(|(at, clocks)| (at, clocks / waits.clocks)));
        lines.sort_by(|a, b| b.share.total_cmp(&a.share));
        lines
    }
}

#[cfg(test)]
mod tests {
    use flashcore_sim::{PtxArg, PtxBuffer, PtxLaunch};

    use super::*;
    use crate::cost::Unit;

    /// What 64 blocks of a warp do, whose lanes each have the address `%a` of a word; `%r0` is the lane.
    fn observed(body: &str) -> Observation {
        let text = format!(
            ".version 8.0\n.target sm_89\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n\
             .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %a<9>; .reg .pred %p; .shared .align 4 .b8 tile[128];\n\
             ld.param.u64 %a0, [p]; cvta.to.global.u64 %a1, %a0; mov.u32 %r0, %tid.x;\n\
             mul.wide.u32 %a2, %r0, 4; add.s64 %a, %a1, %a2;\n{body}\nret;\n}}"
        );
        let text = text.replace("%a,", "%a3,").replace("[%a]", "[%a3]");
        let launch = PtxLaunch {
            file: "k.ptx".to_string(),
            grid: [64, 1, 1],
            block: [32, 1, 1],
            buffers: vec![PtxBuffer {
                name: "data".to_string(),
                bytes: 128,
                element: 4,
                written: true,
            }],
            args: vec![PtxArg {
                bytes: vec![0; 8],
                pointers: vec![(0, 0)],
                map: None,
            }],
            ..PtxLaunch::default()
        };
        let module = Module::read(&text).unwrap();
        let read = PtxKernel::read(&module, "k", &launch).unwrap();
        Observation::of_text(&module, &read, &[vec![0; 128]], &SimOptions::default()).unwrap()
    }

    /// Clocks of the middle block's warp on an L4.
    fn chain(observed: &Observation) -> f64 {
        let step = &observed.steps[0];
        step.seen.samples[2].chain(&step.code, &Sm::of(Profile::named("l4").unwrap(), None))
    }

    /// A warp's access to 128 bytes moves them, whatever it orders; one without a space where its address is.
    #[test]
    fn atomics_and_strong_accesses_cost_their_traffic() {
        for (access, moved) in [
            ("red.global.add.u32 [%a], %r0;", 128.0),
            ("atom.global.add.u32 %r1, [%a], %r0;", 128.0),
            ("atom.global.cas.b32 %r1, [%a], 0, %r0;", 128.0),
            ("ld.relaxed.gpu.global.u32 %r1, [%a];", 128.0),
            ("ld.volatile.global.u32 %r1, [%a];", 128.0),
            ("st.volatile.global.u32 [%a], %r0;", 128.0),
            ("ld.global.u32 %r1, [%a]; ld.global.u32 %r2, [%a];", 128.0),
            ("mov.u64 %a4, tile; cvta.shared.u64 %a5, %a4; st.u32 [%a5], 1;", 0.0),
        ] {
            let work = observed(access).total_work();
            assert_eq!(work[Unit::L2Bytes], 64.0 * moved, "{access}");
        }
    }

    #[test]
    fn a_path_that_is_cut_stands_for_all_of_it() {
        let rounds = |n: usize| {
            let body = format!("mov.u32 %r1, 0;\nL: add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, {n}; @%p bra L;");
            chain(&observed(&body))
        };
        let (whole, cut) = (rounds(LONGEST_PATH / 4), rounds(LONGEST_PATH / 2));
        assert!((cut / whole - 2.0).abs() < 0.01, "{whole} {cut}");
    }

    #[test]
    fn waits_name_the_line_that_waits() {
        let waits = observed("ld.global.u32 %r1, [%a];\nst.global.u32 [%a], %r1;");
        let waits = waits.waits(Profile::named("l4").unwrap());
        // The store, which waits for the load, is on line 9 of the text.
        assert_eq!(waits[0].line.line, 9, "{waits:?}");
        assert!(waits[0].share > 0.5, "{waits:?}");
    }

    #[test]
    fn a_quotient_takes_longer_than_the_reciprocal_in_it() {
        let of = |inst: &str| {
            let body = format!("ld.global.f32 %f0, [%a]; {inst} st.global.f32 [%a], %f0;");
            chain(&observed(&body))
        };
        let reciprocal = of("rcp.approx.ftz.f32 %f0, %f0;");
        assert!(of("div.full.f32 %f0, %f0, %f0;") > reciprocal);
        assert!(of("sqrt.approx.f32 %f0, %f0;") > reciprocal);
    }
}
