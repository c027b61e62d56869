//! What the backward pass refuses, and the problems that it is the default of.

use flashcore_problem::{Mask, ProblemBuilder, QLengths};

use super::*;
use crate::{Plan, select};

fn builder() -> ProblemBuilder {
    Problem::builder().heads(4, 2).seq_len(300).head_dim(128)
}

fn refusal(builder: ProblemBuilder, id: &str, target: Target) -> String {
    let problem = builder.build().unwrap().backward().unwrap();
    match Plan::new(&problem, &id.parse().unwrap(), target) {
        Ok(_) => "served".to_string(),
        Err(refusal) => refusal.to_string(),
    }
}

/// Each refusal with a remedy: the texts, for review.
#[test]
fn refusals() {
    let usual = "wgmma/m64n128-s2-free";
    let repeated = |shape: [usize; 4]| Layout {
        shape,
        strides: [0, 128, 300 * 128, 1],
    };
    let whole = Layout::bshd([2, 300, 4, 128]);
    let mut text = String::new();
    for (name, builder, id, target) in [
        ("not Hopper", builder(), usual, Target::Sm89),
        ("f32", builder().dtype(DType::F32), usual, Target::Sm90a),
        ("soft cap", builder().softcap(30.0), usual, Target::Sm90a),
        (
            "repeated rows",
            builder()
                .batch(2)
                .layouts(whole, repeated([2, 300, 2, 128]), repeated([2, 300, 2, 128]), whole),
            usual,
            Target::Sm90a,
        ),
        ("rescale", builder(), "wgmma/m64n128-s2-free-spec", Target::Sm90a),
        ("pingpong", builder(), "wgmma/m128n128-s2-pingpong", Target::Sm90a),
        ("rows", builder(), "wgmma/m192n128-s2-free", Target::Sm90a),
        ("cols", builder(), "wgmma/m64n176-s2-free", Target::Sm90a),
        ("rows for cols", builder(), "wgmma/m128n128-s2-free", Target::Sm90a),
        ("rows for head_dim", builder().head_dim(64), usual, Target::Sm90a),
        ("cols for head_dim", builder(), "wgmma/m64n64-s2-free", Target::Sm90a),
        ("shared products", builder().head_dim(256), usual, Target::Sm90a),
        (
            "rows of shared products",
            builder().head_dim(192),
            "wgmma/m128n64-s2-free",
            Target::Sm90a,
        ),
        ("shared memory", builder(), "wgmma/m64n128-s4-free", Target::Sm90a),
    ] {
        text += &format!("{name}: {}\n", refusal(builder, id, target));
    }
    let forward = Plan::new(&builder().build().unwrap(), &usual.parse().unwrap(), Target::Sm90a);
    text += &format!("forward: {}\n", forward.unwrap_err());
    insta::assert_snapshot!(text);
}

/// The default where it serves; elsewhere family `mma`, after a refusal that says why.
#[test]
fn selected_on_hopper() {
    let chosen = |builder: ProblemBuilder, target| {
        let problem = builder.build().unwrap().backward().unwrap();
        let choice = select(&problem, target, 16, &KernelCache::default()).unwrap();
        let refusals = choice.considered.iter().filter_map(|one| one.refusal.as_ref());
        (
            choice.plan.config.to_string(),
            refusals.map(Refusal::to_string).collect::<Vec<_>>(),
        )
    };
    let packed = QLengths::Packed {
        total: 300,
        used: false,
    };
    for (head_dim, id) in [
        (64, "wgmma/m128n128-s2-free"),
        (96, "wgmma/m64n128-s2-free"),
        (128, "wgmma/m64n128-s2-free"),
        (192, "wgmma/m64n64-s2-free"),
        (256, "wgmma/m64n64-s2-free"),
    ] {
        let builder = builder().head_dim(head_dim).mask(Mask::CAUSAL);
        for other in [builder.clone().deterministic(true), builder.clone().q_lengths(packed)] {
            assert_eq!(chosen(other, Target::Sm90a), (id.to_string(), Vec::new()));
        }
        assert_eq!(chosen(builder.clone(), Target::Sm90a), (id.to_string(), Vec::new()));
        assert!(chosen(builder, Target::Sm89).0.starts_with("mma/"));
    }
    let (id, refusals) = chosen(builder().softcap(30.0), Target::Sm90a);
    assert!(
        id.starts_with("mma/") && refusals[0].contains("soft cap"),
        "{id}: {refusals:?}"
    );
}

/// Heads whose tiles run at the same time: only where tiles differ, and as many as the L2 cache holds.
#[test]
fn heads_run_together_where_tiles_differ() {
    let heads = |seq, mask| {
        let problem = builder().seq_len(seq).mask(mask).build().unwrap().backward().unwrap();
        heads_at_once(&problem, problem.head_dim() as u32)
    };
    assert_eq!(heads(1024, Mask::FULL), 1);
    assert_eq!([512, 4096, 16_384].map(|seq| heads(seq, Mask::CAUSAL)), [8, 4, 1]);
    assert_eq!(heads(1024, Mask::window(Some(100), None)), 8);
    assert_eq!(heads(1024, Mask::window(Some(5000), Some(5000))), 1);
}
