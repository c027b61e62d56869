//! What a kernel leaves in its buffers must not depend on what CUDA leaves open.

use flashcore_ir::site::SiteId;
use flashcore_ptx::PtxError;
use flashcore_ptx::{Function, Module};
use flashcore_sim::{Actor, Finding, FindingKind, Line, PtxKernel};

/// What of a kernel CUDA leaves open.
pub(super) struct Open {
    /// Whether it has atomic operations: sums of floats depend on their order.
    pub(super) atomics: bool,
    /// Whether it has fragments of `wmma`.
    pub(super) fragments: bool,
}

impl Open {
    pub(super) fn of(module: &Module, kernel: &Function) -> Result<Open, PtxError> {
        let all = module.with_callees(kernel)?;
        let uses = |names: &[&str]| {
            let mut forms = all
                .iter()
                .flat_map(|function| &function.instructions)
                .map(|inst| inst.form as usize);
            forms.any(|form| matches!(&module.forms()[form], Ok(form) if names.contains(&form.name())))
        };
        Ok(Open {
            atomics: uses(&["atom", "red"]),
            fragments: uses(&["wmma"]),
        })
    }
}

/// A finding of this kind where buffers differ from those of the first run; `than` says what the runs differ in.
pub(super) fn differ(
    kernel: &PtxKernel,
    kind: FindingKind,
    than: &str,
    [first, other]: [&[Vec<u8>]; 2],
) -> Option<Finding> {
    let slot = first.iter().zip(other).position(|(first, other)| first != other)?;
    let byte = first[slot]
        .iter()
        .zip(&other[slot])
        .position(|(first, other)| first != other)?;
    let name = kernel.buffers()[slot].name;
    let at = kernel.kernel().kernel_line(SiteId(0));
    Some(Finding {
        kind,
        message: format!("leaves other bytes in `{name}`, from byte {byte} on, {than}"),
        lines: vec![Line {
            file: at.file,
            line: at.line,
            column: at.column,
            verb: None,
        }],
        actor: Actor {
            block: [0; 3],
            warp: 0,
            lanes: 0,
        },
        other: None,
        object: Some(name.to_string()),
        bytes: Some((byte as i64, byte as i64 + 1)),
        element: None,
        help: Some(
            match kind {
                FindingKind::OpaqueLayout => {
                    "which element of a matrix an index of a fragment is must not matter: go through memory by \
                     store_matrix_sync, or use mma.sync, whose layout is defined"
                }
                _ => {
                    "put __syncwarp() where lanes that parted need each other, and take no __activemask() for all lanes"
                }
            }
            .into(),
        ),
        count: 1,
    })
}
