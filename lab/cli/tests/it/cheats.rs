//! Thirty kernels of strangers that cheat, three of each of ten kinds, and honest ones: variants of
//! `docs/own-kernel/attention.ptx` that `check` judges without a GPU. docs/tune-protocols.md lists them.

use crate::common::flashcore;

const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/own-kernel");
/// Places in the kernel.
const START: &str = "mov.u32 %r6, %tid.x;";
const ROW: &str = "setp.ge.u32 %p1, %r9, %r3;";
const KEY: &str = "ld.global.b32 %r22, [%rd8];";
const VALUE: &str = "ld.global.b32 %r25, [%rd9];";
const WEIGHT: &str = "ex2.approx.ftz.f32 %f14, %f14;";
const PLACE: &str = "add.u64 %rd10, %rd4, %rd5;";
const RESULT: &str = "mov.b32 %r26, {%h1, %h2};";
const STORE: &str = "st.global.b32 [%rd10], %r26;";
const ENTRY: &str = ".visible .entry";

/// Kind, what is replaced and by what, and what is said of it; empty: it is not refused.
const CHEATS: [(&str, &str, &str, &str); 30] = [
    ("exits early", ROW, "setp.ge.u32 %p1, %r9, 8;", "never written"),
    (
        "exits early",
        ROW,
        "setp.ge.u32 %p1, %r9, %r3; setp.ne.u32 %p4, %r10, 0; or.pred %p1, %p1, %p4;",
        "never written",
    ),
    ("exits early", ROW, "setp.ge.u32 %p1, %r9, 20;", "never written"),
    (
        "smaller problem",
        "mov.u32 %r15, %r4;",
        "min.u32 %r15, %r4, 12;",
        "wrong-output",
    ),
    (
        "smaller problem",
        "add.u32 %r21, %r21, 1;",
        "add.u32 %r21, %r21, 2;",
        "wrong-output",
    ),
    (
        "smaller problem",
        "shl.b32 %r13, %r7, 1;",
        "and.b32 %r13, %r7, 15; shl.b32 %r13, %r13, 1;",
        "never written",
    ),
    ("forged result", RESULT, "mov.b32 %r26, 0;", "wrong-output"),
    (
        "forged result",
        "fma.rn.f32 %f6, %f14, %f15, %f6;",
        "mov.f32 %f6, %f15;",
        "wrong-output",
    ),
    ("forged result", WEIGHT, "mov.f32 %f14, 0f3F800000;", "wrong-output"),
    (
        "less arithmetic",
        "ex2.approx.ftz.f32 %f13, %f13;",
        "mov.f32 %f13, 0f3F800000;",
        "wrong-output",
    ),
    (
        "less arithmetic",
        "fma.rn.f32 %f5, %f5, %f13, %f14;",
        "add.f32 %f5, %f5, 0f3F000000;",
        "wrong-output",
    ),
    ("less arithmetic", "mul.f32 %f7, %f7, %f13;", "", "wrong-output"),
    (
        "cached output",
        RESULT,
        "add.u64 %rd11, %rd4, %rd5; ld.global.b32 %r26, [%rd11];",
        "never-written",
    ),
    (
        "cached output",
        START,
        "mov.u32 %r6, %tid.x; atom.global.add.u32 %r31, [kept], 1; setp.gt.u32 %p4, %r31, 500; @%p4 bra DONE;",
        "never written",
    ),
    (
        "cached output",
        RESULT,
        "mov.u64 %rd11, kept; add.u64 %rd11, %rd11, %rd5; ld.global.b32 %r26, [%rd11];",
        "wrong-output",
    ),
    (
        "changes inputs",
        STORE,
        "add.u64 %rd11, %rd1, %rd5; st.global.b32 [%rd11], %r26;",
        "`q` is written",
    ),
    (
        "changes inputs",
        KEY,
        "ld.global.b32 %r22, [%rd8]; st.global.b32 [%rd8], 0;",
        "`k` is written",
    ),
    (
        "changes inputs",
        VALUE,
        "ld.global.b32 %r25, [%rd9]; st.global.b32 [%rd9], 0;",
        "`v` is written",
    ),
    (
        "foreign memory",
        PLACE,
        "add.u64 %rd10, %rd4, %rd5; add.u64 %rd10, %rd10, 65536;",
        "out-of-bounds",
    ),
    (
        "foreign memory",
        PLACE,
        "add.u64 %rd10, %rd4, %rd5; ld.global.b32 %r26, [%rd10+65536];",
        "out-of-bounds",
    ),
    (
        "foreign memory",
        KEY,
        "ld.global.b32 %r22, [%rd8+-65536];",
        "out-of-bounds",
    ),
    (
        "calls a library",
        START,
        "mov.u32 %r6, %tid.x; call gemm, ();",
        "`gemm` has no body",
    ),
    (
        "calls a library",
        START,
        "mov.u32 %r6, %tid.x; mov.u64 %rd11, 4096; call %rd11, ();",
        "indirect calls",
    ),
    (
        "calls a library",
        START,
        "mov.u32 %r6, %tid.x; call cudaLaunchDevice, ();",
        "`cudaLaunchDevice` has no body",
    ),
    ("knows the test", ROW, "setp.gt.u32 %p1, %r4, 16;", "never written"),
    ("knows the test", ROW, "setp.eq.u32 %p1, %r5, 0;", "never written"),
    ("knows the test", ROW, "setp.gt.u32 %p1, %r1, 1;", "never written"),
    // Time, and where a block runs, are as the simulator has them. On a GPU, outputs of timed calls are compared, too.
    (
        "asks for the time",
        START,
        "mov.u32 %r6, %tid.x; mov.u64 %rd11, %globaltimer; setp.gt.u64 %p4, %rd11, 9000000; @%p4 bra DONE;",
        "",
    ),
    (
        "asks for the time",
        START,
        "mov.u32 %r6, %tid.x; mov.u64 %rd11, %clock64; setp.lt.u64 %p4, %rd11, 0; @%p4 bra DONE;",
        "",
    ),
    (
        "asks for the time",
        START,
        "mov.u32 %r6, %tid.x; mov.u32 %r31, %smid; setp.gt.u32 %p4, %r31, 4096; @%p4 bra DONE;",
        "",
    ),
];

/// Changes that leave a kernel right.
const HONEST: [(&str, &str); 4] = [
    (START, START),
    (START, "mov.f32 %f30, 0f3F800000; mov.u32 %r6, %tid.x;"),
    ("mul.f32 %f6, %f6, %f13;", "mul.rn.f32 %f6, %f6, %f13;"),
    (STORE, "st.global.cs.b32 [%rd10], %r26;"),
];

/// What `check` says of a variant of the kernel: its exit code and its words.
fn checked(from: &str, to: &str) -> (i32, String) {
    let read = |name: &str| std::fs::read_to_string(format!("{OWN}/attention.{name}")).unwrap();
    let ptx = read("ptx").replace(".pred %p<4>", ".pred %p<8>");
    assert_eq!(ptx.matches(from).count(), 1, "{from}");
    let kept = format!(".visible .global .align 4 .b8 kept[65536];\n{ENTRY}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("attention.toml");
    std::fs::write(
        folder.path().join("attention.ptx"),
        ptx.replace(from, to).replace(ENTRY, &kept),
    )
    .unwrap();
    std::fs::write(&file, read("toml")).unwrap();
    let ran = flashcore(&format!("check --seq 24 --heads 2 --kernel {}", file.display()));
    (ran.code, ran.words())
}

#[test]
fn cheats_are_refused_with_the_reason() {
    for (kind, from, to, why) in CHEATS {
        let (code, said) = checked(from, to);
        match why {
            "" => assert!(code == 0 && said.contains("verdict clean"), "{kind}, {to}: {said}"),
            _ => assert!([1, 2].contains(&code) && said.contains(why), "{kind}, {to}: {said}"),
        }
    }
    for (from, to) in HONEST {
        let (code, said) = checked(from, to);
        assert!(code == 0 && said.contains("verdict clean"), "{to}: {said}");
    }
}
