use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::insight::{ClaimKind, Source};
use crate::space::CPU;
use crate::tests::{made_up, trial, valley};

fn outside(script: &str) -> Outside {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("flashcore-proposer-{}-{number}", std::process::id()));
    std::fs::write(&path, script).unwrap();
    let command = format!("sh {}", path.display());
    Outside::start(
        &command,
        &Problem::named("small").unwrap(),
        "cpu",
        Duration::from_secs(600), // the machine may be busy
        None,
    )
    .unwrap()
}

#[test]
fn a_program_proposes_and_gets_the_trials() {
    let (space, _) = valley();
    let mut proposer = outside(
        "read a; case $a in *tile_q*) echo '{\"propose\": [\"cpu/m64n64\", \"cpu/m16n16\", \"nonsense\"], \"why\": \"tiles\"}';; esac\n\
         read b; case $b in *'was tried before'*) echo '{\"propose\": []}';; esac\n",
    );
    let mut history = History::default();
    history.add(trial(0, "cpu/m16n16", Some(1.0)));
    let first = proposer.propose(&history, &space).unwrap().unwrap();
    assert_eq!(first, Proposal::new("cpu/m64n64", "tiles"));
    history.add(trial(1, "cpu/m64n64", Some(0.9)));
    assert_eq!(proposer.propose(&history, &space).unwrap().unwrap().id, "nonsense");
    history.add(trial(2, "nonsense", None));
    assert_eq!(proposer.propose(&history, &space).unwrap(), None);
}

#[test]
fn a_line_matches_the_document() {
    let claim = made_up("cpu/m64n64", "cpu/m128n64", ClaimKind::Room, Some(-8.5));
    let tally = Tally {
        kind: ClaimKind::Spills,
        source: Source::Model,
        made: 3,
        tried: 2,
        came_true: 1,
        sign_wrong: 0,
        failed: 0,
        expected: None,
        measured: None,
    };
    let ids = ["cpu/m64n64", "cpu/m128n64", "cpu/m64n16", "cpu/m32n32"].map(str::to_string);
    let space = Space::of_list(vec![CPU], ids.to_vec());
    let mut history = History::default();
    history.begin("cpu/m64n16");
    let question = Question {
        about: None,
        trials: &[],
        best: Some("cpu/m64n64"),
        fastest: &[Fast::of("cpu/m64n64", &history, &space)],
        incumbent: None,
        failures: &[],
        turned_down: &[],
        claims: &[claim],
        record: &[tally],
    };
    assert_eq!(
        serde_json::to_string(&question).unwrap(),
        concat!(
            r#"{"trials":[],"best":"cpu/m64n64","fastest":[{"id":"cpu/m64n64","levers":{"tile_kv":"64","tile_q":"64"},"#,
            r#""neighbours":[{"lever":"tile_q","to":"128","id":"cpu/m128n64"}]}],"#,
            r#""failures":[],"turned_down":[],"claims":[{"about":"cpu/m64n64","kind":"room","source":"model","#,
            r#""evidence":"made up","line":null,"lever":"tile_q","from":"64","to":"128","#,
            r#""proposes":"cpu/m128n64","expected":-8.5}],"record":[{"kind":"spills","source":"model","made":3,"tried":2,"#,
            r#""came_true":1,"sign_wrong":0,"failed":0,"expected":null,"measured":null}]}"#
        )
    );
}

/// It is told the card, the least that the problem takes, the code of the fastest with what its lines cost, and what
/// failed; once each.
#[test]
fn a_proposer_is_told_what_writing_code_needs() {
    let (space, _) = valley();
    let said = std::env::temp_dir().join(format!("flashcore-told-{}", std::process::id()));
    let script = format!(
        "read a; echo \"$a\" > {0}\n echo '{{\"propose\": [\"cpu/m64n64\"]}}'\n\
         read b; echo \"$b\" >> {0}\n echo '{{}}'\n",
        said.display()
    );
    let problem = Problem::named("small").unwrap();
    let profile = flashcore_ir::Profile::named("l4").unwrap();
    let mut proposer = outside(&script);
    proposer.insights = Some(Insights::new(Advisor::new(&problem, profile)));
    let mut history = History::default();
    history.add(trial(0, "mma/m64n64-w4x1-s2-b1-qreg-xor-cond", Some(1.0)));
    let mut wrong = trial(1, "cpu/m16n16", None);
    wrong.reason = "3 of 64 outputs are wrong".to_string();
    history.add(wrong);
    assert!(proposer.propose(&history, &space).unwrap().is_some());
    history.add(trial(2, "cpu/m64n64", Some(2.0)));
    assert_eq!(proposer.propose(&history, &space).unwrap(), None);
    let told = std::fs::read_to_string(&said).unwrap();
    std::fs::remove_file(said).unwrap();
    let lines: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (card, floor) = (&lines[0]["about"]["card"], &lines[0]["about"]["floor_us"]);
    assert_eq!(
        (card["sms"].as_u64(), card["limits"]["registers_per_sm"].as_u64()),
        (Some(58), Some(65536))
    );
    assert!(card["boost_mhz"].is_u64() && card["rates"]["mufu"].is_f64(), "{card}");
    // 2 * 2 * 64 FLOPs for each of 8 * 512 * 512 scores, at 121 TFLOP/s or more.
    let products = floor["products"].as_f64().unwrap();
    assert!(
        products > 1.0 && products < 8.0 * 512.0 * 512.0 * 256.0 / 120e6,
        "{floor}"
    );
    let incumbent = &lines[0]["incumbent"];
    assert!(incumbent["source"].as_str().unwrap().contains(".entry"), "{incumbent}");
    assert!(
        incumbent["predicted"]["lines"][0]["share"].as_f64().unwrap() > 0.0,
        "{incumbent}"
    );
    assert_eq!(lines[0]["failures"][0]["reason"], "3 of 64 outputs are wrong");
    assert_eq!(
        (&lines[1]["about"], &lines[1]["incumbent"]),
        (&serde_json::Value::Null, &serde_json::Value::Null)
    );
}

fn attention() -> OwnKernels {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel/attention.toml");
    OwnKernels::new(vec![Template::read(&path).unwrap().0]).unwrap()
}

#[test]
fn source_is_a_candidate_and_what_cannot_be_one_is_turned_down() {
    let (space, _) = valley();
    let said = std::env::temp_dir().join(format!("flashcore-source-{}", std::process::id()));
    let code = |kernel: &str, text: &str| serde_json::json!({"kernel": kernel, "language": "ptx", "text": text});
    let long = format!(".entry {}", "x".repeat(300_000));
    let bad = [
        code("own/attention", "int x;"),
        code("own/other", ".entry f"),
        code("own/attention-M64", ".entry f"),
        code("own/attention", &long),
    ];
    let answers = [
        serde_json::json!({"source": bad}),
        serde_json::json!({"source": [code("own/attention", ".entry f")], "why": "a rewrite"}),
        serde_json::json!({"source": [code("own/attention", ".entry f")]}),
        serde_json::json!({}),
    ];
    let file = |number: usize| said.with_extension(number.to_string());
    for (number, answer) in answers.iter().enumerate() {
        std::fs::write(file(number), format!("{answer}\n")).unwrap();
    }
    let lines = (0..answers.len()).map(|number| {
        format!(
            "read a; echo \"$a\" >> {}; cat {}\n",
            said.display(),
            file(number).display()
        )
    });
    let script: String = lines.collect();
    let mut proposer = outside(&script).with_own(&attention());
    let mut history = History::default();
    let first = proposer.propose(&history, &space).unwrap().unwrap();
    assert!(
        first.id.starts_with("own/attention@") && first.origin == "a rewrite",
        "{first:?}"
    );
    history.begin(&first.id);
    assert_eq!(proposer.propose(&history, &space).unwrap(), None);
    let told = std::fs::read_to_string(&said).unwrap();
    let told: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let own = &told[0]["about"]["own"][0];
    assert_eq!(own["label"], "own/attention");
    assert!(
        own["texts"]["attention.ptx"].as_str().unwrap().contains(".entry"),
        "{own}"
    );
    let turned: Vec<(String, String)> = serde_json::from_value(told[1]["turned_down"].clone()).unwrap();
    for ((kernel, why), (of, said)) in turned.iter().zip([
        ("own/attention", "its text is no PTX with a kernel (`.entry`)"),
        (
            "own/other",
            "no kernel of yours is named own/other; there are: own/attention",
        ),
        ("own/attention-M64", "own/attention has no parameters"),
        ("own/attention", "its text has 300007 B; allowed: 262144"),
    ]) {
        assert!(kernel == of && why.contains(said), "{kernel}: {why}");
    }
    assert_eq!((turned.len(), told.len()), (4, 4));
    assert_eq!(told[3]["turned_down"][0][1], "it was tried before");
    for number in 0..answers.len() {
        std::fs::remove_file(file(number)).unwrap();
    }
    std::fs::remove_file(said).unwrap();
}

#[test]
fn source_may_be_forbidden_and_is_of_a_known_language() {
    let (space, _) = valley();
    let answer = "{\"source\": [{\"kernel\": \"own/attention\", \"language\": \"ptx\", \"text\": \".entry f\"}]}";
    let mut forbidden = outside(&format!(
        "read a; echo '{answer}'\nread b; case $b in *'[\"own/attention\",\"not here\"]'*) echo '{{\"propose\": [\"cpu/m64n64\"]}}';; \
         esac\n"
    ))
    .with_own(&attention().without_code("not here"));
    let first = forbidden.propose(&History::default(), &space).unwrap().unwrap();
    assert_eq!(first.id, "cpu/m64n64");
    let mut wrong =
        outside("read a; echo '{\"source\": [{\"kernel\": \"own/a\", \"language\": \"rust\", \"text\": \"\"}]}'\n");
    let error = wrong.propose(&History::default(), &space).unwrap_err().to_string();
    assert!(
        error.contains("unknown variant `rust`, expected one of `cuda`, `ptx`, `triton`"),
        "{error}"
    );
}

#[test]
fn a_pending_change_is_not_claimed_again() {
    let claims =
        ["cpu/m128n64", "cpu/m16n16"].map(|proposes| made_up("cpu/m64n64", proposes, ClaimKind::Room, Some(-8.5)));
    let mut history = History::default();
    history.begin("cpu/m128n64");
    let left: Vec<&str> = untried(claims.iter(), &history)
        .map(|claim| claim.proposes.as_str())
        .collect();
    assert_eq!(left, ["cpu/m16n16"]);
}

/// Its output is read one line ahead: the rest waits in the pipe until it is asked for.
#[test]
fn a_proposer_that_writes_more_than_it_is_asked_for_is_blocked() {
    let (space, _) = valley();
    // Each line is larger than a pipe. It counts the lines that it has written.
    let count = std::env::temp_dir().join(format!("flashcore-flood-{}", std::process::id()));
    let mut proposer = outside(&format!(
        "i=0; while :; do printf '{{\"propose\": [\"cpu/m64n64\"], \"why\": \"%200000s\"}}\n'; i=$((i+1)); echo $i > {0}.new; \
         mv {0}.new {0}; done\n",
        count.display()
    ));
    let written = || -> usize { std::fs::read_to_string(&count).map_or(0, |text| text.trim().parse().unwrap()) };
    for asked in 1..=10 {
        assert!(proposer.propose(&History::default(), &space).unwrap().is_some());
        // One line is in the channel and one with the thread that reads.
        while written() < asked + 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The next one does not fit into the buffers.
        assert!(written() < asked + 4, "{} after {asked}", written());
    }
    drop(proposer);
    std::fs::remove_file(&count).unwrap();
}

#[test]
fn a_proposer_that_is_slower_than_the_budget_ends_the_search_without_an_error() {
    let (space, _) = valley();
    let mut slow = outside("read a; sleep 60 # slow\n");
    slow.hurry(Duration::from_millis(200));
    assert_eq!(slow.propose(&History::default(), &space).ok(), Some(None));
}

#[test]
fn a_proposer_that_writes_nonsense_or_ends_is_an_error() {
    let (space, _) = valley();
    let mut history = History::default();
    // A line that is larger than a pipe, for programs that never read.
    let mut told = trial(0, "cpu/m16n16", Some(1.0));
    told.reason = "x".repeat(1 << 20);
    history.add(told);
    let flood = "yes '{\"propose\": []' | tr -d '\\n'\n";
    for (script, said) in [
        (flood, "its output cannot be read: a line is longer than 1048576 B"),
        (
            "read a; echo hello\n",
            "it wrote `hello`, which is no JSON (expected value",
        ),
        (
            "echo nonsense # and reads nothing\n",
            "it wrote `nonsense`, which is no JSON",
        ),
        (
            "echo '{\"try\": []}'\n",
            "it wrote `{\"try\": []}`, which is no answer (unknown field `try`",
        ),
        ("exit 3 # ended\n", "it ended (exit status: 3) without an answer"),
        ("exec >&-; exec sleep 60 # deaf and dumb\n", "it closed its output"),
    ] {
        let mut proposer = outside(script);
        let error = proposer.propose(&history, &space).unwrap_err();
        assert!(matches!(error, TuneError::Proposer(_)));
        assert!(error.to_string().contains(said), "{script}: {error}");
    }
}
