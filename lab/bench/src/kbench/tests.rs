//! Tasks as they are written. Kernels for them are judged in `tests/it/kbench.rs`.

use flashcore_ir::{Target, launch::Arg};
use flashcore_kernels::{KernelCache, Plan};
use flashcore_problem::{DType, Direction, Layout, Mask, Problem, ProblemBuilder};
use serde_json::Value;

use super::{Check, Group, Machine, Report, Status, Task};

fn task(builder: ProblemBuilder) -> Task {
    Task::new(&builder.build().unwrap()).unwrap()
}

fn file(task: &Task, name: &str) -> String {
    let found = task.files().into_iter().find(|(other, _)| *other == name);
    found.expect("the file").1
}

fn config(task: &Task) -> Value {
    serde_json::from_str(&file(task, "config_forward.json")).unwrap()
}

fn problem() -> ProblemBuilder {
    Problem::builder().heads(8, 2).seq_len(500).head_dim(64)
}

#[test]
fn a_config_has_the_six_keys_and_two_sizes() {
    let config = config(&task(problem()));
    let keys: Vec<&String> = config.as_object().unwrap().keys().collect();
    let expected = [
        "multi_init",
        "multi_input",
        "multi_shared",
        "single_init",
        "single_input",
        "single_shared",
    ];
    assert_eq!(
        keys,
        expected.map(|key| format!("{key}_configs")).iter().collect::<Vec<_>>()
    );
    let sizes = |key: &str| -> Vec<(u64, u64)> {
        let all = config[key].as_array().unwrap().iter();
        all.map(|one| (one["seq_q"].as_u64().unwrap(), one["seq_kv"].as_u64().unwrap()))
            .collect()
    };
    assert_eq!(sizes("single_input_configs"), [(500, 500)]);
    assert_eq!(sizes("multi_input_configs"), [(500, 500), (334, 334)]);
    assert_eq!(config["single_init_configs"][0]["scale"], 0.125);
    assert_eq!(config["single_shared_configs"], serde_json::json!([{}]));
}

/// The filter drops outputs whose standard deviation is below 0.01: the mean of 100,000 normal
/// numbers has 0.005.
#[test]
fn long_rows_get_larger_queries() {
    let q_std = |seq: usize| config(&task(problem().seq_len(seq)))["single_input_configs"][0]["q_std"].as_f64();
    assert_eq!(q_std(500), Some(1.0));
    let long = q_std(100_000).unwrap();
    assert!((1.3..2.0).contains(&long), "{long}");
}

#[test]
fn the_function_says_what_the_problem_is() {
    let function = |builder| file(&task(builder), "func_forward.py");
    let full = function(problem());
    assert!(
        full.contains("F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)"),
        "{full}"
    );
    assert!(
        full.contains("q = torch.randn(batch, seq_q, heads, head_dim) * q_std"),
        "{full}"
    );
    assert!(
        !full.contains("def visible") && full.contains("torch.float16"),
        "{full}"
    );
    assert!(!full.contains('@'), "{full}");
    let bhsd = function(problem().heads(8, 8).layout(Layout::bhsd).dtype(DType::BF16));
    assert!(
        bhsd.contains("torch.randn(batch, kv_heads, seq_kv, head_dim_v)"),
        "{bhsd}"
    );
    assert!(!bhsd.contains("transpose") && !bhsd.contains("enable_gqa") && bhsd.contains("torch.bfloat16"));
    let causal = function(problem().mask(Mask::CAUSAL));
    assert!(
        causal.contains("is_causal=True") && causal.contains("return (key <= row)"),
        "{causal}"
    );
    let top_left = function(problem().mask(Mask::CAUSAL.top_left()));
    assert!(!top_left.contains("attn_mask"), "{top_left}");
    let window = function(problem().mask(Mask::window(Some(9), Some(3))).softcap(30.0));
    assert!(window.contains("(key >= row - 9) & (key <= row + 3)"), "{window}");
    assert!(window.contains("30.0 * torch.tanh(scores / 30.0)") || window.contains("30 * torch.tanh(scores / 30)"));
    let masked = function(problem().seq_len_kv(100).mask(Mask::CAUSAL));
    assert!(masked.contains("torch.where(seen, out"), "{masked}");
}

/// The benchmark finds the class by its name, sets its `backward_fn`, and calls the model with its `apply`.
#[test]
fn a_backward_pass_is_a_task_with_a_function_of_autograd() {
    let backward = |builder: ProblemBuilder| task(builder.direction(Direction::Backward));
    let window = backward(problem().mask(Mask::window(Some(9), Some(3))).softcap(30.0));
    let names: Vec<&str> = window.files().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["func_backward.py", "config_backward.json"]);
    let text = file(&window, "func_backward.py");
    for part in [
        "class AutogradFunction(torch.autograd.Function):",
        "    backward_fn = None",
        "AutogradFunction.backward_fn(grad_output.contiguous(), q, k, v, out, lse, ctx.scale)",
        "q, k = q.transpose(1, 2), k.transpose(1, 2)",
        "scores = scores.masked_fill(~seen[rows], float(\"-inf\"))",
        "return [x.to(torch.float16).requires_grad_() for x in (q, k, v)]",
        "return 4 * batch * heads * pairs",
        "    pairs = int(visible(seq_q, seq_kv, torch.device(\"cpu\")).sum())",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("tanh(scores / 30"), "{text}");
    let forward = file(&task(problem()), "func_forward.py");
    assert!(
        !forward.contains("AutogradFunction") && !forward.contains("requires_grad"),
        "{forward}"
    );
    assert!(
        forward.contains("    pairs = seq_q * seq_kv\n    return 2 * batch"),
        "{forward}"
    );
    for target in [Target::Sm80, Target::Sm90a] {
        let task = backward(problem().heads(8, 8).mask(Mask::CAUSAL));
        let plan = |problem: &Problem| flashcore_kernels::select(problem, target, 16, &KernelCache::default());
        let plans: Vec<Plan> = task
            .problems()
            .iter()
            .map(|one| plan(one).expect("a plan").plan)
            .collect();
        let text = file(&task.with_kernel(&plans, "0.0.0").unwrap(), "backward.cu");
        assert!(
            text.contains("m.def(\"backward\", &backward") && !text.contains("@ENTRY@"),
            "{target}"
        );
        let arguments = array(&text, "Argument ARGUMENTS");
        for slot in ["DOUT", "LSE", "DQ", "DK", "DV"] {
            assert!(
                arguments.iter().any(|line| line.contains(&format!("{slot},")))
                    || text.contains(&format!("{{{slot}, 0, CU_TENSOR_MAP")),
                "{target}: {slot}"
            );
        }
        assert_eq!(array(&text, "Case CASES").len(), 2);
    }
}

#[test]
fn what_the_format_cannot_have_is_refused() {
    let padded = Layout {
        shape: [1, 500, 8, 64],
        strides: [500 * 8 * 72, 8 * 72, 72, 1],
    };
    for (builder, why) in [
        (problem().dtype(DType::E4M3), "e4m3 tensors with scales"),
        (problem().return_lse(true), "a second output; leave out --lse"),
        (
            problem().heads(8, 8).layouts(padded, padded, padded, padded),
            "tensors with gaps",
        ),
    ] {
        let error = Task::new(&builder.build().unwrap()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

fn with_kernel(builder: ProblemBuilder, id: &str, target: Target) -> (Vec<Plan>, String) {
    let task = task(builder);
    let plan = |problem| Plan::new(problem, &id.parse().unwrap(), target).unwrap();
    let plans: Vec<Plan> = task.problems().iter().map(plan).collect();
    let text = file(&task.with_kernel(&plans, "0.0.0").unwrap(), "forward.cu");
    (plans, text)
}

/// The lines of an array of the file.
fn array<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!("const {name}[] = {{\n");
    let (_, rest) = text.split_once(&begin).expect("the array");
    let (elements, _) = rest.split_once("\n};").expect("its end");
    elements.lines().map(str::trim).collect()
}

#[test]
fn split_plans_have_all_their_steps_and_one_workspace() {
    let id = "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa-k2";
    let (plans, text) = with_kernel(problem().seq_len_q(1).seq_len_kv(4000), id, Target::Sm90a);
    assert_eq!(array(&text, "Kernel KERNELS").len(), 2);
    assert_eq!(array(&text, "Step STEPS").len(), 4);
    let workspace = plans[0].workspace_bytes();
    assert!(workspace > 0);
    let cases = array(&text, "Case CASES");
    assert_eq!(cases[0], format!("{{1, 1, 4000, 8, 2, 64, 64, {workspace}, 0, 2}},"));
    assert!(cases[1].ends_with(", 2, 2},") && cases.len() == 2, "{cases:?}");
    assert!(
        array(&text, "Argument ARGUMENTS")
            .iter()
            .any(|line| line.contains("WORKSPACE"))
    );
}

#[test]
fn launches_are_written_as_they_are() {
    let (plans, text) = with_kernel(problem(), "wgmma/m128n64-s2-c2-pingpong-cond", Target::Sm90a);
    let launch = &plans[0].main.launch;
    let step = array(&text, "Step STEPS")[0];
    let [x, y, z] = launch.grid;
    assert!(step.starts_with(&format!("{{0, {{{x}, {y}, {z}}}, ")), "{step}");
    assert!(step.contains("{2, 1, 1}"), "{step}");
    let count = |wanted: fn(&Arg) -> bool| {
        plans
            .iter()
            .flat_map(|plan| &plan.main.launch.args)
            .filter(|arg| wanted(arg))
            .count()
    };
    let kinds = |kind: &str| {
        array(&text, "Argument ARGUMENTS")
            .iter()
            .filter(|line| line.contains(kind))
            .count()
    };
    assert_eq!(kinds("Kind::Map"), count(|arg| matches!(arg, Arg::TensorMap(_))));
    assert_eq!(kinds("Kind::Table"), count(|arg| matches!(arg, Arg::Table(_))));
    assert_eq!(array(&text, "Map MAPS").len(), kinds("Kind::Map"));
    let table = launch.tables().next().expect("a work list");
    let first: Vec<String> = table.iter().take(12).map(|word| format!("{word}u,")).collect();
    assert_eq!(array(&text, "uint32_t TABLE_0")[0], first.join(" "));
    // The whole PTX, as strings of C++.
    let ptx = plans[0].main.kernel.to_ptx();
    let line = |line: &str| format!("    \"{}\\n\"\n", line.replace('\\', "\\\\").replace('"', "\\\""));
    assert!(text.contains(&ptx.lines().map(line).collect::<String>()));
}

#[test]
fn plans_of_another_problem_are_refused() {
    let (plans, _) = with_kernel(problem(), "mma/m64n64-w4x1-s2-b1-qreg-xor-cond", Target::Sm80);
    let other = task(problem().head_dim(128)).with_kernel(&plans, "0.0.0").unwrap_err();
    assert!(other.to_string().contains("the plans are not those"), "{other}");
}

/// What a kernel raises is text, in pages of others, too.
#[test]
fn a_report_in_markdown_has_no_markup_of_the_kernel() {
    let theirs = "<img src=x> `a|b`\n# head";
    let report = Report {
        kernel_sha256: String::new(),
        machine: Machine {
            device: "CPU".into(),
            python: "3".into(),
            torch: None,
            cuda: None,
        },
        checks: vec![Check {
            id: "protocol".into(),
            group: Group::Protocol,
            title: "correct".into(),
            status: Status::Fail,
            detail: theirs.into(),
        }],
        times: None,
        notes: vec![theirs.into()],
    };
    let text = report.markdown(theirs);
    assert!(!text.contains("<img") && !text.contains("\n# head"), "{text}");
    assert!(text.contains(r"&lt;img src=x> \`a\|b\` \# head"), "{text}");
}
