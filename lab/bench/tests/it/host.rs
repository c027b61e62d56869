//! A whole bench on the host: configs and peers, inspected, timed, stored, reported. No claim about times.

use flashcore::Device;
use flashcore_bench::problems::Case;
use flashcore_bench::sequences::{Sequences, Span};
use flashcore_bench::store::{Selector, Store};
use flashcore_bench::{
    Absent, BenchError, Event, LaunchMode, Mode, Options, PeerPlace, PeerSource, PeerTensors, Report, Request, Subject,
    SubjectInfo, Trouble, Watcher, run, table,
};
use flashcore_problem::{KvLengths, Problem, Tensor};

use super::evidence::folder;

fn request() -> Request {
    let problem = Problem::builder().heads(2, 1).seq_len(48).head_dim(32).build().unwrap();
    Request {
        cases: vec![Case::new("small", problem)],
        kernels: vec!["cpu/m64n64".into(), "cpu/m16n32".into()],
        options: Options {
            max_rounds: 6,
            warm_up_min_us: 500.0,
            warm_up_max_us: 5_000.0,
            sample_us: 100.0,
            lead_us: 50.0,
            budget_ms: 300.0,
            sustained_us: 500.0,
            sustained_lead_us: 100.0,
            sustained_rounds: 3,
            ..Options::for_cpu()
        },
        ..Request::default()
    }
}

/// A function of "another library": it writes to memory of its own, and has nothing but zeros to say.
struct Zeros {
    info: SubjectInfo,
    problem: Problem,
}

impl Subject for Zeros {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }
    fn call(&mut self) -> Result<(), Trouble> {
        Ok(())
    }
    fn own_output(&mut self) -> Result<Option<Vec<Tensor>>, Trouble> {
        let zeros = Tensor::filled(self.problem.out_dtype(), *self.problem.o_layout(), 0);
        Ok(Some(vec![zeros]))
    }
}

struct Peers;

impl PeerSource for Peers {
    fn absences(&self) -> Vec<String> {
        vec!["FlashAttention-3 is not installed".into()]
    }
    fn peers<'a>(&'a mut self, case: &Case, tensors: &PeerTensors) -> Vec<Result<Box<dyn Subject + 'a>, Absent>> {
        assert_eq!(tensors.place, PeerPlace::Cpu);
        let [q, k, _, _] = &tensors.tensors[..] else {
            panic!("{tensors:?}")
        };
        assert_eq!((q.name, q.bytes), ("q", 48 * 2 * 32 * 2));
        assert_ne!(q.address, k.address);
        let info = SubjectInfo::new("torch/zeros", LaunchMode::Host);
        vec![
            Ok(Box::new(Zeros {
                info,
                problem: case.problem.clone(),
            })),
            Err(("torch/cudnn".into(), "not on the CPU".into())),
        ]
    }
}

#[derive(Default)]
struct Seen {
    notes: Vec<String>,
    samples: usize,
    outcomes: Vec<(String, String)>,
}

impl Watcher for Seen {
    fn see(&mut self, event: Event) {
        match event {
            Event::Note(note) => self.notes.push(note),
            Event::Inspected(label, outcome) => self.outcomes.push((label, outcome)),
            Event::Sample(..) => self.samples += 1,
            _ => {}
        }
    }
}

/// Sequences of a batch are as long as the case says, and rates are those of these lengths.
#[test]
fn lengths_are_benched() {
    let group = |count, keys| Sequences {
        count,
        rows: None,
        keys: Some(Span::Equal(keys)),
    };
    let problem = Problem::builder()
        .heads(2, 1)
        .head_dim(32)
        .batch(3)
        .seq_len_q(1)
        .seq_len_kv(96);
    let problem = problem.kv_lengths(KvLengths::Cache).build().unwrap();
    let case = Case {
        sequences: vec![group(2, 96), group(1, 10)],
        ..Case::new("caches", problem)
    };
    let mut request = request();
    request.cases = vec![case.clone()];
    let report = run(&Device::Cpu, &request, &mut (), None, &mut ()).unwrap();
    let result = &report.results[0];
    assert_eq!(result.flops, (4 * 32 * 2 * (2 * 96 + 10)) as f64);
    assert_eq!(result.bytes, (2 * 2 * 32 * (2 * 96 + 10) + 2 * 2 * 3 * 2 * 32) as f64);
    assert_eq!(result.measurement.subjects.len(), 2);
    assert!(
        result.inspections.iter().flatten().all(|found| found.passed()),
        "{result:?}"
    );
    request.cases[0].sequences[0].count = 7;
    let refused = run(&Device::Cpu, &request, &mut (), None, &mut ())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("there are 8; the problem has a batch of 3"),
        "{refused}"
    );
}

#[test]
fn configs_and_peers_are_benched_in_every_mode_and_kept() {
    let folder = folder("modes");
    let store = Store::at(&folder);
    let mut request = request();
    request.modes = Mode::ALL.to_vec();
    request.options.cold_runs = 1;
    let mut seen = Seen::default();
    let report = run(&Device::cpu(), &request, &mut Peers, Some(&store), &mut seen).unwrap();

    assert_eq!(report.results.len(), Mode::ALL.len());
    assert_eq!(report.notes, ["FlashAttention-3 is not installed"]);
    assert_eq!(seen.notes, report.notes);
    for result in &report.results {
        let [a, b, cheat] = &result.measurement.subjects[..] else {
            panic!("{result:?}")
        };
        assert_eq!(
            (a.info.label.as_str(), b.info.label.as_str()),
            ("cpu/m64n64", "cpu/m16n32")
        );
        assert!(a.summary.is_some() && b.ratio.is_some() && b.verdict.is_some());
        assert!(result.inspections[0].as_ref().unwrap().passed());
        assert!(cheat.summary.is_none());
        assert!(cheat.trouble.as_deref().unwrap().contains("zeros"), "{cheat:?}");
        assert_eq!(
            result.absent,
            [("torch/cudnn".to_string(), "not on the CPU".to_string())]
        );
    }
    assert!(
        seen.outcomes
            .iter()
            .any(|(label, outcome)| label == "torch/zeros" && outcome.contains("REJECTED"))
    );

    // What the store gives back is the same report, from the samples.
    let runs = store.runs(&Selector::Latest).unwrap();
    assert_eq!(runs[0].samples as usize, seen.samples);
    let again = Report::of_evidence(&runs[0], store.measurements(&runs[0]).unwrap());
    for (ours, theirs) in report.results.iter().zip(&again.results) {
        for (a, b) in ours.measurement.subjects.iter().zip(&theirs.measurement.subjects) {
            assert_eq!((a.summary, a.ratio, a.verdict), (b.summary, b.ratio, b.verdict));
        }
    }
    let text = table::text(&report);
    assert!(
        text.contains("REJECTED (zeros)") && text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let json = serde_json::to_string(&report).unwrap();
    assert!(serde_json::from_str::<Report>(&json).unwrap() == report);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_benched_is_said_and_the_rest_goes_on() {
    let mut request = request();
    request.kernels = vec!["cpu/m64n64".into(), "scalar/naive-t128-v16".into(), "nonsense/x".into()];
    let report = run(&Device::cpu(), &request, &mut (), None, &mut ()).unwrap();
    let absent = &report.results[0].absent;
    assert!(
        absent[0].1.contains("runs on a GPU") && absent[1].1.contains("no kernel is named"),
        "{absent:?}"
    );

    let nothing = Request {
        cases: Vec::new(),
        ..request.clone()
    };
    assert!(matches!(
        run(&Device::cpu(), &nothing, &mut (), None, &mut ()),
        Err(BenchError::Nothing(_))
    ));
    let bad = Request {
        options: Options {
            confidence: 2.0,
            ..Options::default()
        },
        ..request
    };
    let error = run(&Device::cpu(), &bad, &mut (), None, &mut ()).unwrap_err();
    assert!(error.to_string().contains("confidence is 2"), "{error}");
}

#[test]
fn a_baseline_can_be_named() {
    let mut request = request();
    request.baseline = Some("cpu/m16".into());
    let report = run(&Device::cpu(), &request, &mut (), None, &mut ()).unwrap();
    let measurement = &report.results[0].measurement;
    assert_eq!(measurement.baseline, 1);
    assert!(measurement.subjects[0].ratio.is_some() && measurement.subjects[1].ratio.is_none());
}
