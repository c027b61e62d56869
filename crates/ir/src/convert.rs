//! Conversions between types, and between pairs and their halves.

use crate::inst::{Cvt, Inst, Operand};
use crate::types::{BF16x2, E4M3x2, E4M3x4, F16x2, RegClass, Scalar};
use crate::value::{Source, Val};

macro_rules! conversions {
    ($($from:ty: $method:ident -> $to:ty = $op:ident, $doc:literal;)*) => {$(
        impl<'k> Val<'k, $from> {
            #[doc = $doc]
            #[track_caller]
            pub fn $method(self) -> Val<'k, $to> {
                self.k.result(|dst| Inst::Cvt { op: Cvt::$op, dst, src: self.operand })
            }
        }
    )*};
}
conversions! {
    half::f16: to_f32 -> f32 = F32FromF16, "Exact.";
    f32: to_f16 -> half::f16 = F16FromF32, "Rounded to nearest even.";
    f32: to_bf16 -> half::bf16 = BF16FromF32, "Rounded to nearest even.";
    f32: to_i32 -> i32 = S32FromF32, "Toward zero, saturating; NaN gives 0.";
    f32: to_u32 -> u32 = U32FromF32, "Toward zero, saturating; NaN gives 0.";
    u32: to_f32 -> f32 = F32FromU32, "Rounded to nearest even.";
    i32: to_f32 -> f32 = F32FromS32, "Rounded to nearest even.";
    u32: to_u64 -> u64 = U64FromU32, "Zero-extended.";
    i32: to_i64 -> i64 = S64FromS32, "Sign-extended.";
    u64: to_u32 -> u32 = U32FromU64, "The low half.";
    E4M3x2: to_f16s -> F16x2 = F16x2FromE4M3x2, "Exact.";
}

impl<'k> Val<'k, F16x2> {
    /// `(low, high)` as f32, exact.
    #[track_caller]
    pub fn to_f32s(self) -> (Val<'k, f32>, Val<'k, f32>) {
        let (lo, hi) = self.halves();
        (lo.to_f32(), hi.to_f32())
    }
}
impl<'k> Val<'k, half::bf16> {
    /// Exact: a bf16 is the upper half of an f32 (`cvt.f32.bf16` would need sm_90).
    #[track_caller]
    pub fn to_f32(self) -> Val<'k, f32> {
        let lo = Operand::Reg(self.k.in_register(RegClass::B16, Operand::Imm(0)));
        let hi = self.operand;
        self.k.result::<u32>(|dst| Inst::Pack { dst, lo, hi }).reinterpret()
    }
}
impl<'k> Val<'k, BF16x2> {
    /// `(low, high)` as f32, exact: a bf16 is the upper half of an f32, so no conversion is needed.
    #[track_caller]
    pub fn to_f32s(self) -> (Val<'k, f32>, Val<'k, f32>) {
        let bits = self.reinterpret::<u32>();
        ((bits << 16).reinterpret(), (bits & 0xffff_0000).reinterpret())
    }
}

impl<'k> Val<'k, f32> {
    /// This value and `hi` rounded to a pair of f16, this one in the low half.
    #[track_caller]
    pub fn pack_f16(self, hi: impl Source<'k, f32>) -> Val<'k, F16x2> {
        self.pack(hi.operand())
    }
    /// This value and `hi` rounded to a pair of bf16, this one in the low half.
    #[track_caller]
    pub fn pack_bf16(self, hi: impl Source<'k, f32>) -> Val<'k, BF16x2> {
        self.pack(hi.operand())
    }
    /// This value and `hi` rounded to a pair of e4m3, this one in the low byte; at most 448.
    #[track_caller]
    pub fn pack_e4m3(self, hi: impl Source<'k, f32>) -> Val<'k, E4M3x2> {
        self.pack(hi.operand())
    }
    #[track_caller]
    fn pack<U: Scalar>(self, hi: Operand) -> Val<'k, U> {
        let (ty, lo) = (U::TYPE, self.operand);
        self.k.result(|dst| Inst::CvtPack { ty, dst, lo, hi })
    }
}

macro_rules! halves {
    ($($whole:ty: $half:ty, $join:ident, $split:ident, $doc:literal;)*) => {$(
        impl<'k> Val<'k, $half> {
            #[doc = concat!("This value and `hi` side by side as ", $doc, ", this one in the low half.")]
            #[track_caller]
            pub fn $join(self, hi: impl Source<'k, $half>) -> Val<'k, $whole> {
                let (lo, hi) = (self.operand, hi.operand());
                self.k.result(|dst| Inst::Pack { dst, lo, hi })
            }
        }
        impl<'k> Val<'k, $whole> {
            /// `(low, high)`, the bits as they are.
            #[track_caller]
            pub fn $split(self) -> (Val<'k, $half>, Val<'k, $half>) {
                let class = <$half as Scalar>::TYPE.class();
                let (lo, hi) = (self.k.reg(class), self.k.reg(class));
                self.k.emit(Inst::Unpack { lo, hi, src: self.operand });
                (Val::from_reg(self.k, lo), Val::from_reg(self.k, hi))
            }
        }
    )*};
}
halves! {
    F16x2: half::f16, pair, halves, "a pair";
    BF16x2: half::bf16, pair, halves, "a pair";
    E4M3x4: E4M3x2, pair, halves, "four";
    u64: u32, join, split, "64 bits";
}
