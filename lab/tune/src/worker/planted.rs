//! Planted candidates ([`flashcore_bench::planted`]) as a family of one lever.

pub use flashcore_bench::planted::{Conduct, NAME};
use flashcore_kernels::Family;
use flashcore_kernels::family::Lever;

const NAMES: [(&str, &str); Conduct::SEARCHED.len()] = {
    let mut names = [("", ""); Conduct::SEARCHED.len()];
    let mut at = 0;
    while at < names.len() {
        let name = Conduct::SEARCHED[at].name();
        names[at] = (name, name);
        at += 1;
    }
    names
};

/// The planted candidates as a family of one lever.
pub const FAMILY: Family = Family {
    name: NAME,
    levers: &[Lever::words(&NAMES).named("conduct", "what it does wrong")],
    backward: None,
    constraints: &[],
    tile: |_| 0,
    repeated: None,
};
