//! Planted candidates on a GPU: an honest kernel, and small ones that spoil what it does.

use flashcore::DeviceTensors;
use flashcore_bench::gpu::{KernelSubject, PreparedPlan};
use flashcore_bench::{BenchError, LaunchMode, Subject, SubjectInfo, Trouble};
use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Function, ModuleOptions, Stream};
use flashcore_ir::inst::AtomOp;
use flashcore_ir::{Arg, BufferSpec, BuildErrors, Kernel, Launch};
use flashcore_kernels::Plan;

use super::planted::{Conduct, PATIENT_CALLS};

const WARP: u32 = 32;

/// Never ends.
fn hang_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_hang", WARP, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let x = k.var(1.0f32);
        k.loop_(|turn| {
            x.set(x.get().fma(0.5f32, 0.25f32));
            // Never so, which the compiler cannot know.
            turn.break_if(x.get().lt(0.0f32).divergent());
        });
        out.store(x.get());
    })
}

/// Writes far outside of everything.
fn wild_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_wild", WARP, |k| {
        let out = k.param_ptr_mut::<u32>("out");
        let far = k.param::<u32>("far");
        out.offset(far).store(7u32);
    })
}

/// Writes words over the output where those of Q, masked, are at least a bound. Only the first lanes do.
fn spoil_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_spoil", WARP, |k| {
        let q = k.param_ptr::<u32>("q");
        let out = k.param_ptr_mut::<u32>("out");
        let mask = k.param::<u32>("mask");
        let bound = k.param::<u32>("bound");
        let value = k.param::<u32>("value");
        let lanes = k.param::<u32>("lanes");
        let seen = q.offset(k.lane()).load() & mask;
        let spoils = seen.ge(bound) & k.lane().lt(lanes);
        k.if_(spoils.divergent(), || out.offset(k.lane()).store(value));
    })
}

/// Counts its runs, and every other one flips the last bit of the first word.
fn flip_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_flip", WARP, |k| {
        let count = k.param_ptr_mut::<u32>("count");
        let out = k.param_ptr_mut::<u32>("out");
        k.if_(k.thread_idx().eq(0u32).divergent(), || {
            let runs = count.atomic(AtomOp::Add, 1u32);
            out.store(out.load() ^ (runs & 1u32));
        });
    })
}

/// A launch of one of the kernels above.
fn launch(buffers: &[(&'static str, usize, bool)], rest: &[u32]) -> Launch {
    let specs = buffers.iter().map(|&(name, bytes, written)| BufferSpec {
        name,
        bytes: bytes as u64,
        written,
        align: 4,
    });
    let pointers = (0..buffers.len()).map(|slot| Arg::Buffer { slot, byte_offset: 0 });
    Launch {
        grid: [1; 3],
        block: [WARP, 1, 1],
        cluster: [1; 3],
        dynamic_shared_bytes: 0,
        buffers: specs.collect(),
        args: pointers.chain(rest.iter().map(|&value| Arg::U32(value))).collect(),
    }
}

/// A planted candidate. It is launched plainly, a run a call.
pub(super) struct GpuPlanted<'a> {
    info: SubjectInfo,
    conduct: Conduct,
    stream: &'a Stream,
    honest: KernelSubject<'a>,
    /// All but the last row of blocks.
    short: Option<PreparedPlan<'a>>,
    tensors: DeviceTensors<'a>,
    spoiler: Option<Function>,
    count: DeviceBuffer,
    kept: DeviceBuffer,
    calls: u32,
}

/// How far outside: 16 GB past the output.
const FAR: u32 = u32::MAX - 63;
/// Magnitude of an fp16 element, 6, which normal inputs do not reach, and how many lanes look, each at a word.
const LARGE: [u32; 3] = [0x7fff, 0x4600, WARP];
/// A bit that half of all first words have.
const HALF: [u32; 3] = [1, 1, 1];
/// Two ones in fp16.
const ONES: u32 = 0x3c00_3c00;

impl<'a> GpuPlanted<'a> {
    pub(super) fn new(
        conduct: Conduct,
        stream: &'a Stream,
        plan: &Plan,
        honest: KernelSubject<'a>,
        tensors: [DeviceTensors<'a>; 2],
    ) -> Result<GpuPlanted<'a>, BenchError> {
        let context = stream.context();
        let load = |kernel: Result<Kernel, BuildErrors>| -> Result<Option<Function>, BenchError> {
            let kernel = kernel.map_err(|errors| BenchError::Device {
                reason: format!("a planted kernel does not build: {errors}"),
            })?;
            Ok(Some(Function::load(context, &kernel, &ModuleOptions::default())?))
        };
        let spoiler = match conduct {
            Conduct::Hangs => load(hang_kernel())?,
            Conduct::OutOfBounds => load(wild_kernel())?,
            Conduct::WrongSometimes | Conduct::WrongOnLargeScores => load(spoil_kernel())?,
            Conduct::Unstable => load(flip_kernel())?,
            _ => None,
        };
        let short = match conduct {
            Conduct::Unwritten => {
                let mut fewer = plan.clone();
                let grid = &mut fewer.main.launch.grid;
                let axis = if grid[0] > 1 { 0 } else { 1 };
                grid[axis] -= 1;
                let functions = fewer
                    .steps()
                    .map(|step| Function::load(context, &step.kernel, &ModuleOptions::default()))
                    .collect::<Result<Vec<_>, CudaError>>()?;
                Some(PreparedPlan::new(&fewer, &functions, &tensors[0])?)
            }
            _ => None,
        };
        Ok(GpuPlanted {
            info: SubjectInfo {
                kernel: Some(conduct.to_string()),
                ..SubjectInfo::new(conduct.to_string(), LaunchMode::Plain)
            },
            conduct,
            stream,
            honest,
            short,
            tensors: tensors[0],
            spoiler,
            count: DeviceBuffer::from_host(stream, &[0u32; 4])?,
            kept: DeviceBuffer::new(context, tensors[0].out.len())?,
            calls: 0,
        })
    }

    fn spoil(&self, buffers: &[(&'static str, DeviceSlice<'a>, bool)], rest: &[u32]) -> Result<(), CudaError> {
        let Some(spoiler) = &self.spoiler else { return Ok(()) };
        let named: Vec<_> = buffers
            .iter()
            .map(|(name, slice, written)| (*name, slice.len(), *written))
            .collect();
        let slices: Vec<_> = buffers.iter().map(|(_, slice, _)| *slice).collect();
        spoiler.run(self.stream, &launch(&named, rest), &slices)
    }

    fn count(&self) -> Result<(), CudaError> {
        let Some(spoiler) = &self.spoiler else { return Ok(()) };
        let (count, out) = (self.count.as_slice(), self.tensors.out);
        let named = [("count", count.len(), true), ("out", out.len(), true)];
        spoiler.run(self.stream, &launch(&named, &[]), &[count, out])
    }
}

impl Subject for GpuPlanted<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn runs_per_call(&self) -> u32 {
        match self.conduct {
            Conduct::Honest => self.honest.runs_per_call(),
            _ => 1,
        }
    }

    fn call(&mut self) -> Result<(), Trouble> {
        self.calls += 1;
        let DeviceTensors { q, out, .. } = self.tensors;
        match self.conduct {
            Conduct::Honest | Conduct::DoesNotBuild => self.honest.call()?,
            Conduct::Hangs => self.spoil(&[("out", out, true)], &[])?,
            Conduct::Crashes => std::process::abort(),
            Conduct::OutOfBounds => self.spoil(&[("out", out, true)], &[FAR])?,
            Conduct::WrongSometimes | Conduct::WrongOnLargeScores => {
                self.honest.call()?;
                let [mask, bound, lanes] = if self.conduct == Conduct::WrongSometimes {
                    HALF
                } else {
                    LARGE
                };
                self.spoil(&[("q", q, false), ("out", out, true)], &[mask, bound, ONES, lanes])?;
            }
            Conduct::Unstable => {
                self.honest.call()?;
                self.count()?;
            }
            Conduct::Unwritten => {
                if let Some(short) = &self.short {
                    short.enqueue(self.stream)?;
                }
            }
            Conduct::Zeros => out.fill(self.stream, 0)?,
            Conduct::Cached => {
                if self.calls == 1 {
                    self.honest.call()?;
                    self.kept.as_slice().copy_from(self.stream, out)?;
                } else {
                    out.copy_from(self.stream, self.kept.as_slice())?;
                }
            }
            Conduct::LazyLater => {
                if self.calls <= PATIENT_CALLS {
                    self.honest.call()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{InputKind, Inputs, POISON, Problem};
    use flashcore_sim::{SimOptions, simulate};

    use super::*;

    /// The output after the plant looked at the queries of such inputs, and of poison before.
    fn spoiled(kind: InputKind, seed: u64, rest: &[u32]) -> Vec<u8> {
        let problem = Problem::builder().heads(1, 1).seq_len(77).head_dim(64).build().unwrap();
        let q = Inputs::generate(&problem, kind, seed).q;
        let (kernel, bytes) = (spoil_kernel().unwrap(), q.bytes().len());
        let launch = launch(&[("q", bytes, false), ("out", bytes, true)], rest);
        let mut buffers = [q.bytes().to_vec(), vec![POISON; bytes]];
        let report = simulate(&kernel, &launch, &mut buffers, &SimOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let [_, out] = buffers;
        out
    }

    /// One that never showed would make a gate look tight that nothing went through.
    #[test]
    fn large_inputs_show_and_normal_ones_do_not() {
        let large = [LARGE[0], LARGE[1], ONES, LARGE[2]];
        for seed in 0..20 {
            let shows = |kind| spoiled(kind, seed, &large).iter().any(|byte| *byte != POISON);
            assert!(shows(InputKind::Extremes), "seed {seed}");
            assert!(!shows(InputKind::Normal), "seed {seed}");
        }
        let half = [HALF[0], HALF[1], ONES, HALF[2]];
        let shows = |seed: &u64| {
            spoiled(InputKind::Normal, *seed, &half)
                .iter()
                .any(|byte| *byte != POISON)
        };
        assert!((4..=16).contains(&(0..20).filter(shows).count()));
    }

    #[test]
    fn the_planted_kernels_build() {
        for kernel in [hang_kernel(), wild_kernel(), spoil_kernel(), flip_kernel()] {
            assert!(kernel.unwrap().to_ptx().contains("planted_"));
        }
    }
}
