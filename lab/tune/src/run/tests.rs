use flashcore_problem::Problem;

use super::*;
use crate::examine::Timing;
use crate::own::OwnKernels;
use crate::space::{CPU, Space};
use crate::strategy::Kind;
use crate::tests::fake::{Fake, hello_of, met};
use crate::trial::Verdict;

/// A run with these workers; `name` is the folder's.
fn request(name: &str, devices: &[&str], program: Program) -> Request {
    let folder = std::env::temp_dir().join(format!("flashcore-run-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    Request {
        command: Vec::new(),
        case: Case::new("tiny", Problem::named("tiny").unwrap()),
        devices: devices.iter().map(ToString::to_string).collect(),
        strategy: Kind::Random.start(1, None).unwrap(),
        strategy_name: "random".to_string(),
        seed: 1,
        inputs: None,
        setup: Setup {
            space: Space::new(vec![CPU], |_| Ok(())),
            chip: None,
            device: None,
            start: "cpu/m16n16".to_string(),
            default: None,
            timing: Timing::for_cpu(),
            window: 1,
            advisor: None,
            rates_note: None,
            trust: None,
            plan_notes: Vec::new(),
            own: OwnKernels::default(),
        },
        rates: None,
        counting: None,
        trials: 3,
        time: Duration::MAX,
        folder,
        resume: false,
        program,
        confinement: Confinement::Sandboxed,
        deadlines: Deadlines::default(),
        elsewhere: false,
        locks: None,
        interrupt: Interrupt::default(),
    }
}

#[test]
fn a_run_without_devices_is_an_error() {
    let error = run(request("none", &[], Fake::new().program("none")), &mut ()).unwrap_err();
    assert!(error.to_string().contains("devices is an empty list"), "{error}");
}

#[test]
fn devices_of_different_kinds_are_refused() {
    // The answer depends on the device in the command.
    let mut other = DeviceIdentity::cpu();
    other.units += 1;
    let hello = format!(r#"*'"device":"other"'*) said='{}';;"#, hello_of(&other));
    let fake = Fake {
        first: hello,
        ..Fake::new()
    };
    let program = fake.program("kinds");
    let error = run(request("kinds", &["cpu", "other"], program), &mut ()).unwrap_err();
    assert!(error.to_string().contains("devices of one kind"), "{error}");
    let mut twin = DeviceIdentity::cpu();
    (twin.device, twin.uuid) = ("cuda:1".to_string(), "another".to_string());
    assert!(of_one_kind(&[DeviceIdentity::cpu(), twin]).is_ok());
}

#[test]
fn a_run_with_a_fake_worker_ends_in_a_leaderboard() {
    let first = request("fake", &["cpu"], Fake::new().program("fake"));
    let folder = first.folder.clone();
    let found = run(first, &mut ()).unwrap();
    assert_eq!(found.history.trials().len(), 3);
    assert!(found.board.is_some());
    assert_eq!(read_seconds(&folder), Some(found.seconds));
    // Resumed, it takes longer.
    let again = Request {
        trials: 4,
        resume: true,
        folder: folder.clone(),
        ..request("fake-again", &["cpu"], Fake::new().program("fake-again"))
    };
    let again = run(again, &mut ()).unwrap();
    assert!(again.seconds > found.seconds && !again.nothing_new);
    assert_eq!(read_seconds(&folder), Some(again.seconds));
    // With nothing left to do, even with a smaller budget, the result is the earlier one.
    struct NoFinals;
    impl Watcher for NoFinals {
        fn finals(&mut self, finalists: &[String]) {
            panic!("finals of {finalists:?} are held again");
        }
    }
    for (trials, time) in [(4, Duration::MAX), (2, Duration::MAX), (usize::MAX, Duration::ZERO)] {
        let idle = Request {
            trials,
            time,
            resume: true,
            folder: folder.clone(),
            ..request("fake-idle", &["cpu"], Fake::new().program("fake-idle"))
        };
        let idle = run(idle, &mut NoFinals).unwrap();
        assert!(idle.nothing_new && idle.history.trials().len() == 4);
        assert_eq!((&idle.board, idle.seconds), (&again.board, again.seconds));
    }
    // A run that was killed in its finals holds them.
    std::fs::remove_file(folder.join(BOARD)).unwrap();
    let after = Request {
        trials: 4,
        resume: true,
        folder: folder.clone(),
        ..request("fake-after", &["cpu"], Fake::new().program("fake-after"))
    };
    let after = run(after, &mut ()).unwrap();
    assert!(after.board.is_some() && !after.nothing_new && after.history.trials().len() == 4);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_kernel_of_the_user_is_a_candidate_and_can_win() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel/attention.toml");
    let (template, _) = Template::read(&path).unwrap();
    let label = template.label.clone();
    // It is twice as fast as all else, and the other one does not come back.
    let found = |name: &str, first: String| {
        let fake = Fake { first, ..Fake::new() };
        let mut request = request(name, &["cpu"], fake.program(name));
        let own = OwnKernels::new(vec![template.clone()]).unwrap();
        request.setup.space = Space::new(own.families().chain([CPU]).collect(), |_| Ok(()));
        request.setup.own = own;
        request.deadlines = Deadlines {
            run: Duration::from_millis(200),
            compile: Duration::from_millis(500),
            ..Deadlines::default()
        };
        let folder = request.folder.clone();
        let found = run(request, &mut ()).unwrap();
        assert_eq!((found.header.own.len(), found.history.trials().len()), (1, 3));
        std::fs::remove_dir_all(folder).unwrap();
        found
    };
    let met = met(&[("cpu/m16n16", 1.0), (&label, 0.5)]);
    let timed = found("own-timed", format!("*'\"time\"'*'\"hot\"'*) said='{met}';;"));
    // It is tried first of all that are proposed.
    assert_eq!(
        (
            timed.history.trials()[1].id.as_str(),
            timed.history.trials()[1].origin.as_str()
        ),
        (label.as_str(), "yours")
    );
    assert_eq!(
        timed.board.as_ref().unwrap().winner.as_ref(),
        Some(&label),
        "{:?}",
        timed.board
    );
    let why = crate::plans::of_board(
        &Header {
            computes: true,
            ..timed.header
        },
        &timed.board.unwrap(),
    )
    .unwrap_err();
    assert!(
        why.contains("leave the id of --kernel out") || why.contains("kernel of yours"),
        "{why}"
    );
    let hung = found("own-hung", format!("*'\"open\"'*'{label}'*) sleep 600;;"));
    assert_eq!(hung.history.trial(&label).unwrap().verdict, Verdict::Hung);
    assert_ne!(hung.board.unwrap().winner, Some(label.clone()));
}
