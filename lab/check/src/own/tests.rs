use flashcore_ir::Profile;
use flashcore_problem::{DType, InputKind, Mask};

use super::template::not_compiled;
use super::*;
use crate::Verdict;
use crate::cost::Observation;
use crate::foreign::CompileError;

fn read(path: &Path) -> Result<Declared, OwnError> {
    let (declared, _) = Declared::read(&path.display().to_string(), Target::Sm80)?;
    Ok(declared)
}

/// The example of the documentation.
fn example() -> Declared {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel/attention.toml");
    read(&path).unwrap()
}

/// The example with a text of its declaration or its PTX replaced.
fn changed(from: &str, to: &str) -> Result<Declared, OwnError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel");
    let [toml, ptx] =
        ["attention.toml", "attention.ptx"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    assert!(toml.contains(from) || ptx.contains(from), "{from}");
    let temporary = tempfile::tempdir().unwrap();
    std::fs::write(temporary.path().join("attention.ptx"), ptx.replace(from, to)).unwrap();
    let path = temporary.path().join("mine.toml");
    std::fs::write(&path, toml.replace(from, to)).unwrap();
    read(&path)
}

fn problem() -> flashcore_problem::ProblemBuilder {
    Problem::builder().heads(2, 1).seq_len(9).head_dim(64)
}

fn check(declared: &Declared, problem: &Problem, inputs: InputKind) -> CheckReport {
    let options = CheckOptions {
        inputs,
        ..CheckOptions::default()
    };
    check_declared(declared, problem, Target::Sm80, &options).unwrap()
}

#[test]
fn the_example_is_right_on_problems_of_all_kinds() {
    let example = example();
    assert_eq!((example.label.as_str(), example.writes_lse()), ("own/attention", false));
    for builder in [
        problem(),
        problem().mask(Mask::CAUSAL).batch(2),
        problem().seq_len_q(3).mask(Mask::CAUSAL).heads(4, 2),
        problem().seq_len_kv(3).mask(Mask::CAUSAL),
        problem().softmax_scale(0.7),
    ] {
        let problem = builder.build().unwrap();
        for inputs in [InputKind::Normal, InputKind::NegativeScores] {
            let report = check(&example, &problem, inputs);
            assert_eq!(report.verdict, Verdict::Clean, "{report}");
            assert!(report.gate.unwrap().rows > 0);
        }
    }
}

#[test]
fn mistakes_in_the_kernel_and_in_its_declaration_are_found() {
    let problem = problem().mask(Mask::CAUSAL).build().unwrap();
    for (from, to, verdict) in [
        // A scale without log2(e), an argument in another's place, a missing rescale.
        ("scale * 1.4426950408889634", "scale", Verdict::Wrong),
        ("\"k\", \"v\", \"out\"", "\"v\", \"k\", \"out\"", Verdict::Wrong),
        ("mul.f32 %f6, %f6, %f13;", "", Verdict::Wrong),
        // Rows that no block computes, and rows past the end.
        ("ceil(seq_q / 4)", "floor(seq_q / 4)", Verdict::Wrong),
        (
            "setp.ge.u32 %p1, %r9, %r3;",
            "setp.gt.u32 %p1, %r9, %r3;",
            Verdict::Findings,
        ),
    ] {
        let report = check(&changed(from, to).unwrap(), &problem, InputKind::Normal);
        assert_eq!(report.verdict, verdict, "{from} -> {to}: {report}");
    }
}

#[test]
fn what_is_not_named_is_not_served() {
    let usual = problem().build().unwrap();
    let refused = |declared: &Declared, problem: &Problem| match declared.launch(problem) {
        Err(OwnError::NotServed(why)) => why,
        other => panic!("{other:?}"),
    };
    let example = example();
    assert!(example.launch(&usual).is_ok());
    for (builder, said) in [
        (
            problem().dtype(DType::BF16),
            "its dtype is fp16, that of the problem bf16",
        ),
        (problem().head_dim(128), "it requires `head_dim == 64`"),
        (
            problem().softcap(30.0),
            "a soft cap, and the declaration does not name softcap",
        ),
        (
            problem().mask(Mask::window(Some(3), Some(0))),
            "does not name window_left",
        ),
        (problem().offsets(1, 0), "does not name q_offset"),
        (problem().return_lse(true), "no argument is `lse`"),
        (
            problem().layout(flashcore_problem::Layout::bhsd),
            "does not name q_batch_stride",
        ),
        (
            problem().seq_len_q(3).mask(Mask::CAUSAL.top_left()),
            "does not name top_left",
        ),
    ] {
        let why = refused(&example, &builder.build().unwrap());
        assert!(why.contains(said), "{why}");
    }
    let alone = changed("\"heads\", \"group\"", "2, 2").unwrap();
    assert!(refused(&alone, &usual).contains("kv_heads or group"));
    for (from, to, said) in [
        (
            "block = [128]",
            "block = [2048]",
            "`2048` is 2048 here; needed is a whole number from 1 to",
        ),
        ("ceil(seq_q / 4)", "seq_q / 4", "needed is a whole number from 1 to"),
        (
            "\"group\"",
            "\"group / 4\"",
            "its parameter (.u32) takes a whole number",
        ),
        ("block = [128]", "block = [128]\nshared = \"seq_q - 10\"", "from 0 to"),
    ] {
        let why = refused(&changed(from, to).unwrap(), &usual);
        assert!(why.contains(said), "{why}");
    }
}

#[test]
fn mistakes_in_a_declaration_are_named() {
    for (from, to, said) in [
        (
            "block = [128]",
            "blocks = [128]",
            "line 11: unknown key `blocks`, expected one of `name`, `ptx`",
        ),
        ("dtype = [\"fp16\"]", "", "missing key `dtype`"),
        (
            "dtype = [\"fp16\"]",
            "dtype = [\"fp17\"]",
            "no dtype is named `fp17`; allowed: f32",
        ),
        ("attention.ptx", "nothing.ptx", "ptx is nothing.ptx: No such file"),
        (
            "dtype = [\"fp16\"]",
            "dtype = [\"fp16\"]\nentry = \"other\"",
            "entry is `other`; attention.ptx has attention",
        ),
        (
            "dtype = [\"fp16\"]",
            "dtype = [\"fp16\"]\nname = \"a b\"",
            "name is `a b`; allowed",
        ),
        (
            "\"heads\", ",
            "",
            "args lists 9; `attention` has 10 parameters: q (.u64), k",
        ),
        (
            "\"heads\", \"group\"",
            "\"q\", \"group\"",
            "argument 5 (`q` for heads of type .u32): a tensor needs a parameter of 64 bits",
        ),
        ("\"out\",", "0,", "no argument is `out`"),
        (
            "head_dim == 64",
            "heads == 2",
            "it does not say which head_dim it serves",
        ),
        (
            "\"causal\"",
            "\"casual\"",
            "`casual`: nothing is named `casual`; there are batch",
        ),
        (
            "ceil(seq_q / 4)",
            "ceil(seq_q / 4",
            "line 10: `ceil(seq_q / 4` is not an expression",
        ),
        ("\"batch\"]", "\"batch\", 1]", "grid has no axis, or more than three"),
        (".version 7.0", "", "not PTX"),
        (".param .f32 scale_log2", ".param .f64 scale_log2", "argument 10"),
    ] {
        let error = changed(from, to).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("mine.toml: "), "{from}: {error}");
    }
}

#[test]
fn a_kernel_that_cannot_be_simulated_says_why() {
    let strange = changed("rcp.approx.ftz.f32", "rcp.guess.f32").unwrap();
    let problem = problem().build().unwrap();
    // A GPU may run it.
    assert!(strange.launch(&problem).is_ok());
    let check = |declared: &Declared| check_declared(declared, &problem, Target::Sm80, &CheckOptions::default());
    let text = check(&strange).unwrap_err().to_string();
    assert!(
        text.contains("attention.ptx cannot be simulated: line") && text.contains("rcp.guess"),
        "{text}"
    );
    let writes_q = changed("st.global.b32 [%rd10]", "st.global.b32 [%rd6]").unwrap();
    let report = check(&writes_q).unwrap();
    assert_eq!(report.verdict, Verdict::Refused);
    let text = report.refusals[0].to_string();
    assert!(text.starts_with("parameter `q` is written through"), "{text}");
}

/// A declaration in an empty folder, with the example's PTX for each of its paths.
fn with_parameters(text: &str, files: &[&str]) -> Result<Template, OwnError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel");
    let [toml, ptx] =
        ["attention.toml", "attention.ptx"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    let temporary = tempfile::tempdir().unwrap();
    for file in files {
        std::fs::write(temporary.path().join(file), &ptx).unwrap();
    }
    let toml = toml
        .replace("attention.ptx", "{KIND}.ptx")
        .replace("[128]", "[\"ROWS * 32\"]");
    let path = temporary.path().join("mine.toml");
    std::fs::write(&path, format!("{toml}{text}")).unwrap();
    Template::read(&path).map(|(template, _)| template)
}

const PARAMETERS: &str = "tolerance = 3\nconstraints = [\"ROWS == 4 + KIND.b * 4\"]\n\
                          [parameters]\nROWS = [4, 8]\nKIND = [\"a\", \"b\"]\n";

#[test]
fn values_of_parameters_make_kernels() {
    let template = with_parameters(PARAMETERS, &["a.ptx"]).unwrap();
    assert_eq!((template.parameters().len(), template.tolerance()), (2, 3.0));
    let chosen = template.chosen("KINDa-ROWS4").unwrap();
    assert_eq!(template.id(&chosen), "own/mine-KINDa-ROWS4");
    let declared = template.build(&chosen, Target::Sm80, template::TO_COMPILE).unwrap();
    let usual = problem().build().unwrap();
    assert_eq!(declared.launch(&usual).unwrap().block, [128, 1, 1]);
    let gate = check(&declared, &usual, InputKind::Normal).gate.unwrap();
    assert!(gate.passed() && (gate.tolerance.atol - 3e-3).abs() < 1e-9, "{gate:?}");
    // Of a text that is missing, and values that are not there or do not go together.
    let missing = template
        .build(
            &template.chosen("ROWS8-KINDb").unwrap(),
            Target::Sm80,
            template::TO_COMPILE,
        )
        .unwrap_err();
    assert!(
        missing.to_string().contains("own/mine-KINDb-ROWS8: there is no b.ptx"),
        "{missing}"
    );
    for (values, said) in [
        ("KINDa-ROWS8", "own/mine-KINDa-ROWS8: it needs `ROWS == 4 + KIND.b * 4`"),
        ("KINDa", "(KIND = a, b; ROWS = 4, 8); write FILE.toml:KINDa-ROWS4"),
        ("KINDa-ROWS4-M1", "gives no values for own/mine"),
    ] {
        let why = template.chosen(values).unwrap_err().to_string();
        assert!(why.contains(said), "{values}: {why}");
    }
}

#[test]
fn a_machine_without_a_compiler_is_no_fault_of_the_kernel() {
    let compiler = || "nvcc".to_string();
    let refused = CompileError::Refused {
        compiler: compiler(),
        messages: String::new(),
    };
    let late = CompileError::Late {
        compiler: compiler(),
        limit: std::time::Duration::ZERO,
    };
    let broken = CompileError::Broken(compiler(), "it is a folder".to_string());
    let why = || "why".to_string();
    for (error, expected) in [
        (refused, OwnError::NotBuilt(why())),
        (late, OwnError::Late(why())),
        (broken, OwnError::Environment(why())),
        (CompileError::NoCompiler, OwnError::Environment(why())),
    ] {
        assert_eq!(not_compiled(&error)(why()), expected);
    }
}

#[test]
fn mistakes_in_parameters_are_named() {
    let parameters = |text: &str| format!("[parameters]\nROWS = [4]\nKIND = [\"a\"]\n{text}");
    for (text, said) in [
        (
            parameters("head_dim = [1]"),
            "named `head_dim`, as something of a problem",
        ),
        (parameters("2x = [1]"), "named `2x`; allowed: a letter"),
        (
            parameters("X = [1, \"a\"]"),
            "parameter X has 1, a; allowed: 1 to 20 values, each once, all",
        ),
        (parameters("X = [1, 1]"), "parameter X has 1, 1"),
        (
            parameters("M = [1, 11]\nM1 = [1, 2]"),
            "ids say `M11` for two parameters; rename one",
        ),
        (parameters("X = []"), "parameter X has "),
        (parameters("X = [\"a b\"]"), "parameter X has a b"),
        (
            parameters("X = [-1]"),
            "expected a whole number from 0 to 4294967295 or a word",
        ),
        (
            format!("constraints = [\"KIND == 1\"]\n{}", parameters("")),
            "nothing is named `KIND`; there are batch",
        ),
        (
            format!("constraints = [\"seq_q == 1\"]\n{}", parameters("")),
            "names seq_q: what a problem must fulfil",
        ),
        (format!("tolerance = 0\n{}", parameters("")), "tolerance is 0; allowed"),
        (
            format!("options = [\"-O3\"]\n{}", parameters("")),
            "options are those of a compiler",
        ),
        (format!("source = \"a.cu\"\n{}", parameters("")), "it needs one of ptx"),
    ] {
        let error = with_parameters(&text, &["a.ptx"]).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("mine.toml: "), "{text}: {error}");
    }
}

#[test]
fn the_time_of_a_users_kernel_grows_with_its_work() {
    let predicted = |heads: usize, keys: usize| {
        let problem = Problem::builder()
            .heads(heads, heads)
            .seq_len(keys)
            .head_dim(64)
            .build()
            .unwrap();
        let observed = Observation::of_declared(&example(), &problem).unwrap();
        observed.predict(Profile::named("l4").unwrap(), &[Some(32)]).micros
    };
    let (one, longer, wider) = (predicted(64, 64), predicted(64, 128), predicted(256, 64));
    // Twice the rows of twice the keys.
    assert!(longer > 2.0 * one && longer < 6.0 * one, "{one} {longer}");
    assert!(wider > 1.5 * one && wider < 5.0 * one, "{one} {wider}");
}

#[cfg(unix)]
#[test]
fn a_declaration_reads_nothing_outside_its_folder() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = folder.path().join("mine.toml");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel");
    let toml = std::fs::read_to_string(example.join("attention.toml")).unwrap();
    let there = other.path().join("attention.ptx");
    std::fs::copy(example.join("attention.ptx"), &there).unwrap();
    std::fs::create_dir(folder.path().join("below")).unwrap();
    std::fs::copy(&there, folder.path().join("below/attention.ptx")).unwrap();
    std::os::unix::fs::symlink(&there, folder.path().join("link.ptx")).unwrap();
    let absolute = there.display().to_string();
    for name in [&absolute, "../attention.ptx", "below/../attention.ptx", "link.ptx"] {
        std::fs::write(&path, toml.replace("attention.ptx", name)).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("ptx is {name}; allowed: ")), "{error}");
    }
    std::fs::write(&path, toml.replace("attention.ptx", "./below/attention.ptx")).unwrap();
    let (template, _) = Template::read(&path).unwrap();
    // Nor do its options open anything for the compiler.
    let below = folder.path().join("below");
    std::os::unix::fs::symlink(other.path(), folder.path().join("out")).unwrap();
    let outside = [
        other.path().to_path_buf(),
        folder.path().join("out"),
        below.join("../.."),
    ];
    let of = |flag: &str, path: &Path| format!("{flag}{}", path.display());
    let mut options: Vec<String> = outside.iter().map(|path| of("-I", path)).collect();
    options.extend([of("--options-file=", &there), of("", &there), of("-I", &below)]);
    assert_eq!(template.reads(&options, folder.path()), [&below, folder.path()]);
}

#[test]
fn a_declaration_is_known_by_the_end_of_its_name() {
    let folder = tempfile::tempdir().unwrap();
    for (name, is_one) in [("small", false), ("small.toml", true)] {
        std::fs::write(folder.path().join(name), "args = []").unwrap();
        assert_eq!(Template::is_one(&folder.path().join(name)), is_one, "{name}");
    }
}

/// A declaration of a function of Triton with more lines, and what is wrong with it.
fn of_triton(dtype: &str, more: &str) -> String {
    let temporary = tempfile::tempdir().unwrap();
    std::fs::write(temporary.path().join("mine.py"), "").unwrap();
    let path = temporary.path().join("mine.toml");
    let rest = "args = [\"q\", \"out\", \"head_dim\"]\ngrid = [1]";
    std::fs::write(
        &path,
        format!("source = \"mine.py\"\ndtype = {dtype}\n{rest}\n{more}\n"),
    )
    .unwrap();
    match Template::read(&path) {
        Ok((template, _)) => format!("{:?}", template.text(&Chosen::new()).unwrap().0),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_function_of_triton_is_declared_without_what_triton_decides() {
    let entry = "entry = \"attend\"";
    for (dtype, more, said) in [
        ("[\"fp16\"]", entry, "Triton"),
        (
            "[\"fp16\"]",
            "",
            "which function of Triton is meant; write entry = \"NAME\"",
        ),
        ("[\"fp16\", \"bf16\"]", entry, "it has 2 dtypes; allowed: one"),
        (
            "[\"fp16\"]",
            "entry = \"f\"\nblock = [128]",
            "it has block; Triton decides on threads",
        ),
        (
            "[\"fp16\"]",
            "entry = \"f\"\nshared = 64",
            "it has shared; Triton decides",
        ),
        (
            "[\"fp16\"]",
            "entry = \"f\"\noptions = [\"-O3\"]",
            "it has options; Triton decides",
        ),
    ] {
        let got = of_triton(dtype, more);
        assert!(got.contains(said), "{more}: {got}");
    }
}
