//! Measures the rates of a new GPU before a search.

use std::time::Instant;

use flashcore_tune::rates;

use crate::failure::Failure;
use crate::style;
use crate::tune::worker;

/// Measures and keeps the rates of a GPU, if none are kept that hold.
pub(crate) fn measure_once(device: &str, is_reported: bool) -> Result<(), Failure> {
    let Some(name) = rates::unmeasured(device) else {
        return Ok(());
    };
    let spinner = style::spinner(&format!("measuring {name}"));
    let started = Instant::now();
    let measured = rates::measure(&worker::program()?, device);
    drop(spinner);
    let seconds = style::digits3(started.elapsed().as_secs_f64());
    match measured {
        Ok(()) if is_reported => style::note(format_args!(
            "measured the rates of {name} in {seconds} s; `flashcore device` shows them, later searches use them"
        )),
        Ok(()) => {}
        Err(why) => style::note(format_args!("the rates of {name} could not be measured: {why}")),
    }
    Ok(())
}
