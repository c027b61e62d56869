//! What makes two candidates one: the same machine program, launched the same way.

use flashcore_kernels::Plan;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// SHA-256 over the PTX of every step of a plan, without debug lines and without the kernel's name, and its launches;
/// 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub String);

/// The fingerprint of a plan.
///
/// ```
/// use flashcore_ir::Target;
/// use flashcore_kernels::Plan;
/// use flashcore_problem::Problem;
/// use flashcore_tune::space::fingerprint;
/// let problem = Problem::named("mission")?;
/// let of = |id: &str| Ok::<_, Box<dyn std::error::Error>>(fingerprint(&Plan::new(&problem, &id.parse()?, Target::Sm90a)?));
/// let [two, packed, three] = ["s2-b2-qreg-xor-lazy", "s2-b2-qreg-xor-lazy-gqa", "s3-b2-qreg-xor-lazy"];
/// assert_ne!(of(&format!("mma/m64n64-w4x1-{two}"))?, of(&format!("mma/m64n64-w4x1-{three}"))?);
/// # let _ = packed;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fingerprint(plan: &Plan) -> Fingerprint {
    let mut hash = Sha256::new();
    for step in plan.steps() {
        let ptx = step.kernel.to_ptx().replace(step.kernel.name(), "kernel");
        hash.update((ptx.len() as u64).to_le_bytes());
        hash.update(ptx);
        hash.update(format!("{:?}", step.launch));
    }
    let digits = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Fingerprint(digits)
}
