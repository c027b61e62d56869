//! The gate passes on what is here, and fails for the right reason on each planted regression. Times are made up.

use std::path::Path;
use std::sync::OnceLock;

use flashcore_check::mutate::Operator;
use flashcore_ir::Profile;

use super::judge::{CheckName, Outcome};
use super::*;
use crate::defences::Inspection;
use crate::store::Store;
use crate::{DeviceIdentity, LaunchMode, Options as Protocol, RunIdentity, Sample, SubjectInfo, problems};

/// The kernels of an L4, without a device.
fn options() -> Options {
    let profile = Profile::named("l4").unwrap();
    Options {
        cases: problems::cases(ACCEPTANCE, None).unwrap(),
        predicts: false,
        cards: vec![Card {
            name: "l4".to_string(),
            chip: profile.into(),
            profile: Some(profile),
        }],
        device: None,
        kernel: None,
        plant: None,
    }
}

/// The same of one problem.
fn options_of(case: usize) -> Options {
    let mut options = options();
    options.cases = vec![options.cases.swap_remove(case)];
    options
}

fn named(id: &str) -> Option<Named> {
    Some(Named::Config(id.parse().unwrap()))
}

/// What is found here, with an assembler that finds no spill: tests of others say whether it does.
fn state() -> State {
    static STATE: OnceLock<State> = OnceLock::new();
    let examined = || State {
        unassembled: None,
        ..examine(&options(), &|_| ()).unwrap()
    };
    STATE.get_or_init(examined).clone()
}

/// What a run of the set leaves out.
#[derive(Clone, Copy, Default)]
struct Without {
    case: Option<&'static str>,
    inspections: bool,
    end: bool,
}

/// A run of the set, its times multiplied by a factor.
fn record(folder: &Path, factor: f64, without: Without) -> Evidence {
    let store = Store::at(folder);
    let run = RunIdentity::now(DeviceIdentity::cpu());
    let run = store.begin_run(&run, &Protocol::default(), None).unwrap();
    for (index, case) in problems::cases(ACCEPTANCE, None).unwrap().iter().enumerate() {
        if without.case == Some(case.name.as_str()) {
            continue;
        }
        let info = SubjectInfo {
            kernel: Some("mma/m64n64-w4x1-s2-b1-qsh-xor-always".to_string()),
            ..SubjectInfo::new("mma/m64n64-w4x1-s2-b1-qsh-xor-always", LaunchMode::Graph(8))
        };
        let inspection = (!without.inspections).then(Inspection::default);
        run.begin_measurement(case, crate::Mode::Hot, 0, &[(info, inspection)])
            .unwrap();
        for round in 0..20 {
            let us = factor * 10.0 * (index + 1) as f64 * (1.0 + 0.001 * f64::from(round % 5));
            let sample = Sample {
                subject: 0,
                round,
                position: 0,
                runs: 8,
                total_us: 8.0 * us,
                at_us: 0.0,
            };
            run.add_sample(&sample).unwrap();
        }
    }
    if !without.end {
        run.finish().unwrap();
    }
    Evidence::read(folder.to_str().unwrap(), folder, &options().cases).unwrap()
}

fn evidence(factor: f64, without: Without) -> Evidence {
    record(tempfile::tempdir().unwrap().path(), factor, without)
}

fn baseline() -> Baseline {
    Baseline::of(&state(), Some(evidence(1.0, Without::default())))
}

/// The checks that fail, and what they say.
fn failures(state: &State, evidence: &Evidence, baseline: &Baseline) -> Vec<(CheckName, Vec<String>)> {
    let judged = judge(state, Some(evidence), Some(baseline), Allowed::default());
    let failed = judged
        .checks
        .into_iter()
        .filter(|check| check.outcome == Outcome::Failed);
    failed.map(|check| (check.name, check.details)).collect()
}

#[test]
fn what_is_here_passes() {
    let (state, evidence) = (state(), evidence(1.01, Without::default()));
    let judged = judge(&state, Some(&evidence), Some(&baseline()), Allowed::default());
    assert!(!judged.failed(), "{judged:#?}");
    let not_judged = judged.checks.iter().filter(|check| check.outcome == Outcome::NotJudged);
    // No device computed it.
    let names: Vec<CheckName> = not_judged.map(|check| check.name).collect();
    assert_eq!(names, [CheckName::Parity]);
    assert!(
        judged.markdown().contains("| speed | passed | 10 times on"),
        "{}",
        judged.markdown()
    );
    // Full and causal have one kernel; head sizes do not.
    assert!(state.built.len() >= 2 && state.simulated.len() >= 4, "{state:?}");
}

#[test]
fn nothing_passes_without_being_judged() {
    let state = State {
        unassembled: Some("unknown".to_string()),
        ..state()
    };
    let judged = judge(&state, None, None, Allowed::default());
    let passed = judged.checks.iter().filter(|check| check.outcome == Outcome::Passed);
    let names: Vec<CheckName> = passed.map(|check| check.name).collect();
    assert_eq!(names, [CheckName::Findings]);
    assert!(judged.has_gaps() && !judged.failed());
}

#[test]
fn a_kernel_that_is_four_percent_slower() {
    let found = failures(&state(), &evidence(1.04, Without::default()), &baseline());
    let [(CheckName::Speed, details)] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(details.len(), 10);
    assert!(details[0].starts_with("s512-b1-h8-d64 by mma/"), "{details:?}");
    assert!(details[0].contains("1.040 × the time"), "{details:?}");
}

#[test]
fn an_error_half_as_large_again() {
    let mut state = state();
    let error = state.simulated[0].error.as_mut().unwrap();
    error.frobenius *= 1.5;
    let (on, case) = (error.on.clone(), error.case.clone());
    let found = failures(&state, &evidence(1.0, Without::default()), &baseline());
    let [(CheckName::Error, details)] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert!(
        details.len() == 1 && details[0].contains("1.50 × the baseline's"),
        "{details:?}"
    );
    assert!(details[0].starts_with(&format!("{case} on {on}")), "{details:?}");
}

#[test]
fn a_race() {
    let options = Options {
        plant: Operator::from_name("drop-barrier"),
        ..options_of(0)
    };
    let chosen = kernels::choose(&options).unwrap().0;
    let state = State {
        simulated: kernels::simulate(&options, &chosen, &|_| ()),
        ..state()
    };
    let found = failures(&state, &evidence(1.0, Without::default()), &baseline());
    // It has no error to compare: a kernel with findings is not right.
    let [(CheckName::Findings, details)] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert!(details.len() == 1 && details[0].contains("race"), "{details:?}");
}

/// What CI runs with an assembler, by the name of this module.
mod with_ptxas {
    use super::*;

    #[test]
    #[ignore = "needs a ptxas: FLASHCORE_PTXAS, or on PATH"]
    fn a_kernel_that_spills() {
        let options = Options {
            kernel: named("mma/m128n32-w4x1-s2-b1-qreg-xor-cond"),
            ..options_of(8)
        };
        let chosen = kernels::choose(&options).unwrap().0;
        let (built, unassembled) = kernels::build(&chosen);
        assert_eq!(unassembled, None);
        let state = State { built, ..state() };
        let found = failures(&state, &evidence(1.0, Without::default()), &baseline());
        let [(CheckName::Builds, details)] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert!(details.len() == 1 && details[0].contains("spills"), "{details:?}");
    }
}

#[test]
fn a_problem_that_no_kernel_serves() {
    let options = Options {
        kernel: named("wgmma/m128n128-s2-free-spec"),
        ..options_of(0)
    };
    let (built, _) = kernels::build(&kernels::choose(&options).unwrap().0);
    assert!(built[0].wrong.is_some(), "an L4 has no wgmma: {built:?}");
}

#[test]
fn missing_evidence() {
    let case = Some("s512-b1-h8-d128-causal");
    let planted = [
        (
            Without {
                case,
                ..Without::default()
            },
            "s512-b1-h8-d128-causal: no kernel of ours was timed",
        ),
        (
            Without {
                inspections: true,
                ..Without::default()
            },
            "was timed and not inspected",
        ),
        (
            Without {
                end: true,
                ..Without::default()
            },
            "has no closing line",
        ),
    ];
    for (without, what) in planted {
        let evidence = evidence(1.0, without);
        let judged = judge(&state(), Some(&evidence), Some(&baseline()), Allowed::default());
        let failed = judged.checks.iter().filter(|check| check.outcome == Outcome::Failed);
        let failed: Vec<&Check> = failed.collect();
        assert!(failed.len() == 1 && failed[0].name == CheckName::Evidence, "{failed:?}");
        assert!(failed[0].details[0].contains(what), "{failed:?}");
    }
    let mut evidence = evidence(1.0, Without::default());
    evidence.revision = "of another day".to_string();
    let found = failures(&state(), &evidence, &baseline());
    assert!(
        found[0].0 == CheckName::Evidence && found[0].1[0].contains("of another day"),
        "{found:?}"
    );
}

#[test]
fn a_baseline_comes_back_from_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("base.json");
    let baseline = baseline();
    baseline.write(&path).unwrap();
    assert_eq!(Baseline::read(&path).unwrap(), baseline);
    assert!(std::fs::metadata(&path).unwrap().len() < 40 << 10);
    let refused = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Baseline::read(&path).unwrap_err().to_string()
    };
    assert!(refused("{}").contains("it is no baseline; `flashcore gate --write FILE`"));
    let newer = r#"{"format": "flashcore gate baseline", "schema": 9}"#;
    assert!(refused(newer).contains("schema 9, and this build reads 1"));
    assert!(
        Baseline::read(&folder.path().join("none"))
            .unwrap_err()
            .to_string()
            .contains("No such file")
    );
}

/// Two kernels with the same name on the command line are the same kernel, with other work in it.
#[test]
fn a_kernel_with_more_work_than_the_baseline() {
    let predicted = |id: &str| {
        let options = Options {
            predicts: true,
            kernel: named(id),
            ..options_of(0)
        };
        let chosen = kernels::choose(&options).unwrap().0;
        State {
            predicted: Some(predicted::predict(&chosen, &|_| ())),
            ..state()
        }
    };
    let found = |now: &State, old: &Baseline| {
        let judged = judge(now, None, Some(old), Allowed::default());
        let check = judged
            .checks
            .into_iter()
            .find(|check| check.name == CheckName::Predicted);
        check.unwrap()
    };
    let id = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond";
    let (state, again) = (predicted(id), predicted(id));
    assert_eq!(state, again);
    let baseline = Baseline::of(&state, None);
    let same = found(&again, &baseline);
    assert_eq!((same.outcome, same.details.len()), (Outcome::Passed, 1), "{same:?}");
    let both = format!("s512-b1-h8-d64 on l4 by {id}: PREDICTED ");
    assert!(
        same.details[0].starts_with(&both) && same.details[0].contains(", was "),
        "{same:?}"
    );
    baseline.check_registers(&again).unwrap();

    // Without the swizzle there are bank conflicts: it is another kernel, whose time alone is compared.
    let slower = found(&predicted("mma/m64n64-w4x1-s2-b1-qreg-lin-cond"), &baseline);
    assert_eq!(slower.outcome, Outcome::Failed);
    assert!(
        slower.details[0].contains(&format!("(it was {id}): PREDICTED ")),
        "{slower:?}"
    );
    // The same kernel with more to do says what has grown.
    let mut more = again.clone();
    let row = &mut more.predicted.as_mut().unwrap()[0];
    row.micros *= 1.05;
    *row.counts.get_mut("special functions").unwrap() *= 1.25;
    let slower = found(&more, &baseline);
    for said in [
        "1.050 × the baseline's",
        "; special functions ",
        "1.250 × the baseline's",
    ] {
        assert!(
            slower.details.len() == 1 && slower.details[0].contains(said),
            "{slower:?}"
        );
    }
    // What another kernel spills is compared, too.
    let mut spilled = again.clone();
    let row = &mut spilled.predicted.as_mut().unwrap()[0];
    row.kernel = "another".to_string();
    row.counts.insert("bytes a thread spilled".to_string(), 8.0);
    let spilled = found(&spilled, &baseline);
    assert!(spilled.details[0].contains("bytes a thread spilled 8, "), "{spilled:?}");
    // Problems that the baseline lacks, and predictions that were not asked for, are not judged.
    let mut with_new = again.clone();
    let rows = with_new.predicted.as_mut().unwrap();
    let mut new = rows[0].clone();
    new.case = "another".to_string();
    rows.push(new);
    assert_eq!(found(&with_new, &baseline).outcome, Outcome::NotJudged);
    let without = State {
        predicted: None,
        ..again.clone()
    };
    assert_eq!(found(&without, &baseline).outcome, Outcome::NotJudged);
    // A problem that the baseline has is still served.
    more.predicted = Some(Vec::new());
    assert!(found(&more, &baseline).details[0].contains("no kernel is predicted any more"));

    let mut assembled = again;
    assembled.predicted.as_mut().unwrap()[0].registers_by = "ptxas 13.0 for sm_89".to_string();
    let why = baseline.check_registers(&assembled).unwrap_err();
    assert!(
        why.is_environment() && why.to_string().contains("here by ptxas 13.0 for sm_89"),
        "{why}"
    );
}
