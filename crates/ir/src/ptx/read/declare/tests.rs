use super::*;

#[test]
fn declarations_are_read_whatever_the_bodies_are() {
    let text = ".version 7.0 .target sm_80 .entry k(.param .u64 x) .maxntid 32, 4\n{ not even PTX \"}\" {} }";
    let module = PtxModule::declarations(text).unwrap();
    let entry = &module.entries[0];
    assert_eq!(entry.threads_allowed(), Some(128));
    assert_eq!((entry.line, entry.body_line), (1, 2));
    assert_eq!(&text[entry.body.clone()], " not even PTX \"}\" {} ");
    let facts = entry.facts();
    assert_eq!((facts.max_threads, facts.parameter_bytes), (Some(128), Some(vec![8])));
}

#[test]
fn what_is_no_ptx_is_refused() {
    for (text, part) in [
        ("", "no .version"),
        (".version 7.0", "no .target"),
        ("int main() {}", "no .version"),
        (".version 7.0 .target sm_80 .entry k() { ret;", "has no end"),
        (".version x .target sm_80", "a version such as 7.0"),
        (
            ".version 7.0 .target sm_80 .entry k( { ret; }",
            "line 1: expected `.param`, found `{`",
        ),
        (
            ".version 7.0 .target sm_80 .shared .b8 x[99999999999][99999999999];",
            "2^64",
        ),
    ] {
        let error = PtxModule::declarations(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
