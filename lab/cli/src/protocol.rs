//! The flags of `bench` that say how to measure.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use flashcore::Device;
use flashcore_bench::{Mode, Options, Request};

use crate::bench::options;
use crate::quantity::{duration, time};

/// How to measure.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Protocol")]
pub(crate) struct ProtocolArgs {
    /// hot, cold (L2 flushed), sustained (half a second), screen (brief), plain
    ///
    /// Hot runs are back to back. With `plain`, as in hot,plain, runs are launched one by one instead of in graphs:
    /// short kernels then wait for the host.
    #[arg(long, value_name = "MODES", value_delimiter = ',', default_value = "hot", value_parser = asked_mode)]
    mode: Vec<AskedMode>,
    /// Most time for the rounds of one problem in one mode, as 5s or 2m
    ///
    /// So many --rounds are always made.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) budget: Option<Duration>,
    /// Rounds of every subject at least [default: 3; of the sustained mode 8]
    ///
    /// Published figures have 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..))]
    rounds: Option<u32>,
    /// Untimed time before each batch of a long kernel in hot mode, as 40ms
    #[arg(long, value_name = "TIME", value_parser = lead)]
    lead: Option<Duration>,
    /// Copies of K and V that hot runs take turns with (GPUs)
    ///
    /// So that they are not in L2.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) caches: Option<u32>,
    /// Difference that matters, such as 1% or 0.01
    #[arg(long, value_name = "SHARE", value_parser = share, allow_hyphen_values = true)]
    threshold: Option<f64>,
    /// Seed of the order within rounds
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl ProtocolArgs {
    pub(crate) fn request(&self, device: &Device) -> Request {
        self.request_with(options(device))
    }

    fn modes(&self) -> Vec<Mode> {
        let named = self.mode.iter().filter_map(|asked| match asked {
            AskedMode::Mode(mode) => Some(*mode),
            AskedMode::Plain => None,
        });
        let modes: Vec<Mode> = named.collect();
        // `--mode plain` is the usual mode.
        if modes.is_empty() { vec![Mode::Hot] } else { modes }
    }

    /// With these settings where no flag says otherwise.
    pub(crate) fn request_with(&self, mut options: Options) -> Request {
        if let Some(threshold) = self.threshold {
            options.threshold = threshold;
            options.precision = threshold / 2.0;
        }
        options.budget_ms = self.budget.map_or(options.budget_ms, |time| time.as_secs_f64() * 1e3);
        options.steady_lead_us = self
            .lead
            .map_or(options.steady_lead_us, |time| time.as_secs_f64() * 1e6);
        options.least_rounds = self.rounds.unwrap_or(options.least_rounds);
        options.sustained_rounds = self.rounds.unwrap_or(options.sustained_rounds);
        options.caches = self.caches.unwrap_or(options.caches);
        options.seed = self.seed.unwrap_or(options.seed);
        // The program's path says nothing elsewhere.
        let words = std::env::args().skip(1);
        Request {
            command: std::iter::once("flashcore".to_string()).chain(words).collect(),
            modes: self.modes(),
            options,
            plain: self.mode.contains(&AskedMode::Plain),
            ..Request::default()
        }
    }
}

/// A mode, or how runs are launched in it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AskedMode {
    Mode(Mode),
    Plain,
}

fn asked_mode(text: &str) -> Result<AskedMode, String> {
    match text {
        "plain" => Ok(AskedMode::Plain),
        mode => mode
            .parse()
            .map(AskedMode::Mode)
            .map_err(|why: <Mode as FromStr>::Err| format!("{why}, plain")),
    }
}

fn lead(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(60);
    let lead = match text.trim() {
        "0" => Some(Duration::ZERO),
        text => duration(text),
    };
    let wrong = || "write a time up to 60s with its unit, as 40ms".to_string();
    lead.filter(|lead| *lead <= MOST).ok_or_else(wrong)
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
        for wrong in ["-1", "nan", "1e30", "40", "61s"] {
            assert!(lead(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (lead("0"), lead("2.5ms")),
            (Ok(Duration::ZERO), Ok(Duration::from_micros(2500)))
        );
    }
}
