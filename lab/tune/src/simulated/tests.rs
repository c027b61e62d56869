use flashcore_bench::Interval;
use flashcore_ir::{Profile, Target};
use flashcore_kernels::{KernelCache, select};
use flashcore_problem::DType;

use super::*;
use crate::board::BoardRow;
use crate::tests::fake::Fake;
use crate::worker::Deadlines;
use flashcore_check::own::Template;

use crate::gate::Gatekeeper;
use crate::own::OwnKernels;

#[test]
fn an_error_on_adversarial_inputs_alone_is_found() {
    let problem = Problem::builder().heads(1, 1).seq_len(64).head_dim(32).build().unwrap();
    let judge = Judge::new(&problem, 3, &OwnKernels::default()).unwrap();
    let config = "scalar/tiled-m16n16-w4-v16".parse().unwrap();
    let honest = |problem: &Problem| Plan::new(problem, &config, Target::Sm89).ok();
    assert_eq!(judge_plans(&judge, honest), Some(Ok(())));
    assert_eq!(judge_plans(&judge, |_: &Problem| None), None);

    // The cap is so high that it hardly changes ordinary scores.
    let capped = |asked: &Problem| {
        let builder = Problem::builder().batch(asked.batch()).heads(1, 1).softcap(1000.0);
        let builder = builder.seq_len_q(asked.seq_len_q()).seq_len_kv(asked.seq_len_kv());
        let mut plan = honest(&builder.head_dim(32).build().unwrap())?;
        plan.problem = asked.clone();
        Some(plan)
    };
    let once = check_plan(&capped(judge.shapes()[0]).unwrap(), &CheckOptions::default()).unwrap();
    assert_eq!(once.verdict, flashcore_check::Verdict::Clean, "{once}");
    let found = judge_plans(&judge, capped).unwrap().unwrap_err();
    assert!(found.contains("inputs on"), "{found}");
}

#[test]
fn e4m3_passes_the_gates_that_need_no_device() {
    let builder = Problem::builder().heads(2, 1).seq_len(128).head_dim(64);
    let problem = builder.dtype(DType::E4M3).build().unwrap();
    let chip = Chip::from(Profile::named("h200").unwrap());
    let default = select(&problem, chip, 16, &KernelCache::default()).unwrap();
    let id = default.plan.config.to_string();
    let gate = Gatekeeper::new(&problem, Some(chip));
    let families: Vec<_> = gate.families().iter().map(|family| family.name).collect();
    assert_eq!(families, ["wgmma"]);
    assert!(gate.look(&id).unwrap().is_some());

    let judge = Judge::new(&problem, 1, &OwnKernels::default()).unwrap();
    assert!(judge.shapes().iter().all(|shape| shape.dtype() == DType::E4M3));
    let row = BoardRow::new(&id, 1.0, Interval::UNKNOWN);
    let mut board = Board::new(&id, None, true, 0.03);
    board.rows = vec![row];
    let mut worker = Worker::new(Fake::new().program("none"), "cpu", Deadlines::default());
    let board = look(board, &judge, chip, &mut worker);
    assert_eq!(board.rows[0].simulated, Some(Ok(()).into()));
}

#[test]
fn kernels_of_the_user_are_simulated_too() {
    let problem = Problem::builder().heads(1, 1).seq_len(64).head_dim(64).build().unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel");
    let wrong = r#""failed":{"verdict":"WRONG","kernel":null,"reason":"it is wrong","fatal":false}"#;
    let fake = Fake {
        first: format!("*'\"simulate\"'*'own/wrong'*) said='{wrong}';;"),
        ..Fake::new()
    };
    let mut worker = Worker::new(fake.program("simulates"), "cpu", Deadlines::default());
    for (name, is_ok) in [("attention.toml", true), ("wrong.toml", false)] {
        let (template, _) = Template::read(&folder.join(name)).unwrap();
        let label = template.label.clone();
        let mut judge = Judge::new(&problem, 1, &OwnKernels::new(vec![template]).unwrap()).unwrap();
        judge.to_build.0 = Some(Target::Sm89.into());
        let mut board = Board::new("start", None, true, 0.03);
        board.rows = vec![BoardRow::new(&label, 1.0, Interval::UNKNOWN)];
        let board = look(board, &judge, Target::Sm89.into(), &mut worker);
        let check = board.rows[0].simulated.clone().unwrap();
        assert_eq!(check.ok, is_ok, "{check:?}");
        assert_eq!(board.winner, is_ok.then_some(label));
    }
}
