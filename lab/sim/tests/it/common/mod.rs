//! Launches for small test kernels.
#![allow(dead_code, unreachable_pub)]

use flashcore_ir::{Arg, BufferSpec, Kernel, KernelBuilder, Launch};
use flashcore_sim::{Finding, FindingKind, SimOptions, SimReport, simulate};

/// A kernel with its buffers and launch.
pub struct Case {
    pub kernel: Kernel,
    pub grid: u32,
    pub grid_y: u32,
    pub cluster: u32,
    pub buffers: Vec<Vec<u8>>,
    pub names: Vec<&'static str>,
    pub written: Vec<bool>,
    pub args: Vec<Arg>,
    pub options: SimOptions,
}

impl Case {
    pub fn new(threads: u32, body: impl FnOnce(&KernelBuilder)) -> Case {
        Case {
            kernel: Kernel::build("test_kernel", threads, body).unwrap(),
            grid: 1,
            grid_y: 1,
            cluster: 1,
            buffers: Vec::new(),
            names: Vec::new(),
            written: Vec::new(),
            args: Vec::new(),
            options: SimOptions::default(),
        }
    }
    pub fn grid(mut self, blocks: u32) -> Case {
        self.grid = blocks;
        self
    }
    /// Clusters of `blocks` blocks.
    pub fn cluster(mut self, blocks: u32) -> Case {
        self.cluster = blocks;
        self
    }
    /// Adds a two-dimensional tensor for the kernel's next parameter, a tensor map.
    pub fn tensor<T: Bytes>(self, name: &'static str, values: &[T], cols: u64, written: bool) -> Case {
        let element = std::mem::size_of::<T>() as u64;
        let rows = values.len() as u64 / cols;
        self.tensor_of(name, values, vec![cols, rows], vec![cols * element], written)
    }
    /// Adds a tensor of any rank, innermost dimension first, for the kernel's next parameter.
    pub fn tensor_of<T: Bytes>(
        mut self,
        name: &'static str,
        values: &[T],
        dims: Vec<u64>,
        byte_strides: Vec<u64>,
        written: bool,
    ) -> Case {
        let param = &self.kernel.params()[self.args.len()];
        let boxes = self.kernel.tensor_box(&param.name).unwrap();
        let recipe = boxes.recipe(self.buffers.len(), 0, dims, byte_strides);
        self.args.push(Arg::TensorMap(recipe));
        self.buffers.push(values.iter().flat_map(|v| v.bytes()).collect());
        self.names.push(name);
        self.written.push(written);
        self
    }
    pub fn buffer(mut self, name: &'static str, bytes: Vec<u8>, written: bool) -> Case {
        self.args.push(Arg::Buffer {
            slot: self.buffers.len(),
            byte_offset: 0,
        });
        self.buffers.push(bytes);
        self.names.push(name);
        self.written.push(written);
        self
    }
    pub fn input<T: Bytes>(self, name: &'static str, values: &[T]) -> Case {
        let bytes = values.iter().flat_map(|v| v.bytes()).collect();
        self.buffer(name, bytes, false)
    }
    pub fn output(self, name: &'static str, bytes: usize) -> Case {
        self.buffer(name, vec![0xcc; bytes], true)
    }
    pub fn arg(mut self, arg: Arg) -> Case {
        self.args.push(arg);
        self
    }
    pub fn seed(mut self, seed: u64) -> Case {
        self.options.seed = seed;
        self
    }
    pub fn launch(&self) -> Launch {
        let specs = self.buffers.iter().zip(&self.names).zip(&self.written);
        Launch {
            grid: [self.grid, self.grid_y, 1],
            block: [self.kernel.threads(), 1, 1],
            cluster: [self.cluster, 1, 1],
            dynamic_shared_bytes: self.kernel.ledger().total_bytes(),
            programmatic: self.kernel.waits_for_launch_before(),
            buffers: specs
                .map(|((bytes, name), written)| BufferSpec {
                    name,
                    bytes: bytes.len() as u64,
                    written: *written,
                    align: 16,
                })
                .collect(),
            args: self.args.clone(),
        }
    }
    pub fn run(&mut self) -> SimReport {
        let launch = self.launch();
        simulate(&self.kernel, &launch, &mut self.buffers, &self.options).unwrap()
    }
    /// Runs and asserts that there are no findings.
    #[track_caller]
    pub fn run_clean(&mut self) -> SimReport {
        let report = self.run();
        assert!(report.is_clean(), "{}", all(&report));
        report
    }
    /// Runs and asserts that all findings are of this kind.
    #[track_caller]
    pub fn run_finding(&mut self, kind: FindingKind) -> Finding {
        let report = self.run();
        assert!(!report.is_clean(), "expected {kind:?}, found nothing");
        assert!(report.findings.iter().all(|f| f.kind == kind), "{}", all(&report));
        report.findings[0].clone()
    }
    pub fn f32s(&self, slot: usize) -> Vec<f32> {
        let words = self.buffers[slot].chunks_exact(4);
        words.map(|w| f32::from_le_bytes(w.try_into().unwrap())).collect()
    }
    pub fn u32s(&self, slot: usize) -> Vec<u32> {
        let words = self.buffers[slot].chunks_exact(4);
        words.map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
    }
}

/// Asserts that a run under each of `seeds` seeds gives one of these kinds. Returns the first
/// finding.
#[track_caller]
pub fn found(mut case: Case, kinds: &[FindingKind], seeds: u64) -> Finding {
    let buffers = case.buffers.clone();
    let mut first = None;
    for seed in 0..seeds {
        case.options.seed = seed;
        case.buffers = buffers.clone();
        let report = case.run();
        let finding = report.findings.iter().find(|f| kinds.contains(&f.kind));
        let finding = finding.unwrap_or_else(|| panic!("seed {seed} did not find {kinds:?}:\n{}", all(&report)));
        first = first.or(Some(finding.clone()));
    }
    first.unwrap()
}

pub fn all(report: &SimReport) -> String {
    let texts: Vec<String> = report.findings.iter().map(|f| f.to_string()).collect();
    texts.join("\n\n")
}

pub trait Bytes {
    fn bytes(&self) -> Vec<u8>;
}
macro_rules! bytes {
    ($($ty:ty)*) => {$(
        impl Bytes for $ty {
            fn bytes(&self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
        }
    )*};
}
bytes!(u32 i32 f32 u16 half::f16 half::bf16);
