//! Cheating subjects, each rejected for its own reason, on a rig that has streams and nothing else of a GPU.

use std::collections::HashMap;

use flashcore_bench::bed::{Bed, Drawn, Workbench};
use flashcore_bench::cpu::{CpuBed, CpuStopwatch, CpuSubject};
use flashcore_bench::defences::{
    AFTERWARDS_SEED, INSPECTION_SEEDS, Inspect, Output, Reason, Rig, Rows, Run, Seen, inspect, inspect_again,
};
use flashcore_bench::planted::{Conduct, InFinals, Planted, Spoil};
use flashcore_bench::{Case, Expected, Subject, SubjectInfo, Trouble};
use flashcore_cpu::{Options, run};
use flashcore_problem::{
    InputKind, Inputs, KvLengths, Name, POISON, Problem, ProblemBuilder, QLengths, Tensor, reference,
};

/// Two places with inputs and outputs. Work is done at once, except what is left on another stream.
struct FakeRig {
    problem: Problem,
    inputs: HashMap<u64, Inputs>,
    expected: HashMap<u64, Expected>,
    loaded: [u64; 2],
    out: [Tensor; 2],
    lse: [Vec<f32>; 2],
    snapshot: Tensor,
    conduct: Conduct,
    runs: u32,
    kept: Option<Tensor>,
    /// Outputs that another stream has yet to write, by place.
    elsewhere: Vec<(usize, Tensor)>,
}

impl FakeRig {
    fn new(conduct: Conduct) -> FakeRig {
        let problem = Problem::builder().heads(2, 1).seq_len(40).head_dim(32).return_lse(true);
        let problem = problem.build().unwrap();
        let (mut inputs, mut expected) = (HashMap::new(), HashMap::new());
        for seed in INSPECTION_SEEDS.into_iter().chain([AFTERWARDS_SEED]) {
            let drawn = Inputs::generate(&problem, InputKind::Normal, seed);
            let want = reference(&problem, &drawn.q.view(), &drawn.k.view(), &drawn.v.view()).unwrap();
            expected.insert(seed, Expected::Forward(want));
            inputs.insert(seed, drawn);
        }
        let blank = || Tensor::filled(problem.out_dtype(), *problem.o_layout(), 0x11);
        FakeRig {
            loaded: [INSPECTION_SEEDS[0]; 2],
            out: [blank(), blank()],
            lse: [vec![0.0; 80], vec![0.0; 80]],
            snapshot: blank(),
            problem: problem.clone(),
            inputs,
            expected,
            conduct,
            runs: 0,
            kept: None,
            elsewhere: Vec::new(),
        }
    }

    fn output(&mut self, place: usize) -> Tensor {
        let mut out = Tensor::poisoned(self.problem.out_dtype(), *self.problem.o_layout());
        let mut lse = vec![0.0; 80];
        let carried = self.inputs[&self.loaded[place]].carried(&self.problem).unwrap();
        let operands = carried.operands().with_mut(Name::Out, &mut out);
        let operands = operands.with_mut(Name::Lse, &mut lse);
        run(&Options::default(), &self.problem, operands).unwrap();
        match self.conduct {
            Conduct::UnwrittenLse => lse[79] = self.lse[place][79],
            Conduct::WrongLse => lse[17] += 0.5,
            _ => {}
        }
        self.lse[place] = lse;
        out
    }
}

impl Rig for FakeRig {
    fn problem(&self) -> &Problem {
        &self.problem
    }

    fn expected(&self, seed: u64) -> &Expected {
        &self.expected[&seed]
    }

    fn run(&mut self, run: &Run) -> Result<bool, Trouble> {
        let place = run.place;
        if let Some(seed) = run.load {
            self.loaded[place] = seed;
        }
        if run.poison {
            self.out.iter_mut().for_each(|out| out.bytes_mut().fill(POISON));
            self.lse
                .iter_mut()
                .for_each(|lse| lse.fill(f32::from_ne_bytes([POISON; 4])));
        }
        self.runs += 1;
        let output = self.output(place);
        let size = output.bytes().len();
        match self.conduct {
            Conduct::Honest | Conduct::OneOutside | Conduct::UnwrittenLse | Conduct::WrongLse => {
                self.out[place] = output;
            }
            Conduct::Unwritten => {
                let written = size - 32 * 2;
                self.out[place].bytes_mut()[..written].copy_from_slice(&output.bytes()[..written]);
            }
            Conduct::Zeros => self.out[place].bytes_mut().fill(0),
            Conduct::Nan => {
                self.out[place] = output;
                // A quiet NaN that is not the poison.
                self.out[place].bytes_mut()[..2].copy_from_slice(&0x7e00u16.to_le_bytes());
            }
            Conduct::Cached => {
                let kept = self.kept.get_or_insert(output).clone();
                self.out[place] = kept;
            }
            Conduct::LeavesOutputsAlone => {
                if self.out[place].bytes()[0] == POISON {
                    self.out[place] = output;
                }
            }
            Conduct::PointerReplay => self.out[0] = self.output(0),
            Conduct::NotJoined => self.elsewhere.push((place, output)),
            Conduct::NotWaiting => {
                // It has run during the pause, and the poison was written after it.
                if !run.pause {
                    self.out[place] = output;
                }
            }
            Conduct::Wrong => {
                self.out[place] = output;
                self.out[place].set(0, 7, 1, 3, 2.5);
            }
            Conduct::LazyLater => {
                if self.runs < 10 {
                    self.out[place] = output;
                }
            }
            other => panic!("{other} is not played here"),
        }
        self.snapshot = self.out[place].clone();
        for (place, output) in self.elsewhere.drain(..) {
            self.out[place] = output;
        }
        Ok(true)
    }

    fn look(&mut self, place: usize, what: Output, seed: u64) -> Result<Seen, Trouble> {
        let out = match what {
            Output::Final => &self.out[place],
            Output::Snapshot => &self.snapshot,
        };
        Seen::of(
            &self.problem,
            &self.expected[&seed],
            &Rows::All,
            std::slice::from_ref(out),
        )
    }

    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        Ok(Some(self.lse[place].clone()))
    }

    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        let wrote = self.conduct == Conduct::OneOutside && self.runs > 0;
        Ok(wrote.then(|| "4 B were written past out".to_string()))
    }
}

#[test]
fn honest_work_passes() {
    let mut rig = FakeRig::new(Conduct::Honest);
    let found = inspect(&mut rig).unwrap();
    assert!(found.passed(), "{found}");
    assert!(found.max_abs > 0.0 && found.max_abs < 1e-3 && found.skipped.is_empty());
    assert!(found.frobenius > 0.0 && found.frobenius < 3.5e-4);
    assert!(inspect_again(&mut rig).unwrap().passed());
}

#[test]
fn every_cheat_is_rejected_for_its_own_reason() {
    for conduct in Conduct::ALL {
        let Some(reason) = conduct.reason() else { continue };
        let found = inspect(&mut FakeRig::new(conduct)).unwrap();
        assert_eq!(found.rejected, Some(reason), "{conduct:?}: {found}");
        assert!(found.to_string().contains(&reason.to_string()), "{found}");
    }
}

/// The same on a real rig, of all that the host can do without ending the process.
#[test]
fn every_cheat_on_the_host_is_rejected_for_its_own_reason() {
    let problem = Problem::builder().heads(2, 1).seq_len(40).head_dim(32).return_lse(true);
    let problem = problem.build().unwrap();
    let not_here = [Conduct::OneOutside, Conduct::NotJoined, Conduct::NotWaiting];
    // A backward pass writes no log-sum-exp.
    let not_backward = [Conduct::UnwrittenLse, Conduct::WrongLse];
    let beds = [&problem, &problem.backward().unwrap()].map(CpuBed::new);
    for (bed, conduct) in beds.iter().flat_map(|bed| Conduct::ALL.map(|conduct| (bed, conduct))) {
        let reason = conduct.reason();
        let is_missing = !bed.problem().writes_lse() && not_backward.contains(&conduct);
        if (reason.is_none() && conduct != Conduct::Honest) || not_here.contains(&conduct) || is_missing {
            continue;
        }
        let config = flashcore_cpu::default_config(bed.problem(), rayon::current_num_threads());
        let subject = |place| {
            let bound_to = if conduct == Conduct::PointerReplay { 0 } else { place };
            let honest = CpuSubject::new(bed, config, bound_to);
            Planted::new(conduct, honest, bed, place, InFinals::default())
        };
        let mut bench = Workbench::new(bed, CpuStopwatch::default());
        bench.add(Box::new(subject(0)), Some(Box::new(subject(1))));
        let drawn = Drawn::new(&Case::new("", bed.problem().clone())).unwrap();
        let found = bench.inspect(0, &drawn, inspect).unwrap();
        assert_eq!(found.rejected, reason, "{conduct:?}: {found}");
    }
}

/// A judge that does not know the lengths cannot say which rows are to be written.
#[test]
fn lengths_that_the_judge_does_not_know_are_refused() {
    for (inspect, q_lengths, kv_lengths) in [
        (
            inspect as Inspect,
            QLengths::Packed { total: 40, used: false },
            KvLengths::Equal,
        ),
        (inspect, QLengths::Equal, KvLengths::Cache),
    ] {
        let mut rig = FakeRig::new(Conduct::Honest);
        let problem = ProblemBuilder::from(&rig.problem)
            .q_lengths(q_lengths)
            .kv_lengths(kv_lengths);
        rig.problem = problem.build().unwrap();
        let refused = inspect(&mut rig).unwrap_err().to_string();
        assert!(refused.contains("are not searched"), "{refused}");
    }
}

/// Computes the right output, and then writes an element of a row that is of no sequence.
struct Beyond<'a>(CpuSubject<'a>, &'a CpuBed);

impl Subject for Beyond<'_> {
    fn info(&self) -> &SubjectInfo {
        self.0.info()
    }

    fn call(&mut self) -> Result<(), Trouble> {
        self.0.call()?;
        self.1.spoil(0, &mut |_, outs, _| {
            let last = outs[0].bytes().len() - 1;
            outs[0].bytes_mut()[last] = 0;
        })
    }
}

#[test]
fn rows_of_no_sequence_are_not_to_be_written() {
    let packed = QLengths::Packed { total: 70, used: false };
    let build = Problem::builder().heads(2, 1).head_dim(32).batch(2).seq_len(30);
    let problem = build.q_lengths(packed).build().unwrap();
    let bed = CpuBed::new(&problem);
    let config = flashcore_cpu::default_config(&problem, 1);
    let mut bench = Workbench::new(&bed, CpuStopwatch::default());
    bench.add(Box::new(CpuSubject::new(&bed, config, 0)), None);
    bench.add(Box::new(Beyond(CpuSubject::new(&bed, config, 0), &bed)), None);
    let drawn = Drawn::new(&Case::new("", problem)).unwrap();
    let honest = bench.inspect(0, &drawn, inspect).unwrap();
    assert!(honest.passed(), "{honest}");
    let found = bench.inspect(1, &drawn, inspect).unwrap();
    assert_eq!(found.rejected, Some(Reason::OutOfBounds), "{found}");
    assert!(
        found.detail.contains("1 elements of rows that are of no sequence"),
        "{found}"
    );
}

/// What another subject left in the output is the right output for the inputs that all are inspected on afterwards.
#[test]
fn what_turned_lazy_is_caught_where_an_honest_output_is_in_place() {
    let mut rig = FakeRig::new(Conduct::Honest);
    assert!(inspect(&mut rig).unwrap().passed() && inspect_again(&mut rig).unwrap().passed());
    (rig.conduct, rig.runs) = (Conduct::LazyLater, 100);
    let found = inspect_again(&mut rig).unwrap();
    assert_eq!(found.rejected, Some(Reason::Unwritten), "{found}");
}

#[test]
fn what_turns_lazy_while_it_is_timed_is_caught_afterwards() {
    let mut rig = FakeRig::new(Conduct::LazyLater);
    assert!(inspect(&mut rig).unwrap().passed());
    for _ in 0..20 {
        rig.run(&Run::default()).unwrap();
    }
    let found = inspect_again(&mut rig).unwrap();
    assert!(!found.passed(), "{found}");
}
