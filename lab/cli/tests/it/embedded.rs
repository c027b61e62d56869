//! PTX inside of programs: `scale-13.0.fatbin` has a kernel three times, for sm_80 and sm_90 each.

use crate::common::flashcore;

const FATBIN: &[u8] = include_bytes!("../../../check/src/foreign/fixtures/scale-13.0.fatbin");

#[test]
fn the_best_text_for_the_card_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::fs::write(&path, [b"\x7fELF", FATBIN].concat()).unwrap();
    let explain = |rest: &str| flashcore(&format!("explain {} {rest}", path.display()));
    let ran = explain("--profile l4");
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(
        ran.words().contains("it has scale; name one with --launch entry=NAME"),
        "{}",
        ran.stderr
    );
    for (card, arch) in [("l4", "sm_80"), ("h200", "sm_90")] {
        let ran = explain(&format!("--launch entry=scale --profile {card}"));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(
            ran.words().contains(&format!("PTX for {arch} in an ELF file")),
            "{}",
            ran.stdout
        );
    }
    let ran = explain("--launch entry=other --profile l4");
    assert!(
        ran.words().contains("no kernel is named `other`; there are scale"),
        "{}",
        ran.stderr
    );
    let check = format!("check {} --launch threads=32,entry=scale --arg buf:128", path.display());
    assert_eq!(flashcore(&format!("{check} --arg 2 --arg 32")).code, 0);
    let ran = flashcore(&format!("{check} --arg 2 --arg 33"));
    assert_eq!(ran.code, 0, "one block has 32 threads\n{}", ran.stdout);
    let ran = flashcore(&format!("{check} --arg 2 --arg 64 --launch grid=2"));
    assert!(
        ran.code == 1 && ran.stdout.contains("error[out-of-bounds]"),
        "{}",
        ran.stdout
    );
}

/// What cannot be read is told, and what can be is taken.
#[test]
fn what_is_passed_over_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.fatbin");
    // The first text is not compressed.
    let first = FATBIN.windows(8).position(|bytes| bytes == b".version").unwrap();
    let mut broken = FATBIN.to_vec();
    broken[first + 1] = b'x';
    std::fs::write(&path, broken).unwrap();
    let ran = flashcore(&format!("explain {} --launch entry=scale --profile l4", path.display()));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.words().contains("passed over in"), "{}", ran.stderr);
    std::fs::write(&path, &FATBIN[..40]).unwrap();
    let ran = flashcore(&format!("explain {} --profile l4", path.display()));
    assert_eq!(ran.code, 2, "{}", ran.stdout);
    assert!(ran.words().contains("a CUDA fat binary"), "{}", ran.stderr);
}
