//! Tools for measuring on a GPU: an empty kernel, a kernel that takes a known time, memory to flush L2 with, and the
//! stopwatch.

use std::time::Instant;

use flashcore_cuda::{Context, CudaError, DeviceBuffer, Event, Function, ModuleOptions, Stream};
use flashcore_ir::{Arg, BufferSpec, BuildErrors, Kernel, Launch};

use super::launch;
use crate::{BenchError, Result, Stopwatch, Trouble};

/// Length of the pause that single runs are queued behind, µs: a call of another library from Python takes 20 to
/// 100 µs of the host.
const HOLD_US: f64 = 200.0;
/// Turns of the spinning kernel that calibrate it: some milliseconds.
const CALIBRATION_TURNS: u32 = 400_000;
/// L2 is flushed by writing this many times its size.
const FLUSH_FACTOR: usize = 2;
/// Least memory written to flush, bytes.
const LEAST_FLUSH: usize = 64 << 20;

/// A kernel that does nothing: what is left is what launching costs.
pub(crate) fn empty_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("bench_empty", 32, |_| {})
}

/// A kernel of one warp that multiplies and adds `turns` times, each waiting for the one before.
fn spin_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("bench_spin", 32, |k| {
        let sink = k.param_ptr_mut::<f32>("sink");
        let turns = k.param::<u32>("turns");
        let x = k.var(1.0f32);
        k.for_uniform(0u32, turns, 1, |_| x.set(x.get().fma(0.5f32, 0.25f32)));
        // Never so, which the compiler cannot know.
        k.if_(x.get().lt(0.0f32).divergent(), || sink.store(x.get()));
    })
}

fn built(kernel: Result<Kernel, BuildErrors>) -> Result<Kernel> {
    kernel.map_err(|errors| BenchError::Device(format!("a kernel of the bench itself does not build: {errors}")))
}

fn one_warp(buffers: Vec<BufferSpec>, args: Vec<Arg>) -> Launch {
    Launch {
        grid: [1; 3],
        block: [32, 1, 1],
        cluster: [1; 3],
        dynamic_shared_bytes: 0,
        programmatic: false,
        buffers,
        args,
    }
}

/// A launch of one warp that takes a buffer that it writes (name and bytes) and perhaps a number.
pub(crate) fn one_warp_on((name, bytes): (&'static str, usize), rest: Option<u32>) -> Launch {
    let buffer = BufferSpec {
        name,
        bytes: bytes as u64,
        written: true,
        align: 4,
    };
    let pointer = Arg::Buffer {
        slot: 0,
        byte_offset: 0,
    };
    one_warp(vec![buffer], [pointer].into_iter().chain(rest.map(Arg::U32)).collect())
}

/// Time that the stream takes for `work`, µs; waits for it.
pub(super) fn timed_us(stream: &Stream, work: impl FnOnce() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let (begin, end) = (Event::new(stream.context())?, Event::new(stream.context())?);
    begin.record(stream)?;
    work()?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(f64::from(begin.elapsed_ms(&end)?) * 1e3)
}

/// Kernels and memory of the bench itself, on one device.
#[derive(Debug)]
pub struct GpuTools {
    spin: Function,
    empty: Function,
    sink: DeviceBuffer,
    flush: DeviceBuffer,
    turn_us: f64,
}

impl GpuTools {
    /// Compiles and calibrates.
    pub fn new(stream: &Stream) -> Result<GpuTools> {
        let context: &Context = stream.context();
        let load = |kernel: Result<Kernel, BuildErrors>| {
            Ok::<_, BenchError>(Function::load(context, &built(kernel)?, &ModuleOptions::default())?)
        };
        let flush = (context.info().l2_bytes as usize * FLUSH_FACTOR).max(LEAST_FLUSH);
        let mut tools = GpuTools {
            spin: load(spin_kernel())?,
            empty: load(empty_kernel())?,
            sink: DeviceBuffer::new(context, 16)?,
            flush: DeviceBuffer::new(context, flush)?,
            turn_us: f64::NAN,
        };
        // The second time counts: the first one waits for the clock to rise.
        for _ in 0..2 {
            let us = timed_us(stream, || tools.spin_turns(stream, CALIBRATION_TURNS))?;
            tools.turn_us = us / f64::from(CALIBRATION_TURNS);
        }
        Ok(tools)
    }

    /// Keeps one multiprocessor busy for about `us` µs (at the clock there was when it was calibrated).
    pub fn spin(&self, stream: &Stream, us: f64) -> Result<(), CudaError> {
        self.spin_turns(stream, self.turns(us))
    }

    /// Turns of the spinning kernel that take about `us` µs.
    pub fn turns(&self, us: f64) -> u32 {
        (us / self.turn_us).clamp(1.0, 1e9) as u32
    }

    /// The spinning kernel for a number of turns.
    pub fn spin_turns(&self, stream: &Stream, turns: u32) -> Result<(), CudaError> {
        let turning = one_warp_on(("sink", 4), Some(turns));
        launch::run(&self.spin, stream, &turning, &[self.sink.as_slice()])
    }

    /// The kernel that does nothing.
    pub fn nothing(&self, stream: &Stream) -> Result<(), CudaError> {
        launch::run(&self.empty, stream, &one_warp(Vec::new(), Vec::new()), &[])
    }
}

/// CUDA events on a stream.
#[derive(Debug)]
pub struct GpuStopwatch<'a> {
    tools: &'a GpuTools,
    stream: &'a Stream,
    laps: Vec<(Event, Event)>,
    origin: Instant,
}

impl<'a> GpuStopwatch<'a> {
    /// A stopwatch for work in this stream.
    pub fn new(tools: &'a GpuTools, stream: &'a Stream) -> GpuStopwatch<'a> {
        GpuStopwatch {
            tools,
            stream,
            laps: Vec::new(),
            origin: Instant::now(),
        }
    }

    fn lap(&mut self, lap: usize) -> Result<&(Event, Event), CudaError> {
        while self.laps.len() <= lap {
            let context = self.stream.context();
            self.laps.push((Event::new(context)?, Event::new(context)?));
        }
        Ok(&self.laps[lap])
    }
}

impl Stopwatch for GpuStopwatch<'_> {
    fn begin(&mut self, lap: usize) -> Result<(), Trouble> {
        let stream = self.stream;
        Ok(self.lap(lap)?.0.record(stream)?)
    }

    fn end(&mut self, lap: usize) -> Result<(), Trouble> {
        let stream = self.stream;
        Ok(self.lap(lap)?.1.record(stream)?)
    }

    fn elapsed_us(&mut self, lap: usize) -> Result<f64, Trouble> {
        let (begin, end) = self.lap(lap)?;
        end.synchronize()?;
        Ok(f64::from(begin.elapsed_ms(end)?) * 1e3)
    }

    fn hold(&mut self) -> Result<(), Trouble> {
        Ok(self.tools.spin(self.stream, HOLD_US)?)
    }

    fn flush(&mut self) -> Result<(), Trouble> {
        Ok(self.tools.flush.as_slice().fill(self.stream, 0x5a)?)
    }

    fn now_us(&mut self) -> f64 {
        self.origin.elapsed().as_secs_f64() * 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bench_s_own_kernels_build() {
        assert!(empty_kernel().unwrap().to_ptx().contains("bench_empty"));
        let spin = spin_kernel().unwrap().to_ptx();
        assert!(spin.contains("fma.rn") && spin.contains("bench_spin"), "{spin}");
    }
}
