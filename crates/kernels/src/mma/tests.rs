//! What the levers of the family do and refuse.

use super::*;
use crate::{Config as AnyConfig, Plan};

fn planned(dtype: DType, id: &str) -> Result<Plan, String> {
    let problem = Problem::builder().heads(2, 2).seq_len(128).head_dim(64).dtype(dtype);
    let config: AnyConfig = id.parse().map_err(|error| format!("{error}"))?;
    Plan::new(&problem.build().unwrap(), &config, Target::Sm89).map_err(|refusal| refusal.to_string())
}

#[test]
fn scores_in_fp16_are_for_fp16_and_for_who_names_them() {
    let id = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond-acc16";
    let ptx = planned(DType::F16, id).unwrap().main.kernel.to_ptx();
    let count = |what: &str| ptx.matches(what).count();
    assert!(count("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16") > 0, "{ptx}");
    assert!(count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") > 0, "{ptx}");
    let refusal = planned(DType::BF16, id).unwrap_err();
    assert!(refusal.contains("acc16") && refusal.contains("bf16"), "{refusal}");
    assert!(!FAMILY.configs().any(|values| Config::from(values).f16_scores));
    assert!(defaults().iter().all(|(config, ..)| !config.f16_scores));
}

#[test]
fn a_cap_on_registers_is_one_that_launch_bounds_do_not_give() {
    let id = "mma/m32n64-w2x1-s2-b1-qsh-xor-cond-r128";
    let ptx = planned(DType::F16, id).unwrap().main.kernel.to_ptx();
    assert!(ptx.contains(".minnctapersm 1\n.maxnreg 128\n"), "{ptx}");
    for (id, what) in [
        ("mma/m64n64-w4x1-s2-b1-qsh-xor-cond-r128", "min_blocks leaves"),
        ("mma/m32n64-w2x1-s2-b2-qsh-xor-cond-r128", "only with b1"),
        ("mma/m32n64-w2x1-s2-b1-qsh-xor-cond-r100", "multiple of 8"),
        ("mma/m32n64-w2x1-s2-b1-qreg-xor-cond-r64", "registers"),
    ] {
        let refusal = planned(DType::F16, id).unwrap_err();
        assert!(refusal.contains(what), "{id}: {refusal}");
    }
}

/// Twice a prime: no divisor but 2 gives groups that each have few heads.
#[test]
fn a_grid_counts_the_heads_of_any_batch() {
    let problem = Problem::builder().batch(65_537).heads(2, 2).seq_len(64).head_dim(64);
    let problem = problem.build().unwrap();
    let config: AnyConfig = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond".parse().unwrap();
    let plan = Plan::new(&problem, &config, Target::Sm89).unwrap();
    assert_eq!(plan.main.launch.grid, [131_074, 1, 1]);
}
