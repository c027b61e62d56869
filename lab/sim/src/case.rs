//! [`Case`]: a small kernel with all that it takes to run it.

use flashcore_ir::{Arg, BufferSpec, Kernel, Launch};

use crate::{SimError, SimOptions, SimReport, simulate};

/// A kernel with its launch and the contents of its buffers. Buffers are aligned to 16 bytes.
///
/// ```
/// use flashcore_ir::Kernel;
/// use flashcore_sim::{Case, SimOptions};
/// let kernel = Kernel::build("twice", 32, |k| {
///     let (x, y) = (k.param_ptr::<u32>("x"), k.param_ptr_mut::<u32>("y"));
///     y.offset(k.lane()).store(x.offset(k.lane()).load() * 2u32);
/// })?;
/// let mut case = Case::new(kernel).input("x", vec![1; 128]).output("y", 128);
/// assert!(case.simulate(&SimOptions::default())?.is_clean());
/// assert_eq!(case.buffers[1], [2; 128]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Case {
    /// The kernel.
    pub kernel: Kernel,
    /// How to launch it.
    pub launch: Launch,
    /// The buffers' contents, by slot.
    pub buffers: Vec<Vec<u8>>,
}

impl Case {
    /// One block, without buffers and arguments.
    pub fn new(kernel: Kernel) -> Case {
        Case {
            launch: Launch::of(&kernel, [1, 1, 1]),
            kernel,
            buffers: Vec::new(),
        }
    }

    /// Adds a buffer, without an argument, and returns its slot.
    pub fn buffer(&mut self, name: &'static str, contents: Vec<u8>, written: bool) -> usize {
        self.launch.buffers.push(BufferSpec {
            name,
            bytes: contents.len() as u64,
            written,
            align: 16,
        });
        self.buffers.push(contents);
        self.buffers.len() - 1
    }

    /// Passes the address of a byte of a buffer to the next parameter.
    pub fn address(&mut self, slot: usize, byte_offset: u64) {
        self.launch.args.push(Arg::Buffer { slot, byte_offset });
    }

    /// Adds a buffer that the kernel reads, and passes its address to the next parameter.
    pub fn input(mut self, name: &'static str, contents: Vec<u8>) -> Case {
        let slot = self.buffer(name, contents, false);
        self.address(slot, 0);
        self
    }

    /// Adds a buffer of zeros that the kernel writes, and passes its address to the next parameter.
    pub fn output(mut self, name: &'static str, bytes: usize) -> Case {
        let slot = self.buffer(name, vec![0; bytes], true);
        self.address(slot, 0);
        self
    }

    /// Passes a tensor map to the next parameter, if the kernel has one of this name: of dense rows
    /// of `cols` elements, from a byte of a buffer on.
    pub fn matrix(&mut self, parameter: &str, slot: usize, byte_offset: u64, [rows, cols]: [u32; 2]) {
        if let Some(of) = self.kernel.tensor_box(parameter) {
            let row_bytes = u64::from(cols * of.element.bytes());
            let recipe = of.recipe(slot, byte_offset, vec![cols.into(), rows.into()], vec![row_bytes]);
            self.launch.args.push(Arg::TensorMap(recipe));
        }
    }

    /// Runs the kernel in the simulator; written buffers hold the results afterwards.
    pub fn simulate(&mut self, options: &SimOptions) -> Result<SimReport, SimError> {
        simulate(&self.kernel, &self.launch, &mut self.buffers, options)
    }
}
