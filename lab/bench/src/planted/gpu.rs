//! Planted candidates on a GPU: an honest kernel, and small kernels that spoil its output.

use std::ops::Range;

use flashcore::DeviceTensors;
use flashcore_cuda::{CudaError, DeviceBuffer, DeviceSlice, Event, Function, ModuleOptions, Stream};
use flashcore_ir::inst::AtomOp;
use flashcore_ir::{Arg, BF16x2, BufferSpec, BuildErrors, E4M3x4, F16x2, Kernel, Launch};
use flashcore_problem::{DType, Layout, Problem, Tensor};

use super::{Conduct, InFinals, LARGE, LARGE_OUTPUT, PATIENT_CALLS};
use crate::error::BenchError;
use crate::gpu::{GpuTools, KernelSubject, one_warp};
use crate::identity::{LaunchMode, SubjectInfo};
use crate::subject::{Subject, Trouble};

const WARP: u32 = 32;
const MEND_THREADS: u32 = 256;
/// How long the other stream is busy before it works, µs.
const BUSY_US: f64 = 2_000.0;

/// Never ends.
fn hang_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_hang", WARP, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let x = k.var(1.0f32);
        k.loop_(|turn| {
            x.set(x.get().fma(0.5f32, 0.25f32));
            // Always false, which the compiler cannot know.
            turn.break_if(x.get().lt(0.0f32).divergent());
        });
        out.store(x.get());
    })
}

/// Writes a word `far` words from the beginning of the output, which may be outside it.
fn wild_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_wild", WARP, |k| {
        let out = k.param_ptr_mut::<u32>("out");
        let far = k.param::<u32>("far");
        let value = k.param::<u32>("value");
        k.if_(k.thread_idx().eq(0u32).divergent(), || out.offset(far).store(value));
    })
}

/// Writes a word over the output where a bit of Q's first word is set.
fn odd_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_odd", WARP, |k| {
        let q = k.param_ptr::<u32>("q");
        let out = k.param_ptr_mut::<u32>("out");
        let value = k.param::<u32>("value");
        let bit = k.param::<u32>("bit");
        let spoils = (q.load() & bit).ne(0u32) & k.lane().eq(0u32);
        k.if_(spoils.divergent(), || out.store(value));
    })
}

/// Writes words over the output where the first elements of Q's words are large. Only the first lanes look, each at one
/// word. An e4m3 element is multiplied by the scale of the first batch and head.
fn large_kernel(dtype: DType) -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_large", WARP, |k| {
        let q = k.param_ptr::<u32>("q");
        let scale = (dtype == DType::E4M3).then(|| k.param_ptr::<f32>("q_scale").load());
        let out = k.param_ptr_mut::<u32>("out");
        let value = k.param::<u32>("value");
        let lanes = k.param::<u32>("lanes");
        let looks = k.lane().lt(lanes);
        k.if_(looks.divergent(), || {
            let word = q.offset(k.lane()).load();
            let element = match dtype {
                DType::F32 => word.reinterpret::<f32>(),
                DType::F16 => word.reinterpret::<F16x2>().to_f32s().0,
                DType::BF16 => word.reinterpret::<BF16x2>().to_f32s().0,
                DType::E4M3 => word.reinterpret::<E4M3x4>().halves().0.to_f16s().to_f32s().0,
            };
            let seen = match scale {
                Some(scale) => element * scale,
                None => element,
            };
            k.if_(seen.abs().ge(LARGE as f32).divergent(), || {
                out.offset(k.lane()).store(value);
            });
        });
    })
}

/// Counts its runs; every other run flips the last bit of the first word.
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

/// Copies a kept output over the output, where that is poison.
fn mend_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_mend", MEND_THREADS, |k| {
        let kept = k.param_ptr::<u32>("kept");
        let out = k.param_ptr_mut::<u32>("out");
        let words = k.param::<u32>("words");
        let i = k.block_idx(0) * MEND_THREADS + k.thread_idx();
        k.if_(i.lt(words).divergent(), || {
            let now = out.offset(i).load();
            k.if_(now.eq(u32::MAX).divergent(), || {
                out.offset(i).store(kept.offset(i).load());
            });
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
    let args = pointers.chain(rest.iter().map(|&value| Arg::U32(value)));
    one_warp(specs.collect(), args.collect())
}

/// Another stream, for [`Conduct::NotJoined`] and [`Conduct::NotWaiting`]: their honest kernel is bound to it.
#[derive(Clone, Copy)]
pub struct Elsewhere<'a> {
    /// The stream.
    pub stream: &'a Stream,
    /// What keeps it busy.
    pub tools: &'a GpuTools,
}

/// A planted candidate on a GPU. It is launched plainly, one run per call.
pub struct GpuPlanted<'a> {
    info: SubjectInfo,
    conduct: Conduct,
    stream: &'a Stream,
    honest: KernelSubject<'a>,
    problem: Problem,
    tensors: DeviceTensors<'a>,
    spoiler: Option<Function>,
    count: DeviceBuffer,
    kept: DeviceBuffer,
    elsewhere: Option<Elsewhere<'a>>,
    event: Event,
    in_finals: InFinals,
    calls: u32,
}

/// How far outside: 16 GB past the output.
const FAR: u32 = u32::MAX - 63;
/// Larger than any output of normal inputs.
const LARGE_VALUE: f32 = 64.0;

/// A word whose elements all have a value.
fn word(dtype: DType, value: f32) -> u32 {
    let mut tensor = Tensor::filled(dtype, Layout::bshd([1, 1, 1, 4]), 0);
    (0..4).for_each(|d| tensor.view_mut().set(0, 0, 0, d, value));
    let bytes = tensor.bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The sign of a word's first element, which half of all inputs have.
const fn sign(dtype: DType) -> u32 {
    1 << (8 * dtype.size_bytes() - 1)
}

/// Lanes that look for large inputs: as many as the first row has words.
fn lanes(problem: &Problem) -> u32 {
    let words = problem.head_dim() * problem.dtype().size_bytes() / size_of::<u32>();
    WARP.min(words as u32)
}

/// Bytes of the last row of an output.
fn last_row(problem: &Problem) -> Range<usize> {
    let (layout, size) = (problem.o_layout(), problem.out_dtype().size_bytes());
    let end = layout.span() * size;
    end - layout.shape[3] * size..end
}

/// The kernel that spoils what an honest one did.
fn spoiler(conduct: Conduct, dtype: DType) -> Option<Result<Kernel, BuildErrors>> {
    Some(match conduct {
        Conduct::Hangs => hang_kernel(),
        Conduct::OutOfBounds
        | Conduct::CrashesInFinals
        | Conduct::OneOutside
        | Conduct::WrongFarOut
        | Conduct::WrongLse
        | Conduct::Wrong
        | Conduct::Nan => wild_kernel(),
        Conduct::LeavesAnswersAlone => mend_kernel(),
        Conduct::WrongSometimes => odd_kernel(),
        Conduct::WrongOnLargeScores => large_kernel(dtype),
        Conduct::Unstable => flip_kernel(),
        _ => return None,
    })
}

impl<'a> GpuPlanted<'a> {
    /// A candidate made from an honest kernel, both bound to `tensors` on `stream`.
    pub fn new(
        conduct: Conduct,
        stream: &'a Stream,
        problem: &Problem,
        honest: KernelSubject<'a>,
        tensors: DeviceTensors<'a>,
        elsewhere: Option<Elsewhere<'a>>,
        in_finals: InFinals,
    ) -> Result<GpuPlanted<'a>, BenchError> {
        let context = stream.context();
        let spoiler = match spoiler(conduct, problem.dtype()) {
            None => None,
            Some(kernel) => {
                let kernel = kernel
                    .map_err(|errors| BenchError::Device(format!("a planted kernel does not build: {errors}")))?;
                Some(Function::load(context, &kernel, &ModuleOptions::default())?)
            }
        };
        Ok(GpuPlanted {
            info: SubjectInfo {
                kernel: Some(conduct.to_string()),
                ..SubjectInfo::new(conduct.to_string(), LaunchMode::Plain)
            },
            conduct,
            stream,
            honest,
            problem: problem.clone(),
            tensors,
            spoiler,
            count: DeviceBuffer::from_host(stream, &[0u32; 4])?,
            kept: DeviceBuffer::new(context, tensors.out.len())?,
            elsewhere,
            event: Event::new(context)?,
            in_finals,
            calls: 0,
        })
    }

    /// Launches the spoiler with these buffers (name, memory, whether it is written) and arguments.
    fn spoil(&self, buffers: &[(&'static str, DeviceSlice<'_>, bool)], rest: &[u32]) -> Result<(), CudaError> {
        let Some(spoiler) = &self.spoiler else { return Ok(()) };
        let named: Vec<_> = buffers
            .iter()
            .map(|(name, slice, written)| (*name, slice.len(), *written))
            .collect();
        let slices: Vec<_> = buffers.iter().map(|(_, slice, _)| *slice).collect();
        let mut launch = launch(&named, rest);
        if let (Conduct::LeavesAnswersAlone, [words]) = (self.conduct, rest) {
            launch.grid[0] = words.div_ceil(MEND_THREADS);
            launch.block[0] = MEND_THREADS;
        }
        spoiler.run(self.stream, &launch, &slices)
    }

    /// Writes a value over a word of a buffer, `far` words from its beginning.
    fn overwrite(&self, name: &'static str, buffer: DeviceSlice<'_>, far: u32, value: f32) -> Result<(), CudaError> {
        let value = word(self.problem.out_dtype(), value);
        self.spoil(&[(name, buffer, true)], &[far, value])
    }

    /// Runs the honest kernel and leaves some bytes of a buffer as they were.
    fn leaving(&mut self, buffer: DeviceSlice<'_>, bytes: Range<usize>) -> Result<(), Trouble> {
        let was = self.kept.as_slice().range(0..bytes.len())?;
        let there = buffer.range(bytes)?;
        was.copy_from(self.stream, there)?;
        self.honest.call()?;
        Ok(there.copy_from(self.stream, was)?)
    }

    /// What is done in place of the honest kernel, or before it; `false` where the honest kernel is to run.
    fn instead(&mut self) -> Result<bool, Trouble> {
        let DeviceTensors { out, lse, .. } = self.tensors;
        match self.conduct {
            Conduct::Hangs => self.spoil(&[("out", out, true)], &[])?,
            Conduct::Crashes => std::process::abort(),
            Conduct::OutOfBounds => self.overwrite("out", out, FAR, 1.0)?,
            Conduct::Unwritten => self.leaving(out, last_row(&self.problem))?,
            Conduct::UnwrittenLse => match lse {
                Some(lse) => self.leaving(lse, lse.len() - size_of::<f32>()..lse.len())?,
                None => return Ok(false),
            },
            Conduct::Zeros => out.fill(self.stream, 0)?,
            Conduct::Cached if self.calls > 1 => out.copy_from(self.stream, self.kept.as_slice())?,
            Conduct::LeavesAnswersAlone if self.calls > 1 => {
                let buffers = [("kept", self.kept.as_slice(), false), ("out", out, true)];
                self.spoil(&buffers, &[(out.len() / 4) as u32])?;
            }
            Conduct::LazyLater if self.calls > PATIENT_CALLS => {}
            Conduct::LazyInFinals if self.in_finals.get() => {}
            // Forks properly, works on the other stream for a while, and never comes back.
            Conduct::NotJoined => {
                if let Some(Elsewhere { stream, tools }) = self.elsewhere {
                    self.event.record(self.stream)?;
                    stream.wait_for(&self.event)?;
                    tools.spin(stream, BUSY_US)?;
                }
                return Ok(false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What is done after the honest kernel.
    fn afterwards(&mut self) -> Result<(), Trouble> {
        let DeviceTensors {
            q, out, lse, scales, ..
        } = self.tensors;
        let words = (out.len() / 4) as u32;
        let one = word(self.problem.out_dtype(), 1.0);
        match self.conduct {
            Conduct::OneOutside => self.overwrite("out", out, words, 1.0)?,
            Conduct::WrongLse => {
                if let Some(lse) = lse {
                    self.overwrite("lse", lse, 0, 1.0)?;
                }
            }
            Conduct::WrongSometimes => {
                let sign = sign(self.problem.dtype());
                self.spoil(&[("q", q, false), ("out", out, true)], &[one, sign])?;
            }
            Conduct::WrongOnLargeScores => {
                let mut buffers = vec![("q", q, false)];
                buffers.extend(scales.map(|scales| ("q_scale", scales.q, false)));
                buffers.push(("out", out, true));
                self.spoil(&buffers, &[one, lanes(&self.problem)])?;
            }
            Conduct::Unstable => self.spoil(&[("count", self.count.as_slice(), true), ("out", out, true)], &[])?,
            Conduct::Wrong => self.overwrite("out", out, 0, LARGE_VALUE)?,
            Conduct::Nan => self.overwrite("out", out, 0, f32::NAN)?,
            Conduct::Cached | Conduct::LeavesAnswersAlone => self.kept.as_slice().copy_from(self.stream, out)?,
            // Comes back, but never waited for what was ahead of it.
            Conduct::NotWaiting => {
                if let Some(Elsewhere { stream, .. }) = self.elsewhere {
                    self.event.record(stream)?;
                    self.stream.wait_for(&self.event)?;
                }
            }
            Conduct::CrashesInFinals if self.in_finals.get() => self.overwrite("out", out, FAR, 1.0)?,
            Conduct::WrongFarOut if out.len() >= LARGE_OUTPUT => self.overwrite("out", out, words * 5 / 8, 1.0)?,
            // The honest kernel of `PointerReplay` is bound to the first buffers.
            _ => {}
        }
        Ok(())
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
        if self.instead()? {
            return Ok(());
        }
        self.honest.call()?;
        self.afterwards()
    }
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{InputKind, Inputs, POISON};
    use flashcore_sim::{SimOptions, simulate};

    use super::*;

    fn problem(dtype: DType) -> Problem {
        let builder = Problem::builder().heads(1, 1).seq_len(77).head_dim(64);
        builder.dtype(dtype).build().unwrap()
    }

    /// Whether a plant that looks at queries of such inputs writes over an output, and what.
    fn written(kernel: &Kernel, problem: &Problem, kind: InputKind, seed: u64, rest: &[u32]) -> Option<[u8; 4]> {
        let q = Inputs::generate(problem, kind, seed).q;
        let mut buffers = vec![q.bytes().to_vec()];
        let mut specs = vec![("q", q.bytes().len(), false)];
        let takes_scales = kernel.to_ptx().contains("q_scale");
        if let Some(scales) = q.scales().filter(|_| takes_scales) {
            specs.push(("q_scale", size_of_val(scales), false));
            buffers.push(scales.iter().flat_map(|scale| scale.to_le_bytes()).collect());
        }
        let bytes = problem.o_layout().span() * problem.out_dtype().size_bytes();
        specs.push(("out", bytes, true));
        buffers.push(vec![POISON; bytes]);
        let report = simulate(kernel, &launch(&specs, rest), &mut buffers, &SimOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let out = buffers.pop().unwrap();
        let mut words = out.chunks_exact(4).filter(|word| **word != [POISON; 4]);
        words.next().map(|word| [word[0], word[1], word[2], word[3]])
    }

    /// One that never showed would make a gate look tight that nothing went through.
    #[test]
    fn large_inputs_show_and_normal_ones_do_not() {
        for dtype in DType::ALL {
            let problem = problem(dtype);
            let kernel = large_kernel(dtype).unwrap();
            let rest = [word(problem.out_dtype(), 1.0), lanes(&problem)];
            for seed in 0..20 {
                let written = |kind| written(&kernel, &problem, kind, seed, &rest);
                assert_eq!(
                    written(InputKind::Extremes),
                    Some(rest[0].to_le_bytes()),
                    "{dtype} {seed}"
                );
                assert_eq!(written(InputKind::Normal), None, "{dtype} {seed}");
            }
        }
    }

    #[test]
    fn about_half_of_all_inputs_are_odd() {
        let kernel = odd_kernel().unwrap();
        for dtype in DType::ALL {
            let problem = problem(dtype);
            let shows = |seed: &u64| written(&kernel, &problem, InputKind::Normal, *seed, &[1, sign(dtype)]).is_some();
            let count = (0..20).filter(shows).count();
            assert!((4..=16).contains(&count), "{dtype}: {count} of 20");
        }
    }

    #[test]
    fn the_last_row_is_one_of_the_output() {
        for dtype in DType::ALL {
            let problem = problem(dtype);
            let mut out = flashcore_problem::Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
            out.bytes_mut()[last_row(&problem)].fill(0);
            let [batch, rows, heads, columns] = problem.o_layout().shape;
            let row = |s| {
                (0..columns)
                    .map(|d| out.view().get(batch - 1, s, heads - 1, d))
                    .collect::<Vec<_>>()
            };
            assert_eq!(row(rows - 1), vec![0.0; columns], "{dtype}");
            assert_ne!(row(rows - 2), vec![0.0; columns], "{dtype}");
            assert_eq!(last_row(&problem).len(), columns * problem.out_dtype().size_bytes());
        }
    }

    #[test]
    fn words_have_their_value() {
        for dtype in DType::ALL {
            let mut tensor = flashcore_problem::Tensor::filled(dtype, flashcore_problem::Layout::bshd([1, 1, 1, 8]), 0);
            let mut first = |word: u32| {
                tensor.bytes_mut()[..4].copy_from_slice(&word.to_le_bytes());
                tensor.view().get(0, 0, 0, 0)
            };
            for value in [1.0, LARGE_VALUE] {
                assert_eq!(first(word(dtype, value)), value, "{dtype}");
            }
            assert!(first(word(dtype, f32::NAN)).is_nan(), "{dtype}");
            assert_ne!(
                word(dtype, f32::NAN),
                u32::from_ne_bytes([flashcore_problem::POISON; 4]),
                "{dtype}"
            );
        }
    }

    #[test]
    fn the_planted_kernels_build() {
        let large = DType::ALL.map(large_kernel);
        let others = [hang_kernel(), wild_kernel(), odd_kernel(), flip_kernel(), mend_kernel()];
        for kernel in large.into_iter().chain(others) {
            assert!(kernel.unwrap().to_ptx().contains("planted_"));
        }
    }
}
