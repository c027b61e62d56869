//! What the tensor cores are fed with, and what follows from it: how probabilities become operands, how large they may
//! be, and how values lie.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{E4M3, Val};
use half::{bf16, f16};

/// Elements of Q, K and V.
pub(super) trait Input: WgmmaElement {
    /// Elements of the output.
    type Out: MmaElement;

    /// With lazy rescaling a row's reference stays until a score is this many powers of two above it.
    const LAZY_POWERS: f32;
    /// The same with bold rescaling, where the scores are looked at.
    const BOLD_POWERS: f32;
    /// With bold rescaling a row's reference stays while a lane's probabilities in a tile come to no more, so that none
    /// of them is too large for an element.
    const BOLD_MOST: f32;

    /// Whether elements stand for themselves times a scale of their head.
    const SCALED: bool = false;
    /// Whether values lie with the keys along their rows ([`super::transpose`]): 8-bit operands must.
    const TRANSPOSED: bool = false;

    /// Registers of accumulators that word `word` of the operands A over the same columns is made of, in its order.
    /// They belong to row half `word % 2`.
    fn registers(word: u32) -> Vec<u32>;

    /// The word, from the values of those registers.
    #[track_caller]
    fn pack<'k>(values: &[Val<'k, f32>]) -> Val<'k, Self::Word>;
}

/// Powers of two that a probability may have.
pub(super) const LARGEST_POWER: f32 = 8.0;

macro_rules! sixteen_bits {
    ($element:ty) => {
        impl Input for $element {
            type Out = $element;
            const LAZY_POWERS: f32 = LARGEST_POWER;
            const BOLD_POWERS: f32 = LARGEST_POWER;
            const BOLD_MOST: f32 = 32768.0;

            fn registers(word: u32) -> Vec<u32> {
                vec![2 * word, 2 * word + 1]
            }

            #[track_caller]
            fn pack<'k>(values: &[Val<'k, f32>]) -> Val<'k, Self::Word> {
                <$element as MmaElement>::pack(values[0], values[1])
            }
        }
    };
}
sixteen_bits!(f16);
sixteen_bits!(bf16);

/// With 3 bits of fraction and powers from -9 to 8, so that references are well below the scores.
impl Input for E4M3 {
    type Out = bf16;
    const LAZY_POWERS: f32 = 4.0;
    const BOLD_POWERS: f32 = 5.0;
    const BOLD_MOST: f32 = 448.0;
    const SCALED: bool = true;
    const TRANSPOSED: bool = true;

    /// A word holds four neighbours along k, accumulators two. So the keys of a step are taken in another order, in
    /// which a lane's own values of two tiles of 8 columns are neighbours: [`super::transpose::key_of`] says which.
    fn registers(word: u32) -> Vec<u32> {
        let (step, half, pair) = (word / 4, word % 2, word % 4 / 2);
        let first = 4 * (4 * step + 2 * pair) + 2 * half;
        vec![first, first + 1, first + 4, first + 5]
    }

    #[track_caller]
    fn pack<'k>(values: &[Val<'k, f32>]) -> Val<'k, Self::Word> {
        values[0].pack_e4m3(values[1]).pair(values[2].pack_e4m3(values[3]))
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::wgmma::{WGMMA_M64K16_A, WGMMA_M64K32_A, WGMMA_M64N8_ACC};

    use super::super::transpose::key_of;
    use super::*;

    /// (row, column) of a register of accumulators of many columns.
    fn score(lane: u32, register: u32) -> (u32, u32) {
        let (row, column) = WGMMA_M64N8_ACC.at(lane, register % 4, 0);
        (row, 8 * (register / 4) + column)
    }

    #[test]
    fn words_of_16_bits_are_in_the_order_of_the_keys() {
        for lane in 0..128 {
            for word in 0..8 {
                for (e, register) in f16::registers(word).into_iter().enumerate() {
                    let (row, column) = WGMMA_M64K16_A.at(lane, word % 4, e as u32);
                    assert_eq!(score(lane, register), (row, 16 * (word / 4) + column));
                }
            }
        }
    }

    #[test]
    fn words_of_8_bits_are_in_the_order_of_transposed_values() {
        for lane in 0..128 {
            for word in 0..12 {
                for (e, register) in E4M3::registers(word).into_iter().enumerate() {
                    let (row, place) = WGMMA_M64K32_A.at(lane, word % 4, e as u32);
                    assert_eq!(score(lane, register), (row, key_of(32 * (word / 4) + place)));
                }
            }
        }
    }
}
