use super::*;
use crate::examine::Timing;
use crate::journal::tests::{folder, header};
use crate::judge::Judge;
use crate::space::Family;
use crate::worker::fake::Fake;
use crate::worker::{Deadlines, Worker};

/// Proposes these.
struct List(VecDeque<&'static str>);

impl Strategy for List {
    fn propose(&mut self, _: &History, _: &Space) -> Result<Option<Proposal>, TuneError> {
        Ok(self.0.pop_front().map(|id| Proposal::new(id, "listed")))
    }
}

/// The trials of a search through these with a fake worker, and what ended it.
fn searched(
    name: &str,
    strategy: &mut dyn Strategy,
    first: &str,
    window: usize,
) -> (Vec<Trial>, Result<(), TuneError>) {
    let header = Header { window, ..header() };
    let folder = folder(name);
    let space = Space::new(vec![Family::cpu()], |_| Ok(()));
    // The tile's rows are the program.
    let look = |id: &str| Ok(Some(Fingerprint(id.split('n').next().unwrap_or(id).to_string())));
    let journal = Journal::begin(&folder, &header).unwrap();
    let (judge, timing) = (Judge::of_nothing(&header.problem), Timing::for_cpu());
    let fake = Fake {
        first: first.to_string(),
        ..Fake::new()
    };
    let examiner = Examiner {
        judge: &judge,
        worker: Worker::new(fake.program(name), "cpu", Deadlines::default()),
        compilers: None,
        timing: &timing,
        scratch: folder.join("output"),
        canvas: None,
        turns: crate::turn::Turns::default(),
        interrupt: Interrupt::default(),
    };
    let mut search = Search::new(&space, Some(&look), &header, journal, Vec::new());
    let outcome = search.go(strategy, vec![examiner], &mut ()).map(drop);
    let (history, ..) = search.end();
    std::fs::remove_dir_all(&folder).unwrap();
    (history.trials().to_vec(), outcome)
}

/// Proposes these, and then fails.
struct Dies(VecDeque<&'static str>, fn() -> TuneError);

impl Strategy for Dies {
    fn propose(&mut self, _: &History, _: &Space) -> Result<Option<Proposal>, TuneError> {
        let next = self.0.pop_front().map(|id| Proposal::new(id, "listed"));
        next.map(Some).ok_or_else(self.1)
    }
}

#[test]
fn what_was_proposed_before_a_proposer_died_is_tried() {
    let gone = || TuneError::Proposer {
        command: "gone".to_string(),
        reason: "it has ended".to_string(),
    };
    let mut dies = Dies(["cpu/m32n16", "cpu/m64n16"].into(), gone);
    let (trials, outcome) = searched("gone", &mut dies, "", 8);
    outcome.unwrap();
    assert_eq!(trials.len(), 3);
}

#[test]
fn after_an_error_nobody_examines_what_is_left() {
    let broken = || TuneError::Nothing {
        what: "made up".to_string(),
    };
    let mut dies = Dies(["cpu/m32n16", "cpu/m64n16", "cpu/m48n16", "cpu/m80n16"].into(), broken);
    let began = Instant::now();
    // Each takes a second.
    let (trials, outcome) = searched("broken", &mut dies, "*'\"time\"'*2) sleep 1; said='\"done\":null';;", 8);
    assert!(outcome.is_err());
    assert_eq!(trials.len(), 1);
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[test]
fn equal_programs_are_one_even_when_both_are_on_their_way() {
    for window in [1, 8] {
        let mut list = List(["cpu/m32n16", "cpu/m32n32", "cpu/m64n16", "cpu/m32n64"].into());
        let (trials, outcome) = searched(&format!("twins-{window}"), &mut list, "", window);
        outcome.unwrap();
        let same: Vec<Option<&str>> = trials.iter().map(|trial| trial.same_as.as_deref()).collect();
        assert_eq!(
            same,
            [None, None, Some("cpu/m32n16"), None, Some("cpu/m32n16")],
            "{window}"
        );
        assert_eq!(
            (&trials[2].timed, trials[2].verdict),
            (&trials[1].timed, trials[1].verdict)
        );
        assert!(trials[2].timed.is_some());
    }
}
