//! Forms: which are executed, and what they compute.

use flashcore_ptx::{Module, print, read, spellings};

use super::*;

/// What of sm_90 is not executed, and registers of 128 bits.
fn may_be_missing(text: &str) -> bool {
    let words: Vec<&str> = text.split('.').collect();
    let has = |some: &[&str]| words.iter().any(|word| some.contains(word));
    match words[0] {
        "mapa" => text == "mapa.u32",
        "cp" => has(&["im2col"]),
        _ => has(&["b128"]),
    }
}

#[test]
fn every_form_before_sm_90_is_executed() {
    let all = spellings(64).into_iter().flatten().map(|form| print(&form));
    let missing: Vec<String> = all.filter(|text| executes(text) == may_be_missing(text)).collect();
    assert_eq!(missing, Vec::<String>::new());
    for form in [
        "wgmma.fence.sync.aligned",
        "atom.global.exch.b128",
        "mapa.u32",
        "tex.1d",
    ] {
        assert_eq!(executes(form), form.starts_with("wgmma"), "{form}");
    }
}

/// A kernel with an instruction whose operands are zeros, and whose addresses are a buffer's.
fn kernel_of(example: &str) -> String {
    let registers = flashcore_ptx::EXAMPLE_REGISTERS;
    format!(
        ".version 9.0 .target sm_90a .entry k(.param .u64 k) {{ {registers} .shared .align 128 .b8 s[4096]; \
         ld.param.u64 %d100, [k]; {example} END: ret; }}"
    )
}

#[test]
fn what_is_said_to_be_executed_is_and_nothing_else() {
    let arg = PtxArg {
        bytes: vec![0; 8],
        pointers: vec![(0, 0)],
        map: None,
    };
    let buffer = PtxBuffer {
        name: "k".to_string(),
        bytes: 4096,
        element: 4,
        written: true,
    };
    let launch = PtxLaunch {
        grid: [1; 3],
        block: [32, 1, 1],
        buffers: vec![buffer],
        args: vec![arg],
        ..PtxLaunch::default()
    };
    let options = crate::SimOptions {
        max_instructions: 1000,
        ..crate::SimOptions::default()
    };
    for form in spellings(16).into_iter().flatten() {
        let (text, Some(example)) = (print(&form), form.example()) else {
            continue;
        };
        let module = Module::read(&kernel_of(&example)).unwrap();
        let kernel = PtxKernel::read(&module, "k", &launch);
        let ran = kernel.and_then(|kernel| kernel.simulate(&mut [vec![0u8; 4096]], &options));
        assert_eq!(executes(&text), ran.is_ok(), "{text}: {:?}", ran.err());
    }
}

fn computed(form: &str, operands: [u64; 4]) -> u64 {
    let scalar = scalar::read(&read(form).unwrap()).unwrap();
    (scalar.compute)(&operands)
}

fn float(form: &str, operands: [f32; 3]) -> f32 {
    let [a, b, c] = operands.map(|x| u64::from(x.to_bits()));
    f32::from_bits(computed(form, [a, b, c, 0]) as u32)
}

#[test]
fn floats_are_rounded_as_their_mode_says() {
    // 1 + 2^-30 is no f32.
    let tiny = 2f32.powi(-30);
    assert_eq!(float("add.rn.f32", [1.0, tiny, 0.0]), 1.0);
    assert_eq!(float("add.rz.f32", [1.0, tiny, 0.0]), 1.0);
    assert_eq!(float("add.rp.f32", [1.0, tiny, 0.0]), 1f32.next_up());
    assert_eq!(float("add.rm.f32", [1.0, -tiny, 0.0]), 1f32.next_down());
    assert_eq!(float("fma.rm.f32", [-1.0, 1.0, -tiny]), (-1f32).next_down());
    assert_eq!(float("div.rn.f32", [1.0, 3.0, 0.0]), 1.0 / 3.0);
    assert_eq!(float("div.rp.f32", [1.0, 3.0, 0.0]), 1.0 / 3.0);
    assert_eq!(float("div.rm.f32", [1.0, 3.0, 0.0]), (1f32 / 3.0).next_down());
    assert_eq!(float("sqrt.rn.f32", [2.0, 0.0, 0.0]), 2f32.sqrt());
    assert_eq!(float("add.sat.f32", [1.0, 1.0, 0.0]), 1.0);
    assert_eq!(float("cvt.rni.f32.f32", [2.5, 0.0, 0.0]), 2.0);
    assert_eq!(float("add.ftz.f32", [1e-40, 0.0, 0.0]), 0.0);
}

#[test]
fn integers_have_their_widths() {
    for (form, operands, expected) in [
        ("add.s16", [0xffff, 2, 0, 0], 1),
        ("mul.hi.s16", [0x8000, 2, 0, 0], 0xffff),
        ("mul.wide.u16", [0xffff, 0xffff, 0, 0], 0xfffe_0001),
        ("shr.s16", [0x8000, 4, 0, 0], 0xf800),
        ("min.s64", [u64::MAX, 1, 0, 0], u64::MAX),
        ("max.relu.s16x2", [0xfff0_0003, 0xffff_fffe, 0, 0], 3),
        ("add.u16x2", [0xffff_ffff, 0x0001_0002, 0, 0], 1),
        // What an H200 gives: 2^-14 less a third of a unit is flushed before it is rounded to 2^-14.
        ("fma.rn.ftz.relu.f16x2", [0x8d67, 0x0400, 0x0400, 0], 0),
        ("bfe.s32", [0x0000_0f00, 8, 4, 0], 0xffff_ffff),
        ("bfe.u32", [0x0000_0f00, 8, 4, 0], 15),
        ("bfi.b32", [0x3, 0xffff_0000, 4, 2], 0xffff_0030),
        ("bfind.u32", [0x10, 0, 0, 0], 4),
        ("bfind.shiftamt.u32", [0x10, 0, 0, 0], 27),
        ("brev.b32", [1, 0, 0, 0], 1 << 31),
        ("shf.l.wrap.b32", [0x8000_0000, 1, 1, 0], 3),
        ("dp4a.s32.s32", [0xff02_0304, 0x0101_0101, 10, 0], 18),
        ("cvt.s8.s32", [0x1ff, 0, 0, 0], u64::MAX),
        ("cvt.sat.u8.s32", [0x1ff, 0, 0, 0], 255),
        ("cvt.rzi.s32.f32", [u64::from(3e9f32.to_bits()), 0, 0, 0], 0x7fff_ffff),
    ] {
        assert_eq!(computed(form, operands), expected, "{form}");
    }
}

/// The value of a code of a small float, from its parts.
fn decoded(code: u64, digits: i32, exponents: i32) -> f64 {
    let (field, rest) = ((code >> digits) as i32, (code & ((1 << digits) - 1)) as f64);
    let bias = (1 << (exponents - 1)) - 1;
    let one = if field == 0 { 0.0 } else { 2f64.powi(digits) };
    (one + rest) * 2f64.powi(field.max(1) - bias - digits)
}

/// Between a code and the next, at a quarter and in the middle: what each rounding gives, of either sign.
#[test]
fn small_floats_are_rounded_between_neighbours() {
    for (ty, digits, exponents, last, step) in [("f16", 10, 5, 0x7bff_u64, 1), ("bf16", 7, 8, 0x7f7f, 3)] {
        let sign = 0x8000;
        for code in (0..=last).rev().step_by(step) {
            let (low, high) = (decoded(code, digits, exponents), decoded(code + 1, digits, exponents));
            let (quarter, middle) = ((3.0 * low + high) / 4.0, (low + high) / 2.0);
            let even = code + code % 2;
            for (mode, value, above, below) in [
                ("rn", quarter, code, code),
                ("rn", middle, even, even),
                ("rz", quarter, code, code),
                ("rz", middle, code, code),
                ("rm", middle, code, code + 1),
                ("rp", quarter, code + 1, code),
            ] {
                let form = format!("cvt.{mode}.{ty}.f64");
                let of = |value: f64| computed(&form, [value.to_bits(), 0, 0, 0]);
                assert_eq!((of(value), of(-value)), (above, sign | below), "{form} {value}");
            }
            let form = format!("cvt.rz.relu.satfinite.{ty}.f32");
            let of = |value: f64| computed(&form, [u64::from((value as f32).to_bits()), 0, 0, 0]);
            assert_eq!((of(low), of(-low)), (code, 0), "{form} {low}");
        }
    }
    // Beyond the largest number, infinity, NaN, and zeros.
    for (form, value, expected) in [
        ("cvt.rn.f16.f32", 65520.0, 0x7c00),
        ("cvt.rn.satfinite.f16.f32", 65520.0, 0x7bff),
        ("cvt.rn.satfinite.f16.f32", f32::NEG_INFINITY, 0xfbff),
        ("cvt.rz.f16.f32", f32::INFINITY, 0x7c00),
        ("cvt.rz.f16.f32", 1e9, 0x7bff),
        ("cvt.rm.f16.f32", -1e9, 0xfc00),
        ("cvt.rz.satfinite.bf16.f32", f32::INFINITY, 0x7f7f),
        ("cvt.rn.relu.bf16.f32", f32::NAN, 0x7fff),
        ("cvt.rn.relu.f16.f32", f32::NEG_INFINITY, 0),
        ("cvt.rn.relu.f16.f32", -0.0, 0),
        ("cvt.rz.f16.f32", -0.0, 0x8000),
        ("cvt.rn.ftz.f16.f32", 6e-8, 1),
        ("cvt.rp.ftz.f16.f32", f32::from_bits(0x007f_ffff), 1),
        ("cvt.rm.ftz.f16.f32", f32::from_bits(0x8000_0001), 0x8001),
        ("cvt.rna.tf32.f32", 1.000_488_3, 0x3f80_2000),
        ("cvt.rna.satfinite.tf32.f32", f32::MAX, 0x7f7f_e000),
        ("cvt.rna.tf32.f32", f32::MAX, 0x7f80_0000),
        ("cvt.rz.relu.tf32.f32", -1.0, 0),
        ("cvt.rz.tf32.f32", -1.000_9, 0xbf80_0000),
        ("cvt.rna.tf32.f32", f32::from_bits(0xffd9_9f9a), 0xffd9_8000),
        ("cvt.rna.tf32.f32", f32::from_bits(0x7fff_ffff), 0x7fff_e000),
    ] {
        assert_eq!(
            computed(form, [u64::from(value.to_bits()), 0, 0, 0]),
            expected,
            "{form} {value}"
        );
    }
}

#[test]
fn bytes_of_floats_are_converted_in_pairs() {
    let bits = |x: f32| u64::from(x.to_bits());
    for (form, operands, expected) in [
        // e4m3: 448 is the largest; 1.0 is 0x38; the least is 2^-9.
        ("cvt.rn.satfinite.e4m3x2.f32", [bits(1.0), bits(-1e9), 0, 0], 0x38fe),
        (
            "cvt.rn.satfinite.relu.e4m3x2.f32",
            [bits(-3.0), bits(0.001_953_125), 0, 0],
            0x0001,
        ),
        // e5m2: 57344 is the largest; 1.0 is 0x3c; 1.125 is in the middle of 1.0 and 1.25, 1.375 of 1.25 and 1.5.
        ("cvt.rn.satfinite.e5m2x2.f32", [bits(1.125), bits(1.375), 0, 0], 0x3c3e),
        (
            "cvt.rn.satfinite.e5m2x2.f32",
            [bits(f32::INFINITY), bits(f32::NAN), 0, 0],
            0x7b7f,
        ),
        ("cvt.rn.satfinite.e5m2x2.f16x2", [0xbc00_3e00, 0, 0, 0], 0xbc3e),
        ("cvt.rn.satfinite.relu.e4m3x2.f16x2", [0xbc00_3c00, 0, 0, 0], 0x0038),
        ("cvt.rn.f16x2.e4m3x2", [0xb801, 0, 0, 0], 0xbc00_1800),
        ("cvt.rn.f16x2.e5m2x2", [0x7cbc, 0, 0, 0], 0x7c00_bc00),
        ("cvt.rn.relu.f16x2.e5m2x2", [0xbc3c, 0, 0, 0], 0x0000_3c00),
        ("cvt.rz.f16x2.f32", [bits(1.999_9), bits(-1.999_9), 0, 0], 0x3fff_bfff),
        ("cvt.rn.relu.bf16x2.f32", [bits(-2.0), bits(1.0), 0, 0], 0x0000_3f80),
        (
            "cvt.rz.satfinite.bf16x2.f32",
            [bits(f32::MAX), bits(1.0), 0, 0],
            0x7f7f_3f80,
        ),
    ] {
        assert_eq!(computed(form, operands), expected, "{form}");
    }
}

/// Exact sums and products of integers of up to 53 bits, each result next to the exact one on its side.
#[test]
fn directed_roundings_of_f64_enclose_the_exact_result() {
    let mut seed = 7u64;
    let mut next = |bits: u32| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed as i64) >> (64 - bits)
    };
    let of = |name: &str, mode: &str, v: [f64; 3]| {
        f64::from_bits(computed(
            &format!("{name}.{mode}.f64"),
            [v[0].to_bits(), v[1].to_bits(), v[2].to_bits(), 0],
        ))
    };
    for _ in 0..2000 {
        let (a, b, c) = (next(54), next(40), next(54));
        let [x, y, z] = [a, b, c].map(|n| n as f64);
        let (wide_b, wide_y) = (i128::from(b) << 30, y * 2f64.powi(30));
        let [a, b, c] = [a, b, c].map(i128::from);
        for (name, exact, v) in [
            ("add", a + wide_b, [x, wide_y, 0.0]),
            ("sub", a - wide_b, [x, wide_y, 0.0]),
            ("mul", a * b, [x, y, 0.0]),
            ("fma", a * b + c, [x, y, z]),
        ] {
            let [down, up, zero, near] = ["rm", "rp", "rz", "rn"].map(|mode| of(name, mode, v));
            let shown = format!("{name} {v:?}");
            assert!(down as i128 <= exact && exact <= up as i128, "{shown}");
            assert!(down == up && down as i128 == exact || down.next_up() == up, "{shown}");
            assert_eq!(zero, if exact > 0 { down } else { up }, "{shown}");
            assert!(near == down || near == up, "{shown}");
        }
        // q = a / b: q·b is at most a where it is rounded down, of positive numbers.
        let (n, d) = (x.abs() + 1.0, y.abs() + 1.0);
        let [down, up] = ["rm", "rp"].map(|mode| of("div", mode, [n, d, 0.0]));
        let less = |q: f64| (-q).mul_add(d, n);
        assert!(
            less(down) >= 0.0 && less(up) <= 0.0 && up <= down.next_up(),
            "{n} / {d}"
        );
        let [down, up] = ["rm", "rp"].map(|mode| of("sqrt", mode, [n, 0.0, 0.0]));
        let less = |root: f64| (-root).mul_add(root, n);
        assert!(less(down) >= 0.0 && less(up) <= 0.0 && up <= down.next_up(), "sqrt {n}");
    }
    let (tiny, max, inf) = (f64::from_bits(1), f64::MAX, f64::INFINITY);
    for (name, mode, v, expected) in [
        ("mul", "rp", [tiny, 0.5, 0.0], tiny),
        ("mul", "rm", [tiny, -0.5, 0.0], -tiny),
        ("mul", "rz", [tiny, -0.5, 0.0], -0.0),
        ("mul", "rz", [max, 2.0, 0.0], max),
        ("mul", "rm", [max, -2.0, 0.0], -inf),
        ("add", "rp", [-max, -max, 0.0], -max),
        ("add", "rp", [inf, -1.0, 0.0], inf),
        ("add", "rm", [1.0, -1.0, 0.0], -0.0),
        ("add", "rp", [1.0, -1.0, 0.0], 0.0),
        ("add", "rm", [0.0, 0.0, 0.0], 0.0),
        ("fma", "rp", [tiny, tiny, 1.0], 1f64.next_up()),
        ("fma", "rz", [-tiny, tiny, 1.0], 1f64.next_down()),
        ("fma", "rm", [2.0, 3.0, -6.0], -0.0),
        ("fma", "rm", [tiny, tiny, 0.0], 0.0),
        ("fma", "rm", [-tiny, tiny, 0.0], -tiny),
        ("div", "rm", [0.0, 5.0, 0.0], 0.0),
        ("div", "rm", [1.0, 0.0, 0.0], inf),
        ("div", "rp", [1.0, -3.0, 0.0], -1.0 / 3.0),
        ("rcp", "rp", [-inf, 0.0, 0.0], -0.0),
        ("sqrt", "rp", [4.0, 0.0, 0.0], 2.0),
    ] {
        assert_eq!(of(name, mode, v).to_bits(), expected.to_bits(), "{name} {mode} {v:?}");
    }
    assert_eq!(of("add", "rm", [inf, -inf, 0.0]).to_bits(), 0x7fff_ffff_ffff_ffff);
    assert_eq!(float("add.rm.f32", [1.0, -1.0, 0.0]).to_bits(), 0x8000_0000);
    // 2^63 + 1 and 2^64 - 1 are no f64; 2^60 + 2^36 + 1 is just above the middle of two f32.
    assert_eq!(
        computed("cvt.rp.f64.u64", [(1 << 63) + 1, 0, 0, 0]),
        (2f64.powi(63)).next_up().to_bits()
    );
    assert_eq!(
        computed("cvt.rz.f64.u64", [u64::MAX, 0, 0, 0]),
        (2f64.powi(64)).next_down().to_bits()
    );
    assert_eq!(
        computed("cvt.rm.f64.s64", [(-(1i64 << 60) - 1) as u64, 0, 0, 0]),
        (-2f64.powi(60)).next_down().to_bits()
    );
    let above = (1u64 << 60) + (1 << 36) + 1;
    assert_eq!(
        computed("cvt.rn.f32.u64", [above, 0, 0, 0]),
        u64::from(2f32.powi(60).next_up().to_bits())
    );
    assert_eq!(
        computed("cvt.rz.f32.u64", [above, 0, 0, 0]),
        u64::from(2f32.powi(60).to_bits())
    );
}

#[test]
fn rare_integers_and_selections() {
    let minus = |x: i64| x as u32 as u64;
    let (one, nan, inf) = (0x3f80_0000, 0x7fc0_0000, 0x7f80_0000);
    for (form, operands, expected) in [
        (
            "mad.hi.sat.s32",
            [0x7fff_ffff, 0x7fff_ffff, 0x7000_0000, 0],
            0x7fff_ffff,
        ),
        (
            "mad.hi.sat.s32",
            [0x8000_0000, 0x7fff_ffff, 0x8000_0000, 0],
            0x8000_0000,
        ),
        ("mad.hi.sat.s32", [minus(-2), 1, 5, 0], 4),
        // 24 bits: -1 times 2 is -2, whose bits 16 to 47 are ones.
        ("mul24.hi.s32", [0x00ff_ffff, 2, 0, 0], 0xffff_ffff),
        ("mul24.hi.u32", [0xabff_ffff, 0xcdff_ffff, 0, 0], 0xffff_fe00),
        ("mad24.hi.u32", [0x0100_0000, 5, 7, 0], 7),
        ("mad24.hi.s32", [0x0080_0000, 0x0080_0000, 1, 0], 0x4000_0001),
        (
            "mad24.hi.sat.s32",
            [0x0080_0000, 0x0080_0000, 0x7fff_0000, 0],
            0x7fff_ffff,
        ),
        ("fns.b32", [0xaaaa_aaaa, 3, 1, 0], 3),
        ("fns.b32", [0xaaaa_aaaa, 3, minus(-1), 0], 3),
        ("fns.b32", [0xaaaa_aaaa, 2, 1, 0], 3),
        ("fns.b32", [0xaaaa_aaaa, 2, minus(-1), 0], 1),
        ("fns.b32", [0xaaaa_aaaa, 2, 0, 0], 0xffff_ffff),
        ("fns.b32", [0x8000_0001, 0, 2, 0], 31),
        ("fns.b32", [0x8000_0001, 31, minus(-3), 0], 0xffff_ffff),
        ("fns.b32", [0x2e, 14, 0x8000_0000, 0], 0),
        ("szext.clamp.s32", [0x0000_0080, 8, 0, 0], 0xffff_ff80),
        ("szext.clamp.u32", [0xffff_ff80, 8, 0, 0], 0x80),
        ("szext.clamp.s32", [0x8000_0000, 99, 0, 0], 0x8000_0000),
        ("szext.wrap.u32", [0xffff_ffff, 32, 0, 0], 0),
        ("szext.wrap.s32", [0x5, 35, 0, 0], 0xffff_fffd),
        // 2·3 + (-1)·4 + 10, and with the upper bytes 2·(-1) + (-1)·5.
        ("dp2a.lo.s32.s32", [0xffff_0002, 0x05ff_0403, 10, 0], 12),
        ("dp2a.hi.s32.s32", [0xffff_0002, 0x05ff_0403, 10, 0], 3),
        ("dp2a.hi.u32.u32", [0xffff_0002, 0x05ff_0403, 0, 0], 2 * 255 + 65535 * 5),
        ("prmt.b32.f4e", [0x3322_1100, 0x7766_5544, 1, 0], 0x4433_2211),
        ("prmt.b4e.b32", [0x3322_1100, 0x7766_5544, 1, 0], 0x6677_0011),
        ("prmt.b32.rc8", [0x3322_1100, 0x7766_5544, 6, 0], 0x2222_2222),
        ("prmt.b32.ecl", [0x3322_1100, 0x7766_5544, 2, 0], 0x3322_2222),
        ("prmt.b32.ecr", [0x3322_1100, 0x7766_5544, 2, 0], 0x2222_1100),
        ("prmt.b32.rc16", [0x3322_1100, 0x7766_5544, 3, 0], 0x3322_3322),
        ("slct.b32.s32", [1, 2, 0, 0], 1),
        ("slct.u64.s32", [1, u64::MAX, minus(-1), 0], u64::MAX),
        ("slct.b16.f32", [1, 2, 0x8000_0000, 0], 1),
        ("slct.b32.f32", [1, 2, 0x8000_0001, 0], 2),
        ("slct.ftz.b32.f32", [1, 2, 0x8000_0001, 0], 1),
        ("slct.b32.f32", [1, 2, nan, 0], 2),
        ("testp.finite.f32", [one, 0, 0, 0], 1),
        ("testp.finite.f32", [inf, 0, 0, 0], 0),
        ("testp.infinite.f32", [inf | 0x8000_0000, 0, 0, 0], 1),
        ("testp.number.f32", [nan, 0, 0, 0], 0),
        ("testp.notanumber.f64", [0xfff0_0000_0000_0001, 0, 0, 0], 1),
        ("testp.normal.f32", [0x8000_0000, 0, 0, 0], 1),
        ("testp.normal.f32", [1, 0, 0, 0], 0),
        ("testp.subnormal.f64", [0x000f_ffff_ffff_ffff, 0, 0, 0], 1),
        ("testp.subnormal.f64", [0x0010_0000_0000_0000, 0, 0, 0], 0),
        // The smaller magnitude, with the sign of the product.
        ("min.xorsign.abs.f32", [0xc000_0000, one, 0, 0], one | 0x8000_0000),
        ("max.xorsign.abs.f32", [0xc000_0000, 0xbf80_0000, 0, 0], 0x4000_0000),
        ("max.xorsign.abs.f32", [nan, 0xbf80_0000, 0, 0], one | 0x8000_0000),
        ("max.NaN.xorsign.abs.f32", [nan, one, 0, 0], 0x7fff_ffff),
        ("min.xorsign.abs.f16x2", [0xc000_3c00, 0x3c00_c000, 0, 0], 0xbc00_bc00),
        ("max.xorsign.abs.bf16", [0xbf80, 0x4000, 0, 0], 0xc000),
        ("fma.rn.relu.f16", [0x3c00, 0xc000, 0x3c00, 0], 0),
        (
            "fma.rn.relu.f16x2",
            [0x3c00_3c00, 0xc000_4000, 0x3c00_3c00, 0],
            0x0000_4200,
        ),
        ("fma.rn.relu.bf16", [0x3f80, 0x7fc0, 0x3f80, 0], 0x7fff),
        // As an H200 has it: subnormal numbers of f16, kept and flushed.
        ("add.f16", [1, 0, 0, 0], 1),
        ("add.ftz.f16", [0x8001, 0x8000, 0, 0], 0x8000),
        ("add.ftz.f16", [0xaa1b, 0x83ff, 0, 0], 0xaa1b),
        ("neg.ftz.f16", [0x810c, 0, 0, 0], 0),
        ("abs.ftz.f16x2", [0x018f_818f, 0, 0, 0], 0),
        ("max.ftz.f16", [1, 0xdb05, 0, 0], 0),
        ("min.ftz.NaN.f16", [0x0456, 0x810c, 0, 0], 0x8000),
        ("fma.rn.ftz.f16", [0x2700, 1, 1, 0], 0),
        // A zero that saturates is positive.
        ("cvt.sat.f64.f16", [0x8000, 0, 0, 0], 0),
        ("mul.sat.f16", [0xc836, 0, 0, 0], 0),
        ("cvt.rpi.sat.f64.f64", [0xb6a0_0000_0000_0000, 0, 0, 0], 0),
        ("mul.rz.ftz.sat.f32", [0x8000_0001, one, 0, 0], 0),
        ("cvt.sat.f16.f16", [0x7e00, 0, 0, 0], 0),
        // NaN as an integer.
        ("cvt.rni.s64.f64", [0x7ff8_0000_0000_0000, 0, 0, 0], 1 << 63),
        ("cvt.rni.u64.bf16", [0x7fc0, 0, 0, 0], 1 << 63),
        ("cvt.rzi.ftz.sat.u64.f32", [nan, 0, 0, 0], 1 << 63),
        ("cvt.rni.sat.u8.f64", [0x7ff8_0000_0000_0000, 0, 0, 0], 0x80),
        ("cvt.rzi.s32.f32", [nan, 0, 0, 0], 0),
        ("cvt.rzi.u16.f16", [0x7e00, 0, 0, 0], 0),
        // The upper halves of f64.
        (
            "rcp.approx.ftz.f64",
            [0x000f_ffff_ffff_ffff, 0, 0, 0],
            0x7ff0_0000_0000_0000,
        ),
        (
            "rsqrt.approx.ftz.f64",
            [0x8000_0000_0000_0001, 0, 0, 0],
            0xfff0_0000_0000_0000,
        ),
        ("rcp.approx.ftz.f64", [0x7fef_ffff_ffff_ffff, 0, 0, 0], 0),
        (
            "rcp.approx.ftz.f64",
            [0x4008_0000_ffff_ffff, 0, 0, 0],
            0x3fd5_5555_0000_0000,
        ),
        (
            "rsqrt.approx.ftz.f64",
            [0xc000_0000_0000_0000, 0, 0, 0],
            0x7fff_ffff_0000_0000,
        ),
        (
            "rsqrt.approx.ftz.f64",
            [0x4000_0000_0000_0000, 0, 0, 0],
            0x3fe6_a09e_0000_0000,
        ),
        ("sub.rm.f32", [0x8000_0000, 0x8000_0000, 0, 0], 0x8000_0000),
        ("cvt.pack.sat.u16.s32", [70_000, minus(-5), 0, 0], 0xffff_0000),
        ("cvt.pack.sat.s16.s32", [40_000, minus(-40_000), 0, 0], 0x7fff_8000),
        ("cvt.pack.sat.u8.s32.b32", [300, 7, 0x1234_5678, 0], 0x5678_ff07),
        (
            "cvt.pack.sat.s8.s32.b32",
            [minus(-300), 127, 0xaaaa_bbbb, 0],
            0xbbbb_807f,
        ),
    ] {
        assert_eq!(computed(form, operands), expected, "{form} {operands:x?}");
    }
}

#[test]
fn carries_go_in_and_out() {
    let both = |form: &str, operands: [u64; 4]| {
        let form = read(form).unwrap();
        [false, true].map(|gives| (scalar::carried(&form, gives).unwrap().compute)(&operands))
    };
    for (form, operands, expected) in [
        ("add.cc.u32", [0xffff_ffff, 1, 0, 0], [0, 1]),
        ("add.cc.s32", [0x7fff_ffff, 1, 0, 0], [0x8000_0000, 0]),
        ("addc.cc.u64", [u64::MAX, u64::MAX, 0, 1], [u64::MAX, 1]),
        ("addc.u32", [0xffff_ffff, 0, 0, 1], [0, 1]),
        ("sub.cc.u32", [0, 1, 0, 0], [0xffff_ffff, 0]),
        ("sub.cc.u32", [1, 1, 0, 0], [0, 1]),
        ("subc.cc.u64", [5, 5, 0, 0], [u64::MAX, 0]),
        ("subc.cc.u64", [5, 5, 0, 1], [0, 1]),
        ("subc.u32", [5, 4, 0, 0], [0, 1]),
        ("mad.lo.cc.u32", [0x1_0000, 0xffff, 0x10_0000, 0], [0x000f_0000, 1]),
        ("madc.hi.cc.u32", [0xffff_ffff, 0xffff_ffff, 1, 1], [0, 1]),
        ("madc.hi.s32", [0xffff_ffff, 2, 1, 0], [0, 1]),
        ("mad.hi.cc.u64", [u64::MAX, u64::MAX, 2, 0], [0, 1]),
        ("madc.lo.u64", [u64::MAX, 3, 3, 1], [1, 1]),
    ] {
        assert_eq!(both(form, operands), expected, "{form}");
    }
}
