//! What `flashcore tune` shows of GPUs where there is none: the kernel that would be used, under the simulator.

use flashcore::InputKind;
use flashcore_bench::Case;

use crate::args::Card;
use crate::failure::Failure;
use crate::simulated;
use crate::style;
use crate::tune::heading;

pub(crate) fn run(case: &Case) -> Result<(), Failure> {
    let card = Card::default();
    let plan = simulated::plan(&case.problem, card, None);
    if let Ok(choice) = plan {
        let report = simulated::check(&choice.plan, &simulated::options(InputKind::Normal, 0))?;
        style::print(&heading(
            "No GPU here: its kernel under the simulator",
            &format!("planned for {}", card.title()),
        ));
        style::print(&simulated::text(&report));
    }
    Ok(())
}
