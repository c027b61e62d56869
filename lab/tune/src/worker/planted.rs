//! Planted candidates ([`flashcore_bench::planted`]) as a family of one lever.

pub use flashcore_bench::planted::{Conduct, NAME};
use flashcore_kernels::space::{Lever, Space};

use crate::space::Family;

/// The planted candidates as a family of one lever.
pub fn family() -> Family {
    Family::planted(&SPACE)
}

static SPACE: Space<Conduct> = Space {
    first: Conduct::Honest,
    levers: &[Lever {
        name: "conduct",
        meaning: "what it does wrong",
        settings: |_| Conduct::SEARCHED.to_vec(),
        value: |conduct| conduct.name().to_string(),
    }],
    allowed: |conduct| Conduct::SEARCHED.contains(conduct),
    constraints: &[],
};
