use super::*;

/// What is wrong with a file's text.
fn wrong(text: &str, is_toml: bool) -> String {
    super::cases(text, is_toml, None).expect_err("a mistake")
}

fn cases(text: &str, is_toml: bool) -> Vec<Case> {
    super::cases(text, is_toml, None).unwrap()
}

#[test]
fn files_of_both_kinds_are_read() {
    let json = r#"[{"like": "llama8b-prefill-2k", "seq": 1000, "head_dim_v": 64},
                   {"heads": 4, "seq": 77, "causal": true, "window": null}]"#;
    let read = cases(json, false);
    assert_eq!(
        read[0].problem.to_string(),
        "B1 H32/8 Sq1000 Skv1000 D128 bf16 causal Dv64"
    );
    assert_eq!(read[1].name, "B1 H4/4 Sq77 Skv77 D64 fp16 causal");
    let toml = "[[problems]]\nname = \"mine\"\nheads = 8\nkv_heads = 2\nseq = 64\ndtype = \"f32\"\nlayout = \"bhsd\"\n";
    let read = cases(toml, true);
    assert_eq!((read[0].name.as_str(), read[0].problem.dtype()), ("mine", DType::F32));
    let serving = "[[problems]]\nbatch = 3\nseq_q = 9\nseq_kv = 60\nq_lengths = {packed = {total = 20, used = true}}\n\
                   kv_lengths = {paged = {page_size = 16, pages = 12, max_pages = 4}}\n";
    let backward = cases("[[problems]]\nlike = \"gpt2\"\ndirection = \"backward\"\n", true);
    assert_eq!(backward[0].problem, Problem::named("gpt2-backward").unwrap());
    let line = cases(serving, true)[0].problem.to_string();
    assert_eq!(line, "B3 H1/1 Sq9 Skv60 D64 fp16 full packed-q20-used paged16x12");
}

#[test]
fn a_name_may_have_colons() {
    assert_eq!(apart("own.toml:a:b"), ("own.toml", Some("a:b")));
    assert_eq!(apart("a:b/own.json:mine"), ("a:b/own.json", Some("mine")));
    assert_eq!(apart("a:b/own.json"), ("a:b/own.json", None));
    assert!(is_file("own.toml:a:b") && !is_file("a:b"));
}

#[test]
fn mistakes_are_named_with_key_and_line() {
    for (text, expected) in [
        ("", "line 1: the file is empty"),
        (" \n", "line 1: the file is empty"),
        ("problems = []", "line 1: `problems` lists no problem"),
        (
            "[[problem]]\nheads = 1\n",
            "line 1: unknown key `problem`, expected `problems`",
        ),
        (
            "[[problems]]\nheads = 8\nhed_dim = 64\n",
            "line 3: unknown key `hed_dim`, expected one of",
        ),
        (
            "[[problems]]\nheads = 8\nseq = \"long\"\n",
            "line 3, key `seq`: invalid type: string \"long\"",
        ),
        (
            "[[problems]]\nwindow = [\n  1,\n  \"x\",\n]\n",
            "line 4, key `window`: invalid type",
        ),
        (
            "[[problems]]\nheads = -1\n",
            "line 2, key `heads`: invalid value: integer `-1`",
        ),
        ("[[problems]]\nheads 8\n", "line 2"),
        (
            "[problems]\nheads = 8\n",
            "line 1: `problems` is one table, and a list is expected: `[[problems]]`",
        ),
    ] {
        let why = wrong(text, true);
        assert!(why.starts_with(expected), "{text:?}: {why}");
    }
    for (text, expected) in [
        ("", "line 1: the file is empty"),
        ("[]", "line 1: `problems` lists no problem"),
        (
            "{\"problem\": []}",
            "line 1: unknown key `problem`, expected `problems`",
        ),
        (
            "[\n  {\"heads\": 8,\n   \"hed_dim\": 64}\n]",
            "line 3: unknown key `hed_dim`, expected one of",
        ),
        (
            "[\n  {\"heads\": 8,\n   \"seq\": \"long\"}\n]",
            "line 3, key `seq`: invalid type: string \"long\"",
        ),
        ("{\"problems\": [{\"na\\\"me\": 1}]}", "line 1: unknown key"),
        ("[{\"heads\": 8", "line 1: EOF"),
        ("[{\"heads\": 4,}]", "line 1: trailing comma"),
        ("{}", "line 1: the key `problems` is missing"),
    ] {
        let why = wrong(text, false);
        assert!(why.starts_with(expected), "{text:?}: {why}");
    }
    assert!(wrong("", true).contains("write `[[problems]]`") && wrong("", false).contains("write `[{"));
    for text in ["[[problems]]\nseq = \"x\"\n", "problems = [1]\n", "problems = 1\n"] {
        let why = wrong(text, true);
        assert!(!why.contains("usize") && !why.contains("struct"), "{why}");
    }
}

#[test]
fn wrong_values_are_named_with_key_and_line() {
    for (line, expected) in [
        ("dtype = \"fp17\"", "dtype`: no dtype is named `fp17`; allowed: f32"),
        ("scale = 1e7", "scale`: scale is 10000000; it must be"),
        ("seq = 0", "seq`: the number of query rows is 0"),
        ("seq_kv = 0", "seq_kv`: the number of keys is 0"),
        ("softcap = 0.0", "softcap`: softcap is 0"),
        (
            "batch = 1073741824",
            "batch`: the number of elements of q is 26388279066624; at most 2147483648 is supported; it is the product",
        ),
        ("like = \"missio\"", "like`: "),
        ("layout = \"x\"", "layout`: no layout is named `x`"),
        ("direction = \"x\"", "direction`: no direction is named `x`"),
        ("head_dim = 300", "head_dim`: head_dim is 300"),
        ("kv_heads = 2", "kv_heads`: 3 query heads are not a multiple"),
        ("name = \"first\"", "name`: an earlier problem is named `first`"),
    ] {
        let toml = format!("[[problems]]\nname = \"first\"\nseq = 8\n\n[[problems]]\nheads = 3\n{line}\n");
        let why = wrong(&toml, true);
        assert!(why.starts_with(&format!("line 7, key `{expected}")), "{line}: {why}");
        let (key, value) = line.split_once(" = ").unwrap();
        let json = format!("[\n{{\"name\": \"first\", \"seq\": 8}},\n{{\"heads\": 3,\n\"{key}\": {value}}}]");
        for (text, at) in [(format!("{{\"problems\":\n{json}}}"), 5), (json, 4)] {
            let why = wrong(&text, false);
            assert!(why.starts_with(&format!("line {at}, key `{expected}")), "{text}: {why}");
        }
    }
    let inline = "problems = [\n  { seq = 8 },\n  { seq = 8, softcap = -1.0 },\n]\n";
    assert!(wrong(inline, true).starts_with("line 3, key `softcap`: "));
}

#[test]
fn mistakes_in_lengths_are_named_with_key_and_line() {
    for (lengths, expected) in [
        (
            "kv_lengths = {paged = {page_size = 0, pages = 1, max_pages = 1}}",
            "kv_lengths`: page_size is 0; it must be at least 1",
        ),
        (
            "q_lengths = {packed = {total = 536870912, used = false}}",
            "q_lengths`: total of q_lengths is 536870912; at most 268435456 is supported",
        ),
    ] {
        let why = wrong(&format!("[[problems]]\nseq = 8\n{lengths}\n"), true);
        let line = 2 + lengths.lines().count();
        assert!(why.starts_with(&format!("line {line}, key `{expected}")), "{why}");
    }
    // The braces of lengths are no problems, and what is in them no keys of one.
    let packed = r#"{"name": "}{", "q_lengths": {"packed": {"total": 9, "used": false}}, "seq": 8}"#;
    for text in [
        format!("[{packed},\n{{\"head_dim\": 300}}]"),
        format!("{{\"problems\": [{packed},\n{{\"head_dim\": 300}}]}}"),
        format!("[{}]", packed.replace("\"seq\": 8", "\n\"head_dim\": 300")),
    ] {
        let why = wrong(&text, false);
        assert!(
            why.starts_with("line 2, key `head_dim`: head_dim is 300"),
            "{text}: {why}"
        );
    }
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    for (keys, expected) in [
        ("seq = 8\nseq_q = 4", "line 3, key `seq_q`: it contradicts `seq`"),
        ("seq_kv = 8\nseq = 4", "line 2, key `seq_kv`: it contradicts `seq`"),
        (
            "causal = true\nwindow = [1, 1]",
            "line 3, key `window`: it contradicts `causal`",
        ),
    ] {
        let why = wrong(&format!("[[problems]]\n{keys}\n"), true);
        assert!(why.starts_with(expected), "{why}");
    }
    assert_eq!(cases("[[problems]]\ncausal = false\nwindow = [1, 1]\n", true).len(), 1);
}

#[test]
fn a_file_that_is_no_list_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.toml");
    std::fs::File::create(&path).unwrap().set_len(1 << 25).unwrap();
    let error = read(path.to_str().unwrap(), None).unwrap_err().to_string();
    assert!(
        error.contains("large.toml: it has 33554432 bytes; such a file has at most 16777216"),
        "{error}"
    );
}

#[test]
fn one_problem_of_several_is_named_after_the_file() {
    let path = std::env::temp_dir().join(format!("flashcore-problems-{}.toml", std::process::id()));
    let name = path.to_str().unwrap();
    std::fs::write(
        &path,
        "[[problems]]\nname = \"a\"\n[[problems]]\nname = \"b\"\nseq = 7\n",
    )
    .unwrap();
    assert!(is_file(name) && is_file("x.json:y") && !is_file("small"));
    assert_eq!(read(name, Some(DType::BF16)).unwrap()[1].problem.dtype(), DType::BF16);
    assert_eq!(read_one(&format!("{name}:b")).unwrap().problem.seq_len_q(), 7);
    let several = read_one(name).unwrap_err().to_string();
    assert!(
        several.contains("lists 2 problems") && several.contains(":NAME with one of a, b"),
        "{several}"
    );
    let unknown = read_one(&format!("{name}:c")).unwrap_err().to_string();
    assert!(unknown.contains("no problem is named `c`; there are a, b"), "{unknown}");
    std::fs::remove_file(&path).unwrap();
    assert!(read_one(name).unwrap_err().to_string().contains("No such file"));
}

/// Each would take half a kilobyte, and a file has room for millions.
#[test]
fn a_file_has_so_many_problems_at_most() {
    let list = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
    assert_eq!(cases(&list(10_000), false).len(), 10_000);
    for (text, is_toml) in [
        (list(10_001), false),
        (format!("{{\"problems\": {}}}", list(10_001)), false),
        ("[[problems]]\n".repeat(10_001), true),
    ] {
        let why = wrong(&text, is_toml);
        assert!(why.contains("more than 10000 problems"), "{why}");
    }
}
