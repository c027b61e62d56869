//! Forms of sm_90 that the kernel language has not, as programs.

use flashcore_sim::FindingKind;

use crate::forms::{kinds, run_in_cluster};

/// The output of a clean run of a block, or of a cluster by several schedules.
fn clean(blocks: u32, threads: u32, body: &str, words: &[u32]) -> Vec<u32> {
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

/// An element type of a product: its name, its bits, and numbers with their codes.
struct Element {
    name: &'static str,
    bits: u32,
    codes: &'static [(u32, f64)],
}

const F16: Element = Element {
    name: "f16",
    bits: 16,
    codes: &[(0x3c00, 1.0), (0xc000, -2.0), (0x3e00, 1.5), (0, 0.0), (0x3800, 0.5)],
};
/// What is below the digits of tf32 does not count.
const TF32: Element = Element {
    name: "tf32",
    bits: 32,
    codes: &[
        (0x3f80_1fff, 1.0),
        (0xc000_0000, -2.0),
        (0x3fc0_0001, 1.5),
        (0, 0.0),
        (0x3f80_2000, 1.000_976_562_5),
    ],
};
const E4M3: Element = Element {
    name: "e4m3",
    bits: 8,
    codes: &[(0x38, 1.0), (0xc0, -2.0), (0x3c, 1.5), (0, 0.0), (0x30, 0.5)],
};
const E5M2: Element = Element {
    name: "e5m2",
    bits: 8,
    codes: &[(0x3c, 1.0), (0xc0, -2.0), (0x3e, 1.5), (0, 0.0), (0x38, 0.5)],
};
const S8: Element = Element {
    name: "s8",
    bits: 8,
    codes: &[(0x7f, 127.0), (0x80, -128.0), (3, 3.0), (0xff, -1.0), (0x70, 112.0)],
};
const U8: Element = Element {
    name: "u8",
    bits: 8,
    codes: &[(0x7f, 127.0), (0x80, 128.0), (3, 3.0), (0xff, 255.0), (0, 0.0)],
};

/// What 128 threads compute of a product of 64 rows and 16 columns, whose sums begin with the bits `first`, and the
/// exact sums of the products alone, in the order of the registers.
fn product(
    [a, b]: [&Element; 2],
    sums: &str,
    first: u32,
    in_registers: bool,
    fence: &str,
) -> (String, Vec<u32>, Vec<f64>) {
    let (k, per_word) = (256 / a.bits, 32 / a.bits);
    let pick = |element: &Element, row: u32, step: u32, salt: u32| {
        element.codes[((row * 7 + step * 3 + row * step + salt) % 5) as usize]
    };
    // Rows of 8 with 16 bytes of each; the other 16 bytes of them follow.
    let tile = |element: &Element, rows: u32, salt: u32| -> Vec<u32> {
        let word = |number: u32| {
            let (row, half, word) = (number / 64 * 8 + number % 32 / 4, number / 32 % 2, number % 4);
            (0..per_word).fold(0, |all, i| {
                let step = (4 * half + word) * per_word + i;
                all | pick(element, row, step, salt).0 << (element.bits * i)
            })
        };
        (0..rows * 8).map(word).collect()
    };
    let words = [tile(a, 64, 0), tile(b, 16, 2), vec![0; 128 * 8]].concat();
    let exact = |row: u32, column: u32| -> f64 {
        let terms = (0..k).map(|step| pick(a, row, step, 0).1 * pick(b, column, step, 2).1);
        terms.sum()
    };
    let place = |thread: u32, i: u32| {
        let row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i % 4 / 2);
        exact(row, i / 4 * 8 + thread % 4 * 2 + i % 2)
    };
    let expected = (0..128)
        .flat_map(|thread| (0..8).map(move |i| (thread, i)))
        .map(|(thread, i)| place(thread, i));
    let copy: String = (0..5)
        .map(|i| format!("ld.global.u32 %r2, [%d2+{0}]; st.shared.u32 [%r3+{0}], %r2;", 512 * i))
        .collect();
    let count = if sums == "f16" { 4 } else { 8 };
    let registers: Vec<String> = (10..10 + count).map(|i| format!("%r{i}")).collect();
    let begin: String = registers
        .iter()
        .map(|register| format!("mov.b32 {register}, {first};"))
        .collect();
    let store: String = (0..count)
        .map(|i| format!("st.global.u32 [%d5+{}], %r{};", 2560 + 4 * i, 10 + i))
        .collect();
    let load: String = [0, 256, 128, 384]
        .iter()
        .zip(4..)
        .map(|(at, i)| format!("ld.global.u32 %r{i}, [%d6+{at}];"))
        .collect();
    let (d, of_a) = (
        registers.join(", "),
        if in_registers { "{%r4, %r5, %r6, %r7}" } else { "%d3" },
    );
    let (satfinite, sums) = if sums == "sat" {
        (".satfinite", "s32")
    } else {
        ("", sums)
    };
    let scales = match a.name {
        "s8" | "u8" => "",
        "f16" if in_registers => ", 1, 1, 0",
        "f16" => ", 1, 1, 0, 0",
        _ => ", 1, 1",
    };
    let body = format!(
        "shl.b64 %d2, %d1, 2; add.u64 %d2, %d0, %d2; mov.u32 %r3, s; shr.u32 %r8, %r3, 4; cvt.u64.u32 %d3, %r8;
         or.b64 %d3, %d3, 0x1000080000; add.u64 %d4, %d3, 128; shl.b32 %r9, %r1, 2; add.u32 %r3, %r3, %r9; {copy}
         shl.b64 %d5, %d1, {shift}; add.u64 %d5, %d0, %d5; {begin}
         shr.b64 %d6, %d1, 5; shl.b64 %d6, %d6, 9; and.b64 %d7, %d1, 31; shl.b64 %d7, %d7, 2; add.u64 %d6, %d6, %d7;
         add.u64 %d6, %d0, %d6; {load}
         fence.proxy.async.shared::cta; bar.sync 0; {fence} setp.eq.u32 %p1, 0, 0;
         wgmma.mma_async.sync.aligned.m64n16k{k}{satfinite}.{sums}.{}.{} {{{d}}}, {of_a}, %d4, %p1{scales};
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; {store}",
        a.name,
        b.name,
        shift = if count == 4 { 4 } else { 5 },
    );
    (body, words, expected.collect())
}

#[test]
fn products_of_warpgroups_are_of_many_types() {
    let half = |bits: u32| f64::from(half::f16::from_bits(bits as u16).to_f32());
    for (types, sums, first) in [
        ([&F16, &F16], "f16", 0xc400_c400),
        ([&TF32, &TF32], "f32", 0xbe00_0000),
        ([&E5M2, &E5M2], "f32", 0x4120_0000),
        ([&E4M3, &E5M2], "f32", 0),
        ([&E5M2, &E4M3], "f16", 0),
        ([&E4M3, &E4M3], "f16", 0x3c00_3c00),
        ([&S8, &S8], "s32", -1000i32 as u32),
        ([&U8, &S8], "s32", 0x7fff_fff0),
        ([&S8, &U8], "sat", 0x7fff_fff0),
        ([&U8, &U8], "sat", i32::MIN as u32),
    ] {
        for in_registers in [false, true] {
            let (body, words, exact) = product(types, sums, first, in_registers, "wgmma.fence.sync.aligned;");
            let out = clean(1, 128, &body, &words);
            let got = &out[640..];
            let got: Vec<f64> = match sums {
                "f16" => got[..512]
                    .iter()
                    .flat_map(|word| [half(word & 0xffff), half(word >> 16)])
                    .collect(),
                "f32" => got.iter().map(|word| f64::from(f32::from_bits(*word))).collect(),
                _ => got.iter().map(|word| f64::from(*word as i32)).collect(),
            };
            let first = match sums {
                "f16" => half(first & 0xffff),
                "f32" => f64::from(f32::from_bits(first)),
                _ => f64::from(first as i32),
            };
            let sum = |exact: &f64| match sums {
                "s32" => f64::from((exact + first) as i64 as i32),
                "sat" => (exact + first).clamp(f64::from(i32::MIN), f64::from(i32::MAX)),
                "f16" => f64::from(half::f16::from_f64(exact + first).to_f32()),
                _ => f64::from((exact + first) as f32),
            };
            let expected: Vec<f64> = exact.iter().map(sum).collect();
            assert_eq!(
                got, expected,
                "{} {} {sums} {in_registers}",
                types[0].name, types[1].name
            );
        }
    }
    let (body, words, _) = product([&S8, &S8], "s32", 0, false, "");
    assert_eq!(kinds(128, &body, &words), [FindingKind::MissingFence]);
    let (body, words, _) = product([&TF32, &TF32], "f32", 0, true, "wgmma.fence.sync.aligned;");
    let early = body.replace("wgmma.wait_group.sync.aligned 0;", "");
    assert!(kinds(128, &early, &words).contains(&FindingKind::InFlight));
    let unfenced = body.replace("fence.proxy.async.shared::cta;", "");
    assert!(kinds(128, &unfenced, &words).contains(&FindingKind::MissingFence));
}

/// In each of two blocks of 32 threads: an mbarrier of so many arrivals, and in registers the ranks (`%r20`, of the
/// other block `%r21`), the addresses of `s` and the mbarrier (`%r3`, `%r4`), and those in the other block (`%r5`, `%r6`).
/// Then all that follows, and at the end what stops either block from ending before the other; `%d2` is where a
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
    let sent = |i: u32| (i / 32 ^ 1) * 100 + (31 - i % 32);
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
        let sent = (i / 32 ^ 1) * 100 + (31 - i % 32);
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
        // Into the other block, whose word nobody else has.
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
fn registers_of_128_bits_are_moved() {
    let body = "mov.u32 %r3, s; ld.global.b128 %q1, [%d0]; mov.b128 {%d2, %d3}, %q1; add.u64 %d2, %d2, 1;
        mov.b128 %q2, {%d3, %d2}; mov.b128 %q3, %q2; st.shared.b128 [%r3+16], %q3; ld.shared.b128 %q1, [%r3+16];
        st.global.b128 [%d0+16], %q1;";
    assert_eq!(clean(1, 1, body, &[1, 2, 3, 4, 9, 9, 9, 9]), [1, 2, 3, 4, 3, 4, 2, 2]);
    let beside = body.replace("[%r3+16], %q3", "[%r3+8], %q3");
    assert!(kinds(1, &beside, &[0; 8]).contains(&FindingKind::Misaligned));
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
    let unordered = body(80, copy, store).replace(
        "generic.acquire.gpu [%d5], 128; bar.sync 0;",
        "generic.acquire.gpu [%d5], 128;",
    );
    assert!(kinds(32, &unordered, &words).contains(&FindingKind::Race));
}
