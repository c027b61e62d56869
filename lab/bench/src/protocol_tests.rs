//! The state machine driven by hand, with scripted times.

use super::*;

/// Runs the protocol with `time(subject, round)` µs a run; returns the batches and why it ended.
fn drive(protocol: &mut Protocol, mut time: impl FnMut(usize, u32) -> Option<f64>) -> (Vec<Batch>, Stop) {
    let (mut batches, mut now_us) = (Vec::new(), 0.0);
    loop {
        match protocol.next(now_us) {
            Step::Done(stop) => return (batches, stop),
            Step::RoundEnded { .. } => {}
            Step::Batch(batch) => {
                batches.push(batch);
                let round = match batch.purpose {
                    Purpose::WarmUp => 0,
                    Purpose::Sample { round, .. } => round,
                };
                match time(batch.subject, round) {
                    Some(us) => {
                        now_us += us * f64::from(batch.lead + batch.runs);
                        protocol.record(us * f64::from(batch.runs), batch.runs);
                    }
                    None => protocol.fail(),
                }
            }
        }
    }
}

fn samples(batches: &[Batch]) -> Vec<&Batch> {
    batches.iter().filter(|b| b.purpose != Purpose::WarmUp).collect()
}

#[test]
fn batches_are_long_enough_and_follow_runs_of_the_same_subject() {
    let options = Options::default();
    let mut protocol = Protocol::new(&options, Mode::Hot, &[1, 8], 0);
    let (batches, stop) = drive(&mut protocol, |subject, _| Some([5.0, 300.0][subject]));
    assert_eq!((stop, protocol.turns()), (Stop::Narrow, Some(Turns::Short)));
    for batch in samples(&batches) {
        let us = [5.0, 300.0][batch.subject];
        assert!(f64::from(batch.runs) * us >= options.sample_us, "{batch:?}");
        assert!(f64::from(batch.lead) * us >= options.lead_us, "{batch:?}");
        assert!(batch.subject == 0 || batch.runs.is_multiple_of(8), "{batch:?}");
    }
    // Warming up took its least time, and the first batch was a single call.
    assert_eq!((batches[0].purpose, batches[0].runs), (Purpose::WarmUp, 1));
    let warm: f64 = batches
        .iter()
        .filter(|b| b.purpose == Purpose::WarmUp && b.subject == 0)
        .map(|b| 5.0 * f64::from(b.runs))
        .sum();
    assert!(
        (options.warm_up_min_us..options.warm_up_min_us * 1.2).contains(&warm),
        "{warm}"
    );
    assert!(protocol.settled(0) && protocol.settled(1));
}

#[test]
fn nobody_leaves_before_the_least_rounds() {
    let rounds_of = |least_rounds| {
        let options = Options {
            least_rounds,
            budget_ms: 0.1,
            ..Options::default()
        };
        let mut protocol = Protocol::new(&options, Mode::Hot, &[1, 1], 0);
        // The second is far from the baseline, and the budget is spent in the first round.
        let (batches, stop) = drive(&mut protocol, |subject, _| Some([100.0, 900.0][subject]));
        let of = |subject: usize| {
            samples(&batches)
                .iter()
                .filter(|batch| batch.subject == subject)
                .count()
        };
        (of(0), of(1), stop)
    };
    assert_eq!(rounds_of(3), (3, 3, Stop::Narrow));
    assert_eq!(rounds_of(8), (8, 8, Stop::Narrow));
}

#[test]
fn turns_are_steady_where_every_subject_is_long() {
    let options = Options::default();
    let turns = |mode, times: &[f64], options: &Options| {
        let mut protocol = Protocol::new(options, mode, &vec![1; times.len()], 0);
        let (batches, _) = drive(&mut protocol, |subject, _| Some(times[subject]).filter(|us| *us > 0.0));
        (protocol.turns(), batches)
    };
    let (kind, batches) = turns(Mode::Hot, &[60.0, 3_000.0, 1e6], &options);
    assert_eq!(kind, Some(Turns::Steady));
    for batch in samples(&batches) {
        let us = [60.0, 3_000.0, 1e6][batch.subject];
        assert!(f64::from(batch.runs) * us >= options.steady_sample_us, "{batch:?}");
        match batch.subject {
            // It outlasts by far whatever was before it.
            2 => assert_eq!((batch.lead, batch.runs), (0, 1)),
            _ => assert!(f64::from(batch.lead) * us >= options.steady_lead_us, "{batch:?}"),
        }
    }
    // One short subject, and all have short turns; one that cannot be run does not count.
    assert_eq!(turns(Mode::Hot, &[59.0, 3_000.0], &options).0, Some(Turns::Short));
    assert_eq!(turns(Mode::Hot, &[0.0, 3_000.0], &options).0, Some(Turns::Steady));
    assert_eq!(turns(Mode::Hot, &[0.0], &options).0, Some(Turns::Short));
    // On the host, and while screening, they always are.
    assert_eq!(turns(Mode::Hot, &[3_000.0], &Options::for_cpu()).0, Some(Turns::Short));
    assert_eq!(turns(Mode::Screen, &[3_000.0], &options).0, Some(Turns::Short));
    assert_eq!(turns(Mode::Sustained, &[3_000.0], &options).0, None);
}

#[test]
fn every_round_has_every_subject_once_in_an_order_that_changes() {
    let options = Options {
        max_rounds: 30,
        precision: 1e-9,
        budget_ms: 1e9,
        ..Options::default()
    };
    let mut protocol = Protocol::new(&options, Mode::Hot, &[1, 1, 1], 1);
    let mut wobble = Rng::new(4);
    let (batches, stop) = drive(&mut protocol, |_, _| Some(10.0 + f64::from(wobble.unit())));
    assert_eq!(stop, Stop::Rounds);
    let samples = samples(&batches);
    assert_eq!(samples.len(), 90);
    let mut orders = std::collections::BTreeSet::new();
    for (index, round) in samples.chunks(3).enumerate() {
        let order: Vec<usize> = round.iter().map(|b| b.subject).collect();
        let mut once = order.clone();
        once.sort_unstable();
        assert_eq!(once, [0, 1, 2]);
        assert!(
            round
                .iter()
                .all(|b| matches!(b.purpose, Purpose::Sample { round, .. } if round as usize == index))
        );
        orders.insert(order);
    }
    assert!(orders.len() >= 4, "{orders:?}");
}

#[test]
fn a_subject_far_from_the_baseline_leaves_early_and_the_baseline_stays() {
    let mut rng = Rng::new(2);
    let options = Options {
        budget_ms: 1e9,
        ..Options::default()
    };
    let mut protocol = Protocol::new(&options, Mode::Hot, &[1, 1, 1], 0);
    let (_, stop) = drive(&mut protocol, |subject, _| {
        let noise = 1.0 + 0.005 * f64::from(rng.normal());
        Some([100.0, 2000.0, 101.0][subject] * noise)
    });
    assert_eq!(stop, Stop::Narrow);
    let rounds = |subject| protocol.times(subject).len();
    assert!(rounds(1) < 8, "{}", rounds(1));
    assert!(rounds(2) >= 10 && rounds(0) == rounds(2), "{} {}", rounds(0), rounds(2));
}

#[test]
fn the_budget_ends_it_but_not_before_three_rounds() {
    let options = Options {
        budget_ms: 1.0,
        ..Options::default()
    };
    let mut rng = Rng::new(3);
    let mut protocol = Protocol::new(&options, Mode::Hot, &[1, 1], 0);
    let (_, stop) = drive(&mut protocol, |_, _| Some(1e5 * (1.0 + f64::from(rng.unit()))));
    assert_eq!((stop, protocol.times(0).len()), (Stop::Budget, 3));
}

#[test]
fn a_failing_subject_is_left_out_and_the_others_go_on() {
    let mut protocol = Protocol::new(&Options::default(), Mode::Hot, &[1, 1, 1], 0);
    let (_, stop) = drive(&mut protocol, |subject, round| match subject {
        1 => None,
        2 if round == 4 => None,
        _ => Some(50.0),
    });
    assert_eq!(stop, Stop::Narrow);
    assert!(protocol.times(1).is_empty());
    assert_eq!(protocol.times(2).len(), 4);
    assert!(protocol.times(0).len() >= 10);
    assert_eq!(protocol.ratio(2, 200).unwrap().rounds, 4);
    let mut none = Protocol::new(&Options::default(), Mode::Hot, &[1], 0);
    assert_eq!(drive(&mut none, |_, _| None).1, Stop::Failed);
}

#[test]
fn without_a_baseline_the_others_are_still_measured() {
    let mut protocol = Protocol::new(&Options::default(), Mode::Hot, &[1, 1], 0);
    let (_, stop) = drive(&mut protocol, |subject, _| (subject == 1).then_some(50.0));
    assert_eq!(stop, Stop::Narrow);
    assert!(protocol.times(1).len() >= 10);
    assert!(protocol.ratio(1, 200).is_none());
}

#[test]
fn cold_samples_are_single_runs_and_sustained_ones_long() {
    let mut cold = Protocol::new(&Options::default(), Mode::Cold, &[16], 0);
    let (batches, _) = drive(&mut cold, |_, _| Some(9.0));
    assert!(samples(&batches).iter().all(|b| b.cold && b.runs == 5 && b.lead == 0));
    let mut sustained = Protocol::new(&Options::default(), Mode::Sustained, &[1, 1], 0);
    let (batches, stop) = drive(&mut sustained, |_, _| Some(1000.0));
    assert_eq!(stop, Stop::Rounds);
    assert_eq!(samples(&batches).len(), 16);
    assert!(samples(&batches).iter().all(|b| b.runs == 500 && b.lead == 250));
}

#[test]
fn a_clock_still_rising_is_waited_for() {
    // The first 200 calls get quicker by 0.5 % each; only then is the time steady.
    let mut calls = 0;
    let options = Options {
        warm_up_min_us: 0.0,
        ..Options::default()
    };
    let mut protocol = Protocol::new(&options, Mode::Hot, &[1], 0);
    drive(&mut protocol, |_, _| {
        calls += 1;
        Some(500.0 * (1.0 + 0.05 * f64::from(40 - 40.min(calls))))
    });
    assert!(protocol.settled(0));
    assert!(protocol.times(0).iter().all(|&us| us == 500.0));
}
