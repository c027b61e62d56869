//! PTX that is wrong: what must be found in it or refused, each with a twin that is right; and texts that would take
//! all memory or time.

use flashcore_check::foreign::{Fill, ForeignLaunch, Given, run};
use flashcore_check::ptx::{PtxText, ReadAs};
use flashcore_sim::{FindingKind, SimOptions};

/// A kernel of two warps; `%rd2` is the address of this thread's word of the buffer `p`, `%r1` its number.
fn text(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.entry k(.param .u64 p)\n.maxntid 64, 1, 1\n{{\n.reg .pred %p<4>; .reg .b32 %r<8>; \
         .reg .b64 %rd<4>;\nld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, \
         %r1, 4; add.u64 %rd2, %rd1, %rd2;\n{body}\nret;\n}}"
    )
}

/// Kind, line and register of each finding, or why the kernel is not simulated.
fn findings(body: &str) -> Result<Vec<(FindingKind, u32, String)>, String> {
    let launch = ForeignLaunch {
        block: None,
        variables: Vec::new(),
        grid: [1, 1, 1],
        threads: None,
        dynamic_shared: 0,
        args: vec![Given::Buffer {
            bytes: 256,
            fill: Fill::Zero,
        }],
        schedules: 1,
        sim: SimOptions {
            max_instructions: 10_000,
            ..SimOptions::default()
        },
    };
    let found = run(&text(body), "k", "k.ptx", &launch).map_err(|error| error.to_string())?;
    let told = found.into_iter().map(|found| {
        let finding = found.finding;
        let line = finding.lines.first().map_or(0, |line| line.line);
        (finding.kind, line, finding.object.unwrap_or_default())
    });
    Ok(told.collect())
}

/// Why a body is no kernel of the kernel language.
fn refused(body: &str) -> String {
    let options = ReadAs {
        file: "k.ptx".to_string(),
        threads: None,
        dynamic_shared: 0,
    };
    let kernel = PtxText::read(&text(body)).and_then(|text| text.kernel("k", &options));
    kernel.unwrap_err().to_string()
}

/// A register that decides something is read, whatever it decides.
#[test]
fn what_was_never_written_and_decides_is_found() {
    let set = "setp.lt.u32 %p1, %r1, 40; mov.u32 %r2, 4; mov.u32 %r3, 0; mov.u64 %rd3, %rd2; setp.ne.u32 %p2, %r2, 4;";
    for (decides, register) in [
        ("@%p1 st.global.u32 [%rd2], %r1;", "%p1"),
        ("@!%p1 st.global.u32 [%rd2], %r1;", "%p1"),
        ("@%p1 bra END; st.global.u32 [%rd2], %r1; END:", "%p1"),
        (
            "@%p1 bra ELSE; st.global.u32 [%rd2], 1; bra END; ELSE: st.global.u32 [%rd2], 2; END:",
            "%p1",
        ),
        // A loop that is left by it, at its top and at its end.
        (
            "mov.u32 %r4, 0; LOOP: @%p1 bra END; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 3; @%p2 bra LOOP; END:",
            "%p1",
        ),
        ("LOOP: @%p2 bra LOOP;", "%p2"),
        // The bound of a loop, and what is counted up to it.
        (
            "mov.u32 %r4, 0; LOOP: add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, %r2; @%p3 bra LOOP;",
            "%r2",
        ),
        (
            "LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 3; @%p3 bra LOOP;",
            "%r3",
        ),
        // An address, a selection, a vote.
        ("st.global.u32 [%rd3], %r1;", "%rd3"),
        ("selp.u32 %r4, 1, 2, %p1;", "%p1"),
        ("vote.sync.any.pred %p3, %p1, -1;", "%p1"),
    ] {
        assert_eq!(findings(&format!("{set}\n{decides}")), Ok(Vec::new()), "{decides}");
        let wrong = match register {
            // Where it is to be an address, it must stem from the parameter.
            "%rd3" => format!("setp.lt.u32 %p0, %r1, 40; @%p0 mov.u64 %rd3, %rd2;\n{decides}"),
            _ => decides.to_string(),
        };
        let line = 9 + u32::from(wrong.contains('\n'));
        let found = findings(&wrong).unwrap();
        let wanted = (FindingKind::NeverWritten, line, register.to_string());
        assert!(found.contains(&wanted), "{decides}: {found:?}");
    }
}

/// Rules of the builder hold for what is read.
#[test]
fn what_does_not_build_is_not_read() {
    for (body, twin, why) in [
        (
            "bar.sync 1, 0;",
            "bar.sync 1, 64;",
            "`bar.sync` is not supported: barrier 1 of 0 threads; multiples of 32",
        ),
        (
            "bar.sync 1, 31;",
            "bar.sync 1, 64;",
            "barrier 1 of 31 threads; multiples of 32 (a warp) are possible, from 32",
        ),
        ("bar.sync 1, 33;", "bar.sync 1, 64;", "barrier 1 of 33 threads"),
        ("bar.sync 1, 48;", "bar.sync 1, 64;", "barrier 1 of 48 threads"),
        (
            "bar.sync 1, 96;",
            "bar.sync 1, 64;",
            "barrier 1 of 96 threads; the block has 64",
        ),
        (
            "@%r1 bra END; END:",
            "@%p0 bra END; END:",
            "a register of 4 B where the instruction takes 1 B",
        ),
        (
            "ld.param.u32 %p1, [p];",
            "ld.param.u64 %rd2, [p];",
            "a register of 1 B where the instruction takes 4 B",
        ),
        (
            "ld.param.u32 %r2, [p];",
            "ld.param.b64 %rd2, [p];",
            "parameter `p` has 8 B, of which 4 B are read",
        ),
        (
            "cvta.to.global.u64 %r2, %rd1;",
            "cvta.to.global.u64 %rd3, %rd1;",
            "a register of 4 B where",
        ),
        (
            "cvt.u32.u64 %r2, %rd1; ld.global.u32 %r2, [%r2];",
            "ld.global.u32 %r2, [%rd1];",
            "its address has another size",
        ),
        ("mov.u32 %p1, s;", "mov.u32 %r2, s;", "a register of 1 B where"),
        // Taken as 32 bits these would be 64.
        (
            "bar.sync 1, 4294967360;",
            "bar.sync 1, 64;",
            "4294967360 in place of a number from 0 to 4294967295",
        ),
        (
            "bar.sync 4294967297, 64;",
            "bar.sync 1, 64;",
            "4294967297 does not fit into the 4 B of a number",
        ),
        (
            "mov.u32 %r2, -2147483649;",
            "mov.u32 %r2, -2147483648;",
            "-2147483649 does not fit into the 4 B",
        ),
        // What lies behind one symbol is another: whose address it is must be known.
        (
            ".shared .b32 t[64]; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, s; @%p1 st.shared.u32 [%r2+256], 1; mov.u32 %r2, t;",
            ".shared .b32 t[64]; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, s; @%p1 st.shared.u32 [%r2+252], 1; mov.u32 %r3, t;",
            "its address stems from more than one parameter or symbol",
        ),
        (
            "bar.sync 16, 64;",
            "bar.sync 15, 64;",
            "barrier 16; a block has barriers 0 to 15",
        ),
        (
            "bar.sync 16;",
            "bar.sync 15;",
            "barrier 16; a block has barriers 0 to 15",
        ),
        (
            "bar.arrive 1, 40; bar.sync 1, 64;",
            "bar.sync 1, 64;",
            "`bar.arrive` is not supported: barrier 1 of 40",
        ),
        (
            "shfl.sync.bfly.b32 %r2, %r1, 32, 31, -1;",
            "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;",
            "lane distance of 32",
        ),
        (
            "lop3.b32 %r2, %r1, %r1, 3, 0x96;",
            "lop3.b32 %r2, %r1, 1, 3, 0x96;",
            "lop3 of a repeated value",
        ),
        (
            "lop3.b32 %r2, %r1, 1, 3, 0x196;",
            "lop3.b32 %r2, %r1, 1, 3, 0x96;",
            "406 in place of a number from 0 to 255",
        ),
        (
            "ld.global.v4.b64 {%rd0, %rd1, %rd2, %rd3}, [%rd1];",
            "ld.global.v2.b64 {%rd2, %rd3}, [%rd1];",
            "of at most 16 bytes together",
        ),
        (
            "cp.async.ca.shared.global [s], [%rd1], 4294967300;",
            "setp.eq.u32 %p1, %r1, 0; @%p1 cp.async.ca.shared.global [s], [%rd1], 4; cp.async.wait_all;",
            "4294967300 in place of a number",
        ),
    ] {
        let shared = ".shared .align 16 .b32 s[64]; ";
        assert_eq!(findings(&format!("{shared}{twin}")), Ok(Vec::new()), "{twin}");
        let error = refused(&format!("{shared}{body}"));
        assert!(error.starts_with("line 9: ") && error.contains(why), "{body}: {error}");
    }
}

/// Jumps are to the labels of their own block, whether they stand before or after. What follows those labels is not
/// skipped: all that is stored is written.
#[test]
fn labels_belong_to_their_block() {
    let body = "setp.lt.u32 %p1, %r1, 64;\n{ @%p1 bra L; mov.u32 %r2, 2; L: mov.u32 %r3, 10; }\n{ @%p1 bra L; mov.u32 \
                %r2, 3; L: mov.u32 %r4, 100; }\n@%p1 bra L; mov.u32 %r2, 4; L: add.u32 %r3, %r3, %r4; st.global.u32 \
                [%rd2], %r3;";
    assert_eq!(findings(body), Ok(Vec::new()));
}

#[test]
fn texts_beyond_a_limit_are_refused_with_it() {
    let deep = |open: &str, close: &str| format!("mov.b32 %r1, {}%r2{};", open.repeat(26_000), close.repeat(26_000));
    let nested = |n: usize| {
        let jumps: String = (0..n).map(|i| format!("@%p1 bra L{i};\n")).collect();
        let labels: String = (0..n).rev().map(|i| format!("add.u32 %r3, %r3, 1;\nL{i}:\n")).collect();
        format!("{jumps}{labels}")
    };
    for (body, why) in [
        (deep("!", ""), "line 9: expected a predicate, found `!`"),
        (deep("{", "}"), "line 9: 9 braces and brackets in one another; at most 8 is allowed"),
        (deep("[", "]"), "line 9: 9 braces and brackets in one another; at most 8 is allowed"),
        ("{".repeat(26_000) + &"}".repeat(26_000), "line 9: 257 blocks in one another; at most 256 is allowed"),
        (nested(300), "structures in one another; at most 256 is allowed"),
        (".reg .b32 %x<4294967295>;".to_string(), "registers; at most 1048576 is allowed"),
        ("{ .reg .b32 %x<4294967295>; }".to_string(), "registers; at most 1048576 is allowed"),
        (".reg .b32 %x<1048576>;".to_string(), "registers; at most 1048576 is allowed"),
        (".reg .b32 %x, %x;".to_string(), "line 9: register `%x` is declared twice"),
        (".reg .b32 %r5;".to_string(), "line 9: register `%r5` is declared twice"),
        (".reg .b32 %x5; .reg .b32 %x<6>;".to_string(), "line 9: register `%x` is declared twice"),
        (".reg .b32 %r<9>;".to_string(), "line 9: register `%r` is declared twice"),
        ("L: mov.b32 %r2, 1;\nL:".to_string(), "line 10: label `L` is declared twice"),
        (".shared .align 3 .b8 s[4];".to_string(), "line 9: 3 bytes of alignment; a power of two from 1 to 262144 is allowed"),
        (".shared .align 0 .b8 s[4];".to_string(), "line 9: 0 bytes of alignment"),
        (".shared .b8 s[4]; .shared .b8 s[4]; mov.u32 %r2, s;".to_string(), "shared symbol `s` is declared twice"),
        (".shared .b8 s[4294967296];".to_string(), "4294967296 bytes of shared memory; at most 232448 is allowed"),
        ("ret;".repeat(1 << 20), "1048577 statements; at most 1048576 is allowed"),
        (" ".repeat(1 << 26), "bytes of PTX; at most 67108864 is allowed"),
        (".shared .b32 s[8]; ld.shared.u32 %r2, [s+2147483647]; .shared .b32 t[8]; ld.shared.u32 %r2, [t+2147483647];"
            .to_string(), "its offset does not fit into 32 bits"),
    ] {
        let error = refused(&body);
        assert!(error.contains(why), "{}: {error}", &body[..body.len().min(60)]);
    }
    for (text, why) in [
        (
            ".entry k() { ret; } .entry k() { ret; }",
            "kernel `k` is declared twice",
        ),
        (
            ".entry k(.param .u32 a, .param .u64 a) { ret; }",
            "parameter `a` is declared twice",
        ),
        (".shared .align 48 .b8 s[4];", "48 bytes of alignment"),
    ] {
        let error = PtxText::read(&format!(".version 8.0 .target sm_90 {text}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

/// The same by the simulator's own reader, nested as deep as there are ifs.
#[test]
fn thousands_of_ifs_run() {
    const N: u32 = 20_000;
    let flat: String = (0..N)
        .map(|i| format!("@%p1 bra L{i};\nadd.u32 %r3, %r3, 1;\nL{i}:\n"))
        .collect();
    let jumps: String = (0..N).map(|i| format!("@%p1 bra L{i};\n")).collect();
    let labels: String = (0..N).rev().map(|i| format!("add.u32 %r3, %r3, 1;\nL{i}:\n")).collect();
    for body in [flat, jumps + &labels] {
        let begin = "setp.lt.u32 %p1, %r1, 3; mov.u32 %r3, 0;\n";
        let body = format!("{begin}{body}setp.ne.u32 %p2, %r3, 20000; @%p1 bra END; @%p2 trap; END:");
        assert_eq!(findings(&body), Ok(Vec::new()));
    }
}

/// What is within the limits is read, in time that grows with the text.
#[test]
fn large_texts_are_read() {
    let forward: String = (0..20_000)
        .map(|i| format!("@%p1 bra L{i};\nmov.u32 %r2, {i};\nL{i}:\n"))
        .collect();
    // Addresses that are known from the last line up.
    let backward: String = (1..20_000)
        .rev()
        .map(|i| format!("mov.u64 %x{}, %x{i};\n", i + 1))
        .collect();
    let nested = "{".repeat(255) + &"}".repeat(255);
    let structures = "@%p1 bra END;\nadd.u32 %r2, %r2, 1;\n".repeat(255) + "END:";
    for body in [
        format!("setp.lt.u32 %p1, %r1, 3;\n{forward}"),
        format!(".reg .b64 %x<1000000>;\n{backward}mov.u64 %x1, %rd2;"),
        nested,
        format!("setp.lt.u32 %p1, %r1, 3; mov.u32 %r2, 0;\n{structures}"),
        "mov.b32 %r2, unknown;".to_string(),
    ] {
        let options = ReadAs {
            file: "k.ptx".to_string(),
            threads: None,
            dynamic_shared: 0,
        };
        let kernel = PtxText::read(&text(&body)).unwrap().kernel("k", &options);
        assert_eq!(kernel.is_ok(), !body.contains("unknown"));
    }
}
