//! Explaining launches that passed the launch proof and that the driver refused.

use flashcore_ir::Limits;
use flashcore_ir::proof::{KernelFacts, LaunchShape, registers_per_block};

use crate::function::FunctionAttributes;

/// Of a launch refused with `INVALID_VALUE`: what was checked and what is left.
pub(crate) fn invalid_value(
    shape: &LaunchShape,
    facts: &KernelFacts,
    attributes: &FunctionAttributes,
    limits: &Limits,
) -> String {
    let parameters = match &facts.parameter_bytes {
        Some(bytes) => format!("{} parameters of {:?} B were matched", bytes.len(), bytes),
        None => {
            "the kernel's parameters could not be read from its PTX, so the arguments may not match them".to_string()
        }
    };
    format!(
        "Checked before the call and found within limits: grid {:?} ≤ {:?}, block {:?} ≤ {:?}, {} ≤ {} threads, shared \
         memory {} static + {} dynamic ≤ {} B; {parameters}. Left are: a stream of another context, a cluster {:?} that \
         no GPC can hold, and more than {} B of dynamic shared memory without opt-in",
        shape.grid,
        limits.grid,
        shape.block,
        limits.block,
        shape.threads(),
        attributes.max_threads_per_block,
        attributes.static_shared_bytes,
        shape.dynamic_shared_bytes,
        limits.shared_per_block,
        shape.cluster,
        limits
            .static_shared_per_block
            .saturating_sub(attributes.static_shared_bytes),
    )
}

/// Of a launch refused with `LAUNCH_OUT_OF_RESOURCES` or `INVALID_CLUSTER_SIZE`: what a block takes.
pub(crate) fn out_of_resources(shape: &LaunchShape, attributes: &FunctionAttributes, limits: &Limits) -> String {
    let threads = shape.threads();
    let shared = u64::from(attributes.static_shared_bytes) + u64::from(shape.dynamic_shared_bytes);
    let mut text = format!(
        "A block takes {} of {} registers ({threads} threads × {}) and {} of {} B of shared memory ({} of them reserved \
         by the system)",
        registers_per_block(threads, attributes.registers, limits),
        limits.registers_per_sm,
        attributes.registers,
        shared + u64::from(limits.shared_reserved_per_block),
        limits.shared_per_sm,
        limits.shared_reserved_per_block,
    );
    if shape.cluster != [1, 1, 1] {
        let blocks: u64 = shape.cluster.iter().map(|&n| u64::from(n)).product();
        text.push_str(&format!(
            "; {blocks} such blocks must fit in one GPC at once for the cluster {:?}",
            shape.cluster
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_ir::Target;

    fn kernel() -> FunctionAttributes {
        FunctionAttributes {
            registers: 168,
            max_threads_per_block: 384,
            ..FunctionAttributes::default()
        }
    }

    #[test]
    fn what_the_driver_refuses_is_explained_with_numbers() {
        let shape = LaunchShape {
            cluster: [4, 1, 1],
            dynamic_shared_bytes: 200_000,
            ..LaunchShape::linear(4, 384)
        };
        let text = out_of_resources(&shape, &kernel(), &Target::Sm90a.limits());
        for part in [
            "64512 of 65536 registers",
            "384 threads × 168",
            "201024 of 233472 B",
            "4 such blocks",
        ] {
            assert!(text.contains(part), "{part} is missing from: {text}");
        }
        let facts = KernelFacts {
            parameter_bytes: Some(vec![8, 4]),
            ..KernelFacts::default()
        };
        let text = invalid_value(&shape, &facts, &kernel(), &Target::Sm90a.limits());
        for part in ["2 parameters of [8, 4] B", "384 ≤ 384 threads", "opt-in"] {
            assert!(text.contains(part), "{part} is missing from: {text}");
        }
    }
}
