//! Identity of a candidate's machine program and launch.

use flashcore_check::own::sha256;
use flashcore_kernels::Plan;
use serde::{Deserialize, Serialize};

/// SHA-256 of a plan's PTX, without debug lines and kernel names, and of its launches, in hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub String);

pub(crate) fn fingerprint(plan: &Plan) -> Fingerprint {
    let mut bytes = Vec::new();
    for step in plan.steps() {
        let ptx = step.kernel.to_ptx().replace(step.kernel.name(), "kernel");
        bytes.extend((ptx.len() as u64).to_le_bytes());
        bytes.extend(ptx.into_bytes());
        bytes.extend(format!("{:?}", step.launch).into_bytes());
    }
    Fingerprint(sha256(bytes))
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Target;
    use flashcore_problem::Problem;

    use super::*;

    #[test]
    fn names_are_ignored_and_launches_are_not() {
        let problem = Problem::named("small").unwrap();
        let config = "mma/m64n64-w4x1-s2-b2-qreg-xor-cond".parse().unwrap();
        let plan = Plan::new(&problem, &config, Target::Sm90a).unwrap();
        // Another length is the same program in another launch.
        let longer = Problem::builder()
            .batch(2 * problem.batch())
            .heads(problem.num_heads(), problem.num_heads());
        let longer = longer
            .seq_len(problem.seq_len_q())
            .head_dim(problem.head_dim())
            .dtype(problem.dtype());
        let longer = Plan::new(&longer.build().unwrap(), &config, Target::Sm90a).unwrap();
        let ptx = |plan: &Plan| plan.main.kernel.to_ptx();
        assert_eq!(ptx(&plan), ptx(&longer));
        assert_ne!(fingerprint(&plan), fingerprint(&longer));
        assert!(
            !ptx(&plan)
                .replace(plan.main.kernel.name(), "kernel")
                .contains(plan.main.kernel.name())
        );
    }
}
