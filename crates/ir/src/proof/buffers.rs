//! Buffers of a launch against those that its caller brings.

use super::LaunchRefusal;
use crate::BufferSpec;

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
