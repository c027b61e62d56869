//! The launch proof: a launch that is known to fail is refused before anything is compiled or
//! launched, with the numbers and the remedy.
//!
//! One proof serves every kernel: one written in the kernel language ([`prove_launch`]), a PTX text
//! or a cubin that another compiler made, and a function that the driver has loaded ([`prove`]).
//! The limits are those of an architecture ([`Target::limits`](crate::Target::limits)) or those
//! that the driver reports for a device; `on` is what refusals call it.
//!
//! ```
//! use flashcore_ir::Target;
//! use flashcore_ir::proof::{KernelFacts, LaunchShape, prove};
//! let facts = KernelFacts { registers: Some(200), ..KernelFacts::default() };
//! let refusals = prove(&LaunchShape::linear(1, 288), &facts, &Target::Sm90a.limits(), "sm_90a");
//! assert!(refusals[0].to_string().starts_with("288 threads of 200 registers need 76800 registers"));
//! assert_eq!(prove(&LaunchShape::linear(1, 256), &facts, &Target::Sm90a.limits(), "sm_90a"), []);
//! ```

mod facts;
mod kinds;
mod refusal;
#[cfg(test)]
mod tests;

pub use facts::{CodeForm, KernelFacts, LaunchShape};
pub use refusal::LaunchRefusal;

use crate::{BufferSpec, Kernel, Launch, Limits, ParamKind, Target};

const WARP: u64 = 32;

/// Bytes of a tensor map (CUDA driver API, `CUtensorMap`).
const TENSOR_MAP_BYTES: u64 = 128;

/// Everything that is known to fail about launching a kernel in this shape; empty if nothing is.
///
/// Dynamic shared memory above 48 KB is accepted here, because a host can opt in to it;
/// [`prove_without_opt_in`] is for a host that does not.
pub fn prove(shape: &LaunchShape, facts: &KernelFacts, limits: &Limits, on: &str) -> Vec<LaunchRefusal> {
    let mut proof = Proof {
        shape,
        facts,
        limits,
        on,
        refusals: Vec::new(),
    };
    proof.axes();
    proof.threads();
    proof.shared();
    proof.cluster();
    proof.refusals
}

struct Proof<'a> {
    shape: &'a LaunchShape,
    facts: &'a KernelFacts,
    limits: &'a Limits,
    on: &'a str,
    refusals: Vec<LaunchRefusal>,
}

/// Everything that is known to fail about a [`Launch`] of a kernel on an architecture; empty if
/// nothing is. `registers` is per thread as the compiler reports it, if it is known.
///
/// Each argument must be of its parameter's kind: a number of its type; for a pointer a buffer that the launch
/// declares, written if the kernel writes through it, or for reading a table; for a tensor map one of its boxes. An
/// address as a number is refused.
pub fn prove_launch(kernel: &Kernel, launch: &Launch, target: Target, registers: Option<u32>) -> Vec<LaunchRefusal> {
    let facts = KernelFacts {
        registers,
        ..KernelFacts::of(kernel)
    };
    let made_for = kernel.requires().target_name();
    let mut refusals: Vec<LaunchRefusal> = prove_code(&made_for, CodeForm::Ptx, target).into_iter().collect();
    refusals.extend(prove(&LaunchShape::of(launch), &facts, &target.limits(), target.name()));
    // The driver knows the cluster of a compiled kernel. A `Launch` is complete: it must name it.
    if let Some(required) = facts.required_cluster
        && launch.cluster == [1, 1, 1]
        && required != [1, 1, 1]
    {
        refusals.push(LaunchRefusal::Required {
            what: "cluster",
            given: launch.cluster,
            required,
        });
    }
    if launch.programmatic && !kernel.waits_for_launch_before() {
        refusals.push(LaunchRefusal::NeverWaits);
    }
    refusals.extend(kinds::prove_kinds(kernel, launch));
    refusals
}

/// Whether code that was made for an architecture, named as ptxas names it (`sm_80`, `sm_90a`),
/// runs on another one. `None` also where the name is not that of an NVIDIA architecture.
pub fn prove_code(made_for: &str, form: CodeForm, target: Target) -> Option<LaunchRefusal> {
    let digits = made_for.strip_prefix("sm_").or(made_for.strip_prefix("compute_"))?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (sm, suffix): (u32, &str) = (digits[..end].parse().ok()?, &digits[end..]);
    let here = target.sm();
    let is_same_major = here >= sm && here / 10 == sm / 10;
    let (fits, why) = match (form, suffix) {
        (CodeForm::Ptx, "") => (here >= sm, "PTX is compiled for its own architecture and later ones"),
        (_, "a") => (
            here == sm,
            "architecture-specific code runs on its own architecture alone",
        ),
        (_, "f") => (is_same_major, "family-specific code runs on its own family"),
        _ => (
            is_same_major,
            "machine code runs on its own architecture and later ones of the same major version",
        ),
    };
    (!fits).then(|| LaunchRefusal::Architecture {
        made_for: made_for.to_string(),
        target,
        why,
    })
}

/// A launch whose host does not opt in to more than 48 KB of dynamic shared memory: the refusal, if
/// the launch needs the opt-in.
pub fn prove_without_opt_in(
    shape: &LaunchShape,
    facts: &KernelFacts,
    limits: &Limits,
    on: &str,
) -> Option<LaunchRefusal> {
    let needed = facts.static_shared_bytes + u64::from(shape.dynamic_shared_bytes);
    let without = limits.static_shared_per_block;
    (shape.dynamic_shared_bytes > 0 && needed > u64::from(without)).then(|| LaunchRefusal::OptIn {
        static_bytes: facts.static_shared_bytes,
        dynamic_bytes: shape.dynamic_shared_bytes,
        allowed: without,
        opt_in: limits.shared_per_block,
        on: on.to_string(),
    })
}

/// Arguments of these sizes in bytes against the kernel's parameters, if they are known.
pub fn prove_arguments(facts: &KernelFacts, given: impl ExactSizeIterator<Item = u64>) -> Option<LaunchRefusal> {
    let needed = facts.parameter_bytes.as_ref()?;
    if needed.len() != given.len() {
        return Some(LaunchRefusal::ArgumentCount {
            given: given.len(),
            needed: needed.len(),
        });
    }
    let mut pairs = given.zip(needed.iter().copied()).enumerate();
    let (index, (given, needed)) = pairs.find(|(_, (given, needed))| given != needed)?;
    Some(LaunchRefusal::ArgumentSize { index, given, needed })
}

/// Checks that each declared buffer was brought, is long enough, and begins where it must. `given`
/// has the address and the bytes of each buffer, by slot; more may be given than are declared.
pub fn prove_buffers(declared: &[BufferSpec], given: &[(u64, u64)]) -> Option<LaunchRefusal> {
    if given.len() < declared.len() {
        return Some(LaunchRefusal::BufferCount {
            given: given.len(),
            needed: declared.len(),
            names: declared.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
        });
    }
    for (spec, &(address, bytes)) in declared.iter().zip(given) {
        if bytes < spec.bytes {
            return Some(LaunchRefusal::BufferSize {
                name: spec.name.to_string(),
                given: bytes,
                needed: spec.bytes,
            });
        }
        if !address.is_multiple_of(u64::from(spec.align.max(1))) {
            return Some(LaunchRefusal::BufferAlignment {
                name: spec.name.to_string(),
                address,
                align: spec.align,
            });
        }
    }
    None
}

/// Checks that argument `index` names a declared slot that was brought, and begins within its
/// buffer; `given` is as in [`prove_buffers`].
pub fn prove_argument(
    index: usize,
    slot: usize,
    byte_offset: u64,
    declared: &[BufferSpec],
    given: &[(u64, u64)],
) -> Option<LaunchRefusal> {
    let (Some(spec), Some(&(_, bytes))) = (declared.get(slot), given.get(slot)) else {
        return Some(LaunchRefusal::Slot {
            index,
            slot,
            count: declared.len(),
        });
    };
    (byte_offset > bytes).then(|| LaunchRefusal::BufferSize {
        name: spec.name.to_string(),
        given: bytes,
        needed: byte_offset,
    })
}

/// Registers that a block takes. A warp gets them in units of 256. The hardware's check spreads the
/// warps over the partitions of an SM, so it rounds their number up to a multiple of the partitions
/// (NVIDIA's occupancy calculator, `cudaOccMaxBlocksPerSMRegsLimit` in CUDA 13.0).
pub fn registers_per_block(threads: u64, registers: u32, limits: &Limits) -> u64 {
    let partitions = u64::from(limits.partitions_per_sm.max(1));
    let warps = threads.div_ceil(WARP).next_multiple_of(partitions);
    let unit = u64::from(limits.register_unit_per_warp.max(1));
    warps.saturating_mul((u64::from(registers) * WARP).next_multiple_of(unit))
}

fn parameter_bytes(kind: ParamKind) -> u64 {
    match kind {
        ParamKind::Pointer { .. } => 8,
        ParamKind::Value(ty) => u64::from(ty.bytes()),
        ParamKind::TensorMap { .. } => TENSOR_MAP_BYTES,
    }
}

impl Proof<'_> {
    fn refuse(&mut self, refusal: LaunchRefusal) {
        self.refusals.push(refusal);
    }

    fn on(&self) -> String {
        self.on.to_string()
    }

    fn axes(&mut self) {
        let (shape, limits) = (self.shape, self.limits);
        // Too many threads in all are refused as such.
        let has_too_many = |what| what == "block" && shape.threads() > u64::from(limits.threads_per_block);
        for (what, given, allowed) in [
            ("grid", shape.grid, limits.grid),
            ("block", shape.block, limits.block),
            ("cluster", shape.cluster, [u32::MAX; 3]),
        ] {
            if given.contains(&0) {
                self.refuse(LaunchRefusal::Zero { what, given });
            } else if given.iter().zip(&allowed).any(|(given, allowed)| given > allowed) && !has_too_many(what) {
                let on = self.on();
                self.refuse(LaunchRefusal::Axis {
                    what,
                    given,
                    allowed,
                    on,
                });
            }
        }
    }

    fn threads(&mut self) {
        let (facts, limits, given) = (self.facts, self.limits, self.shape.threads());
        if given == 0 {
            return;
        }
        if given > u64::from(limits.threads_per_block) {
            let (allowed, on) = (limits.threads_per_block, self.on());
            self.refuse(LaunchRefusal::Threads { given, allowed, on });
            return;
        }
        if let Some(required) = facts.required_block.filter(|&required| required != self.shape.block) {
            self.required("block", self.shape.block, required);
        } else if let Some(allowed) = facts.max_threads.filter(|&most| given > u64::from(most)) {
            let registers = facts.registers;
            self.refuse(LaunchRefusal::KernelThreads {
                given,
                allowed,
                registers,
            });
        }
        let Some(registers) = facts.registers else {
            return;
        };
        let needed = registers_per_block(given, registers, limits);
        if needed > u64::from(limits.registers_per_sm) {
            self.refuse(LaunchRefusal::Registers {
                threads: given,
                registers,
                needed,
                unit: limits.register_unit_per_warp,
                partitions: limits.partitions_per_sm,
                allowed: limits.registers_per_sm,
                // Few enough threads for `launch_registers`: the limit was checked above.
                most: limits.launch_registers(given as u32).min(limits.registers_per_thread),
                on: self.on(),
            });
        }
    }

    fn required(&mut self, what: &'static str, given: [u32; 3], required: [u32; 3]) {
        self.refuse(LaunchRefusal::Required { what, given, required });
    }

    fn shared(&mut self) {
        let (given, dynamic_bytes) = (self.facts.static_shared_bytes, self.shape.dynamic_shared_bytes);
        let (total, opt_in) = (given + u64::from(dynamic_bytes), self.limits.shared_per_block);
        let allowed = self.limits.static_shared_per_block;
        if given > u64::from(allowed) {
            let on = self.on();
            self.refuse(LaunchRefusal::StaticShared {
                given,
                total,
                allowed,
                opt_in,
                on,
            });
        } else if total > u64::from(opt_in) {
            self.refuse(LaunchRefusal::Shared {
                static_bytes: given,
                dynamic_bytes,
                allowed: opt_in,
                on: self.on(),
            });
        }
        let (needed, given) = (self.facts.dynamic_shared_bytes, dynamic_bytes);
        if given < needed {
            self.refuse(LaunchRefusal::SharedRequest { needed, given });
        }
    }

    fn cluster(&mut self) {
        let (shape, limits) = (self.shape, self.limits);
        let is_asked = shape.cluster != [1, 1, 1];
        if let Some(required) = self.facts.required_cluster
            && is_asked
            && required != shape.cluster
        {
            self.required("cluster", shape.cluster, required);
        }
        // A kernel that was compiled for a cluster is launched in it without being told.
        let cluster = if is_asked {
            shape.cluster
        } else {
            self.facts.required_cluster.unwrap_or([1; 3])
        };
        if cluster.contains(&0) || shape.grid.contains(&0) {
            return;
        }
        let blocks = cluster
            .iter()
            .fold(1u64, |product, &n| product.saturating_mul(u64::from(n)));
        let (allowed, on) = (limits.cluster_blocks, self.on());
        if allowed <= 1 && (blocks > 1 || shape.programmatic_dependent) {
            let what = if blocks > 1 {
                "clusters"
            } else {
                "programmatic dependent launches"
            };
            self.refuse(LaunchRefusal::NeedsHopper { what, on });
            return;
        }
        if blocks > u64::from(allowed) {
            self.refuse(LaunchRefusal::ClusterSize {
                given: cluster,
                blocks,
                allowed,
                on,
            });
        }
        let mut pairs = shape.grid.iter().zip(&cluster);
        if pairs.any(|(grid, cluster)| grid % cluster != 0) {
            let grid = shape.grid;
            self.refuse(LaunchRefusal::ClusterGrid { grid, cluster });
        }
    }
}
