//! PTX that is wrong: what must be found in it or refused, each with a twin that is right; and texts that would take
//! all memory or time.

use flashcore_check::foreign::{Fill, ForeignLaunch, Given, run};
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
    under(1, body)
}

/// The same under several schedules.
pub(crate) fn under(schedules: u32, body: &str) -> Result<Vec<(FindingKind, u32, String)>, String> {
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
        schedules,
        sim: SimOptions {
            max_instructions: 10_000,
            ..SimOptions::default()
        },
    };
    let found = run(&text(body), "k", "k.ptx", &launch).map_err(|error| error.to_string())?;
    let told = found.found.into_iter().map(|found| {
        let finding = found.finding;
        let line = finding.lines.first().map_or(0, |line| line.line);
        (finding.kind, line, finding.object.unwrap_or_default())
    });
    Ok(told.collect())
}

/// Why a body is not simulated.
fn refused(body: &str) -> String {
    findings(body).expect_err(&body[..body.len().min(60)])
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
        // An address; a selection and a vote, where they are used.
        ("st.global.u32 [%rd3], %r1;", "%rd3"),
        ("selp.u32 %r4, 1, 2, %p1; st.global.u32 [%rd2], %r4;", "%p1"),
        (
            "vote.sync.any.pred %p3, %p1, -1; @%p3 st.global.u32 [%rd2], %r1;",
            "%p1",
        ),
        // What is selected must be defined, and no more.
        ("selp.u32 %r4, %r5, 2, %p2; st.global.u32 [%rd2], %r4;", "%p2"),
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

/// What a shuffle takes from lanes that do not take part is reported where it is used, at the shuffle's line.
#[test]
fn what_absent_lanes_give_moves_until_it_decides() {
    let begin =
        "and.b32 %r4, %r1, 31; setp.ge.u32 %p1, %r4, 16; @%p1 bra END; mov.u32 %r5, 0xffff; setp.eq.u32 %p2, %r4, 0;";
    let shuffles = "shfl.sync.down.b32 %r6, %r1, 8, 31, %r5; add.u32 %r7, %r6, %r1;";
    for (uses, is_found) in [
        ("@%p2 st.global.u32 [%rd2], %r7;", false),
        ("selp.u32 %r7, %r7, 1, %p2; st.global.u32 [%rd2], %r7;", false),
        ("st.global.u32 [%rd2], %r7;", true),
        ("setp.ne.u32 %p3, %r7, 3; @%p3 st.global.u32 [%rd2], %r1;", true),
        (
            "shfl.sync.idx.b32 %r7, %r7, 0, 31, %r5; st.global.u32 [%rd2], %r7;",
            false,
        ),
        (
            "shfl.sync.idx.b32 %r7, %r7, 15, 31, %r5; st.global.u32 [%rd2], %r7;",
            true,
        ),
        (
            "cvt.u64.u32 %rd3, %r7; add.u64 %rd3, %rd3, %rd2; st.global.u32 [%rd3], %r1;",
            true,
        ),
    ] {
        let wanted = is_found.then(|| (FindingKind::MissingLanes, 10, String::new()));
        let found = findings(&format!("{begin}\n{shuffles}\n{uses} END:")).unwrap();
        assert_eq!(found.first(), wanted.as_ref(), "{uses}: {found:?}");
    }
}

/// Local memory that was not written is found where it is loaded, if what is loaded decides something.
#[test]
fn local_memory_that_was_not_written_moves_until_it_decides() {
    let begin =
        ".local .align 4 .b8 a[16]; .reg .b64 %l<3>; mov.u64 %l0, a; cvta.local.u64 %l1, %l0; st.local.u32 [%l0], %r1;";
    let uses = "st.global.u32 [%rd2], %r5;";
    for (body, line) in [
        (format!("{begin}\nld.local.u32 %r5, [%l0]; {uses}"), None),
        (
            format!("{begin}\nld.local.u32 %r5, [%l0+4]; add.u32 %r5, %r5, 1;"),
            None,
        ),
        (
            format!("{begin}\nld.local.u32 %r5, [%l0+4]; add.u32 %r5, %r5, 1;\n{uses}"),
            Some(10),
        ),
        (format!("{begin}\nld.local.v2.u32 {{%r5, %r6}}, [%l0]; {uses}"), None),
        (format!("{begin}\nld.u32 %r5, [%l1+4];\n{uses}"), Some(10)),
        (
            format!("{begin} st.u32 [%l1+4], %r1;\nld.local.u32 %r5, [%l0+4];\n{uses}"),
            None,
        ),
        // By another place of local memory.
        (
            format!(
                "{begin}\nld.local.u32 %r5, [%l0+4]; st.local.u32 [%l0+8], %r5;\nld.local.u32 %r5, [%l0+8];\n{uses}"
            ),
            Some(11),
        ),
    ] {
        let wanted: Vec<_> = line
            .into_iter()
            .map(|line| (FindingKind::NeverWritten, line, "local memory".to_string()))
            .collect();
        assert_eq!(findings(&body), Ok(wanted), "{body}");
    }
}

/// What is not defined does not move through memory that others see: it is reported at the store, as what decides.
#[test]
fn what_is_not_defined_is_found_where_it_is_stored_to_shared_memory() {
    let begin = ".shared .align 8 .b32 s[128]; mov.u32 %r3, s; shl.b32 %r4, %r1, 3; add.u32 %r3, %r3, %r4; setp.lt.u32 \
                 %p1, %r1, 40; mov.u32 %r6, 0; @%p1 mov.u32 %r5, 4;";
    let loads = "bar.sync 0; ld.shared.u32 %r7, [%r3]; st.global.u32 [%rd2], %r7;";
    for (wrong, twin) in [
        (
            "st.shared.u32 [%r3], %r5;",
            "selp.u32 %r5, %r5, 0, %p1;\nst.shared.u32 [%r3], %r5;",
        ),
        ("st.shared.u16 [%r3], %r5;", "st.shared.u32 [%r3], %r6;"),
        (
            "st.shared.v2.u32 [%r3], {%r6, %r5};",
            "@%p1 st.shared.v2.u32 [%r3], {%r6, %r5}; st.shared.u32 [%r3], %r6;",
        ),
        (
            "add.u32 %r5, %r5, %r1; st.shared.u32 [%r3], %r5;",
            "st.shared.u32 [%r3], %r1;",
        ),
    ] {
        assert_eq!(findings(&format!("{begin}\n{twin}\n{loads}")), Ok(Vec::new()), "{twin}");
        let found = findings(&format!("{begin}\n{wrong}\n{loads}")).unwrap();
        let wanted = (FindingKind::NeverWritten, 10, "%r5".to_string());
        assert!(found.contains(&wanted), "{wrong}: {found:?}");
    }
}

/// An atomic operation reads what it changes.
#[test]
fn atomic_operations_read() {
    let begin = ".shared .b32 s[64]; mov.u32 %r3, s; mul.lo.u32 %r4, %r1, 4; add.u32 %r3, %r3, %r4;";
    let adds = "\natom.shared.add.u32 %r5, [%r3], 1;";
    for (body, found) in [
        (
            format!("{begin} {adds}"),
            vec![(FindingKind::NeverWritten, 10, "s".to_string())],
        ),
        (
            format!("{begin} mov.u32 %r5, 0; st.shared.u32 [%r3], %r5; {adds}"),
            vec![],
        ),
        (format!("{begin}\natom.shared.exch.b32 %r5, [%r3], 1; {adds}"), vec![]),
    ] {
        assert_eq!(findings(&body), Ok(found), "{body}");
    }
}

/// Whole warps may end before a barrier, and parts of warps may not (PTX ISA, `barrier`, `exit`).
#[test]
fn a_barrier_without_the_lanes_that_returned_is_found() {
    for (first, found) in [
        (64, vec![]),
        (32, vec![]),
        (40, vec![(FindingKind::MissingLanes, 10, String::new())]),
    ] {
        let body =
            format!("setp.ge.u32 %p1, %r1, {first}; @%p1 bra END;\nbar.sync 0;\nst.global.u32 [%rd2], %r1; END:");
        assert_eq!(findings(&body), Ok(found), "{first}");
    }
}

/// Lanes that part meet where the branch ends, also where all of them come to a trap in place of the kernel's end.
#[test]
fn lanes_meet_before_a_trap_that_all_come_to() {
    let body = "and.b32 %r3, %r1, 31; setp.lt.u32 %p1, %r3, 16; @%p1 bra A; mov.u32 %r4, 1; A: bar.sync 0;\ntrap;";
    assert_eq!(findings(body), Ok(vec![(FindingKind::Trap, 10, String::new())]));
}

/// Limits of instructions hold for what is read.
#[test]
fn what_no_gpu_has_is_not_read() {
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
            "@%r1 bra END; END:",
            "@%p0 bra END; END:",
            "a register of 4 B where the instruction takes 1 B",
        ),
        (
            "ld.param.u32 %p1, [p];",
            "ld.param.u64 %rd2, [p];",
            "a register of 1 B for 4 B of memory",
        ),
        (
            "cvta.to.global.u64 %r2, %rd1;",
            "cvta.to.global.u64 %rd3, %rd1;",
            "a register of 4 B where",
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
            "lop3.b32 %r2, %r1, 1, 3, 0x196;",
            "lop3.b32 %r2, %r1, 1, 3, 0x96;",
            "406 in place of a number from 0 to 255",
        ),
        (
            "ld.global.v4.b64 {%rd0, %rd1, %rd2, %rd3}, [%rd1];",
            "ld.global.v2.b64 {%rd2, %rd3}, [%rd1];",
            "without these modifiers",
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
    for (body, why) in [
        (deep("!", ""), "line 9: expected a predicate, found `!`"),
        (
            deep("{", "}"),
            "line 9: 9 braces and brackets in one another; at most 8 is allowed",
        ),
        (
            deep("[", "]"),
            "line 9: 9 braces and brackets in one another; at most 8 is allowed",
        ),
        (
            "{".repeat(26_000) + &"}".repeat(26_000),
            "line 9: 257 blocks in one another; at most 256 is allowed",
        ),
        (
            ".reg .b32 %x<4294967295>;".to_string(),
            "registers; at most 1048576 is allowed",
        ),
        (
            "{ .reg .b32 %x<4294967295>; }".to_string(),
            "registers; at most 1048576 is allowed",
        ),
        (
            ".reg .b32 %x<1048576>;".to_string(),
            "registers; at most 1048576 is allowed",
        ),
        (
            ".reg .b32 %x, %x;".to_string(),
            "line 9: register `%x` is declared twice",
        ),
        (
            ".reg .b32 %r<9>;".to_string(),
            "line 9: register `%r` is declared twice",
        ),
        (
            "L: mov.b32 %r2, 1;\nL:".to_string(),
            "line 10: label `L` is declared twice",
        ),
        (
            ".shared .align 3 .b8 s[4];".to_string(),
            "line 9: 3 bytes of alignment; a power of two from 1 to 262144 is allowed",
        ),
        (".shared .align 0 .b8 s[4];".to_string(), "line 9: 0 bytes of alignment"),
        (
            ".shared .b8 s[4]; .shared .b8 s[4]; mov.u32 %r2, s;".to_string(),
            "shared symbol `s` is declared twice",
        ),
        (
            ".shared .b8 s[4294967296];".to_string(),
            "4294967296 bytes of shared memory; at most 232448 is allowed",
        ),
        (
            "ret;".repeat(1 << 20),
            "1048577 instructions; at most 1048576 is allowed",
        ),
        (" ".repeat(1 << 26), "bytes of PTX; at most 67108864 is allowed"),
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
        let error = flashcore_ptx::Module::read(&format!(".version 8.0 .target sm_90 {text}"))
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
    // Addresses that are known from the last line up.
    let backward: String = (1..20_000)
        .rev()
        .map(|i| format!("mov.u64 %x{}, %x{i};\n", i + 1))
        .collect();
    // Addresses of parameters, each a sum of the one before, and a load by each.
    let sums: String = (1..20_000)
        .map(|i| format!("add.u64 %x{}, %x{i}, 0; ld.param.u32 %r2, [%x{i}];\n", i + 1))
        .collect();
    let nested = "{".repeat(255) + &"}".repeat(255);
    let backward = format!("{backward}mov.u64 %x1, %rd2;");
    let sums = format!("mov.u64 %x1, p;\n{sums}");
    let long = [backward, sums].map(|body| format!(".reg .b64 %x<1000000>;\n{body}"));
    for body in long.into_iter().chain([nested]) {
        assert_eq!(findings(&body), Ok(Vec::new()));
    }
}
