use std::path::Path;

use flashcore_bench::DeviceIdentity;

use super::*;
use crate::examine::Timing;
use crate::judge::Judge;
use crate::space::CPU;
use crate::tests::fake::{Fake, hello_of};
use crate::tests::{folder, header};
use crate::worker::{Deadlines, Worker};

/// Proposes these.
struct List(VecDeque<&'static str>);

impl Strategy for List {
    fn propose(&mut self, _: &History, _: &Space) -> Result<Option<Proposal>, TuneError> {
        Ok(self.0.pop_front().map(|id| Proposal::new(id, "listed")))
    }
}

/// The devices that were lost.
#[derive(Default)]
struct Lost(Vec<String>);

impl Watcher for Lost {
    fn lost(&mut self, device: &str, why: &str) {
        self.0.push(format!("{device}: {why}"));
    }
}

/// The trials of a search with a fake worker, and its result.
fn searched(
    name: &str,
    strategy: &mut dyn Strategy,
    first: &str,
    window: usize,
) -> (Vec<Trial>, Result<(), TuneError>) {
    let (trials, outcome) = searched_by(name, strategy, &[first], window, &mut Lost::default());
    (trials, outcome.map(drop))
}

/// The same with several workers, by what each does first. The result is the number of workers
/// left.
fn searched_by(
    name: &str,
    strategy: &mut dyn Strategy,
    workers: &[&str],
    window: usize,
    watcher: &mut Lost,
) -> (Vec<Trial>, Result<usize, TuneError>) {
    let header = Header { window, ..header() };
    let folder = folder(name);
    let space = Space::new(vec![CPU], |_| Ok(()));
    // The tile's rows are the program.
    let look = |id: &str| Ok(Some(Fingerprint(id.split('n').next().unwrap_or(id).to_string())));
    let journal = Journal::begin(&folder, &header).unwrap();
    let (judge, timing) = (Judge::of_nothing(&header.problem), Timing::for_cpu());
    let one = |(at, first): (usize, &&str)| examiner(&judge, &timing, &folder, &format!("{name}-{at}"), first);
    let mut examiners = workers.iter().enumerate().map(one).collect();
    let mut search = Search::new(&space, Some(&look), &header, journal, Vec::new());
    let outcome = search.go(strategy, &mut examiners, watcher).map(|()| examiners.len());
    std::fs::remove_dir_all(&folder).unwrap();
    (search.history.trials().to_vec(), outcome)
}

/// An examiner with a fake worker on the device `fake:N`, where the name ends with N.
fn examiner<'j>(judge: &'j Judge, timing: &'j Timing, folder: &Path, name: &str, first: &str) -> Examiner<'j> {
    let fake = Fake {
        first: first.to_string(),
        ..Fake::new()
    };
    let device = format!("fake:{}", name.rsplit('-').next().unwrap_or_default());
    Examiner {
        judge,
        worker: Worker::new(fake.program(name), &device, Deadlines::default()),
        scratch: folder.join("output"),
        canvas: None,
        tolerances: Vec::new(),
        timing,
        lock: crate::device_lock::DeviceLock::default(),
        interrupt: Interrupt::default(),
    }
}

/// Proposes these, then fails.
struct Dies(VecDeque<&'static str>, fn() -> TuneError);

impl Strategy for Dies {
    fn propose(&mut self, _: &History, _: &Space) -> Result<Option<Proposal>, TuneError> {
        let next = self.0.pop_front().map(|id| Proposal::new(id, "listed"));
        next.map(Some).ok_or_else(self.1)
    }
}

#[test]
fn proposals_of_a_proposer_that_died_are_tried() {
    let gone = || TuneError::proposer("gone", "it has ended");
    let mut dies = Dies(["cpu/m32n16", "cpu/m64n16"].into(), gone);
    let (trials, outcome) = searched("gone", &mut dies, "", 8);
    outcome.unwrap();
    assert_eq!(trials.len(), 3);
}

#[test]
fn an_error_of_a_strategy_ends_the_search() {
    let broken = || TuneError::nothing("made up");
    let mut dies = Dies(["cpu/m32n16", "cpu/m64n16", "cpu/m48n16", "cpu/m80n16"].into(), broken);
    let (trials, outcome) = searched("broken", &mut dies, "", 8);
    assert!(outcome.is_err());
    assert!(!trials.is_empty(), "{trials:?}");
}

#[test]
fn a_halted_worker_examines_no_further_candidate() {
    let (judge, timing) = (Judge::of_nothing(&header().problem), Timing::for_cpu());
    let mut examiner = examiner(&judge, &timing, &folder("halted"), "halted", "");
    let (queue, jobs) = channel();
    (0..3).for_each(|number| queue.send(job(number)).unwrap());
    let (sender, news) = channel();
    let halt = Interrupt::default();
    halt.ask();
    work(&mut examiner, 0, &Mutex::new(jobs), (None, None), &sender, &halt);
    assert!(news.try_recv().is_err());
    assert_eq!(examiner.worker.started, 0);
}

/// A worker that dies at its first candidate and cannot be started again.
fn mortal(name: &str) -> String {
    let dead = std::env::temp_dir().join(format!("flashcore-dead-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&dead);
    let (dead, hello) = (dead.display(), hello_of(&DeviceIdentity::cpu()));
    format!("*'\"open\"'*) touch {dead}; exit 3;;\n*'\"hello\"'*) [ -e {dead} ] && exit 4; said='{hello}';;")
}

#[test]
fn a_device_that_is_lost_for_good_costs_no_candidate() {
    let ids = ["cpu/m32n16", "cpu/m48n16", "cpu/m64n16", "cpu/m80n16", "cpu/m96n16"];
    for dead in 0..2 {
        let mortal = mortal(&format!("one-{dead}"));
        let mut workers = ["", ""];
        workers[dead] = &mortal;
        let mut lost = Lost::default();
        let (trials, outcome) = searched_by(&format!("lost-{dead}"), &mut List(ids.into()), &workers, 4, &mut lost);
        assert_eq!(outcome.unwrap(), 1);
        assert_eq!(trials.len(), 6);
        assert!(trials.iter().all(|trial| trial.timed.is_some()), "{trials:#?}");
        let [why] = &lost.0[..] else { panic!("{:?}", lost.0) };
        assert!(
            why.starts_with(&format!("fake:{dead}: worker for fake:{dead}: ")),
            "{why}"
        );
    }
    // The last one ends the search.
    let mortals = [mortal("first"), mortal("second")];
    let (trials, outcome) = searched_by(
        "all-lost",
        &mut List(ids.into()),
        &[&mortals[0], &mortals[1]],
        4,
        &mut Lost::default(),
    );
    assert!(matches!(outcome, Err(TuneError::Worker(_))), "{outcome:?}");
    assert!(trials.is_empty(), "{trials:?}");
}

#[test]
fn a_file_that_cannot_be_written_is_no_candidates_fault() {
    let full = "*'\"kernels\":[\"cpu/m64n16'*) open=7; said='\"ok\":[]';;\n\
         *'\"time\"'*7) said='\"unwritten\":{\"file\":\"out.bin\",\"reason\":\"no space left\"}';;";
    let mut list = List(["cpu/m32n16", "cpu/m64n16", "cpu/m48n16"].into());
    let (trials, outcome) = searched("full", &mut list, full, 1);
    let error = outcome.unwrap_err();
    assert_eq!(error.to_string(), "out.bin: no space left");
    // Earlier results are kept, and the running candidate has none.
    let kept: Vec<&str> = trials.iter().map(|trial| trial.id.as_str()).collect();
    assert_eq!(kept[1..], ["cpu/m32n16"]);
}

/// A worker that is killed while it opens these kernels.
fn killed_at(kernels: &[&str]) -> String {
    let at = kernels.iter().map(|id| format!("*'[\"{id}'*) kill -9 $$;;"));
    at.collect::<Vec<_>>().join("\n")
}

#[test]
fn an_environment_that_fails_again_and_again_ends_the_search() {
    let ids = ["cpu/m32n16", "cpu/m48n16", "cpu/m64n16", "cpu/m80n16", "cpu/m96n16"];
    for window in [1, 4] {
        let name = format!("environment-{window}");
        let (trials, outcome) = searched(&name, &mut List(ids.into()), &killed_at(&ids[1..]), window);
        let error = outcome.unwrap_err();
        assert!(
            matches!(&error, TuneError::Environment(why) if why.starts_with("3 times in a row: ")),
            "{error}"
        );
        assert!(error.is_environment() && error.to_string().contains("no candidate is to blame"));
        assert!(trials[1].timed.is_some(), "{:?}", trials[1]);
        let undecided = trials.iter().filter(|trial| trial.is_undecided()).count();
        assert_eq!(trials.len() - undecided, 2, "{trials:#?}");
    }
    // Not in a row, it ends no search.
    let some = killed_at(&[ids[0], ids[2], ids[4]]);
    let (trials, outcome) = searched("environment-some", &mut List(ids.into()), &some, 1);
    outcome.unwrap();
    let undecided = |trial: &Trial| trial.verdict == Verdict::EnvironmentFailed;
    assert_eq!(
        trials.iter().map(undecided).collect::<Vec<_>>(),
        [false, true, false, true, false, true]
    );
}

#[test]
fn a_resumed_run_tries_again_what_the_environment_failed_for() {
    let ids = ["cpu/m32n16", "cpu/m48n16", "cpu/m64n16"];
    for window in [1, 4] {
        let header = Header { window, ..header() };
        let folder = folder(&format!("again-{window}"));
        let space = Space::new(vec![CPU], |_| Ok(()));
        let (judge, timing) = (Judge::of_nothing(&header.problem), Timing::for_cpu());
        let part = |first: &str, (journal, before): (Journal, Vec<Trial>)| {
            let mut examiners = vec![examiner(&judge, &timing, &folder, "again-0", first)];
            let made = before.len();
            let mut search = Search::new(&space, None, &header, journal, before);
            // The budget is that of the first part.
            search.trials = made.max(4);
            search
                .go(&mut List(ids.into()), &mut examiners, &mut Lost::default())
                .unwrap();
            search.history
        };
        let begun = (Journal::begin(&folder, &header).unwrap(), Vec::new());
        let cut = part(&killed_at(&["cpu/m48n16"]), begun);
        assert_eq!(cut.trials().len(), 4);
        assert_eq!(cut.trial("cpu/m48n16").unwrap().verdict, Verdict::EnvironmentFailed);
        let resumed = part("", Journal::resume(&folder, &header).unwrap());
        let [.., last] = resumed.trials() else {
            panic!("no trials")
        };
        assert_eq!((resumed.trials().len(), last.id.as_str()), (5, "cpu/m48n16"));
        assert!(last.timed.is_some() && last.origin.starts_with("again"), "{last:?}");
        assert!(resumed.trial("cpu/m48n16").unwrap().timed.is_some());
        // Its trials are replayed as they were, and nothing is left to do.
        let whole = part("", Journal::resume(&folder, &header).unwrap());
        assert_eq!(whole.trials(), resumed.trials());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn equal_programs_are_examined_once_even_if_both_are_pending() {
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

fn job(number: usize) -> Job {
    Job {
        number,
        id: format!("cpu/m{number}n16"),
        best: None,
    }
}
