//! Arithmetic: bit-exact where IEEE 754 defines the result.

use crate::common;

use common::Case;
use flashcore_ir::{F16x2, KernelBuilder, Val};
use flashcore_problem::rng::Rng;
use half::{bf16, f16};

/// Applies `op` to corresponding words of the inputs.
fn map(inputs: &[Vec<u32>], op: impl for<'k> Fn(&'k KernelBuilder, &[Val<'k, u32>]) -> Val<'k, u32>) -> Vec<u32> {
    let blocks = inputs[0].len().div_ceil(128);
    let mut case = Case::new(128, |k| {
        let params: Vec<_> = (0..inputs.len())
            .map(|i| k.param_ptr::<f32>(&format!("in{i}")))
            .collect();
        let output = k.param_ptr_mut::<f32>("output");
        let i = k.block_idx(0) * 128 + k.thread_idx();
        let loaded: Vec<_> = params.iter().map(|p| p.offset(i).load().reinterpret::<u32>()).collect();
        output.offset(i).store(op(k, &loaded).reinterpret::<f32>());
    })
    .grid(blocks as u32);
    for input in inputs {
        let mut padded = input.clone();
        padded.resize(blocks * 128, 0);
        case = case.input("input", &padded);
    }
    case = case.output("output", blocks * 512);
    case.run_clean();
    case.u32s(inputs.len())[..inputs[0].len()].to_vec()
}

fn random(seed: u64, n: usize) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.next_u64() as u32).collect()
}

/// Random pairs of 16-bit floats, most of them near one, some arbitrary.
fn halves(seed: u64, n: usize) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    let mut half = || {
        if rng.chance(0.5) {
            rng.next_u64() as u32 & 0xffff
        } else {
            u32::from(f16::from_f32(8.0 * rng.unit() - 4.0).to_bits())
        }
    };
    (0..n).map(|_| half() | half() << 16).collect()
}

/// The value nearest to `exact`, ties to even, found by comparing neighbours.
fn nearest_f16(exact: f64) -> u16 {
    if exact.is_nan() {
        return 0x7fff;
    }
    let sign = if exact.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = exact.abs();
    let value = |bits: u16| {
        if bits == 0x7c00 {
            65_536.0
        } else {
            f64::from(f16::from_bits(bits))
        }
    };
    // Binary search for the largest value that is not above.
    let (mut low, mut high) = (0u16, 0x7c00u16);
    if magnitude >= 65_536.0 {
        return sign | 0x7c00;
    }
    while high - low > 1 {
        let middle = (low + high) / 2;
        if value(middle) <= magnitude {
            low = middle
        } else {
            high = middle
        }
    }
    let (below, above) = (magnitude - value(low), value(high) - magnitude);
    let up = above < below || above == below && low % 2 == 1;
    sign | if up { high } else { low }
}

#[test]
fn every_f16_widens_and_narrows_exactly() {
    let all: Vec<u32> = (0..1 << 16).collect();
    let got = map(std::slice::from_ref(&all), |_, x| {
        x[0].reinterpret::<F16x2>().to_f32s().0.reinterpret()
    });
    for (h, bits) in all.iter().zip(&got) {
        let expected = f16::from_bits(*h as u16).to_f32();
        if expected.is_nan() {
            assert_eq!(*bits, 0x7fff_ffff, "{h:#x}");
        } else {
            assert_eq!(*bits, expected.to_bits(), "{h:#x}");
        }
    }
    let back = map(&[got], |_, x| {
        let x = x[0].reinterpret::<f32>();
        x.pack_f16(x).reinterpret()
    });
    for (h, bits) in all.iter().zip(&back) {
        let expected = if f16::from_bits(*h as u16).is_nan() { 0x7fff } else { *h };
        assert_eq!(*bits, expected | expected << 16);
    }
}

#[test]
fn f32_rounds_to_16_bits_as_ieee_says() {
    let mut inputs = random(1, 100_000);
    // Midpoints and their neighbours, at every f16.
    for h in 0..1u32 << 16 {
        let bits = f16::from_bits(h as u16).to_f32().to_bits();
        inputs.extend([bits + 0x1000, bits + 0x0fff, bits + 0x1001]);
    }
    // Around the smallest subnormals and the largest number.
    for e in 0..60u32 {
        let bits = 0x3280_0000 + (e << 20);
        inputs.extend([bits, bits + 1, bits - 1, bits | 0x8000_0000]);
    }
    let got = map(std::slice::from_ref(&inputs), |_, x| {
        let x = x[0].reinterpret::<f32>();
        x.pack_f16(0.0).reinterpret()
    });
    for (bits, got) in inputs.iter().zip(&got) {
        let x = f32::from_bits(*bits);
        assert_eq!(*got as u16, nearest_f16(f64::from(x)), "{x:e}");
    }
    let got = map(std::slice::from_ref(&inputs), |_, x| {
        let x = x[0].reinterpret::<f32>();
        x.pack_bf16(0.0).reinterpret()
    });
    for (bits, got) in inputs.iter().zip(&got) {
        let x = f32::from_bits(*bits);
        let expected = if x.is_nan() {
            0x7fff
        } else {
            bf16::from_f32(x).to_bits()
        };
        assert_eq!(*got as u16, expected, "{x:e}");
    }
}

#[test]
fn packed_halves_round_once() {
    let (a, b, c) = (halves(2, 200_000), halves(3, 200_000), halves(4, 200_000));
    let inputs = [a.clone(), b.clone(), c.clone()];
    let pair = |x: u32| [x as u16, (x >> 16) as u16].map(|h| f64::from(f16::from_bits(h)));
    let got = map(&inputs, |_, x| {
        let [a, b, c] = [0, 1, 2].map(|i| x[i].reinterpret::<F16x2>());
        a.fma(b, c).reinterpret()
    });
    for i in 0..a.len() {
        for half in 0..2 {
            let [x, y, z] = [a[i], b[i], c[i]].map(|v| pair(v)[half]);
            // Exact where it matters: see the simulator's own reasoning; infinities follow f64.
            let expected = nearest_f16(x * y + z);
            assert_eq!((got[i] >> (16 * half)) as u16, expected, "{x:e}·{y:e} + {z:e}");
        }
    }
    for which in 0..3 {
        let got = map(&inputs[..2], |_, x| {
            let [a, b] = [0, 1].map(|i| x[i].reinterpret::<F16x2>());
            match which {
                0 => (a + b).reinterpret(),
                1 => (a - b).reinterpret(),
                _ => (a * b).reinterpret(),
            }
        });
        for i in 0..a.len() {
            for half in 0..2 {
                let [x, y] = [a[i], b[i]].map(|v| pair(v)[half]);
                let exact = [x + y, x - y, x * y][which];
                assert_eq!(
                    (got[i] >> (16 * half)) as u16,
                    nearest_f16(exact),
                    "{x:e}, {y:e}, {which}"
                );
            }
        }
    }
}

#[test]
fn f32_arithmetic_is_ieee_with_one_nan() {
    let inputs = [random(5, 50_000), random(6, 50_000), random(7, 50_000)];
    let float = |bits: u32| f32::from_bits(bits);
    let one_nan = |x: f32| if x.is_nan() { 0x7fff_ffff } else { x.to_bits() };
    let fma = map(&inputs, |_, x| {
        let [a, b, c] = [0, 1, 2].map(|i| x[i].reinterpret::<f32>());
        a.fma(b, c).reinterpret()
    });
    let sum = map(&inputs, |_, x| {
        (x[0].reinterpret::<f32>() + x[1].reinterpret::<f32>()).reinterpret()
    });
    for i in 0..fma.len() {
        let [a, b, c] = [0, 1, 2].map(|j| float(inputs[j][i]));
        assert_eq!(fma[i], one_nan(a.mul_add(b, c)));
        assert_eq!(sum[i], one_nan(a + b));
    }
}

#[test]
fn min_and_max_of_nan_and_signed_zeros() {
    let (zero, minus, nan, one) = (0u32, 0x8000_0000, 0x7fc0_1234, 0x3f80_0000);
    let a = vec![zero, minus, nan, one, nan, minus];
    let b = vec![minus, zero, one, nan, nan, one];
    let min = map(&[a.clone(), b.clone()], |_, x| {
        x[0].reinterpret::<f32>().min(x[1].reinterpret::<f32>()).reinterpret()
    });
    let max = map(&[a, b], |_, x| {
        x[0].reinterpret::<f32>().max(x[1].reinterpret::<f32>()).reinterpret()
    });
    assert_eq!(min, [minus, minus, one, one, 0x7fff_ffff, minus]);
    assert_eq!(max, [zero, zero, one, one, 0x7fff_ffff, one]);
}

#[test]
fn approximations_are_within_the_ptx_bounds() {
    let mut inputs: Vec<u32> = (-1600..1600).map(|i| (i as f32 * 0.093_7).to_bits()).collect();
    inputs.extend(random(8, 20_000));
    type Exact = fn(f64) -> f64;
    let tests: [(Exact, usize, f64); 3] = [(f64::exp2, 0, 2.0), (f64::log2, 1, 1.0), (|x| 1.0 / x, 2, 1.0)];
    for (exact, which, ulps) in tests {
        let got = map(std::slice::from_ref(&inputs), |_, x| {
            let x = x[0].reinterpret::<f32>();
            [x.exp2(), x.log2(), x.recip()][which].reinterpret()
        });
        for (bits, got) in inputs.iter().zip(got) {
            let x = f32::from_bits(*bits);
            let x = if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
            let (expected, got) = (exact(f64::from(x)), f32::from_bits(got));
            if expected.is_nan() {
                assert!(got.is_nan());
            } else if expected.abs() < f64::from(f32::MIN_POSITIVE) {
                assert!(got == 0.0 || got == f32::MIN_POSITIVE, "{x:e}: {got:e}");
            } else if expected.abs() > f64::from(f32::MAX) {
                assert!(got.is_infinite() || got.abs() == f32::MAX, "{x:e}: {got:e}");
            } else {
                let ulp = f64::from(f32::from_bits((expected as f32).to_bits() + 1)) - f64::from(expected as f32);
                assert!(
                    (f64::from(got) - expected).abs() <= ulps * ulp.abs(),
                    "{which}: {x:e}: {got:e}, {expected:e}"
                );
            }
        }
    }
}

#[test]
fn integers() {
    let mut inputs = [random(9, 4096), random(10, 4096), random(11, 4096)];
    inputs[1].iter_mut().step_by(2).for_each(|b| *b %= 70);
    type Op = for<'k> fn(&'k KernelBuilder, &[Val<'k, u32>]) -> Val<'k, u32>;
    let signed: fn(u32) -> i32 = |x| x as i32;
    type Expected = Box<dyn Fn(u32, u32, u32) -> u32>;
    let tests: Vec<(Op, Expected)> = vec![
        (|_, x| x[0] + x[1], Box::new(|a, b, _| a.wrapping_add(b))),
        (
            |_, x| x[0] * x[1] - x[2],
            Box::new(|a, b, c| a.wrapping_mul(b).wrapping_sub(c)),
        ),
        (
            |_, x| x[0].fma(x[1], x[2]),
            Box::new(|a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        ),
        (
            |_, x| x[0].mul_hi(x[1]),
            Box::new(|a, b, _| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        ),
        (
            |_, x| {
                x[0].reinterpret::<i32>()
                    .mul_hi(x[1].reinterpret::<i32>())
                    .reinterpret()
            },
            Box::new(move |a, b, _| ((i64::from(signed(a)) * i64::from(signed(b))) >> 32) as u32),
        ),
        (|_, x| x[0] / (x[1] | 1u32), Box::new(|a, b, _| a / (b | 1))),
        (
            |_, x| (x[0].reinterpret::<i32>() % (x[1] | 1u32).reinterpret::<i32>()).reinterpret(),
            Box::new(move |a, b, _| signed(a).wrapping_rem(signed(b | 1)) as u32),
        ),
        (|_, x| x[0] << x[1], Box::new(|a, b, _| a.checked_shl(b).unwrap_or(0))),
        (|_, x| x[0] >> x[1], Box::new(|a, b, _| a.checked_shr(b).unwrap_or(0))),
        (
            |_, x| (x[0].reinterpret::<i32>() >> x[1]).reinterpret(),
            Box::new(move |a, b, _| (signed(a) >> b.min(31)) as u32),
        ),
        (|_, x| x[0].count_ones(), Box::new(|a, _, _| a.count_ones())),
        (|_, x| x[0].leading_zeros(), Box::new(|a, _, _| a.leading_zeros())),
        (
            |_, x| x[0].lop3(x[1], x[2], 0xe8),
            Box::new(|a, b, c| a & b | b & c | a & c),
        ),
        (|_, x| x[0].lop3(x[1], x[2], 0x2a), Box::new(|a, b, c| !(a & b) & c)),
        (
            |_, x| x[0].prmt(x[1], 0x5140u32),
            Box::new(|a, b, _| {
                let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
                u32::from_le_bytes([a[0], b[0], a[1], b[1]])
            }),
        ),
        (
            |_, x| x[0].prmt(x[1], 0x000au32),
            Box::new(|a, _, _| {
                let byte = a.to_le_bytes();
                let spread = if byte[2] >= 0x80 { 0xff } else { 0 };
                u32::from_le_bytes([spread, byte[0], byte[0], byte[0]])
            }),
        ),
        (
            |_, x| (x[0].to_u64() * x[1].to_u64() + x[2].to_u64()).to_u32(),
            Box::new(|a, b, c| (u64::from(a) * u64::from(b) + u64::from(c)) as u32),
        ),
        (
            |_, x| (x[0].mul_wide(x[1]) >> 20u32).to_u32(),
            Box::new(|a, b, _| ((u64::from(a) * u64::from(b)) >> 20) as u32),
        ),
        (
            |_, x| x[0].reinterpret::<f32>().to_i32().reinterpret(),
            Box::new(|a, _, _| f32::from_bits(a) as i32 as u32),
        ),
        (
            |_, x| x[0].to_f32().reinterpret(),
            Box::new(|a, _, _| (a as f32).to_bits()),
        ),
        (
            |_, x| {
                x[0].lt(x[1]).select(
                    x[2],
                    x[0].reinterpret::<i32>()
                        .lt(x[1].reinterpret::<i32>())
                        .select(x[0], x[1]),
                )
            },
            Box::new(move |a, b, c| {
                if a < b {
                    c
                } else if signed(a) < signed(b) {
                    a
                } else {
                    b
                }
            }),
        ),
    ];
    for (i, (op, expected)) in tests.iter().enumerate() {
        let got = map(&inputs, op);
        for j in 0..got.len() {
            let [a, b, c] = [0, 1, 2].map(|n| inputs[n][j]);
            assert_eq!(got[j], expected(a, b, c), "test {i}: {a:#x} {b:#x} {c:#x}");
        }
    }
}
