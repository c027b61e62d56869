//! The logged accesses of a block, as pictures and as advice on layouts.

use flashcore_check::{CheckOptions, layout, log_of, pictures};
use flashcore_ir::Target;
use flashcore_kernels::Plan;
use flashcore_problem::Problem;

#[test]
fn a_block_is_drawn_with_its_buffers_warps_and_banks() {
    let problem = Problem::named("tiny").unwrap();
    let plan = Plan::new(&problem, &"scalar/tiled-m16n16-w4-v16".parse().unwrap(), Target::Sm89).unwrap();
    let log = log_of(&plan, &CheckOptions::default(), 10_000).unwrap();
    let ledger = plan.main.kernel.ledger();
    let total = ledger.total_bytes();
    assert!(log.accesses.iter().all(|access| access.offsets[0] < total));
    let map = pictures::memory_map(ledger, &log, "tiny");
    assert!(map.contains("k_tile") && map.ends_with("</svg>\n"));
    assert!(pictures::schedule(&log, "tiny").contains("warp 3"));
    assert!(pictures::banks(ledger, &log, "tiny").unwrap().contains("lane 31"));
    let advice = layout::advise(ledger, &log);
    assert!(advice.iter().all(|advice| advice.beyond > 0));
}
