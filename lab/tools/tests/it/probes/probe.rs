//! A kernel that is watched, and what the simulator says of it.

use std::collections::BTreeMap;

use flashcore_bench::gpu::launch;
use flashcore_cuda::{Context, CudaError, DeviceBuffer, Function, ModuleOptions, Stream};
use flashcore_ir::{Kernel, KernelBuilder};
use flashcore_sim::{Case, Class, SimError, SimOptions, SimReport};
use serde::{Deserialize, Serialize};

/// A kernel with all that it takes to run it.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    /// Its name, which is its kernel's too.
    pub(super) name: String,
    /// What it does, in a line.
    pub(super) about: String,
    /// The kernel, its launch and its buffers.
    pub(super) case: Case,
}

/// What is counted of accesses to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum What {
    /// Passes over the banks by reads of shared memory.
    SharedReads,
    /// Passes over the banks by writes of shared memory.
    SharedWrites,
    /// Sectors of 32 bytes of global memory that are asked for.
    GlobalSectors,
}

/// What the accesses of one line to memory take, of all warps.
#[derive(Debug, Serialize)]
pub(super) struct LineCount {
    /// The kernel's source file.
    pub(super) file: String,
    /// Its line, from 1.
    pub(super) line: u32,
    /// What is counted.
    pub(super) what: What,
    /// How many.
    pub(super) count: u64,
}

impl Probe {
    /// A kernel of one block; [`Probe::input`] and [`Probe::output`] bring its parameters in order.
    ///
    /// # Panics
    /// The kernel does not build, which is a mistake in the probe.
    pub(super) fn new(name: &str, about: &str, threads: u32, body: impl FnOnce(&KernelBuilder)) -> Probe {
        let kernel = Kernel::build(name.to_string(), threads, body);
        Probe {
            name: name.to_string(),
            about: about.to_string(),
            case: Case::new(kernel.unwrap_or_else(|errors| panic!("{name}: {errors}"))),
        }
    }

    /// Words behind the next parameter, which the kernel reads.
    pub(super) fn input(mut self, words: &[u32]) -> Probe {
        self.case = self.case.input("input", bytemuck::cast_slice(words).to_vec());
        self
    }

    /// So many words behind the next parameter, which the kernel writes.
    pub(super) fn output(mut self, words: u32) -> Probe {
        self.case = self.case.output("output", 4 * words as usize);
        self
    }

    /// Runs it by the simulator.
    pub(super) fn simulate(&self, schedule: u64) -> Result<SimReport, SimError> {
        let options = SimOptions {
            seed: schedule,
            memory_counts: true,
            ..SimOptions::default()
        };
        self.case.clone().simulate(&options)
    }

    /// What its accesses to memory take, line by line, as the simulator counts them.
    pub(super) fn counts(&self) -> Result<Vec<LineCount>, SimError> {
        let mut lines: BTreeMap<(&str, u32, What), u64> = BTreeMap::new();
        for site in self.simulate(0)?.memory {
            let what = match site.class {
                Class::LoadShared | Class::Tensor => What::SharedReads,
                Class::StoreShared => What::SharedWrites,
                Class::LoadGlobal | Class::StoreGlobal | Class::CopyAsync => What::GlobalSectors,
                _ => continue,
            };
            *lines.entry((site.line.file, site.line.line, what)).or_default() += site.transactions;
        }
        let counts = lines.into_iter().map(|((file, line, what), count)| LineCount {
            file: file.to_string(),
            line,
            what,
            count,
        });
        Ok(counts.collect())
    }

    /// Runs it on a GPU, compiled with its Rust lines. Returns what its buffers then hold.
    pub(super) fn launch(&self, context: &Context) -> Result<Vec<Vec<u8>>, CudaError> {
        let options = ModuleOptions {
            line_info: true,
            allow_performance_warnings: true,
            ..ModuleOptions::default()
        };
        let case = &self.case;
        let (function, stream) = (Function::load(context, &case.kernel, &options)?, Stream::new(context)?);
        let upload = |bytes: &Vec<u8>| DeviceBuffer::from_host(&stream, bytes);
        let device: Vec<DeviceBuffer> = case.buffers.iter().map(upload).collect::<Result<_, _>>()?;
        let slices: Vec<_> = device.iter().map(DeviceBuffer::as_slice).collect();
        launch::run(&function, &stream, &case.launch, &slices)?;
        device.iter().map(|buffer| buffer.to_vec(&stream)).collect()
    }
}
