//! What operations of one lane on its own variables are.

use flashcore_ir::types::{Literal, Ordered};
use flashcore_ir::{BF16x2, F16x2, Val};

use crate::fuzz::emit::{Variable, Writer};
use crate::fuzz::program::{Args, Op};
use crate::fuzz::slot::{EX2_ULPS, RCP_ULPS, Slot};

#[rustfmt::skip]
const U32_CONSTANTS: [u32; 12] = [
    0, 1, 2, 3, 31, 32, 33, 0xff, 0x5555_5555, 0x7fff_ffff, 0x8000_0000, u32::MAX,
];
#[rustfmt::skip]
const F32_CONSTANTS: [f32; 12] = [
    0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 1e-40, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, 65504.0, 2049.0,
];
const DIVISORS: [u32; 10] = [1, 2, 3, 5, 7, 10, 64, 641, 0x1_0000, 0x7fff_ffff];

fn compare<'k, T: Ordered>(a: Val<'k, T>, b: Val<'k, T>, choice: u32) -> Val<'k, bool> {
    match choice % 6 {
        0 => a.lt(b),
        1 => a.le(b),
        2 => a.gt(b),
        3 => a.ge(b),
        4 => a.eq(b),
        _ => a.ne(b),
    }
}

impl<'k> Writer<'k, '_> {
    /// A variable, or in one case of four a constant.
    fn or_constant<T: Variable + Literal>(&self, number: u32, constants: &[T]) -> Val<'k, T> {
        match number >> 30 {
            0 => self.k.constant(constants[number as usize % constants.len()]),
            _ => self.get(number),
        }
    }

    fn u_or_constant(&self, number: u32) -> Val<'k, u32> {
        self.or_constant(number, &U32_CONSTANTS)
    }

    fn f_or_constant(&self, number: u32) -> Val<'k, f32> {
        self.or_constant(number, &F32_CONSTANTS)
    }

    pub(crate) fn integers(&self, op: Op, &[d, a, b, c, n, m]: &Args) -> bool {
        let (u, s) = (|i| self.u(i), |i| self.get::<i32>(i));
        let (uc, sc) = (
            |i| self.u_or_constant(i),
            |i| self.or_constant(i, &U32_CONSTANTS.map(|n| n as i32)),
        );
        let (set, set_s) = (|value| self.set::<u32>(d, value), |value| self.set::<i32>(d, value));
        let divisor = DIVISORS[n as usize % DIVISORS.len()];
        match op {
            Op::UAdd => set(u(a) + uc(b)),
            Op::USub => set(u(a) - uc(b)),
            Op::UMul => set(u(a) * uc(b)),
            Op::UMad => set(u(a).fma(uc(b), uc(c))),
            Op::UMulHi => set(u(a).mul_hi(uc(b))),
            Op::UMin => set(u(a).min(uc(b))),
            Op::UMax => set(u(a).max(uc(b))),
            Op::UDiv => set(u(a) / (u(b) | 1u32)),
            Op::URem => set(u(a) % (u(b) | 1u32)),
            Op::UDivConst => set(u(a) / divisor),
            Op::URemConst => set(u(a) % divisor),
            Op::UAnd => set(u(a) & uc(b)),
            Op::UOr => set(u(a) | uc(b)),
            Op::UXor => set(u(a) ^ uc(b)),
            Op::UNot => set(!u(a)),
            Op::UShl => set(u(a) << uc(b)),
            Op::UShr => set(u(a) >> uc(b)),
            Op::UPopc => set(u(a).count_ones()),
            Op::UClz => set(u(a).leading_zeros()),
            // Three different values, as lop3 wants.
            Op::ULop3 => set((u(a) + 1u32).lop3(u(b) ^ 2u32, u(c) ^ 4u32, n as u8)),
            Op::UPrmt => set(u(a).prmt(uc(b), uc(c))),
            Op::UMulWide => self.set(d, u(a).mul_wide(uc(b))),
            Op::USetp => self.set_p(d, compare(u(a), uc(b), n)),
            Op::USelp => set(self.p(c).select(uc(a), uc(b))),
            Op::SAdd => set_s(s(a) + sc(b)),
            Op::SSub => set_s(s(a) - sc(b)),
            Op::SMul => set_s(s(a) * sc(b)),
            Op::SMad => set_s(s(a).fma(sc(b), sc(c))),
            Op::SMulHi => set_s(s(a).mul_hi(sc(b))),
            Op::SMin => set_s(s(a).min(sc(b))),
            Op::SMax => set_s(s(a).max(sc(b))),
            Op::SDiv => set_s(s(a) / (s(b) & i32::MAX | 1i32)),
            Op::SRem => set_s(s(a) % (s(b) & i32::MAX | 1i32)),
            Op::SDivConst if m % 2 == 0 => set_s(s(a) / divisor as i32),
            Op::SDivConst => set_s(s(a) % divisor as i32),
            Op::SNeg => set_s(-s(a)),
            // ptxas takes magnitudes for positive, that of the smallest number too.
            Op::SAbs => set_s(s(a).max(-i32::MAX).abs()),
            Op::SShl => set_s(s(a) << uc(b)),
            Op::SShr => set_s(s(a) >> uc(b)),
            Op::SMulWide => self.set(d, s(a).mul_wide(sc(b))),
            Op::SSetp => self.set_p(d, compare(s(a), sc(b), n)),
            Op::SSelp => set_s(self.p(c).select(sc(a), sc(b))),
            Op::SFromU => set_s(u(a).reinterpret()),
            Op::UFromS => set(s(a).reinterpret()),
            Op::PAnd => self.set_p(d, self.p(a) & self.p(b)),
            Op::POr => self.set_p(d, self.p(a) | self.p(b)),
            Op::PXor => self.set_p(d, self.p(a) ^ self.p(b)),
            Op::PNot => self.set_p(d, !self.p(a)),
            Op::Special => set(match n % 5 {
                0 => self.k.thread_idx(),
                1 => self.k.lane(),
                2 => self.k.block_idx(n as u8 % 3),
                3 => self.k.grid_dim(n as u8 % 3),
                _ => self.k.block_dim(n as u8 % 3),
            }),
            _ => return false,
        }
        true
    }

    pub(crate) fn wide_integers(&self, op: Op, &[d, a, b, c, n, _]: &Args) -> bool {
        let (w, x, u) = (
            |i| self.get::<u64>(i),
            |i| self.get::<i64>(i),
            |i| self.u_or_constant(i),
        );
        let (set, set_x) = (|value| self.set::<u64>(d, value), |value| self.set::<i64>(d, value));
        match op {
            Op::WAdd => set(w(a) + w(b)),
            Op::WSub => set(w(a) - w(b)),
            Op::WMul => set(w(a) * w(b)),
            Op::WMad => set(w(a).fma(w(b), w(c))),
            Op::WMulHi => set(w(a).mul_hi(w(b))),
            Op::WMin => set(w(a).min(w(b))),
            Op::WMax => set(w(a).max(w(b))),
            Op::WAnd => set(w(a) & w(b)),
            Op::WOr => set(w(a) | w(b)),
            Op::WXor => set(w(a) ^ w(b)),
            Op::WNot => set(!w(a)),
            // ptxas forgets constant shifts of a wide product by more than it has bits.
            Op::WShl if b >> 30 == 0 => set(w(a) << (b % 64)),
            Op::WShl => set(w(a) << self.u(b)),
            Op::WShr => set(w(a) >> u(b)),
            Op::WDiv => set(w(a) / (w(b) | 1u64)),
            Op::WRem => set(w(a) % (w(b) | 1u64)),
            Op::WSetp => self.set_p(d, compare(w(a), w(b), n)),
            Op::WSelp => set(self.p(c).select(w(a), w(b))),
            Op::WJoin => set(self.u(a).join(self.u(b))),
            Op::WSplit => {
                let (low, high) = w(a).split();
                self.set(d, low);
                self.set(b, high);
            }
            Op::WFromU => set(self.u(a).to_u64()),
            Op::WToU => self.set(d, w(a).to_u32()),
            Op::WFromX => set(x(a).reinterpret()),
            Op::XFromW => set_x(w(a).reinterpret()),
            Op::XAdd => set_x(x(a) + x(b)),
            Op::XSub => set_x(x(a) - x(b)),
            Op::XMul => set_x(x(a) * x(b)),
            Op::XNeg => set_x(-x(a)),
            // Halved, so that it is not the smallest number; max with a constant of a negated
            // magnitude ptxas gets wrong.
            Op::XAbs => set_x((x(a) >> 1u32).abs()),
            Op::XMin => set_x(x(a).min(x(b))),
            Op::XMax => set_x(x(a).max(x(b))),
            Op::XShr => set_x(x(a) >> u(b)),
            Op::XDiv if n % 2 == 0 => set_x(x(a) / (x(b) & i64::MAX | 1i64)),
            Op::XDiv => set_x(x(a) % (x(b) & i64::MAX | 1i64)),
            Op::XSetp => self.set_p(d, compare(x(a), x(b), n)),
            Op::XFromS => set_x(self.get::<i32>(a).to_i64()),
            _ => return false,
        }
        true
    }

    pub(crate) fn floats(&self, op: Op, &[d, a, b, c, n, _]: &Args) -> bool {
        let (f, fc) = (|i| self.f(i), |i| self.f_or_constant(i));
        let set = |value| self.set::<f32>(d, value);
        match op {
            Op::FAdd => set(f(a) + fc(b)),
            Op::FSub => set(f(a) - fc(b)),
            Op::FMul => set(f(a) * fc(b)),
            Op::FFma => set(f(a).fma(fc(b), fc(c))),
            Op::FMin => set(f(a).min(fc(b))),
            Op::FMax => set(f(a).max(fc(b))),
            Op::FNeg => set(-f(a)),
            Op::FAbs => set(f(a).abs()),
            Op::FSetp => self.set_p(d, compare(f(a), fc(b), n)),
            // Not two constants: of -1 and -0 ptxas makes an integer, and loses the sign.
            Op::FSelp => set(self.p(c).select(f(a), fc(b))),
            Op::FFromU => set(self.u(a).to_f32()),
            Op::FFromS => set(self.get::<i32>(a).to_f32()),
            Op::FToU => self.set(d, f(a).to_u32()),
            Op::FToS => self.set(d, f(a).to_i32()),
            // Which NaN a NaN is, PTX leaves open: it must not become an integer.
            Op::FBits => self.set(d, f(a).eq(f(a)).select(f(a).reinterpret::<u32>(), 0x7fff_ffffu32)),
            Op::FFromBits => set(self.u(a).reinterpret()),
            Op::Ex2 => self.approximate(Slot::Ulps(EX2_ULPS), f(a).exp2()),
            Op::Lg2 => self.approximate(Slot::Lg2, f(a).log2()),
            Op::Rcp => self.approximate(Slot::Ulps(RCP_ULPS), f(a).recip()),
            _ => return false,
        }
        true
    }

    /// Approximations are compared and not computed with: later values would differ for good
    /// reason.
    fn approximate(&self, slot: Slot, value: Val<'k, f32>) {
        self.observe(slot, value.reinterpret());
    }

    pub(crate) fn halves(&self, op: Op, &[d, a, b, c, n, m]: &Args) -> bool {
        let (f, h, x) = (|i| self.f_or_constant(i), |i| self.h(i), |i| self.get::<BF16x2>(i));
        let (set, set_b) = (
            |value| self.set::<F16x2>(d, value),
            |value| self.set::<BF16x2>(d, value),
        );
        match op {
            Op::HAdd => set(h(a) + h(b)),
            Op::HSub => set(h(a) - h(b)),
            Op::HMul => set(h(a) * h(b)),
            Op::HFma => set(h(a).fma(h(b), h(c))),
            Op::HMin => set(h(a).min(h(b))),
            Op::HMax => set(h(a).max(h(b))),
            Op::HNeg => set(-h(a)),
            Op::HAbs => set(h(a).abs()),
            Op::HPack => set(self.f(a).pack_f16(f(b))),
            Op::HFromF => set(self.f(a).to_f16().pair(self.f(b).to_f16())),
            Op::HUnpack => {
                let (low, high) = h(a).to_f32s();
                self.set(b, low);
                self.set(c, high);
            }
            Op::HSwap => {
                let ((low, _), (_, high)) = (h(a).halves(), h(b).halves());
                set(high.pair(low));
            }
            Op::HBits => {
                let (low, high) = h(a).to_f32s();
                let numbers = low.eq(low) & high.eq(high);
                self.set(d, numbers.select(h(a).reinterpret::<u32>(), n));
            }
            Op::HSelp => set(self.p(c).select(h(a), h(b))),
            Op::BAdd => set_b(x(a) + x(b)),
            Op::BSub => set_b(x(a) - x(b)),
            Op::BMul => set_b(x(a) * x(b)),
            Op::BFma => set_b(x(a).fma(x(b), x(c))),
            Op::BMin => set_b(x(a).min(x(b))),
            Op::BMax => set_b(x(a).max(x(b))),
            Op::BNeg => set_b(-x(a)),
            Op::BAbs => set_b(x(a).abs()),
            Op::BPack => set_b(self.f(a).pack_bf16(f(b))),
            Op::BFromF => set_b(self.f(a).to_bf16().pair(self.f(b).to_bf16())),
            Op::BUnpack => {
                let (low, high) = x(a).to_f32s();
                self.set(b, low);
                self.set(c, high);
            }
            Op::BSwap => {
                let ((low, _), (_, high)) = (x(a).halves(), x(b).halves());
                set_b(high.pair(low));
            }
            Op::BSelp => set_b(self.p(c).select(x(a), x(b))),
            Op::E4m3 => set(self.f(a).pack_e4m3(f(b)).to_f16s()),
            Op::E4m3Quad => {
                let four = self.f(a).pack_e4m3(f(b)).pair(f(c).pack_e4m3(self.f(n)));
                let (low, high) = four.halves();
                self.set(d, low.to_f16s());
                self.set(m, high.to_f16s());
            }
            _ => return false,
        }
        true
    }
}
