//! Which kernel serves a problem, and why; a kernel by name; and kernels for a card that is not here.
//!
//! run with: cargo run --release -p flashcore --example 04-which-kernel

use flashcore::unstable::kernel::Profile;
use flashcore::unstable::plans::{PlanTarget, Plans};
use flashcore::{Attention, Device, Error, KernelId, Mask, Problem};

fn main() -> Result<(), Error> {
    let problem = Problem::builder().heads(32, 8).seq_len(8192).head_dim(128);
    let problem = problem.mask(Mask::CAUSAL).build()?;

    // By plan tables, which `flashcore tune` writes, and by heuristics where they have no row.
    let attention = Attention::new(Device::best())?;
    let prepared = attention.prepare(&problem)?;
    println!(
        "{problem} on {}: {}, because {}",
        attention.device(),
        prepared.kernel(),
        prepared.why()
    );

    // The same kernel for everything: what it does not serve is refused.
    let kernel: KernelId = prepared.kernel().parse()?;
    let fixed = Attention::with(attention.device(), kernel)?;
    assert_eq!(fixed.prepare(&problem)?.kernel(), prepared.kernel());

    // The rows of the tables for another card.
    let h200 = Profile::named("h200").map(PlanTarget::Card);
    let plans = h200.map_or(Ok(Plans::none()), |card| Plans::load(&card))?;
    for row in plans.rows(&problem) {
        println!("an H200 takes {}: {}", row.row.kernel, row.why());
    }
    Ok(())
}
