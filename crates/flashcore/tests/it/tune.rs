//! `Attention::tune` on the host: what it keeps, saves and refuses. Which kernel wins depends on the machine.

use std::time::Duration;

use flashcore::unstable::plans::{PlanSetting, PlanTarget, Plans, read_table};
#[cfg(feature = "cuda")]
use flashcore::{Alibi, DType, Mask, Options};
use flashcore::{Attention, Device, Error, KernelId, Problem, QLengths, TuneProgress};

/// More than any machine needs: a search ends when nothing near the fastest is left.
const BUDGET: Duration = Duration::from_secs(3600);

fn problem(seq_len: usize) -> Problem {
    let problem = Problem::builder().heads(2, 1).seq_len(seq_len).head_dim(64);
    problem.return_lse(true).build().unwrap()
}

fn untuned() -> Attention {
    Attention::with(Device::cpu(), Plans::none()).unwrap()
}

#[test]
fn winners_are_used_saved_and_not_searched_again() {
    let (mut attention, problems) = (untuned(), [problem(128), problem(1024), problem(126)]);
    let mut told = Vec::new();
    let watch = &mut |progress: TuneProgress<'_>| match progress {
        TuneProgress::Problem { index, count, .. } => told.push(format!("{index} of {count}")),
        TuneProgress::Done(found) => told.push(found.kernel.to_string()),
        _ => {}
    };
    let tuned = attention.tune_watched(&problems, BUDGET, watch).unwrap();
    // The row for 128 serves 126, too.
    let kernels: Vec<_> = tuned.searches.iter().map(|search| search.kernel).collect();
    let expected = [
        "0 of 2".to_string(),
        kernels[0].to_string(),
        "1 of 2".to_string(),
        kernels[1].to_string(),
    ];
    assert_eq!(told, expected);
    assert_eq!((tuned.table.rows().count(), tuned.left.len()), (2, 0));
    for (problem, place) in problems.iter().zip([0, 1, 0]) {
        let plan = attention.plan(problem).unwrap();
        assert_eq!(plan.kernel(), kernels[place]);
        assert!(plan.why().contains("what this program tuned"), "{}", plan.why());
    }
    let again = attention.tune(&problems, BUDGET).unwrap();
    assert_eq!((again.known.len(), again.searches.len()), (3, 0));
    // Another program reads the file, as the command does.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plans.json");
    tuned.save(&file).unwrap();
    again.save(&file).unwrap();
    let plans = Plans::find(
        &PlanSetting::File(file.clone()),
        None,
        &PlanTarget::from(&Device::cpu()),
    )
    .unwrap();
    let mut other = Attention::with(Device::cpu(), plans).unwrap();
    assert_eq!(other.plan(&problems[1]).unwrap().kernel(), kernels[1]);
    let more = [problems[0].clone(), problem(256)];
    let tuned = other.tune(&more, BUDGET).unwrap();
    assert_eq!((tuned.known.len(), tuned.searches.len()), (1, 1));
    tuned.save(&file).unwrap();
    assert_eq!(read_table(&file).unwrap().table.rows().count(), 3);
}

#[test]
fn problems_without_time_are_left_for_the_next_call() {
    let mut attention = untuned();
    let before = attention.plan(&problem(128)).unwrap().kernel();
    let tuned = attention.tune(&[problem(128), problem(256)], Duration::ZERO).unwrap();
    assert_eq!((tuned.left.len(), tuned.table.rows().count()), (2, 0));
    assert_eq!(attention.plan(&problem(128)).unwrap().kernel(), before);
}

#[test]
fn what_cannot_be_tuned_is_said_before_anything_is_timed() {
    let mut fixed = Attention::with(Device::cpu(), "cpu/m64n128".parse::<KernelId>().unwrap()).unwrap();
    let error = fixed.tune(&[problem(128)], BUDGET).unwrap_err().to_string();
    assert!(
        error.contains("cpu/m64n128") && error.contains("Attention::new"),
        "{error}"
    );
    let packed = QLengths::Packed {
        total: 300,
        used: false,
    };
    let packed = Problem::builder()
        .batch(4)
        .heads(2, 1)
        .head_dim(64)
        .seq_len(128)
        .q_lengths(packed);
    let (mut attention, packed) = (untuned(), packed.build().unwrap());
    let watch = &mut |_: TuneProgress<'_>| panic!("something was timed");
    let error = attention
        .tune_watched(&[problem(128), packed], BUDGET, watch)
        .unwrap_err();
    assert!(matches!(error, Error::CannotTune { .. }), "{error}");
}

#[test]
fn a_backward_pass_is_tuned_for_itself() {
    let (mut attention, forward) = (untuned(), problem(128));
    let backward = forward.backward().unwrap();
    let before = attention.plan(&forward).unwrap().kernel();
    let tuned = attention.tune(std::slice::from_ref(&backward), BUDGET).unwrap();
    let found = &tuned.searches[0];
    assert!(found.timed > 1 && found.left_out.is_empty(), "{found:?}");
    let plan = attention.plan(&backward).unwrap();
    assert_eq!(plan.kernel(), found.kernel);
    assert!(plan.why().contains("what this program tuned"), "{}", plan.why());
    // The forward pass has no row.
    let plan = attention.plan(&forward).unwrap();
    assert_eq!((plan.kernel(), plan.row()), (before, None));
    let again = attention.tune(&[backward, forward], BUDGET).unwrap();
    assert_eq!((again.known.len(), again.searches.len()), (1, 1));
}

#[test]
fn a_table_of_another_device_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (file, text) = (folder.path().join("plans.json"), "not a table");
    std::fs::write(&file, text).unwrap();
    let tuned = untuned().tune(&[], BUDGET).unwrap();
    assert!(tuned.save(&file).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let other = r#"{"format": 1, "device": {"name": "NVIDIA L4", "target": "sm_89", "units": 58}, "rows": []}"#;
    std::fs::write(&file, other).unwrap();
    let error = tuned.save(&file).unwrap_err().to_string();
    assert!(error.contains("NVIDIA L4"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), other);
}

/// A GPU times some kernels, and uses the fastest.
#[cfg(feature = "cuda")]
fn is_tuned(device: &Device, problem: &Problem, margin: u32) {
    let options = Options {
        sm_margin: margin,
        ..Plans::none().into()
    };
    let mut attention = Attention::with(device.clone(), options).unwrap();
    let mut timed = 0;
    let watch = &mut |progress: TuneProgress<'_>| match progress {
        TuneProgress::Timed(..) => timed += 1,
        TuneProgress::LeftOut(kernel, why) => println!("left out {kernel}: {why}"),
        _ => {}
    };
    let budget = Duration::from_secs(5);
    let tuned = attention
        .tune_watched(std::slice::from_ref(problem), budget, watch)
        .unwrap();
    let Some(found) = tuned.searches.first() else {
        // A host under load compiles one kernel in that time.
        assert_eq!((&tuned.left[..], timed), (std::slice::from_ref(problem), 0));
        assert_eq!(attention.plan(problem).unwrap().row(), None);
        return;
    };
    println!(
        "{problem}: {} of {timed} timed, {:.3} less time than {}",
        found.kernel, found.gain, found.default
    );
    assert!(timed > 0);
    let plan = attention.plan(problem).unwrap();
    assert_eq!((plan.kernel(), plan.row()), (found.kernel, Some(0)));
}

/// Candidates are timed with the tensors and on the multiprocessors that the problem will have.
#[cfg(feature = "cuda")]
#[test]
fn a_gpu_is_tuned_with_sinks_alibi_and_a_margin() {
    let Some(device) = crate::gpu() else { return };
    let problem = Problem::builder().heads(8, 2).head_dim(64).mask(Mask::CAUSAL);
    let problem = problem.sinks(DType::F32).alibi(Alibi::Heads).seq_len(1462);
    let problem = problem.build().unwrap();
    is_tuned(&device, &problem, 0);
    is_tuned(&device, &problem, 16);
}

#[cfg(feature = "cuda")]
#[test]
fn a_gpu_is_tuned_for_a_backward_pass() {
    let Some(device) = crate::gpu() else { return };
    let problem = Problem::builder()
        .heads(8, 2)
        .head_dim(64)
        .mask(Mask::CAUSAL)
        .softcap(30.0);
    is_tuned(&device, &problem.seq_len(1000).build().unwrap().backward().unwrap(), 0);
}
