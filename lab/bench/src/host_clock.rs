//! The host's clock, and made-up times in its place.
//!
//! What a search or a bench on the host finds depends on the machine and on what else runs there. Tests of a whole
//! command must not. With [`HOST_TIMES_VARIABLE`] set, kernels on the host compute as ever, and their times are read
//! from a file: the clock stands still between calls, and each call moves it by the time of its kernel. The driver in
//! the [device's identity](crate::DeviceIdentity::cpu) says so, and with it every piece of evidence.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use flashcore_ir::files;

use crate::subject::Trouble;

/// Environment variable with a file of made-up times: JSON, µs a call by kernel id, as in `{"cpu/m64n64": 900}`. A
/// kernel that is not in it takes [`USUAL_US`].
pub const HOST_TIMES_VARIABLE: &str = "FLASHCORE_HOST_TIMES";

/// What a call takes of a kernel without a made-up time, µs.
pub const USUAL_US: f64 = 1_000.0;

const MADE_UP: &str = "made-up times";

type Times = Result<HashMap<String, f64>, String>;

/// The made-up times, or why they cannot be read; `None` where the clock is the machine's.
fn times() -> Option<&'static Times> {
    static TIMES: OnceLock<Option<Times>> = OnceLock::new();
    let read = || {
        let file = std::env::var_os(HOST_TIMES_VARIABLE).filter(|file| !file.is_empty())?;
        let text = files::read_text_capped(file.as_ref(), files::SMALL).map_err(|error| error.to_string());
        Some(text.and_then(|text| parse(&text)).map_err(|why| {
            let file = file.to_string_lossy();
            format!("{HOST_TIMES_VARIABLE} names {file}, which is no file of times: {why}")
        }))
    };
    TIMES.get_or_init(read).as_ref()
}

fn parse(text: &str) -> Times {
    let times: HashMap<String, f64> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match times.iter().find(|(_, us)| !(us.is_finite() && **us > 0.0)) {
        Some((id, us)) => Err(format!("{id} takes {us} µs; allowed: more than 0")),
        None => Ok(times),
    }
}

/// Nanoseconds that calls have taken by made-up times.
static MADE_UP_NS: AtomicU64 = AtomicU64::new(0);

/// What stands for the driver of the host: nothing, or that its times are made up.
pub(crate) fn driver() -> &'static str {
    times().map_or("", |_| MADE_UP)
}

/// A kernel was called on the host: where times are made up, the clock moves by that of the kernel.
pub fn called(id: &str) -> Result<(), Trouble> {
    if let Some(times) = times() {
        let times = times.as_ref().map_err(Trouble::new)?;
        let us = times.get(id).copied().unwrap_or(USUAL_US);
        MADE_UP_NS.fetch_add((us * 1e3) as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// The host's clock, µs from any origin.
pub(crate) fn now_us() -> f64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    match times() {
        Some(_) => MADE_UP_NS.load(Ordering::Relaxed) as f64 / 1e3,
        None => ORIGIN.get_or_init(Instant::now).elapsed().as_secs_f64() * 1e6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_positive_numbers_by_id() {
        assert_eq!(parse(r#"{"cpu/m64n64": 900}"#).unwrap()["cpu/m64n64"], 900.0);
        for wrong in [
            "",
            "[]",
            r#"{"cpu/m64n64": 0}"#,
            r#"{"cpu/m64n64": -1}"#,
            r#"{"a": "b"}"#,
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
