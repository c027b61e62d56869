use flashcore_bench::defences::Run;
use flashcore_check::own::Declared;
use flashcore_ir::Target;
use serde_json::Value;

use super::*;

/// A worker's answers to these lines.
fn answers(lines: &[String]) -> Vec<Answer> {
    let input = std::io::Cursor::new(lines.join("\n").into_bytes());
    let mut output = Vec::new();
    serve(input, &mut output, || {}).unwrap();
    let text = String::from_utf8(output).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ask(id: u64, command: Command) -> String {
    serde_json::to_string(&Ask { id, command }).unwrap()
}

fn value(answer: &Answer) -> &Value {
    match &answer.said {
        Said::Ok(value) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_on_the_host() {
    let problem = Problem::named("tiny").unwrap();
    let file = std::env::temp_dir().join(format!("flashcore-serve-{}", std::process::id()));
    let hello = Command::Hello {
        protocol: PROTOCOL,
        device: "cpu".to_string(),
    };
    let open = |id: &str| Command::Open {
        problem: problem.clone(),
        seed: 1,
        own: Vec::new(),
        kernels: vec![id.to_string()],
    };
    let run = |kernel: usize, load: Option<u64>, poison: bool| Command::Run {
        kernel,
        kind: InputKind::Normal,
        run: Run {
            load,
            poison,
            ..Run::default()
        },
    };
    let read = |what, form| Command::Read { place: 0, what, form };
    let bytes = |file: &Path| Form::Bytes {
        file: file.to_path_buf(),
    };
    // A folder cannot be written as a file.
    let unwritable = std::env::temp_dir();
    let rows = Form::Rows {
        rows: vec![vec![[0, 0, 0]]],
        file: unwritable.clone(),
    };
    let nowhere = [
        read(What::Output, bytes(&unwritable)),
        read(What::Lse, bytes(&unwritable)),
        read(What::Output, rows),
    ];
    let digest = || read(What::Output, Form::Digest);
    let commands = [
        hello.clone(),
        run(0, None, false),
        open("mma/x"),
        open("cpu/m16n16"),
        run(0, Some(5), true),
    ]
    .into_iter()
    .chain([
        read(What::Output, bytes(&file)),
        digest(),
        run(0, None, false),
        digest(),
    ])
    .chain([run(0, Some(6), false), digest(), run(3, None, false), Command::Rates])
    .chain(nowhere)
    .chain([hello]);
    let mut lines: Vec<String> = commands
        .enumerate()
        .map(|(id, command)| ask(id as u64, command))
        .collect();
    lines.push("what?".to_string());
    let answers = answers(&lines);
    assert_eq!(answers.len(), 18);
    let hello: Hello = serde_json::from_value(value(&answers[0]).clone()).unwrap();
    assert!(hello.computes && hello.device.device == "cpu");
    for (at, reason) in [
        (1, "nothing is open"),
        (2, "no kernel"),
        (11, "kernel 3 of 1"),
        (12, "only GPUs"),
        (16, "already taken"),
        (17, "what?"),
    ] {
        assert!(
            matches!(&answers[at].said, Said::Failed(failed) if failed.reason.contains(reason)),
            "{answers:?}"
        );
    }
    assert_eq!(value(&answers[3])[0]["id"], "cpu/m16n16");
    for done in [4, 5, 7, 9] {
        assert!(value(&answers[done]).is_null(), "{done}");
    }
    // The same output twice, and another one.
    let digests = [6, 8, 10].map(|at| value(&answers[at]).as_str().unwrap());
    assert!(digests[0] == digests[1] && digests[1] != digests[2], "{digests:?}");
    let is_unwritten = |said: &Said| matches!(said, Said::Unwritten { file, .. } if *file == unwritable);
    assert!(
        answers[13..16].iter().all(|answer| is_unwritten(&answer.said)),
        "{answers:?}"
    );
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    out.bytes_mut().copy_from_slice(&std::fs::read(&file).unwrap());
    std::fs::remove_file(&file).unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 5);
    assert!(
        flashcore_check::gate(&problem, &inputs, &out, None, 0)
            .unwrap()
            .passed()
    );
}

#[test]
fn each_set_of_inputs_is_drawn_once_a_run() {
    let (small, large) = (Problem::named("tiny").unwrap(), Problem::named("small").unwrap());
    let mut recent = Recent::default();
    for candidate in 0..8u64 {
        for (at, kind) in InputKind::ALL.into_iter().enumerate().skip(1) {
            recent.get(&small, kind, at as u64);
        }
        for role in 0..4 {
            recent.get(&large, InputKind::Normal, (candidate + role) % 6);
        }
    }
    assert_eq!(recent.count, InputKind::ALL.len() - 1 + 6);
}

#[test]
fn another_protocol_or_an_unknown_device_is_refused() {
    for (protocol, device, said) in [(99, "cpu", "speaks 12"), (PROTOCOL, "tpu", "no device")] {
        let device = device.to_string();
        let answers = answers(&[ask(1, Command::Hello { protocol, device })]);
        assert!(matches!(&answers[0].said, Said::Failed(failed) if failed.fatal && failed.reason.contains(said)));
    }
}

#[test]
fn a_kernel_of_the_user_needs_a_gpu() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel/attention.toml");
    let (declared, _) = Declared::read(&path.display().to_string(), Target::Sm80).unwrap();
    let hello = Command::Hello {
        protocol: PROTOCOL,
        device: "cpu".to_string(),
    };
    let open = |id: &str| Command::Open {
        problem: Problem::named("tiny").unwrap(),
        seed: 1,
        own: Vec::from_iter((declared.label == id).then(|| declared.clone())),
        kernels: vec![id.to_string(), "cpu/m16n16".to_string()],
    };
    let answers = answers(&[ask(1, hello), ask(2, open("own/attention")), ask(3, open("own/other"))]);
    for (answer, said) in [(&answers[1], "runs on a GPU"), (&answers[2], "no kernel is named")] {
        let Said::Failed(failed) = &answer.said else {
            panic!("{answer:?}")
        };
        assert!(
            failed.verdict == Verdict::Refused && failed.reason.contains(said),
            "{failed:?}"
        );
    }
}
