//! Rows of plan tables for backward passes: which problems they serve, and that the library runs them.

use flashcore::unstable::plans::{NamedTable, PlanClass, PlanDevice, PlanRow, PlanTable, Plans};
use flashcore::unstable::testing::{InputKind, Inputs};
use flashcore::{Attention, Device, GradientLayouts, KernelId, Layout, Problem, ProblemBuilder};
use flashcore_ir::Target;
use flashcore_kernels::{KernelCache, select, select_among};

use crate::plans::{H200, OTHER, TILE, h200, named, row};

/// Directions do not share rows, and neither do gradients that must be the same bits and others.
#[test]
fn a_row_is_for_one_direction() {
    let base = || {
        Problem::builder()
            .heads(8, 4)
            .seq_len(1000)
            .head_dim(64)
            .return_lse(true)
    };
    let problems = [
        base().build().unwrap(),
        base().build().unwrap().backward().unwrap(),
        base().deterministic(true).build().unwrap().backward().unwrap(),
    ];
    let kernels = [
        "scalar/tiled-m16n16-w4-v16",
        "scalar/tiled-m32n16-w4-v16",
        "scalar/tiled-m32n32-w4-v16",
    ];
    let rows: Vec<PlanRow> = std::iter::zip(&problems, kernels)
        .map(|(of, kernel)| row(of, kernel))
        .collect();
    for only in 0..problems.len() {
        let plans = Plans::of_tables(vec![named("mine", h200(), &rows[only..=only])]);
        let serves: Vec<bool> = problems.iter().map(|problem| !plans.rows(problem).is_empty()).collect();
        assert_eq!(serves, [0, 1, 2].map(|problem| problem == only));
    }
    // A table may have all three; one for a slightly longer problem serves.
    let all = Plans::of_tables(vec![named("mine", h200(), &rows)]);
    for (problem, kernel) in std::iter::zip(&problems, kernels) {
        let longer = ProblemBuilder::like(problem).seq_len(961).build().unwrap();
        assert_eq!(all.rows(&longer)[0].row.kernel.to_string(), kernel);
    }
    // Of a forward problem it says nothing.
    let forward = base().deterministic(true).build().unwrap();
    assert_eq!(PlanClass::of(&forward), PlanClass::of(&problems[0]));
    let text = |problem: &Problem| PlanClass::of(problem).unwrap().to_string();
    assert_eq!(text(&problems[0]), "B1 H8/4 Sq1000 Skv1000 D64 fp16 full lse");
    assert_eq!(
        text(&problems[2]),
        "B1 H8/4 Sq1000 Skv1000 D64 fp16 full deterministic backward"
    );
    assert_eq!(text(&problems[2]), problems[2].to_string());
}

#[test]
fn gradients_in_another_order_have_no_rows() {
    let problem = Problem::builder().batch(2).heads(8, 4).seq_len(1000).head_dim(64);
    let problem = problem.build().unwrap().backward().unwrap();
    let dense = *problem.gradient_layouts().unwrap();
    let of = |layouts| {
        PlanClass::of(
            &ProblemBuilder::from(&problem)
                .gradient_layouts(layouts)
                .build()
                .unwrap(),
        )
    };
    assert_eq!(of(dense), PlanClass::of(&problem));
    let bhsd = Layout::bhsd;
    for other in [
        GradientLayouts {
            dout: bhsd(dense.dout.shape),
            ..dense
        },
        GradientLayouts {
            dq: bhsd(dense.dq.shape),
            ..dense
        },
        GradientLayouts {
            dv: bhsd(dense.dv.shape),
            ..dense
        },
    ] {
        assert_eq!(of(other), None);
    }
    let all = Problem::builder()
        .batch(2)
        .heads(8, 4)
        .seq_len(1000)
        .head_dim(64)
        .layout(bhsd);
    assert!(PlanClass::of(&all.build().unwrap().backward().unwrap()).unwrap().bhsd);
}

#[test]
fn rows_from_before_there_was_a_direction_are_forward() {
    let problem = Problem::builder()
        .heads(8, 8)
        .seq_len(512)
        .head_dim(64)
        .build()
        .unwrap();
    let old = format!(
        r#"{{"problem":{{"dtype":"fp16","head_dim":64,"head_dim_v":64,"mask":"full","batch":1,"heads":8,"kv_heads":8,"seq_q":512,"seq_kv":512}},"kernel":"{TILE}","against":"{OTHER}","gain":0.0144,"interval":[0.0137,0.0162],"revision":"5a03c7c493bd","driver":"","date":"2026-11-21"}}"#
    );
    let table = |row: &str| {
        let text = format!(r#"{{"format": 1, "device": {H200}, "rows": [{row}]}}"#);
        PlanTable::parse(&text, "old.json").unwrap()
    };
    let read = table(&old);
    assert_eq!(read.rows().next().unwrap().1.problem, PlanClass::of(&problem).unwrap());
    // Written again, a forward row has no more keys than it had, so that older builds read it.
    assert!(!read.to_json().unwrap().contains("direction") && !read.to_json().unwrap().contains("deterministic"));
    let plans = Plans::of_tables(vec![NamedTable {
        name: "old.json".to_string(),
        table: read,
    }]);
    assert_eq!(plans.rows(&problem).len(), 1);
    assert!(plans.rows(&problem.backward().unwrap()).is_empty());
    // A direction that does not exist is no forward row.
    let wrong = table(&old.replace(r#"{"dtype""#, r#"{"direction":"sideways","dtype""#));
    assert!(wrong.rows().next().is_none());
    assert!(wrong.entries[0].row.as_ref().unwrap_err().contains("sideways"));
}

#[test]
fn a_row_for_a_backward_problem_is_chosen_where_it_can_run() {
    let kernels = KernelCache::default();
    let problem = Problem::named("small").unwrap().backward().unwrap();
    let choose = |problem: &Problem, kernel: &str| {
        let plans = Plans::of_tables(vec![named("a.json", h200(), &[row(problem, kernel)])]);
        select_among(problem, Target::Sm90a, 16, &plans.suggestions(problem), &kernels).unwrap()
    };
    const BACKWARD: &str = "mma/m64n128-w1x8-s2-b1-qsh-xor";
    let default = select(&problem, Target::Sm90a, 16, &kernels).unwrap().plan.config;
    let chosen = choose(&problem, BACKWARD);
    assert_ne!(default.to_string(), BACKWARD, "the row says what heuristics say");
    assert_eq!(
        (chosen.plan.config.to_string().as_str(), chosen.suggestion),
        (BACKWARD, Some(0))
    );
    assert!(chosen.why.starts_with("row 1 of a.json: 3.4 %"), "{}", chosen.why);
    // A kernel with another schedule than the backward pass has, one with Q in registers, and tiles that are too
    // large for these columns.
    let wide = Problem::builder()
        .heads(8, 8)
        .seq_len(512)
        .head_dim(256)
        .build()
        .unwrap()
        .backward()
        .unwrap();
    for (problem, kernel) in [
        (&problem, "wgmma/m64n128-s2-free"),
        (&problem, TILE),
        (&wide, "wgmma/m128n128-s2-pingpong"),
    ] {
        let default = select(problem, Target::Sm90a, 16, &kernels).unwrap().plan.config;
        let choice = choose(problem, kernel);
        assert_eq!((choice.plan.config, choice.suggestion), (default, None), "{kernel}");
        let refused = &choice.considered[0];
        assert!(refused.suggestion == Some(0) && refused.config.to_string() == kernel);
        assert!(refused.refusal.is_some(), "{kernel}");
    }
}

/// The host's gradients are the same bits with all tiles; a row must not change them.
#[test]
fn the_host_asks_its_rows_for_gradients() {
    const ROW: &str = "cpu/m48n36";
    let problem = Problem::builder().heads(2, 1).seq_len(200).head_dim(64);
    let forward = problem.return_lse(true).build().unwrap();
    let backward = forward.backward().unwrap();
    let Inputs { q, k, v, saved, .. } = Inputs::generate(&backward, InputKind::Normal, 3);
    let dout = saved.unwrap().dout;
    let plain = Attention::with(Device::cpu(), Plans::none()).unwrap();
    let output = plain.forward(&forward, &q, &k, &v).unwrap();
    let gradients = |attention: &Attention| {
        let found = attention.backward(&forward, &q, &k, &v, &output, &dout).unwrap();
        found.each().map(|tensor| tensor.bytes().to_vec())
    };
    let table = named("host.json", PlanDevice::of(&Device::cpu()), &[row(&backward, ROW)]);
    let asked = Attention::with(Device::cpu(), Plans::of_tables(vec![table])).unwrap();
    let plan = asked.plan(&backward).unwrap();
    assert_eq!((plan.kernel().to_string().as_str(), plan.row()), (ROW, Some(0)));
    assert_eq!(asked.plan(&forward).unwrap().row(), None);
    assert!(gradients(&asked) == gradients(&plain));
}

/// What `Attention::backward` runs is what the row names: other tiles sum dK and dV in another order. In order, so that
/// a kernel has the same bits again.
#[cfg(feature = "cuda")]
#[test]
fn gradients_of_a_gpu_are_those_of_the_rows_kernel() {
    let Some(device) = crate::gpu() else { return };
    let problem = Problem::builder().heads(2, 1).seq_len(700).head_dim(64);
    let forward = problem.deterministic(true).return_lse(true).build().unwrap();
    let backward = forward.backward().unwrap();
    let Inputs { q, k, v, saved, .. } = Inputs::generate(&backward, InputKind::Normal, 3);
    let dout = saved.unwrap().dout;
    let plain = Attention::with(device.clone(), Plans::none()).unwrap();
    let output = plain.forward(&forward, &q, &k, &v).unwrap();
    let gradients = |attention: &Attention| {
        let found = attention.backward(&forward, &q, &k, &v, &output, &dout).unwrap();
        [found.dk, found.dv].map(|tensor| tensor.bytes().to_vec())
    };
    const ROW: &str = "scalar/tiled-m16n16-w4-v16";
    let fixed = Attention::with(device.clone(), ROW.parse::<KernelId>().unwrap()).unwrap();
    assert!(gradients(&fixed) != gradients(&plain));
    let with = |of: &Problem| {
        let table = named("mine.json", PlanDevice::of(&device), &[row(of, ROW)]);
        Attention::with(device.clone(), Plans::of_tables(vec![table])).unwrap()
    };
    assert_eq!(with(&backward).plan(&backward).unwrap().row(), Some(0));
    assert!(gradients(&with(&backward)) == gradients(&fixed));
    // A row for the forward pass changes no gradient.
    assert!(gradients(&with(&forward)) == gradients(&plain));
}
