//! PTX that relies on what CUDA leaves open: when lanes that parted meet, and which element of a fragment is where.
//! Each mistake has a twin.

use flashcore_check::foreign::{Fill, ForeignLaunch, Given, run};
use flashcore_sim::FindingKind;

use crate::hostile_ptx::under;

fn kinds(schedules: u32, body: &str) -> Vec<FindingKind> {
    let found = under(schedules, body).unwrap_or_else(|error| panic!("{error}\n{body}"));
    found.into_iter().map(|(kind, _, _)| kind).collect()
}

/// Two ways of the lanes of a warp, that stay apart until an instruction names both.
const PART: &str =
    "and.b32 %r4, %r1, 31; setp.lt.u32 %p1, %r4, 16; setp.eq.u32 %p2, %r4, 0; @%p1 bra UP; add.u32 %r5, %r1, 1;
    bra MEET; UP: add.u32 %r5, %r1, 2; MEET:";

/// Lanes that part need not meet again before an instruction that names them (CUDA programming guide, "Independent
/// Thread Scheduling"). The schedules 1 and 5 let them go on, the others do not.
#[test]
fn what_trusts_that_lanes_meet_differs_under_late_schedules() {
    for (uses, orders) in [
        // Who is there after a branch, and how many.
        ("activemask.b32 %r6; st.global.u32 [%rd2], %r6;", "bar.warp.sync -1;"),
        (
            "activemask.b32 %r6; popc.b32 %r7, %r6; add.u32 %r7, %r7, %r5; st.global.u32 [%rd2], %r7;",
            "vote.sync.any.pred %p3, %p1, -1;",
        ),
        // Which lane is the first of them.
        (
            "activemask.b32 %r6; brev.b32 %r7, %r6; clz.b32 %r7, %r7; st.global.u32 [%rd2], %r7;",
            "bar.warp.sync -1;",
        ),
    ] {
        assert_eq!(kinds(1, &format!("{PART} {uses}")), [], "{uses}");
        let late = kinds(6, &format!("{PART} {uses}"));
        assert_eq!(late, [FindingKind::Nondeterministic], "{uses}");
        assert_eq!(kinds(6, &format!("{PART} {orders} {uses}")), [], "{uses}");
    }
}

/// Each thread's fence counts at the atomic operation that one of them makes after a barrier; without a fence nothing
/// does.
#[test]
fn fences_of_a_block_count_after_its_barrier() {
    let last_block = |fence: &str| {
        let text = format!(
            ".version 8.0\n.target sm_80\n.entry k(.param .u64 p, .param .u64 sums, .param .u64 count)\n.maxntid 64, 1, 1 {{
            .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .shared .b32 last;
            ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [sums]; ld.param.u64 %rd3, [count]; cvta.to.global.u64 %rd1, %rd1;
            cvta.to.global.u64 %rd2, %rd2; cvta.to.global.u64 %rd3, %rd3; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
            shl.b32 %r3, %r2, 6; add.u32 %r3, %r3, %r1; mul.wide.u32 %rd4, %r3, 4; add.u64 %rd4, %rd2, %rd4;
            st.global.u32 [%rd4], %r3; {fence} bar.sync 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra WAIT;
            atom.global.add.u32 %r4, [%rd3], 1; st.shared.u32 [last], %r4; WAIT: bar.sync 0; ld.shared.u32 %r4, [last];
            setp.ne.u32 %p2, %r4, 1; @%p2 bra END; {fence} mul.wide.u32 %rd5, %r1, 4; add.u64 %rd6, %rd2, %rd5;
            ld.global.u32 %r5, [%rd6]; ld.global.u32 %r6, [%rd6+256]; add.u32 %r5, %r5, %r6; add.u64 %rd7, %rd1, %rd5;
            st.global.u32 [%rd7], %r5; END: ret; }}"
        );
        let buffer = |bytes| Given::Buffer {
            bytes,
            fill: Fill::Zero,
        };
        let launch = ForeignLaunch {
            grid: [2, 1, 1],
            args: vec![buffer(256), buffer(512), buffer(4)],
            schedules: 4,
            ..ForeignLaunch::default()
        };
        let found = run(&text, "k", "k.ptx", &launch).unwrap().found;
        found.iter().map(|found| found.finding.kind).collect::<Vec<_>>()
    };
    assert_eq!(last_block("membar.gl;"), []);
    assert_eq!(last_block("").first(), Some(&FindingKind::BlockRace));
}

/// The kinds of what two blocks of 64 threads do with a buffer of 64 words.
fn kinds_of_two_blocks(body: &str) -> Vec<FindingKind> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.entry k(.param .u64 p)\n.maxntid 64, 1, 1 {{ .reg .b32 %r<9>; .reg .b64 %rd<9>;
        ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
        mul.wide.u32 %rd2, %r1, 4; add.u64 %rd2, %rd1, %rd2; {body} ret; }}"
    );
    let launch = ForeignLaunch {
        grid: [2, 1, 1],
        args: vec![Given::Buffer {
            bytes: 256,
            fill: Fill::Zero,
        }],
        ..ForeignLaunch::default()
    };
    let found = run(&text, "k", "k.ptx", &launch).unwrap().found;
    found.iter().map(|found| found.finding.kind).collect()
}

/// Stores of equal bytes are no race with each other: whichever comes last, the bytes are the same. Another value is.
#[test]
fn stores_of_equal_bytes_do_not_race() {
    let begin = ".shared .b32 s; .shared .b16 h[2]; mov.u32 %r3, 7; shr.u32 %r4, %r1, 5; setp.eq.u32 %p1, %r1, 63; \
                 setp.eq.u32 %p2, %r1, 0; @%p2 st.shared.u32 [s], 3; bar.sync 0;";
    let end = "bar.sync 0; ld.shared.u32 %r5, [s]; st.global.u32 [%rd2], %r5;";
    for (equal, other) in [
        // By the lanes of a warp, and by both warps.
        ("st.shared.u32 [s], %r3;", "st.shared.u32 [s], %r1;"),
        ("st.shared.u32 [s], %r3;", "st.shared.u32 [s], %r4;"),
        // One thread writes another value, with nothing or something in between.
        (
            "st.shared.u32 [s], %r3; bar.sync 0; @%p1 st.shared.u32 [s], 9;",
            "st.shared.u32 [s], %r3; @%p1 st.shared.u32 [s], 9;",
        ),
        (
            "st.shared.u32 [s], %r3; bar.sync 0; @%p2 st.shared.u32 [s], 9;",
            "st.shared.u32 [s], %r3; bar.warp.sync -1; @%p2 st.shared.u32 [s], 9;",
        ),
        // What is read is not the same before and after.
        (
            "ld.shared.u32 %r5, [s]; bar.sync 0; st.shared.u32 [s], %r3;",
            "ld.shared.u32 %r5, [s]; add.u32 %r5, %r5, 1; st.shared.u32 [s], %r5;",
        ),
        (
            "st.global.u32 [%rd1], %r3; bar.sync 0;",
            "st.global.u32 [%rd1], %r1; bar.sync 0;",
        ),
        (
            "st.global.u32 [%rd1], %r3; bar.sync 0;",
            "st.global.u32 [%rd1], %r4; bar.sync 0;",
        ),
        (
            "st.global.u32 [%rd1], %r3; bar.sync 0; @%p1 st.global.u32 [%rd1], 9;",
            "st.global.u32 [%rd1], %r3; bar.warp.sync -1; @%p1 st.global.u32 [%rd1], 9;",
        ),
    ] {
        assert_eq!(kinds(4, &format!("{begin} {equal} {end}")), [], "{equal}");
        let found = kinds(4, &format!("{begin} {other} {end}"));
        assert!(found.contains(&FindingKind::Race), "{other}: {found:?}");
    }
    assert_eq!(kinds_of_two_blocks("st.global.u32 [%rd2], %r1;"), []);
    let found = kinds_of_two_blocks("add.u32 %r3, %r1, %r2; st.global.u32 [%rd2], %r3;");
    assert_eq!(found, [FindingKind::BlockRace]);
}

/// Whoever reads the bytes, too, may see those that another writer had there before.
#[test]
fn stores_of_equal_bytes_race_with_reads() {
    let begin = ".shared .b32 s; mov.u32 %r3, 5; shr.u32 %r4, %r1, 5; setp.eq.u32 %p1, %r1, 32; setp.eq.u32 %p2, %r1, 0; \
                 setp.eq.u32 %p3, %r4, 0; @%p2 st.shared.u32 [s], 3; bar.sync 0;";
    let read = "@%p1 ld.shared.u32 %r5, [s]; @%p1 st.global.u32 [%rd2], %r5;";
    let equal = "@%p2 st.shared.u32 [s], %r3; @%p1 st.shared.u32 [s], %r3;";
    assert_eq!(kinds(4, &format!("{begin} {equal} bar.sync 0; {read}")), []);
    for stores in [
        equal,
        "@%p2 st.shared.u32 [s], 3; @%p2 st.shared.u32 [s], %r3; @%p1 st.shared.u32 [s], %r3;",
        "@%p3 st.shared.u32 [s], 3; bar.warp.sync -1; @%p3 st.shared.u32 [s], %r3; @%p1 st.shared.u32 [s], %r3;",
    ] {
        let found = kinds(1, &format!("{begin} {stores} {read}"));
        assert!(found.contains(&FindingKind::Race), "{stores}: {found:?}");
    }
    for body in [
        "@!%p1 bra END; ld.global.u32 %r3, [%rd1]; add.u32 %r3, %r3, 1; st.global.u32 [%rd1], %r3; END:",
        "@!%p1 bra END; st.global.u32 [%rd1], 0; ld.global.u32 %r3, [%rd1]; add.u32 %r3, %r3, 1;
         st.global.u32 [%rd1], %r3; END:",
        "@!%p1 bra END; st.global.u32 [%rd1], %r2; mov.u32 %r4, 7; st.global.u32 [%rd1], %r4;
         ld.global.u32 %r3, [%rd1]; END:",
    ] {
        let one = format!(".reg .pred %p<2>; setp.eq.u32 %p1, %r1, 0; {body}");
        assert_eq!(kinds_of_two_blocks(&one), [FindingKind::BlockRace], "{body}");
    }
}

/// An atomic that another one displaced is before an equal store only if something orders it.
#[test]
fn stores_of_equal_bytes_race_with_displaced_atomics() {
    // Two warps add, one of them and a third meet, and the third stores.
    let kinds = |leaves: &str, meet: u32| {
        let text = format!(
            ".version 8.0\n.target sm_80\n.entry k(.param .u64 p)\n.maxntid 96, 1, 1 {{ .reg .pred %p<4>; .reg .b32 %r<9>;
            .reg .b64 %rd<9>; ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r1, %tid.x;
            and.b32 %r2, %r1, 31; shr.u32 %r3, %r1, 5; setp.ne.u32 %p1, %r2, 0; setp.eq.u32 %p2, %r3, 0;
            setp.eq.u32 %p3, %r3, 2; mov.u32 %r4, 5; @%p3 bra STORES; @%p1 bra MEETS; red.global.max.u32 [%rd1], %r4;
            MEETS: {leaves} bar.sync 1, {meet}; bra END; STORES: bar.sync 1, {meet}; @%p1 bra END;
            st.global.u32 [%rd1], %r4; END: ret; }}"
        );
        let launch = ForeignLaunch {
            grid: [1, 1, 1],
            args: vec![Given::Buffer {
                bytes: 256,
                fill: Fill::Zero,
            }],
            schedules: 6,
            ..ForeignLaunch::default()
        };
        let found = run(&text, "k", "k.ptx", &launch).unwrap().found;
        found.iter().map(|found| found.finding.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds("", 96), []);
    assert_eq!(kinds("@%p2 bra END;", 64), [FindingKind::Race]);
}

/// A volatile word that another lane of its warp has stored is a flag only where a loop waits for it.
#[test]
fn a_volatile_word_orders_no_lanes() {
    let store = ".shared .b32 s[2]; shr.u32 %r7, %r1, 5; mul.lo.u32 %r7, %r7, 4; mov.u32 %r3, s; add.u32 %r7, %r3, %r7; mov.u32 \
                 %r6, 3; @%p2 st.volatile.shared.u32 [%r7], %r6; bar.sync 0; @!%p2 bra READ; mov.u32 %r6, 4; \
                 st.volatile.shared.u32 [%r7], %r6; READ:";
    let load = "ld.volatile.shared.u32 %r5, [%r7];";
    for (read, found) in [
        (load.to_string(), vec![FindingKind::Race]),
        (format!("bar.warp.sync -1; {load}"), vec![]),
        (format!("POLL: {load} setp.ne.u32 %p3, %r5, 4; @%p3 bra POLL;"), vec![]),
        // A loop that goes on whatever is read.
        (
            format!("mov.u32 %r4, 0; AGAIN: {load} add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 2; @%p3 bra AGAIN;"),
            vec![FindingKind::Race],
        ),
    ] {
        let body = format!("{PART} {store} {read} st.global.u32 [%rd2], %r5;");
        assert_eq!(kinds(6, &body), found, "{read}");
    }
}

/// An element of a fragment is another one on other hardware; what treats all alike is the same.
#[test]
fn elements_of_opaque_fragments_have_no_place() {
    let list = |name: &str, first: u32| {
        let all: Vec<String> = (first..first + 8).map(|i| format!("%{name}{i}")).collect();
        format!("{{{}}}", all.join(", "))
    };
    let (a, sums, zeros) = (list("a", 0), list("f", 1), format!("{{{}}}", ["%f0"; 8].join(", ")));
    let alike: String = (1..9).map(|i| format!("add.f32 %f{i}, %f{i}, %f{i}; ")).collect();
    for (change, found) in [
        (alike.as_str(), vec![]),
        ("add.f32 %f1, %f1, %f1;", vec![FindingKind::OpaqueLayout]),
        (
            "setp.ne.u32 %p1, %r1, 0; @%p1 bra GO; mov.f32 %f1, 0f40000000; GO:",
            vec![FindingKind::OpaqueLayout],
        ),
    ] {
        let body = format!(
            ".reg .b32 %a<8>; .reg .f32 %f<9>; .shared .align 32 .b8 s[512]; .shared .align 32 .b8 t[1024];
            shl.b32 %r3, %r1, 3; mov.u32 %r4, s; add.u32 %r3, %r3, %r4; mov.u32 %r5, 0x3c003800;
            st.shared.v2.u32 [%r3], {{%r5, %r1}}; bar.sync 0; setp.ge.u32 %p2, %r1, 32; @%p2 bra END;
            wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {a}, [s], 16;
            mov.f32 %f0, 0f00000000;
            wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {sums}, {a}, {a}, {zeros};
            {change}
            wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [t], {sums}, 16; bar.warp.sync -1;
            mov.u32 %r6, t; mul.lo.u32 %r5, %r1, 4; add.u32 %r6, %r6, %r5; ld.shared.u32 %r7, [%r6];
            st.global.u32 [%rd2], %r7; END:"
        );
        assert_eq!(kinds(1, &body), found, "{change}");
    }
}
