//! What `flashcore tune` does first on a GPU that was never measured: it has it measured.

use std::time::Instant;

use flashcore_tune::rates;

use crate::failure::Failure;
use crate::style;
use crate::tune::worker;

/// Measures what a GPU gives if no rates are kept that hold, and keeps them for the device.
pub(crate) fn measure_once(device: &str, is_said: bool) -> Result<(), Failure> {
    let Some(name) = rates::unmeasured(device) else {
        return Ok(());
    };
    let spinner = style::spinner(&format!("measuring {name}"));
    let started = Instant::now();
    let measured = rates::measure(&worker::program()?, device);
    drop(spinner);
    let text = match measured {
        Ok(()) if !is_said => return Ok(()),
        Ok(()) => format!(
            "measured what {name} gives, {} s, kept for later searches: `flashcore device` shows it",
            style::digits3(started.elapsed().as_secs_f64())
        ),
        Err(why) => format!("note: what {name} gives could not be measured: {why}"),
    };
    style::eprint(&style::wrap(&text, 2));
    Ok(())
}
