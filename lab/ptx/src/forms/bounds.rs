//! How far results of an instruction may be from the exact ones.
//!
//! Figures are those of PTX ISA 9.0 ("Floating Point Instructions", "Half Precision Floating Point Instructions")
//! where it has one. Those of `sin`, `cos`, `lg2`, `ex2` and `tanh` of f32 were compared with an extract of its
//! tables, the others not with its text. An H200 was within each of them (`scripts/run_differential.py`, share of a
//! bound at most 1).

use super::Spelled;

/// An upper bound of the error of a result, relative to the exact result or absolute: the larger of both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// Of the magnitude of the exact result.
    pub relative: f64,
    /// Whatever the result is.
    pub absolute: f64,
}

impl Bound {
    const fn relative(relative: f64) -> Bound {
        Bound {
            relative,
            absolute: 0.0,
        }
    }

    const fn absolute(absolute: f64) -> Bound {
        Bound {
            relative: 0.0,
            absolute,
        }
    }

    /// Whether results are those of IEEE 754, to the bit.
    pub fn is_exact(self) -> bool {
        self == Bound::default()
    }
}

/// A unit in the last place of f32, of a number, at most.
const ULP: f64 = 1.0 / (1u64 << 23) as f64;

/// What approximations leave that give the upper 32 bits of an f64; an H200 is within 2^-20.09.
const GROSS: f64 = 1.0 / (1u64 << 20) as f64;

impl Spelled {
    /// The error of its result that PTX allows; none for what is defined to the bit. Products of matrices have another
    /// bound, of the sum of magnitudes, which PTX does not give.
    ///
    /// ```
    /// use flashcore_ptx::read;
    /// assert!(read("add.rn.f32")?.bound().is_exact());
    /// assert_eq!(read("rcp.approx.ftz.f32")?.bound().relative, 2f64.powi(-23));
    /// # Ok::<(), flashcore_ptx::Missing>(())
    /// ```
    pub fn bound(&self) -> Bound {
        let ty = self.modifiers().last().unwrap_or("");
        if !self.has("approx") && !self.has("full") {
            return Bound::default();
        }
        match (self.name(), ty) {
            // Two units where the divisor is of 2^-126 to 2^126, for `full` everywhere.
            ("div", _) => Bound::relative(2.0 * ULP),
            // The lower 32 bits are zero; the manual calls it gross and has no number.
            ("rcp", "f64") => Bound::relative(GROSS),
            ("rsqrt", "f64") if self.has("ftz") => Bound::relative(GROSS),
            ("rcp" | "sqrt", _) => Bound::relative(ULP),
            // The manual has no number: a few units in the last place.
            ("rsqrt", "f64") => Bound::relative(4.0 * f64::EPSILON),
            // 2^-22.9.
            ("rsqrt", _) => Bound::relative(1.0718 * ULP),
            // 2^-20.5 within -2 pi to 2 pi.
            ("sin" | "cos", _) => Bound::absolute(std::f64::consts::SQRT_2 / 2.0 / (1u64 << 20) as f64),
            // Absolute where the operand is of 0.5 to 2, and the result within -1 and 1.
            ("lg2", _) => Bound {
                relative: 2.0 * ULP,
                absolute: 2.0 * ULP,
            },
            ("ex2", "f32") => Bound::relative(2.0 * ULP),
            // 2^-9.9.
            ("ex2", "f16" | "f16x2") => Bound::relative(1.0718 / 1024.0),
            ("ex2", _) => Bound::relative(1.0 / 128.0),
            ("tanh", "f32") => Bound::relative(1.0 / 2048.0),
            // 2^-10.987.
            ("tanh", "f16" | "f16x2") => Bound::absolute(1.0091 / 2048.0),
            ("tanh", _) => Bound::absolute(1.0 / 256.0),
            _ => Bound::default(),
        }
    }
}
