//! Small kernels made to be watched: by the simulator, and on a GPU by a profiler or a sanitizer,
//! whose word on them is compared.
//!
//! [`banks`] are patterns of accesses to shared memory, whose passes over the banks ncu counts
//! instruction by instruction. [`races`] are mistakes in synchronisation and the same kernels
//! without them, which compute-sanitizer's racecheck judges. `flashcore-tools probe` runs them,
//! `scripts/agree_with_tools.py` asks the tools. The counts are in `tests/it/ncu-counts.json`,
//! which CI holds the simulator to.

use std::collections::BTreeMap;

use flashcore_cuda::{Context, CudaError, Function, ModuleOptions, Stream};
use flashcore_ir::{Arg, BufferSpec, BuildErrors, Kernel, KernelBuilder, Launch};
use flashcore_sim::{Class, SimError, SimOptions, SimReport, simulate};
use serde::{Deserialize, Serialize};

use crate::fuzz::run::launch_on;

pub mod banks;
pub mod races;
mod races_hopper;

/// A kernel with all that it takes to run it.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Its name, which is its kernel's too.
    pub name: String,
    /// What it does, in a line.
    pub about: String,
    /// The kernel.
    pub kernel: Kernel,
    /// How to launch it.
    pub launch: Launch,
    /// What the buffers hold before.
    pub buffers: Vec<Vec<u8>>,
}

/// What is counted of accesses to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Passes over the banks by reads of shared memory.
    SharedReads,
    /// Passes over the banks by writes of shared memory.
    SharedWrites,
    /// Sectors of 32 bytes of global memory that are asked for.
    GlobalSectors,
}

/// What the accesses of one line to memory take, of all warps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCount {
    /// The kernel's source file.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
    /// What is counted.
    pub what: What,
    /// How many.
    pub count: u64,
}

impl Probe {
    /// A kernel of one block whose parameters are buffers, which [`Probe::input`] and
    /// [`Probe::output`] bring in order.
    ///
    /// # Errors
    /// As [`Kernel::build`].
    pub fn new(name: &str, about: &str, threads: u32, body: impl FnOnce(&KernelBuilder)) -> Result<Probe, BuildErrors> {
        let kernel = Kernel::build(name.to_string(), threads, body)?;
        let launch = Launch {
            grid: [1, 1, 1],
            block: [threads, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: kernel.ledger().total_bytes(),
            buffers: Vec::new(),
            args: Vec::new(),
        };
        Ok(Probe {
            name: name.to_string(),
            about: about.to_string(),
            kernel,
            launch,
            buffers: Vec::new(),
        })
    }

    /// Words behind the next parameter, which the kernel reads.
    pub fn input(mut self, words: &[u32]) -> Probe {
        let slot = self.buffer("input", bytemuck::cast_slice(words).to_vec(), false);
        self.launch.args.push(Arg::Buffer { slot, byte_offset: 0 });
        self
    }

    /// So many words behind the next parameter, which the kernel writes.
    pub fn output(mut self, words: u32) -> Probe {
        let slot = self.buffer("output", vec![0; 4 * words as usize], true);
        self.launch.args.push(Arg::Buffer { slot, byte_offset: 0 });
        self
    }

    /// A matrix of 16-bit elements behind the next parameter, which is a tensor map.
    pub fn matrix(mut self, parameter: &str, rows: u32, cols: u32, written: bool) -> Probe {
        let bytes = vec![0; 2 * (rows * cols) as usize];
        let slot = self.buffer(if written { "output" } else { "input" }, bytes, written);
        if let Some(of) = self.kernel.tensor_box(parameter) {
            let dims = vec![u64::from(cols), u64::from(rows)];
            let recipe = of.recipe(slot, 0, dims, vec![u64::from(2 * cols)]);
            self.launch.args.push(Arg::TensorMap(recipe));
        }
        self
    }

    fn buffer(&mut self, name: &'static str, bytes: Vec<u8>, written: bool) -> usize {
        self.launch.buffers.push(BufferSpec {
            name,
            bytes: bytes.len() as u64,
            written,
            align: 16,
        });
        self.buffers.push(bytes);
        self.buffers.len() - 1
    }

    /// Runs it by the simulator.
    ///
    /// # Errors
    /// A launch that does not fit the kernel.
    pub fn simulate(&self, schedule: u64) -> Result<SimReport, SimError> {
        let options = SimOptions {
            seed: schedule,
            memory_counts: true,
            ..SimOptions::default()
        };
        simulate(&self.kernel, &self.launch, &mut self.buffers.clone(), &options)
    }

    /// What its accesses to memory take, line by line, as the simulator counts them.
    ///
    /// # Errors
    /// As [`Probe::simulate`].
    ///
    /// ```
    /// use flashcore_tools::fuzz::probe::{What, banks};
    /// let probes = banks::all()?;
    /// let column = probes.iter().find(|probe| probe.name == "floats_plain").ok_or("no such probe")?;
    /// let counts = column.counts()?;
    /// assert!(counts.iter().any(|line| line.what == What::SharedReads && line.count == 32));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counts(&self) -> Result<Vec<LineCount>, SimError> {
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
        let line_count = |((file, line, what), count): ((&str, u32, What), u64)| LineCount {
            file: file.to_string(),
            line,
            what,
            count,
        };
        Ok(lines.into_iter().map(line_count).collect())
    }

    /// Runs it on a GPU, compiled with its Rust lines.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, context: &Context) -> Result<(), CudaError> {
        let options = ModuleOptions {
            line_info: true,
            allow_performance_warnings: true,
            ..ModuleOptions::default()
        };
        let function = Function::load(context, &self.kernel, &options)?;
        launch_on(&Stream::new(context)?, &function, &self.launch, &self.buffers).map(drop)
    }
}
