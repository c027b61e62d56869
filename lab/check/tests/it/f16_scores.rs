//! Lever `f16_scores` of family `mma`: within the tolerance of fp16 on normal inputs, with an error larger than that of
//! f32 scores, and wrong where a score exceeds what fp16 holds, which the check says.

use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::Plan;
use flashcore_problem::{InputKind, Mask, Problem};

fn check(problem: &Problem, id: &str, inputs: InputKind) -> CheckReport {
    let plan = Plan::new(problem, &id.parse().unwrap(), Target::Sm89).unwrap();
    let options = CheckOptions {
        inputs,
        ..CheckOptions::default()
    };
    check_plan(&plan, &options).unwrap()
}

fn problem(head_dim: usize) -> Problem {
    let builder = Problem::builder().heads(2, 1).seq_len_q(70).seq_len_kv(200);
    builder.head_dim(head_dim).mask(Mask::CAUSAL).build().unwrap()
}

fn error(report: &CheckReport) -> f64 {
    report.gate.as_ref().unwrap().out.max_abs
}

#[test]
fn fp16_scores_pass_on_normal_inputs_with_a_larger_error() {
    for (head_dim, id) in [
        (64, "mma/m64n64-w4x1-s2-b1-qreg-xor-cond"),
        (64, "mma/m32n64-w2x2-s2-b1-qsh-xor-spec"),
        (64, "mma/m32n64-w2x1-s2-b1-qreg-lin-always-gqa"),
        (128, "mma/m64n32-w4x1-s2-b1-qreg-xor-spec"),
    ] {
        let exact = check(&problem(head_dim), id, InputKind::Normal);
        let report = check(&problem(head_dim), &format!("{id}-acc16"), InputKind::Normal);
        assert_eq!(report.verdict, Verdict::Clean, "{id}\n{report}");
        assert!(
            error(&report) > 1.2 * error(&exact),
            "{id}: {} and {}",
            error(&report),
            error(&exact)
        );
    }
}

#[test]
fn scores_beyond_fp16_are_wrong_and_found() {
    let id = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond";
    // Products are a thousand times as large as what the softmax sees: 150,000, where fp16 ends at 65,504.
    let problem = Problem::builder()
        .heads(2, 1)
        .seq_len(128)
        .head_dim(64)
        .softmax_scale(1e-3);
    let problem = problem.build().unwrap();
    let exact = check(&problem, id, InputKind::HugeLogit);
    assert_eq!(exact.verdict, Verdict::Clean, "{exact}");
    let report = check(&problem, &format!("{id}-acc16"), InputKind::HugeLogit);
    assert_ne!(report.verdict, Verdict::Clean, "{report}");
}
