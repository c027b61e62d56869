//! Kernels of each family at the largest factor on `Q·Kᵀ` and the soft caps that a problem may state.

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::Plan;
use flashcore_problem::{InputKind, MAX_SOFTMAX_SCALE, Problem, SOFTCAPS};

#[test]
fn answers_are_right_up_to_the_limits() {
    let kernels = [
        ("scalar/tiled-m16n16-w4-v16", Target::Sm89),
        ("mma/m32n32-w2x1-s2-b1-qreg-xor-cond", Target::Sm89),
        ("wgmma/m64n64-s2-c2-free-spec", Target::Sm90a),
    ];
    let caps = [*SOFTCAPS.start(), *SOFTCAPS.end()];
    let asked = [(1e-45, None), (MAX_SOFTMAX_SCALE, None)]
        .into_iter()
        .chain(caps.map(|cap| (0.125, Some(cap))));
    for (scale, cap) in asked {
        for (kernel, target) in kernels {
            let mut builder = Problem::builder().heads(2, 2).seq_len(128).head_dim(64);
            if let Some(cap) = cap {
                builder = builder.softcap(cap);
            }
            let problem = builder.softmax_scale(scale).return_lse(true).build().unwrap();
            let plan = Plan::new(&problem, &kernel.parse().unwrap(), target).unwrap();
            for inputs in [InputKind::Normal, InputKind::SmallIntegers, InputKind::Extremes] {
                let options = CheckOptions {
                    inputs,
                    ..CheckOptions::default()
                };
                let report = check_plan(&plan, &options).unwrap();
                assert_eq!(
                    report.verdict,
                    Verdict::Clean,
                    "{kernel}, {problem}, {inputs}: {report}"
                );
            }
        }
    }
}
