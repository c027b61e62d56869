//! A case as it is written: a kernel, its launch, and what its buffers hold before it and after it.

use flashcore_ptx::Module;
use flashcore_sim::{PtxKernel, PtxLaunch, SimOptions, TensorSums};
use serde::Serialize;

use super::writer::Area;

/// A launch with its buffers, before and after.
#[derive(Serialize)]
pub(super) struct Case {
    pub(super) name: String,
    /// The file of its PTX.
    pub(super) module: String,
    pub(super) entry: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    /// Hexadecimal bytes of each parameter, and the buffers whose addresses stand in them.
    args: Vec<(String, Vec<(usize, usize)>)>,
    variables: Vec<(String, String)>,
    pub(super) buffers: Vec<Held>,
    /// The launch file of a kernel of the corpus.
    pub(super) declaration: Option<String>,
    /// What the simulator finds in a kernel.
    pub(super) findings: Vec<String>,
}

/// A buffer.
#[derive(Serialize)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Where in `data.bin` its bytes begin, before and after the launch; none where nothing is written, or compared.
    pub(super) before: Option<u64>,
    pub(super) after: Option<u64>,
    pub(super) areas: Vec<Area>,
}

/// `data.bin`, as it grows.
#[derive(Default)]
pub(super) struct Data(pub(super) Vec<u8>);

impl Data {
    pub(super) fn add(&mut self, bytes: &[u8]) -> u64 {
        let at = self.0.len() as u64;
        self.0.extend(bytes);
        at
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Case {
    /// Of a kernel in a file and its launch. `held` gives for the number of a buffer where its bytes are before the
    /// launch and after it, and how they are compared.
    pub(super) fn new(
        name: &str,
        module: &str,
        entry: &str,
        launch: &PtxLaunch,
        mut held: impl FnMut(usize) -> (Option<u64>, Option<u64>, Vec<Area>),
    ) -> Case {
        let buffers = launch.buffers.iter().enumerate().map(|(slot, buffer)| {
            let (before, after, areas) = held(slot);
            Held {
                name: buffer.name.clone(),
                bytes: buffer.bytes,
                before,
                after,
                areas,
            }
        });
        let args = launch.args.iter().map(|arg| (hex(&arg.bytes), arg.pointers.clone()));
        let variables = launch.variables.iter().map(|(name, bytes)| (name.clone(), hex(bytes)));
        Case {
            name: name.to_string(),
            module: module.to_string(),
            entry: entry.to_string(),
            grid: launch.grid,
            block: launch.block,
            shared: launch.dynamic_shared,
            args: args.collect(),
            variables: variables.collect(),
            buffers: buffers.collect(),
            declaration: None,
            findings: Vec::new(),
        }
    }
}

/// Simulates a kernel as a Hopper GPU computes. What its buffers hold changes; returns what is found.
pub(super) fn simulate(
    text: &str,
    entry: &str,
    launch: &PtxLaunch,
    buffers: &mut [Vec<u8>],
    options: SimOptions,
) -> Result<Vec<String>, String> {
    let module = Module::read(text).map_err(|error| error.to_string())?;
    let options = SimOptions {
        tensor_sums: TensorSums::Hopper,
        ..options
    };
    let report = PtxKernel::read(&module, entry, launch).and_then(|kernel| kernel.simulate(buffers, &options));
    let report = report.map_err(|error| error.to_string())?;
    Ok(report.findings.iter().map(ToString::to_string).collect())
}
