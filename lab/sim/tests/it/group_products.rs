//! Products of warpgroups of types that the kernel language has not.

use flashcore_sim::FindingKind;

use crate::forms::kinds;
use crate::hopper_forms::clean;

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
