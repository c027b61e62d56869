//! Launch files.

use super::*;

#[test]
fn values_of_16_bits_are_passed_as_their_bits() {
    let text = r#"
        grid = [1]
        block = [32]
        args = [{ name = "a", type = "f16", value = 2.5 }, { name = "b", type = "bf16", value = -1 }]"#;
    let file = LaunchFile::parse(text, Path::new("")).unwrap();
    assert_eq!(file.launch.args, [Given::Integer(0x4100), Given::Integer(0xbf80)]);
}

#[test]
fn sizes_and_fills_that_are_too_large_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.bin"), [0u8; 8]).unwrap();
    let read = |args: &str| LaunchFile::parse(&format!("grid = [1]\nargs = [{args}]"), folder.path());
    let whole = "{ name = \"a\", type = \"u8\", count = 1073741824, fill = \"unwritten\" }";
    let after_a_count = format!("{{ name = \"b\", count = 1 }}, {whole}");
    let after_a_file = format!("{{ name = \"b\", file = \"x.bin\" }}, {whole}");
    for (args, why) in [
        (
            after_a_count.as_str(),
            "`a` has 1073741824 B, and the buffers before it 4 B",
        ),
        (
            after_a_file.as_str(),
            "`a` has 1073741824 B, and the buffers before it 8 B",
        ),
        (
            "{ name = \"a\", count = 1, fill = \"antidiagonal:4294967296\" }",
            "antidiagonal:N",
        ),
        (
            "{ name = \"a\", count = 1, fill = \"triangles:4294967296\" }",
            "triangles:N",
        ),
        (
            "{ name = \"a\", count = 9, fill = \"offsets:9000000000000000000:9000000000000000001\" }",
            "64 bits",
        ),
    ] {
        let error = read(args).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let widest = format!(
        "{{ count = 4, type = \"i64\", fill = \"ints:{}:{}\" }}",
        i64::MIN,
        i64::MAX
    );
    assert_eq!(read(&widest).unwrap().launch.args.len(), 1);
}

#[test]
fn a_buffer_holds_the_bytes_of_a_file_next_to_the_launch() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.bin"), [1u8, 2, 3, 4]).unwrap();
    let read = |argument: &str| {
        let text = format!("grid = [1]\nblock = [32]\nargs = [{{ name = \"x\", {argument} }}]");
        LaunchFile::parse(&text, folder.path()).map(|file| file.launch.args)
    };
    let given = Given::Contents {
        name: "x".into(),
        element: 2,
        is_unwritten: false,
        contents: vec![1, 2, 3, 4],
    };
    assert_eq!(read("type = \"f16\", file = \"x.bin\""), Ok(vec![given]));
    for (argument, why) in [
        ("file = \"y.bin\"", "y.bin: "),
        ("type = \"f64\", file = \"x.bin\"", "4 B are no whole number of f64"),
        ("file = \"x.bin\", count = 1", "has a `file`"),
        ("type = \"f32\"", "none of `count`"),
    ] {
        let error = read(argument).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
