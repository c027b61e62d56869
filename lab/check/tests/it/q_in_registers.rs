//! Q of family `wgmma` that is held in registers (`-qreg`).

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;
use flashcore_problem::{DType, Mask, Problem, ProblemBuilder};

fn base(head_dim: usize) -> ProblemBuilder {
    // Rows that end within a tile, and within a warp's rows of it; more tiles than SMs, so that Q is loaded again and
    // again.
    Problem::builder()
        .heads(6, 3)
        .seq_len_q(277)
        .seq_len_kv(213)
        .head_dim(head_dim)
}

#[test]
fn every_head_size_is_right() {
    let problems = [
        (
            base(64).mask(Mask::CAUSAL).return_lse(true),
            "m192n96-s2-pingpong-spec-qreg",
        ),
        (base(72).head_dim_v(40).dtype(DType::BF16), "m192n48-s2-free-cond-qreg"),
        (base(40).head_dim_v(72), "m64n32-s3-free-always-qreg"),
        (base(96).return_lse(true), "m128n96-s2-c2-pingpong-spec-qreg"),
        (base(128), "m128n128-s2-pingpong-spec-qreg"),
        (base(128).mask(Mask::CAUSAL), "m128n128-s2-pingpong-cond-qreg"),
        // Registers have room for a part of Q.
        (base(64), "m192n128-s2-pingpong-cond-qreg"),
        (base(128).mask(Mask::CAUSAL), "m192n64-s2-free-spec-qreg"),
        (base(256).dtype(DType::BF16), "m128n64-s2-c2-pingpong-spec-qreg"),
        // A turn a tile.
        (base(128).seq_len_kv(50), "m192n64-s3-pingpong-spec-qreg"),
        (base(256).seq_len_kv(50), "m128n64-s2-c2-pingpong-cond-qreg"),
        (
            base(128).seq_len_kv(50).dtype(DType::E4M3),
            "m192n96-s3-pingpong-spec-qreg",
        ),
        (base(128).dtype(DType::E4M3), "m128n128-s3-pingpong-cond-qreg"),
    ];
    for (problem, id) in problems {
        let problem = problem.build().unwrap();
        let chip = Chip {
            target: Target::Sm90a,
            sms: 2,
        };
        let plan = Plan::new(&problem, &format!("wgmma/{id}").parse().unwrap(), chip).unwrap();
        let report = check_plan(&plan, &CheckOptions::default()).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{problem}, {id}\n{report}");
    }
}
