//! A small kernel with its launch and buffers.

use crate::Found;
use flashcore_ir::{Arg, BufferSpec, Kernel, Launch};
use flashcore_sim::{SimError, SimOptions, simulate};

/// A kernel of one block, its buffers and its launch.
pub(crate) struct Scene {
    pub(crate) kernel: Kernel,
    launch: Launch,
    buffers: Vec<Vec<u8>>,
}

impl Scene {
    pub(crate) fn new(kernel: Kernel) -> Scene {
        let launch = Launch {
            grid: [1, 1, 1],
            block: [kernel.threads(), 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: kernel.ledger().total_bytes(),
            buffers: Vec::new(),
            args: Vec::new(),
        };
        Scene {
            kernel,
            launch,
            buffers: Vec::new(),
        }
    }

    /// Adds a buffer for the next parameter, which the kernel reads.
    pub(crate) fn input(self, name: &'static str, bytes: Vec<u8>) -> Scene {
        self.buffer(name, bytes, false)
    }

    /// Adds a buffer for the next parameter, which the kernel writes.
    pub(crate) fn output(self, name: &'static str, bytes: u32) -> Scene {
        self.buffer(name, vec![0; bytes as usize], true)
    }

    fn buffer(mut self, name: &'static str, bytes: Vec<u8>, written: bool) -> Scene {
        self.launch.args.push(Arg::Buffer {
            slot: self.buffers.len(),
            byte_offset: 0,
        });
        self.launch.buffers.push(BufferSpec {
            name,
            bytes: bytes.len() as u64,
            written,
            align: 16,
        });
        self.buffers.push(bytes);
        self
    }

    /// Runs it under a schedule and returns the findings.
    pub(crate) fn run(mut self, schedule: u64) -> Result<Vec<Found>, SimError> {
        let options = SimOptions {
            seed: schedule,
            ..SimOptions::default()
        };
        let report = simulate(&self.kernel, &self.launch, &mut self.buffers, &options)?;
        let mut found = Vec::new();
        Found::add(&mut found, report.findings, schedule);
        Ok(found)
    }
}
