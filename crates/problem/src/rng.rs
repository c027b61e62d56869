//! A random generator whose seeds stay valid: the same numbers on every platform, in every release.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
///
/// ```
/// use flashcore_problem::rng::Rng;
/// assert_eq!(Rng::new(7).next_u64(), Rng::new(7).next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        // Mixed once, so that neighbouring seeds do not give shifted sequences.
        Rng { state: mix(seed) }
    }

    /// An independent sequence, number `stream` of this seed.
    pub fn stream(seed: u64, stream: u64) -> Rng {
        Rng::new(mix(seed) ^ stream)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        mix(self.state)
    }

    /// A number in `0..n`; 0 if `n` is 0. Biased by less than `n / 2^64`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// A number in `low..=high`; `low` if the range is empty.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// A number in `0..=most`, often 0, 1 or the last: a length where both ends are worth a test.
    pub fn up_to(&mut self, most: usize) -> usize {
        match self.below(8) {
            0 => 0,
            1 => 1.min(most),
            2 => most,
            _ => self.between(0, most),
        }
    }

    /// A number in `0.0..1.0`, a multiple of 2⁻²⁴.
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1 << 24) as f32
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f32) -> bool {
        self.unit() < p
    }

    /// One of `options`; `None` if there are none.
    pub fn pick<'a, T>(&mut self, options: &'a [T]) -> Option<&'a T> {
        options.get(self.below(options.len()))
    }

    /// Puts items into any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// A standard normal number within ±6 (Irwin–Hall: the sum of twelve uniform numbers minus six).
    /// Integer sums only: `ln` and `cos` in Box–Muller differ between platforms in the last bit.
    pub fn normal(&mut self) -> f32 {
        let mut sum = 0;
        for _ in 0..3 {
            let bits = self.next_u64();
            sum += (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        }
        // Each uniform number is k + 1/2 in units of 2⁻¹⁶, so twelve add 6 to the integer sum.
        (sum as f32 + 6.0) / 65536.0 - 6.0
    }
}

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_never_changes() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(drawn, [13830413928045401970, 6869446166584666695, 8084911050856847527]);
    }

    #[test]
    fn normal_has_mean_0_and_variance_1() {
        let mut rng = Rng::new(3);
        let drawn: Vec<f64> = (0..100_000).map(|_| f64::from(rng.normal())).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance - 1.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn ranges_are_kept() {
        let mut rng = Rng::new(5);
        for _ in 0..1000 {
            assert!(rng.below(7) < 7);
            assert!((3..=5).contains(&rng.between(3, 5)));
            assert!((0.0..1.0).contains(&rng.unit()));
        }
        assert_eq!((rng.below(0), rng.between(4, 2)), (0, 4));
        assert_eq!(rng.pick::<u8>(&[]), None);
    }
}
