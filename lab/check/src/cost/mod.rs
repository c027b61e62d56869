//! The cost model: predicts the time of a plan on a card, and what binds it.
//!
//! [`Observation`] simulates a few blocks of a plan and counts executions of each instruction and
//! the cost of memory accesses. [`Observation::predict`] computes for a card the time that each
//! [`Resource`] needs for its [`Work`] if all others were free (a roofline), the time of one warp's
//! chain of dependent instructions, and the launch. It combines them to a time with an interval.
//!
//! Rates and latencies are data with sources ([`Rates`]) or measured on the card
//! ([`MeasuredCard`]). Fitted constants are in `calibration.rs`. Accuracy: `docs/cost-model.md`.
//!
//! ```
//! use flashcore_check::cost::Observation;
//! use flashcore_ir::{Profile, Target};
//! use flashcore_kernels::Plan;
//! use flashcore_problem::Problem;
//! let plan = Plan::new(&Problem::named("tiny")?, &"scalar/tiled-m16n16-w4-v16".parse()?, Target::Sm89)?;
//! let observed = Observation::of(&plan)?;
//! let (l4, rtx4090) = (Profile::named("l4").unwrap(), Profile::named("rtx4090").unwrap());
//! let prediction = observed.predict(l4, &[Some(64)]);
//! assert!(prediction.low_micros < prediction.micros && prediction.micros < prediction.high_micros);
//! assert!(observed.predict(rtx4090, &[Some(64)]).micros <= prediction.micros); // the same SMs, more and faster
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod axes;
mod calibration;
mod card;
mod code;
mod forecast;
mod lines;
mod observe;
mod predict;
mod rates;
pub mod roofline;
mod shares;
mod sm;
mod span;
mod text;
mod work;

pub use calibration::{LAUNCH_MICROS, Trust};
pub use card::{CARD_FILE, CARD_SCHEMA, CardFile, card};
pub use flashcore_ir::MeasuredCard;
pub use forecast::{Forecast, NoForecast, PREDICT, is_to_spill, predicted_card};
pub use lines::{Accesses, LineShare};
pub use observe::Observation;
pub use predict::{Bound, Prediction, StepFit, Use};
pub use rates::{Latencies, Rates};
pub use sm::Resource;
pub use work::{Unit, Work};
