//! [`Machine`]: a kernel and a launch that fit each other, ready to run block by block.

use flashcore_ir::{Arg, Kernel, Launch, ParamKind, ScalarType};

use crate::error::SimError;
use crate::lower::lower;
use crate::program::Program;
use crate::registers::Constants;
use crate::report::SimOptions;

/// Address of the first byte of shared memory. Not zero: an address made from nothing is then found.
pub(crate) const SHARED_BASE: u32 = 1024;

/// The most shared memory a block has on any target: 227 KB (CUDA programming guide, compute capability 9.0).
const MAX_SHARED_BYTES: u32 = 232_448;

/// log2 of the distance between the addresses of two buffers.
const REGION_SHIFT: u32 = 40;

/// What the interpreter needs to know of a pointer parameter.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Slot of its buffer.
    pub(crate) slot: usize,
    /// Address of the buffer's first byte.
    pub(crate) base: u64,
    /// Bytes of the buffer.
    pub(crate) bytes: u64,
    /// Whether the parameter may be written through.
    pub(crate) writable: bool,
    /// Whether the kernel writes the buffer, through this or another parameter.
    pub(crate) written: bool,
    /// Whether the buffer is seen through pages with shadow cells: it is written, or not all of it has been.
    pub(crate) overlaid: bool,
    /// Bytes of an element.
    pub(crate) element: u32,
    /// The parameter's name.
    pub(crate) name: String,
}

/// A kernel and a launch, checked against each other and decoded.
pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) launch: &'a Launch,
    pub(crate) options: &'a SimOptions,
    pub(crate) program: Program,
    pub(crate) constants: Constants,
    /// Bits of every argument.
    pub(crate) args: Vec<u64>,
    /// By parameter; numbers have an empty region.
    pub(crate) regions: Vec<Region>,
    /// By slot: whether what it holds at the start counts as never written.
    pub(crate) uninitialized: Vec<bool>,
    pub(crate) warps: usize,
    pub(crate) shared_bytes: u32,
    /// Whether blocks must run one after another because they talk through global memory.
    pub(crate) serial: bool,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        kernel: &'a Kernel,
        launch: &'a Launch,
        buffer_bytes: &[u64],
        options: &'a SimOptions,
    ) -> Result<Machine<'a>, SimError> {
        check_shape(kernel, launch)?;
        check_buffers(launch, buffer_bytes)?;
        let program = lower(kernel, SHARED_BASE)?;
        let (args, mut regions) = bind(kernel, launch)?;
        let written: Vec<usize> = regions.iter().filter(|r| r.writable).map(|r| r.slot).collect();
        let uninitialized: Vec<bool> = (0..launch.buffers.len())
            .map(|slot| launch.buffers[slot].name == "workspace" || options.uninitialized.contains(&slot))
            .collect();
        for region in &mut regions {
            region.written = written.contains(&region.slot);
            region.overlaid = region.written || uninitialized.get(region.slot) == Some(&true);
        }
        // A reduction into memory that nobody reads can wait until all blocks are done.
        let by_slot = |flags: &[bool], slot: usize| regions.iter().zip(flags).any(|(r, f)| *f && r.slot == slot);
        let serial = program.returning_atomics
            || regions.iter().zip(&program.atomics).any(|(region, atomic)| {
                *atomic && (by_slot(&program.loaded, region.slot) || by_slot(&program.stored, region.slot))
            });
        Ok(Machine {
            constants: Constants::new(&program),
            kernel,
            launch,
            options,
            program,
            args,
            regions,
            uninitialized,
            warps: kernel.threads() as usize / 32,
            shared_bytes: kernel.ledger().total_bytes().next_multiple_of(16),
            serial,
        })
    }

    /// Threads a block.
    pub(crate) fn threads(&self) -> usize {
        32 * self.warps
    }

    /// Index of a block in the grid.
    pub(crate) fn block_index(&self, linear: u64) -> [u32; 3] {
        let [x, y, _] = self.launch.grid.map(u64::from);
        [(linear % x) as u32, (linear / x % y) as u32, (linear / (x * y)) as u32]
    }
}

fn check_shape(kernel: &Kernel, launch: &Launch) -> Result<(), SimError> {
    let [x, y, z] = launch.grid;
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65_535 || z > 65_535 {
        return Err(SimError::Grid(launch.grid));
    }
    if launch.block != [kernel.threads(), 1, 1] {
        return Err(SimError::Threads {
            kernel: kernel.name().to_string(),
            expected: kernel.threads(),
            given: launch.block,
        });
    }
    if launch.cluster != [1, 1, 1] {
        return Err(SimError::Cluster(launch.cluster));
    }
    let ledger = kernel.ledger();
    if ledger.total_bytes() > MAX_SHARED_BYTES {
        return Err(SimError::SharedMemoryTooLarge {
            needed: ledger.total_bytes(),
            allowed: MAX_SHARED_BYTES,
        });
    }
    let needed = if ledger.is_static { 0 } else { ledger.total_bytes() };
    if launch.dynamic_shared_bytes < needed {
        return Err(SimError::SharedMemory {
            kernel: kernel.name().to_string(),
            needed,
            given: launch.dynamic_shared_bytes,
        });
    }
    Ok(())
}

fn check_buffers(launch: &Launch, buffer_bytes: &[u64]) -> Result<(), SimError> {
    if buffer_bytes.len() != launch.buffers.len() {
        return Err(SimError::BufferCount {
            expected: launch.buffers.len(),
            given: buffer_bytes.len(),
        });
    }
    for (spec, &given) in launch.buffers.iter().zip(buffer_bytes) {
        if given < spec.bytes {
            return Err(SimError::BufferSize {
                name: spec.name.to_string(),
                expected: spec.bytes,
                given,
            });
        }
    }
    Ok(())
}

/// Bits of the arguments, and the region behind each pointer.
fn bind(kernel: &Kernel, launch: &Launch) -> Result<(Vec<u64>, Vec<Region>), SimError> {
    let params = kernel.params();
    if params.len() != launch.args.len() {
        return Err(SimError::ArgumentCount {
            kernel: kernel.name().to_string(),
            expected: params.len(),
            given: launch.args.len(),
        });
    }
    let (mut args, mut regions) = (Vec::new(), Vec::new());
    for (index, (param, arg)) in params.iter().zip(&launch.args).enumerate() {
        let mismatch = |given: &str| SimError::ArgumentType {
            index,
            name: param.name.clone(),
            expected: match param.kind {
                ParamKind::Pointer { .. } => "pointer".to_string(),
                ParamKind::Value(ty) => SimError::type_name(ty),
                ParamKind::TensorMap { .. } => "tensor map".to_string(),
            },
            given: given.to_string(),
        };
        let mut region = Region {
            slot: usize::MAX,
            base: 0,
            bytes: 0,
            writable: false,
            written: false,
            overlaid: false,
            element: 4,
            name: param.name.clone(),
        };
        let bits = match (param.kind, arg) {
            (_, Arg::TensorMap(_)) => return Err(SimError::TensorMap { index }),
            (ParamKind::Pointer { element, writable }, Arg::Buffer { slot, byte_offset }) => {
                let spec = launch.buffers.get(*slot).ok_or(SimError::NoSuchSlot {
                    index,
                    slot: *slot,
                    slots: launch.buffers.len(),
                })?;
                if writable && !spec.written {
                    return Err(SimError::BufferNotWritten {
                        name: param.name.clone(),
                        buffer: spec.name.to_string(),
                    });
                }
                region.slot = *slot;
                // Aligned exactly as promised and no better, so that an access which needs more is found.
                region.base = ((*slot as u64 + 1) << REGION_SHIFT) + u64::from(spec.align.max(1));
                region.bytes = spec.bytes;
                region.writable = writable;
                region.element = element.bytes();
                region.base.wrapping_add(*byte_offset)
            }
            (ParamKind::TensorMap { .. }, _) => return Err(SimError::TensorMap { index }),
            (ParamKind::Pointer { .. }, _) => return Err(mismatch("a number")),
            (ParamKind::Value(_), Arg::Buffer { .. }) => return Err(mismatch("a buffer")),
            (ParamKind::Value(ty), arg) => {
                let (bits, given) = match arg {
                    Arg::U32(v) => (u64::from(*v), ScalarType::U32),
                    Arg::I32(v) => (u64::from(*v as u32), ScalarType::S32),
                    Arg::U64(v) => (*v, ScalarType::U64),
                    Arg::F32(v) => (u64::from(v.to_bits()), ScalarType::F32),
                    Arg::Buffer { .. } | Arg::TensorMap(_) => return Err(mismatch("a buffer")),
                };
                // An i64 travels as its bits.
                let fits = ty == given || (ty == ScalarType::S64 && given == ScalarType::U64);
                if !fits {
                    return Err(mismatch(&SimError::type_name(given)));
                }
                bits
            }
        };
        args.push(bits);
        regions.push(region);
    }
    Ok((args, regions))
}
