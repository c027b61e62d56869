//! Forms of PTX that the kernel language has not, as programs.

use flashcore_ptx::Module;
use flashcore_sim::{FindingKind, PtxArg, PtxBuffer, PtxKernel, PtxLaunch, SimOptions, SimReport};

/// Runs a block of threads whose registers `%r1` and `%d1` are its thread's number and `%d0` the address of as many
/// words as are given. `declared` stands before the kernel.
fn run(threads: u32, body: &str, words: &[u32]) -> (SimReport, Vec<u32>) {
    run_in_cluster(1, threads, body, words, 0)
}

/// The same in a cluster of blocks, by a schedule.
pub(crate) fn run_in_cluster(blocks: u32, threads: u32, body: &str, words: &[u32], seed: u64) -> (SimReport, Vec<u32>) {
    let text = format!(
        ".version 8.4 .target sm_90a .entry k(.param .u64 out) .reqnctapercluster {blocks} {{ .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<40>; \
         .reg .b64 %d<20>; .shared .align 128 .b8 s[4096]; .shared .align 8 .b64 bars[4];
         ld.param.u64 %d0, [out]; cvta.to.global.u64 %d0, %d0; mov.u32 %r1, %tid.x; cvt.u64.u32 %d1, %r1;
         {body}
         END: ret; }}"
    );
    let module = Module::read(&text).unwrap();
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let launch = PtxLaunch {
        file: "k.ptx".to_string(),
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        buffers: vec![PtxBuffer {
            name: "out".to_string(),
            bytes: bytes.len() as u64,
            element: 4,
            written: true,
        }],
        args: vec![PtxArg {
            bytes: vec![0; 8],
            pointers: vec![(0, 0)],
            ..PtxArg::default()
        }],
        ..PtxLaunch::default()
    };
    let options = SimOptions {
        max_instructions: 100_000,
        seed,
        ..SimOptions::default()
    };
    let report = PtxKernel::read(&module, "k", &launch)
        .unwrap()
        .simulate(&mut [&mut bytes], &options)
        .unwrap();
    let words = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    (report, words.collect())
}

fn clean(threads: u32, body: &str, words: &[u32]) -> Vec<u32> {
    let (report, out) = run(threads, body, words);
    assert!(report.is_clean(), "{body}: {:?}", report.findings);
    out
}

/// The kinds of the findings.
pub(crate) fn kinds(threads: u32, body: &str, words: &[u32]) -> Vec<FindingKind> {
    run(threads, body, words)
        .0
        .findings
        .iter()
        .map(|finding| finding.kind)
        .collect()
}

/// As CUTLASS's kernels do, whose parameters are a struct.
#[test]
fn parameters_are_loaded_by_their_addresses() {
    let load = "add.s64 %d3, %d2, 8; ld.param.u64 %d4, [%d3+-8]; cvta.to.global.u64 %d4, %d4; \
                st.global.u32 [%d4], 7;";
    assert_eq!(clean(1, &format!("mov.b64 %d2, out; {load}"), &[0]), [7]);
    // One that may have one of two addresses.
    let two = std::panic::catch_unwind(|| run(1, &format!("mov.b64 %d2, out; mov.b64 %d2, 0; {load}"), &[0]));
    assert!(two.is_err());
}

#[test]
fn wide_sums_carry_through_their_own_operands() {
    // 2^128 - 1 + 2 = 1, with a carry out, and back.
    let body = "mov.b32 %r2, -1; mov.b32 %r3, -1; mov.b32 %r4, -1; mov.b32 %r5, -1;
        add.cc.u32 %r2, %r2, 2; addc.cc.u32 %r3, %r3, 0; addc.cc.u32 %r4, %r4, 0; addc.cc.u32 %r5, %r5, 0;
        addc.u32 %r6, 0, 0;
        sub.cc.u32 %r7, %r2, 2; subc.cc.u32 %r8, %r3, 0; subc.u32 %r9, %r4, 0;
        mov.b32 %r10, 0x10001; mad.lo.cc.u32 %r11, %r10, %r10, -1; madc.hi.u32 %r12, %r10, %r10, 5;
        st.global.v4.u32 [%d0], {%r2, %r3, %r4, %r5}; st.global.v4.u32 [%d0+16], {%r6, %r7, %r8, %r9};
        st.global.v2.u32 [%d0+32], {%r11, %r12};";
    let out = clean(1, body, &[7; 10]);
    // 0x10001² is 0x1_0002_0001.
    assert_eq!(
        out,
        [1, 0, 0, 0, 1, u32::MAX, u32::MAX, u32::MAX, 0x0002_0000, 1 + 5 + 1]
    );
    // Without a sum before, there is no carry to take.
    assert_eq!(
        kinds(1, "addc.u32 %r2, 0, 0; st.global.u32 [%d0], %r2;", &[0]),
        [FindingKind::NeverWritten]
    );
}

#[test]
fn comparisons_of_pairs_give_both_or_fill_a_register() {
    // 1.0 < 2.0 in the lower halves, NaN in the upper ones; the third operand is a result.
    let body = "mov.b32 %r2, 0x7e003c00; mov.b32 %r3, 0x3c004000; setp.eq.u32 %p1, 0, 0;
        setp.lt.and.f16x2 %p1|%p2, %r2, %r3, %p1; selp.u32 %r4, 1, 0, %p1; selp.u32 %r5, 1, 0, %p2;
        setp.ltu.f16x2 %p3|%p4, %r2, %r3; selp.u32 %r6, 1, 0, %p4;
        set.lt.f16x2.f16x2 %r7, %r2, %r3; set.geu.u32.f16x2 %r8, %r2, %r3;
        set.lt.u32.s32 %r9, -1, 0; set.lt.xor.f32.s32 %r10, 5, 4, %p1; set.ge.f32.f32 %r11, 0f7fc00000, 0f00000000;
        mov.b32 {%h1, %h2}, %r2; set.nan.bf16.bf16 %h3, %h1, %h1; cvt.u32.u16 %r12, %h3;
        set.eq.s32.f64 %r13, 0d8000000000000000, 0d0000000000000000;
        set.lt.ftz.u32.f32 %r14, 0f00000000, 0f00000001;
        st.global.v4.u32 [%d0], {%r4, %r5, %r6, %r7}; st.global.v4.u32 [%d0+16], {%r8, %r9, %r10, %r11};
        st.global.v2.u32 [%d0+32], {%r12, %r13}; st.global.u32 [%d0+40], %r14;";
    let out = clean(1, body, &[7; 11]);
    let expected = [
        1,
        0,
        1,
        0x0000_3c00,
        0xffff_0000,
        u32::MAX,
        0x3f80_0000,
        0,
        0,
        u32::MAX,
        0,
    ];
    assert_eq!(out, expected);
}

#[test]
fn barriers_reduce_predicates_over_the_block() {
    // Of 64 threads, those from 5 on, in one phase; then all, and none.
    let body = "setp.ge.u32 %p1, %r1, 5; bar.red.popc.u32 %r2, 0, %p1; barrier.red.and.pred %p2, 1, 64, %p1;
        mov.u32 %r8, 64; mov.u32 %r9, 2; bar.cta.red.or.pred %p3, %r9, %r8, %p1;
        barrier.red.popc.aligned.u32 %r3, 0, !%p1; bar.red.and.pred %p4, 0, 1;
        selp.u32 %r4, 1, 0, %p2; selp.u32 %r5, 2, 0, %p3; selp.u32 %r6, 4, 0, %p4; or.b32 %r4, %r4, %r5;
        or.b32 %r4, %r4, %r6; shl.b64 %d2, %d1, 4; add.u64 %d2, %d0, %d2;
        st.global.v4.u32 [%d2], {%r2, %r3, %r4, %r1};";
    let out = clean(64, body, &[9; 256]);
    for (thread, four) in (0..).zip(out.chunks_exact(4)) {
        assert_eq!(four, [59, 5, 2 | 4, thread]);
    }
    // They order memory as other barriers do.
    let share = |barrier: &str| {
        format!(
            "shl.b32 %r3, %r1, 2; mov.u32 %r4, s; add.u32 %r3, %r4, %r3; st.shared.u32 [%r3], %r1; \
             setp.eq.u32 %p1, 0, 0; {barrier} xor.b32 %r3, %r3, 128; ld.shared.u32 %r5, [%r3]; \
             shl.b64 %d2, %d1, 2; add.u64 %d2, %d0, %d2; st.global.u32 [%d2], %r5;"
        )
    };
    for barrier in [
        "bar.red.or.pred %p2, 0, %p1;",
        "mov.u32 %r6, 64; mov.u32 %r7, 3; bar.sync %r7, %r6;",
        "barrier.cta.sync.aligned 1, 64;",
    ] {
        let out = clean(64, &share(barrier), &[0; 64]);
        assert!((0..64).zip(out).all(|(thread, got)| got == thread ^ 32), "{barrier}");
    }
    assert!(kinds(64, &share(""), &[0; 64]).contains(&FindingKind::Race));
    let uneven = "mov.u32 %r6, 33; bar.sync 1, %r6;";
    assert!(kinds(64, uneven, &[0]).contains(&FindingKind::BarrierMismatch));
}

#[test]
fn lanes_of_a_register_synchronise() {
    let share = |barrier: &str| {
        format!(
            "shl.b32 %r3, %r1, 2; mov.u32 %r4, s; add.u32 %r3, %r4, %r3; st.shared.u32 [%r3], %r1; mov.u32 %r6, -1; \
             {barrier} xor.b32 %r3, %r3, 4; ld.shared.u32 %r5, [%r3];"
        )
    };
    assert_eq!(kinds(32, &share("bar.warp.sync %r6;"), &[0]), []);
    assert_eq!(kinds(32, &share(""), &[0]), [FindingKind::Race]);
    assert_eq!(
        kinds(32, &share("mov.u32 %r6, 0xff; bar.warp.sync %r6;"), &[0])[0],
        FindingKind::MissingLanes
    );
}

/// Waits for the first phase of the mbarrier.
const WAIT: &str = "WAIT: mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p2, [bars], 0; @!%p2 bra WAIT;";

/// Thread 0 makes an mbarrier of `count` arrivals, whose phase all threads then wait for.
fn with_mbarrier(count: &str, arrive: &str, then: &str) -> String {
    format!(
        "setp.ne.u32 %p1, %r1, 0; @%p1 bra MADE; mbarrier.init.shared.b64 [bars], {count}; MADE: bar.sync 0;
         {arrive}
         {WAIT} {then}"
    )
}

#[test]
fn an_mbarrier_that_is_invalidated_may_be_made_again() {
    let again = |inval: &str| {
        with_mbarrier(
            "32",
            "mbarrier.arrive.shared.b64 %d3, [bars];",
            &format!(
                "bar.sync 0; {inval} bar.sync 0; @!%p1 mbarrier.init.shared.b64 [bars], 32; bar.sync 0;
                 mbarrier.arrive.shared.b64 %d3, [bars];
                 AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p3, [bars], 0; @!%p3 bra AGAIN;"
            ),
        )
    };
    let inval = "@!%p1 mbarrier.inval.shared.b64 [bars];";
    assert_eq!(kinds(32, &again(inval), &[0]), []);
    assert_eq!(kinds(32, &again(""), &[0])[0], FindingKind::Mbarrier);
}

#[test]
fn mbarriers_count_arrivals_and_drop_them() {
    // Two of each thread; the states say what was outstanding.
    let body = with_mbarrier(
        "64",
        "mbarrier.arrive.release.cta.shared.b64 %d3, [bars], 2; mbarrier.pending_count.b64 %r2, %d3;",
        "shl.b64 %d2, %d1, 2; add.u64 %d2, %d0, %d2; st.global.u32 [%d2], %r2;",
    );
    assert!(clean(32, &body, &[0; 32]).iter().all(|pending| *pending == 64));
    // All but one leave, so the next phase needs a single arrival. Generic addresses are those of shared memory.
    let body = with_mbarrier(
        "32",
        "mov.u64 %d4, bars; cvta.shared.u64 %d4, %d4; @%p1 mbarrier.arrive_drop.b64 %d3, [%d4];
         @!%p1 mbarrier.arrive.shared.b64 %d3, [bars];",
        "@%p1 bra END; mbarrier.arrive.b64 %d5, [%d4]; mbarrier.pending_count.b64 %r2, %d5;
         AGAIN: mbarrier.test_wait.b64 %p3, [%d4], %d5; @!%p3 bra AGAIN; st.global.u32 [%d0], %r2;",
    );
    assert_eq!(clean(32, &body, &[9]), [1]);
    // What may not end a phase does, and what is too much.
    let body = with_mbarrier("32", "mbarrier.arrive.noComplete.shared.b64 %d3, [bars], 1;", "");
    assert_eq!(kinds(32, &body, &[0]), [FindingKind::Mbarrier]);
    let body = with_mbarrier("63", "mbarrier.arrive.shared.b64 %d3, [bars], 2;", "");
    assert!(kinds(32, &body, &[0]).contains(&FindingKind::Mbarrier));
    let body = with_mbarrier(
        "33",
        "@%p1 bra REST; mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %d3, [bars], 1;
         REST: mbarrier.arrive.shared.b64 %d3, [bars];",
        "",
    );
    assert_eq!(kinds(32, &body, &[0]), []);
}

#[test]
fn copies_arrive_at_mbarriers() {
    let copy = |arrive: &str, count: &str, wait: &str| {
        let body = with_mbarrier(
            count,
            &format!(
                "mov.u32 %r3, s; shl.b32 %r4, %r1, 2; add.u32 %r4, %r3, %r4; shl.b64 %d2, %d1, 2; add.u64 %d2, %d0, %d2;
                 cp.async.ca.shared.global.L2::128B [%r4], [%d2], 4; {arrive}"
            ),
            "xor.b32 %r4, %r4, 124; ld.shared.u32 %r5, [%r4]; st.global.u32 [%d2+128], %r5;",
        );
        body.replace(WAIT, wait)
    };
    let words: Vec<u32> = (100..164).collect();
    for (arrive, count) in [
        ("cp.async.mbarrier.arrive.noinc.shared.b64 [bars];", "32"),
        (
            "cp.async.mbarrier.arrive.shared::cta.b64 [bars]; mbarrier.arrive.shared.b64 %d3, [bars];",
            "32",
        ),
        (
            "cp.async.mbarrier.arrive.shared.b64 [bars]; mbarrier.arrive.shared.b64 %d3, [bars], 2;",
            "64",
        ),
    ] {
        let out = clean(32, &copy(arrive, count, WAIT), &words);
        assert!((0..32).all(|i| out[32 + i] == 131 - i as u32), "{arrive} {out:?}");
        // A barrier of the threads does not wait for what their mbarrier does.
        let found = kinds(32, &copy(arrive, count, "bar.sync 0;"), &words);
        assert!(found.contains(&FindingKind::MissingWait), "{arrive}: {found:?}");
    }
    // Copies that arrive nowhere are not waited for.
    let arrive = "mbarrier.arrive.shared.b64 %d3, [bars];";
    assert!(kinds(32, &copy(arrive, "32", WAIT), &words).contains(&FindingKind::MissingWait));
    // After both waits the thread's copies are known to all who meet it at a barrier.
    let arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [bars]; cp.async.wait_all; bar.sync 0;";
    assert_eq!(kinds(32, &copy(arrive, "32", "bar.sync 0;"), &words), []);
}

#[test]
fn hints_of_copies_and_policies_change_nothing() {
    let body = "createpolicy.fractional.L2::evict_first.b64 %d3, 0f3f000000; mov.u32 %r3, s; shl.b32 %r4, %r1, 4;
        add.u32 %r4, %r3, %r4; shl.b64 %d2, %d1, 4; add.u64 %d2, %d0, %d2;
        cp.async.cg.shared.global.L2::cache_hint.L2::256B [%r4], [%d2], 16, 8, %d3; cp.async.wait_all;
        ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r4]; add.u32 %r5, %r5, %r6;
        st.global.L2::cache_hint.v4.u32 [%d2], {%r5, %r6, %r7, %r8}, %d3;";
    assert_eq!(clean(2, body, &[1, 2, 3, 4, 5, 6, 7, 8]), [3, 2, 0, 0, 11, 6, 0, 0]);
}

#[test]
fn atomics_of_halves_leave_the_other_half() {
    // Each of 32 threads adds 1.0 to the upper half, in shared and in global memory, and one swaps the lower half.
    let body =
        "mov.u32 %r3, s; mov.u32 %r4, 0x3c001234; setp.ne.u32 %p1, %r1, 0; @%p1 bra SET; st.shared.u32 [%r3], %r4;
        SET: bar.sync 0; mov.b16 %h1, 0x3c00; red.shared.add.noftz.f16 [%r3+2], %h1;
        atom.global.add.noftz.f16 %h2, [%d0+2], %h1;
        mov.b16 %h3, 0x1234; mov.b16 %h4, 0x4321; atom.shared.cas.b16 %h5, [%r3], %h3, %h4;
        atom.global.cas.b16 %h6, [%d0], %h4, %h3;
        bar.sync 0; @%p1 bra END; ld.shared.u32 %r5, [%r3]; st.global.u32 [%d0+4], %r5;
        cvt.u32.u16 %r6, %h5; cvt.u32.u16 %r7, %h6; st.global.v2.u32 [%d0+8], {%r6, %r7};";
    // 1 + 32 is 33, in f16 0x5020.
    let out = clean(32, body, &[0x3c00_9876, 0, 0, 0]);
    assert_eq!((out[0], out[1], out[3]), (0x5020_9876, 0x5020_4321, 0x9876));
    // The lane that came first saw the old value.
    assert!([0x1234, 0x4321].contains(&out[2]), "{out:x?}");
}

#[test]
fn matrices_are_read_by_generic_addresses_and_transposed() {
    let body =
        "mov.u64 %d3, s; cvta.shared.u64 %d3, %d3; shl.b64 %d4, %d1, 2; add.u64 %d5, %d3, %d4; st.u32 [%d5], %r1;
        bar.sync 0; and.b32 %r9, %r1, 7; cvt.u64.u32 %d6, %r9; shl.b64 %d6, %d6, 4; add.u64 %d6, %d3, %d6;
        ldmatrix.sync.aligned.m8n8.x1.b16 {%r2}, [%d6]; mul.lo.u32 %r4, %r1, 0x20002; add.u32 %r4, %r4, 0x10000;
        movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r4;
        shl.b64 %d4, %d4, 1; add.u64 %d4, %d0, %d4; st.global.v2.u32 [%d4], {%r2, %r3};";
    let out = clean(32, body, &[0; 64]);
    for (lane, two) in (0..).zip(out.chunks_exact(2)) {
        // Elements are numbered by rows of eight; each lane has two of a row, and then two of a column.
        let (row, column) = (lane / 4, lane % 4 * 2);
        let number = |row: u32, column: u32| 8 * row + column;
        assert_eq!(two, [lane, number(column, row) | number(column + 1, row) << 16]);
    }
}

#[test]
fn sums_of_f32_flush_subnormals_in_global_memory_alone() {
    // As an H200 has it: memory and value are flushed, the result that is returned is not.
    let body =
        "mov.u32 %r3, s; mov.u32 %r4, 1; mov.u32 %r9, 0; st.shared.u32 [%r3], %r9; red.shared.add.f32 [%r3], %r4;
        red.global.add.f32 [%d0], %r4; atom.global.add.f32 %r5, [%d0+4], %r9; mov.u64 %d3, s; cvta.shared.u64 %d3, %d3;
        red.add.f32 [%d3], %r4; red.add.f32 [%d0+8], %r4; ld.shared.u32 %r6, [%r3];
        st.global.v2.u32 [%d0+16], {%r5, %r6};";
    let out = clean(1, body, &[0, 0x007f_ffff, 0x8000_0001, 9, 9, 9]);
    assert_eq!(out, [0, 0, 0, 9, 0x007f_ffff, 2]);
}

#[test]
fn generic_addresses_are_in_one_space() {
    let spaces = ["global", "shared", "shared::cta", "local", "const", "param"];
    let asked = |address: &str| {
        let ask = |(i, space): (usize, &&str)| {
            format!(
                "isspacep.{space} %p2, {address}; selp.u32 %r3, {}, 0, %p2; or.b32 %r2, %r2, %r3;",
                1 << i
            )
        };
        let all: String = spaces.iter().enumerate().map(ask).collect();
        format!("mov.u32 %r2, 0; {all}")
    };
    let body = format!(
        "{} st.global.u32 [%d0], %r2; mov.u64 %d3, s; cvta.shared.u64 %d3, %d3; {} st.global.u32 [%d0+4], %r2;",
        asked("%d0"),
        asked("%d3"),
    );
    assert_eq!(clean(1, &body, &[9, 9]), [1, 2 | 4]);
}

#[test]
fn buffers_that_no_instruction_writes_may_be_read_through_the_cache() {
    // Where a product goes is not known before it runs.
    let body = |to: &str| {
        format!(
            "mov.u64 %d3, s; cvta.shared.u64 %d4, %d3; setp.eq.u32 %p1, %r1, 99; selp.b64 %d5, %d0, %d4, {to};
             mov.u32 %r9, 0; wmma.store.d.sync.aligned.row.m16n16k16.f32 [%d5],
                 {{%r9, %r9, %r9, %r9, %r9, %r9, %r9, %r9}};
             ld.global.nc.u32 %r2, [%d0];"
        )
    };
    let words = vec![5; 256];
    assert_eq!(kinds(32, &body("%p1"), &words), []);
    let found = kinds(32, &body("1"), &words);
    assert!(found.contains(&FindingKind::ReadOnlyCache), "{found:?}");
    let known = "mov.u32 %r9, 0; ld.global.nc.u32 %r2, [%d0]; setp.eq.u32 %p1, %r1, 99; @%p1 st.global.u32 [%d0], %r9;";
    assert_eq!(kinds(32, known, &words), [FindingKind::ReadOnlyCache]);
}

/// Lane and place of an element of an operand of `mma.m8n8k4`: which of four products, row, column.
type Place = (usize, usize, usize);

#[test]
fn quads_have_products_of_their_own() {
    // PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type".
    let (near, upper, which) = (
        |lane: usize| lane % 4,
        |lane: usize| lane / 16 * 4,
        |lane: usize| lane % 16 / 4,
    );
    let value = |which: usize, row: usize, column: usize| (1 + which + 2 * row + 5 * column) % 7;
    let half = |x: usize| [0u32, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600][x];
    for (a_row, b_row) in [(true, true), (true, false), (false, true), (false, false)] {
        let a_at = |lane: usize, i: usize| -> Place {
            if a_row {
                (which(lane), near(lane) + upper(lane), i)
            } else {
                (which(lane), i + upper(lane), near(lane))
            }
        };
        let b_at = |lane: usize, i: usize| -> Place {
            if b_row {
                (which(lane), near(lane), i + upper(lane))
            } else {
                (which(lane), i, near(lane) + upper(lane))
            }
        };
        let word = |at: &dyn Fn(usize, usize) -> Place, lane: usize, register: usize, shift: usize| {
            let element = |i: usize| {
                let (which, row, column) = at(lane, 2 * register + i);
                half(value(which + shift, row, column))
            };
            element(0) | element(1) << 16
        };
        let mut words = Vec::new();
        for lane in 0..32 {
            words.extend([
                word(&a_at, lane, 0, 0),
                word(&a_at, lane, 1, 0),
                word(&b_at, lane, 0, 3),
                word(&b_at, lane, 1, 3),
            ]);
        }
        words.resize(128 + 32 * 8 + 32 * 4, 0);
        let [a, b] = [a_row, b_row].map(|is_row| if is_row { "row" } else { "col" });
        let body = format!(
            "shl.b64 %d2, %d1, 4; add.u64 %d2, %d0, %d2; ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d2];
             mov.b32 %r6, 0; mov.b32 %r7, 0x3f800000;
             mma.sync.aligned.m8n8k4.{a}.{b}.f32.f16.f16.f32 {{%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}},
                 {{%r2, %r3}}, {{%r4, %r5}}, {{%r7, %r7, %r7, %r7, %r7, %r7, %r7, %r7}};
             mma.sync.aligned.m8n8k4.{a}.{b}.f16.f16.f16.f16 {{%r20, %r21, %r22, %r23}},
                 {{%r2, %r3}}, {{%r4, %r5}}, {{%r6, %r6, %r6, %r6}};
             shl.b64 %d3, %d1, 5; add.u64 %d3, %d0, %d3; st.global.v4.u32 [%d3+512], {{%r10, %r11, %r12, %r13}};
             st.global.v4.u32 [%d3+528], {{%r14, %r15, %r16, %r17}};
             st.global.v4.u32 [%d2+1536], {{%r20, %r21, %r22, %r23}};"
        );
        let out = clean(32, &body, &words);
        let sum = |(which, row, column): Place| {
            (0..4)
                .map(|k| value(which, row, k) * value(which + 3, k, column))
                .sum::<usize>() as f32
        };
        for lane in 0..32 {
            for i in 0..8 {
                let row = (lane & 1) + (i & 2) + upper(lane);
                let place = (which(lane), row, (i & 4) + (lane & 2) + (i & 1));
                assert_eq!(
                    f32::from_bits(out[128 + 8 * lane + i]),
                    sum(place) + 1.0,
                    "{a} {b} {lane} {i}"
                );
                let bits = out[384 + 4 * lane + i / 2] >> (16 * (i % 2)) & 0xffff;
                let expected = half::f16::from_f32(sum((which(lane), near(lane) + upper(lane), i))).to_bits();
                assert_eq!(bits, u32::from(expected), "{a} {b} {lane} {i}");
            }
        }
    }
}

#[test]
fn products_of_f64_are_rounded_as_they_say() {
    // 1·1 + 2^-60 three times: each step is rounded.
    let product = |mode: &str| {
        let body = format!(
            "mov.b64 %d2, 0d3ff0000000000000; mov.b64 %d3, 0d3c30000000000000; and.b32 %r2, %r1, 3;
             setp.eq.u32 %p1, %r2, 0; selp.b64 %d3, %d2, %d3, %p1; mov.b64 %d4, 0;
             mma.sync.aligned.m8n8k4.row.col.{mode}f64.f64.f64.f64 {{%d5, %d6}}, {{%d2}}, {{%d3}}, {{%d4, %d4}};
             setp.ne.u32 %p2, %r1, 0; @%p2 bra END; st.global.f64 [%d0], %d5;"
        );
        let out = clean(32, &body, &[0; 2]);
        f64::from_bits(u64::from(out[0]) | u64::from(out[1]) << 32)
    };
    let one = 1f64;
    assert_eq!(
        (product(""), product("rn."), product("rz."), product("rm.")),
        (one, one, one, one)
    );
    assert_eq!(product("rp."), one.next_up().next_up().next_up());
}

#[test]
fn a_product_without_registers_is_refused() {
    let text = ".version 8.4 .target sm_90a .entry k() { .reg .b64 %d<2>; \
                wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {}, %d0, %d1, 1, 1, 1, 0, 0; ret; }";
    let launch = PtxLaunch {
        grid: [1; 3],
        block: [128, 1, 1],
        ..PtxLaunch::default()
    };
    let read = Module::read(text).map(|module| PtxKernel::read(&module, "k", &launch).is_err());
    assert!(read.unwrap());
}
