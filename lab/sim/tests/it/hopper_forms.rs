//! Forms of sm_90 that the kernel language has not, as programs.

use flashcore_sim::FindingKind;

use crate::forms::{kinds, run_in_cluster};

/// The output of a clean run of a block, or of a cluster by several schedules.
pub(crate) fn clean(blocks: u32, threads: u32, body: &str, words: &[u32]) -> Vec<u32> {
    let outputs = (0..if blocks > 1 { 8 } else { 2 }).map(|seed| {
        let (report, out) = run_in_cluster(blocks, threads, body, words, seed);
        assert!(report.is_clean(), "{body}: {:?}", report.findings);
        out
    });
    let outputs: Vec<Vec<u32>> = outputs.collect();
    assert!(outputs.windows(2).all(|two| two[0] == two[1]), "{body}");
    outputs[0].clone()
}

/// The kinds of what is found by several schedules.
fn found(blocks: u32, threads: u32, body: &str, words: &[u32]) -> Vec<FindingKind> {
    let reports = (0..8).map(|seed| run_in_cluster(blocks, threads, body, words, seed).0);
    let found = reports.flat_map(|report| report.findings).map(|finding| finding.kind);
    found.collect()
}

/// In each of two blocks of 32 threads: an mbarrier of so many arrivals, and in registers the ranks (`%r20`, of the
/// other block `%r21`), the addresses of `s` and the mbarrier (`%r3`, `%r4`), and those in the other block (`%r5`,
/// `%r6`). Then all that follows, and at the end what stops either block from ending before the other; `%d2` is where a
/// thread stores two words.
fn in_pair(count: u32, body: &str) -> String {
    format!(
        "mov.u32 %r20, %cluster_ctarank; xor.b32 %r21, %r20, 1; mov.u32 %r3, s; mov.u32 %r4, bars;
         mapa.shared::cluster.u32 %r5, %r3, %r21; mapa.shared::cluster.u32 %r6, %r4, %r21;
         mov.u32 %r22, %ctaid.x; shl.b32 %r22, %r22, 5; add.u32 %r22, %r22, %r1; mul.wide.u32 %d2, %r22, 8;
         add.u64 %d2, %d0, %d2; setp.ne.u32 %p1, %r1, 0; shl.b32 %r7, %r1, 4; mov.u32 %r8, 1000;
         @%p1 bra MADE; mbarrier.init.shared::cta.b64 [%r4], {count}; st.shared.u32 [%r3+1024], %r8;
         fence.mbarrier_init.release.cluster;
         MADE: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
         add.u32 %r9, %r3, %r7; add.u32 %r10, %r5, %r7; mad.lo.u32 %r11, %r20, 100, %r1;
         {body}
         barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    )
}

const WAIT: &str = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r4], 0; @!%p2 bra WAIT;";

#[test]
fn threads_arrive_at_mbarriers_of_other_blocks() {
    let body = |arrive: &str, wait: &str| {
        in_pair(
            32,
            &format!(
                "st.shared::cluster.u32 [%r10], %r11; {arrive} {wait} xor.b32 %r12, %r9, 496; ld.shared.u32 %r13, [%r12];
                 st.global.v2.u32 [%d2], {{%r13, %r20}};"
            ),
        )
    };
    let sent = |i: u32| ((i / 32) ^ 1) * 100 + (31 - i % 32);
    let expected: Vec<u32> = (0..64).flat_map(|i| [sent(i), i / 32]).collect();
    let relaxed = &WAIT.replace("acquire", "relaxed");
    let fenced = &format!("{relaxed} fence.acq_rel.cluster;");
    for (arrive, wait) in [
        ("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];", WAIT),
        ("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6], 1;", WAIT),
        (
            "@%p1 mbarrier.arrive_drop.release.cluster.shared::cluster.b64 _, [%r6];
             @!%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];",
            WAIT,
        ),
        (
            "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r6], 8;
             mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r6], 8;
             mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r6], 4;
             mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r6], 4;",
            WAIT,
        ),
        (
            "fence.acq_rel.cluster; mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r6];",
            fenced,
        ),
    ] {
        assert_eq!(clean(2, 32, &body(arrive, wait), &[9; 128]), expected, "{arrive}");
    }
    let arrive = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];";
    let lax = &arrive.replace("release", "relaxed");
    assert!(found(2, 32, &body(arrive, relaxed), &[9; 128]).contains(&FindingKind::Race));
    assert!(found(2, 32, &body(lax, fenced), &[9; 128]).contains(&FindingKind::MissingFence));
    let early = arrive
        .replace("arrive.release", "arrive_drop.expect_tx.release")
        .replace("]", "], 4");
    let kinds = found(2, 32, &body(&early, WAIT), &[9; 128]);
    assert!(kinds.contains(&FindingKind::TransactionBytes), "{kinds:?}");
}

#[test]
fn ranks_of_addresses_are_asked() {
    let body = in_pair(
        32,
        "cvt.u64.u32 %d3, %r3; cvta.shared.u64 %d3, %d3; mapa.u64 %d4, %d3, %r21; getctarank.u64 %r12, %d4;
         getctarank.shared::cluster.u32 %r13, %r5; getctarank.shared::cluster.u32 %r14, %r3; getctarank.u64 %r15, %d3;
         shl.b32 %r14, %r14, 4; or.b32 %r12, %r12, %r14; shl.b32 %r15, %r15, 4; or.b32 %r13, %r13, %r15;
         st.global.v2.u32 [%d2], {%r12, %r13};",
    );
    let out = clean(2, 32, &body, &[9; 128]);
    assert!(out[..64].iter().all(|both| *both == 0x01) && out[64..].iter().all(|both| *both == 0x10));
}

#[test]
fn stores_to_other_blocks_are_waited_for() {
    let body = |bar: &str, bytes: u32, wait: &str| {
        in_pair(
            1,
            &format!(
                "@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [%r4], {bytes};
                 add.u32 %r12, %r11, 1; add.u32 %r13, %r11, 2; cvt.u64.u32 %d4, %r13;
                 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r10], {{%r11, %r12}}, [{bar}];
                 st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r10+8], %d4, [{bar}];
                 {wait} xor.b32 %r12, %r9, 496; ld.shared.v4.u32 {{%r13, %r14, %r15, %r16}}, [%r12];
                 add.u32 %r14, %r14, %r15; add.u32 %r14, %r14, %r16; st.global.v2.u32 [%d2], {{%r13, %r14}};"
            ),
        )
    };
    let out = clean(2, 32, &body("%r6", 512, WAIT), &[9; 128]);
    for (i, two) in (0u32..).zip(out.chunks_exact(2)) {
        let sent = ((i / 32) ^ 1) * 100 + (31 - i % 32);
        assert_eq!(two, [sent, 2 * sent + 3], "{i}");
    }
    assert!(found(2, 32, &body("%r6", 512, ""), &[9; 128]).contains(&FindingKind::MissingWait));
    assert!(found(2, 32, &body("%r6", 508, WAIT), &[9; 128]).contains(&FindingKind::TransactionBytes));
    assert!(found(2, 32, &body("%r4", 512, WAIT), &[9; 128]).contains(&FindingKind::Mbarrier));
    // Who still reads there does not expect it.
    let read = "ld.shared.u32 %r17, [%r9]; mbarrier.arrive";
    let raced = body("%r6", 512, WAIT).replace("mbarrier.arrive", read);
    assert!(found(2, 32, &raced, &[9; 128]).contains(&FindingKind::Race));
}

#[test]
fn changes_in_other_blocks_are_waited_for() {
    let body = |form: &str, wait: &str| {
        in_pair(
            1,
            &format!(
                "@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [%r4], 128; add.u32 %r12, %r1, 2000;
                 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{form} [%r5+1024], %r12, [%r6];
                 {wait} ld.shared.u32 %r13, [%r3+1024]; st.global.v2.u32 [%d2], {{%r13, 0}};"
            ),
        )
        .replace("{%r13, 0}", "{%r13, %r13}")
    };
    for (form, expected) in [
        ("add.u32", 1000 + 2000 * 32 + 496),
        ("min.u32", 1000),
        ("max.s32", 2031),
        ("inc.u32", 1032),
        ("dec.u32", 968),
        ("or.b32", (2000..2032).fold(1000, |all, x| all | x)),
        ("xor.b32", 1000),
    ] {
        assert_eq!(clean(2, 32, &body(form, WAIT), &[9; 128]), [expected; 128], "{form}");
    }
    let kinds = found(2, 32, &body("add.u32", ""), &[9; 128]);
    assert!(kinds.contains(&FindingKind::Race), "{kinds:?}");
}

/// Both words of a number.
fn words(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

#[test]
fn bulk_copies_change_what_is_there() {
    let both = |x: f64, y: f64| [words(x.to_bits()), words(y.to_bits())].concat();
    for (form, there, given, expected) in [
        ("add.u32", vec![5, 6, 7, u32::MAX], vec![1, 2, 3, 4], vec![6, 8, 10, 3]),
        ("add.u64", vec![u32::MAX, 0, 1, 2], vec![1, 0, 3, 4], vec![0, 1, 4, 6]),
        ("add.f64", both(1.5, -2.0), both(2.0, 1.0), both(3.5, -1.0)),
        (
            "add.noftz.f16",
            vec![0x3c00_4000; 4],
            vec![0x3c00_3c00; 4],
            vec![0x4000_4200; 4],
        ),
        (
            "add.noftz.bf16",
            vec![0x3f80_4000; 4],
            vec![0x3f80_3f80; 4],
            vec![0x4000_4040; 4],
        ),
        (
            "min.s32",
            vec![5, 6, 7, u32::MAX],
            vec![1, 9, 3, 4],
            vec![1, 6, 3, u32::MAX],
        ),
        ("max.u64", vec![5, 6, 7, 1], vec![9, 5, 0, 2], vec![5, 6, 0, 2]),
        ("inc.u32", vec![5, 6, 7, 8], vec![5, 9, 7, 9], vec![0, 7, 0, 9]),
        ("dec.u32", vec![0, 6, 7, 8], vec![5, 9, 6, 9], vec![5, 5, 6, 7]),
        ("and.b32", vec![12; 4], vec![10; 4], vec![8; 4]),
        ("or.b64", vec![12; 4], vec![3; 4], vec![15; 4]),
        ("xor.b32", vec![12; 4], vec![10; 4], vec![6; 4]),
    ] {
        let store = |at: u32| {
            let word = |i: usize| {
                format!(
                    "mov.u32 %r2, {}; st.shared.u32 [%r3+{}], %r2;",
                    given[i],
                    at + 4 * i as u32
                )
            };
            (0..4).map(word).collect::<String>()
        };
        let body = format!(
            "mov.u32 %r3, s; {} fence.proxy.async.shared::cta;
             cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%d0], [%r3], 16;
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ld.global.u32 %r5, [%d0];
             st.global.u32 [%d0+16], %r5;",
            store(0)
        );
        let out = clean(1, 1, &body, &[&there[..], &[9]].concat());
        assert_eq!(out, [&expected[..], &expected[..1]].concat(), "{form}");
        let early = body.replace("cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;");
        assert_eq!(
            kinds(1, &early, &[&there[..], &[9]].concat()),
            [FindingKind::Race],
            "{form}"
        );
        // The same into the other block, where nothing else writes the word.
        if ["add.f64", "add.noftz.f16", "add.noftz.bf16", "max.u64", "or.b64"].contains(&form) {
            continue;
        }
        let there: String = (0..4)
            .map(|i| format!("mov.u32 %r2, {}; st.shared.u32 [%r3+{}], %r2;", there[i], 4 * i))
            .collect();
        let body = in_pair(
            1,
            &format!(
                "@%p1 bra REST; {there} {} mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [%r4], 16;
                 REST: fence.proxy.async; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; @%p1 bra LAST;
                 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{form} [%r5], [%r3+512], 16, [%r6];
                 LAST: {WAIT} and.b32 %r13, %r7, 15; add.u32 %r13, %r13, %r3; ld.shared.v2.u32 {{%r14, %r15}}, [%r13];
                 st.global.v2.u32 [%d2], {{%r14, %r15}};",
                store(512)
            ),
        );
        let out = clean(2, 32, &body, &[9; 128]);
        assert_eq!(out, expected[..2].repeat(64), "{form}");
    }
}

#[test]
fn one_copy_of_bytes_fills_several_blocks() {
    let body = |mask: u32| {
        in_pair(
            1,
            &format!(
                "setp.eq.or.u32 %p3, %r20, 1, %p1; mov.b16 %h1, {mask};
                 @!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [%r4], 64;
                 cp.async.bulk.prefetch.L2.global [%d0], 64;
                 @!%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%d0], 64, [%r4], %h1;
                 {WAIT} and.b32 %r13, %r7, 48; add.u32 %r13, %r13, %r3; ld.shared.v2.u32 {{%r14, %r15}}, [%r13];
                 st.global.v2.u32 [%d2+64], {{%r14, %r15}};"
            ),
        )
    };
    let first: Vec<u32> = (50..66).collect();
    let out = clean(2, 32, &body(3), &[&first[..], &[9; 128]].concat());
    for (i, two) in out[16..].chunks_exact(2).enumerate() {
        let at = 4 * (i as u32 % 4) + 50;
        assert_eq!(two, [at, at + 1]);
    }
    assert!(found(2, 32, &body(5), &[&first[..], &[9; 128]].concat()).contains(&FindingKind::OutOfBounds));
}

#[test]
fn tensors_are_copied_by_maps_that_the_kernel_makes() {
    // Of 6 rows of 20 words the map is made in shared memory, as Triton does it, and copied behind them.
    let body = |stride: u32, copy: &str, store: &str| {
        let fields = [
            ("box_dim", "0, 16"),
            ("box_dim", "1, 4"),
            ("global_dim", "0, 20"),
            ("global_dim", "1, 6"),
            ("element_stride", "0, 1"),
            ("element_stride", "1, 1"),
            ("rank", "1"),
            ("elemtype", "2"),
            ("swizzle_mode", "0"),
        ];
        let replace = |(field, value): &(&str, &str)| {
            format!("tensormap.replace.tile.{field}.shared::cta.b1024.b32 [%d3+0], {value};")
        };
        let fields: String = fields.iter().map(replace).collect();
        format!(
            "mov.u32 %r3, s; mov.u32 %r4, bars; cvt.u64.u32 %d3, %r3; shl.b32 %r5, %r1, 2; add.u32 %r5, %r3, %r5;
             mov.b32 %r6, 0; st.shared.b32 [%r5], %r6; bar.warp.sync -1; setp.ne.u32 %p1, %r1, 0; @%p1 bra MADE;
             tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%d3], %d0; {fields}
             mov.u64 %d4, {stride}; tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%d3], 0, %d4;
             mbarrier.init.shared::cta.b64 [%r4], 1; fence.proxy.async;
             MADE: bar.warp.sync -1; add.u64 %d5, %d0, 512; {copy}
             fence.proxy.tensormap::generic.acquire.gpu [%d5], 128; bar.sync 0; cvta.global.u64 %d6, %d5;
             mov.u32 %r7, 8; mov.u32 %r8, 4; cp.async.bulk.prefetch.tensor.2d.L2.global [%d6, {{%r7, %r8}}];
             @!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 256;
             @!%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+1024], [%d6, {{%r7, %r8}}], [%r4];
             {WAIT} shl.b32 %r9, %r1, 3; add.u32 %r9, %r9, %r3; ld.shared.v2.u32 {{%r10, %r11}}, [%r9+1024];
             add.u32 %r10, %r10, 1000; add.u32 %r11, %r11, 1000; st.shared.v2.u32 [%r9+1024], {{%r10, %r11}};
             fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra END;
             {store} [%d6, {{%r7, %r8}}], [%r3+1024]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
        )
    };
    let copy =
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d5], [%d3], 128;";
    let words: Vec<u32> = (0..160).collect();
    for (form, doubles) in [
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group", 0),
        ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group", 1),
    ] {
        let out = clean(1, 32, &body(80, copy, form), &words);
        for (i, &word) in (0u32..120).zip(&out) {
            let is_in = i / 20 >= 4 && i % 20 >= 8;
            assert_eq!(word, if is_in { i + 1000 + doubles * i } else { i }, "{form} {i}");
        }
        assert_eq!(out[120..128], words[120..128]);
    }
    let store = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group";
    let zeros = [&words[..128], &[0; 32]].concat();
    assert!(kinds(32, &body(80, "", store), &zeros).contains(&FindingKind::OutOfBounds));
    assert!(kinds(32, &body(72, copy, store), &words).contains(&FindingKind::OutOfBounds));
    // The copy is one of all lanes, which follow it.
    let without = body(80, copy, store).replace(
        "generic.acquire.gpu [%d5], 128; bar.sync 0;",
        "generic.acquire.gpu [%d5], 128;",
    );
    clean(1, 32, &without, &words);
    let alone = body(80, &format!("@!%p1 {copy}"), store);
    assert!(kinds(32, &alone, &words).contains(&FindingKind::MissingLanes));
    let ranks = body(80, copy, store).replace("tensor.2d.shared", "tensor.1d.shared");
    let ranks = ranks.replace("[%d6, {%r7, %r8}], [%r4]", "[%d6, {%r7}], [%r4]");
    assert!(kinds(32, &ranks, &words).contains(&FindingKind::OutOfBounds));
}

/// As Triton adds the halves of pairs.
#[test]
fn a_half_that_nothing_reads_may_be_anything() {
    let sum = |kept: &str| {
        format!(
            "mov.b32 %r2, 0x40003c00; mov.b32 {{_, %h1}}, %r2; mov.b32 %r3, {{%h1, %h2}}; add.f16x2 %r4, %r2, %r3;
            mov.b32 {kept}, %r4; cvt.u32.u16 %r5, %h3; st.global.u32 [%d0], %r5;"
        )
    };
    assert_eq!(clean(1, 1, &sum("{%h3, _}"), &[7]), [0x4200]);
    assert_eq!(kinds(1, &sum("{_, %h3}"), &[7]), [FindingKind::NeverWritten]);
}
