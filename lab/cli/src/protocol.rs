//! The flags of `bench` that say how to measure.

use clap::Args;
use flashcore::Device;
use flashcore_bench::{Mode, Options, Request};

use crate::bench::options;
use crate::quantity::duration;

/// How to measure.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Protocol")]
pub(crate) struct ProtocolArgs {
    /// hot (back to back), cold (L2 flushed), sustained (half a second each), screen (hot, but brief)
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "hot")]
    mode: Vec<Mode>,
    /// Most time for the rounds of one problem in one mode (5s, 2m; a bare number is seconds); so many --rounds are
    /// always made
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub(crate) budget: Option<f64>,
    /// Rounds that every subject takes part in, whatever the budget [default: 3]; published figures have 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..))]
    rounds: Option<u32>,
    /// Untimed run time of a subject before each batch of a long kernel in hot mode
    #[arg(long, value_name = "MILLISECONDS", value_parser = lead)]
    steady_lead: Option<f64>,
    /// Rounds of the sustained mode [default: 8]; --budget does not end them
    #[arg(long, value_name = "N")]
    sustained_rounds: Option<u32>,
    /// Copies of K and V that hot runs take turns with, so that they are not in L2 (GPUs)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) caches: Option<u32>,
    /// Difference that matters, such as 1% or 0.01
    #[arg(long, value_name = "SHARE", value_parser = share, allow_hyphen_values = true)]
    threshold: Option<f64>,
    /// Launch one by one instead of in graphs: short kernels then wait for the host
    #[arg(long)]
    plain: bool,
    /// Seed of the order within rounds
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl ProtocolArgs {
    pub(crate) fn request(&self, device: &Device) -> Request {
        self.request_with(options(device))
    }

    /// With these settings where no flag says otherwise.
    pub(crate) fn request_with(&self, mut options: Options) -> Request {
        if let Some(threshold) = self.threshold {
            options.threshold = threshold;
            options.precision = threshold / 2.0;
        }
        options.budget_ms = self.budget.map_or(options.budget_ms, |seconds| seconds * 1e3);
        options.steady_lead_us = self.steady_lead.map_or(options.steady_lead_us, |ms| ms * 1e3);
        options.least_rounds = self.rounds.unwrap_or(options.least_rounds);
        options.sustained_rounds = self.sustained_rounds.unwrap_or(options.sustained_rounds);
        options.caches = self.caches.unwrap_or(options.caches);
        options.seed = self.seed.unwrap_or(options.seed);
        // The program's path says nothing elsewhere.
        let words = std::env::args().skip(1);
        Request {
            command: std::iter::once("flashcore".to_string()).chain(words).collect(),
            modes: self.mode.clone(),
            options,
            plain: self.plain,
            ..Request::default()
        }
    }
}

/// A budget: a duration, or a bare number of seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let timed = duration(text).map(|time| time.as_secs_f64());
    let bare = || text.trim().parse::<f64>().ok();
    let value = timed.or_else(bare).filter(|value| *value > 0.0 && value.is_finite());
    value.ok_or_else(|| "write a time above 0 as 5s, 2m or 500ms; a bare number is seconds".to_string())
}

fn lead(text: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(value) if (0.0..=60_000.0).contains(&value) => Ok(value),
        _ => Err("write milliseconds from 0 to 60000".to_string()),
    }
}

/// `3%` or `0.03`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim(), 100.0),
        None => (text.trim(), 1.0),
    };
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 && value / scale < 1.0 => Ok(value / scale),
        _ => Err("write a share above 0 and below 1 as 3% or 0.03".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_either_way() {
        assert_eq!(share("3%"), Ok(0.03));
        assert_eq!(share(" 0.5 % "), Ok(0.005));
        assert_eq!(share("0.03"), Ok(0.03));
        for wrong in ["3", "-1%", "x", "100%", "0"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "-1", "nan", "inf", "2x", "0s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(["0.5", "5s", "2m"].map(seconds), [0.5, 5.0, 120.0].map(Ok));
        for wrong in ["-1", "nan", "1e30", "5s"] {
            assert!(lead(wrong).is_err(), "{wrong}");
        }
        assert_eq!((lead("0"), lead("2.5")), (Ok(0.0), Ok(2.5)));
    }
}
