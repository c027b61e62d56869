//! The cost model: how long a plan takes on a card that need not be in the machine, and what binds it.
//!
//! [`Observation`] simulates a few blocks of a plan and keeps how often each instruction ran and what its
//! memory accesses cost. [`Observation::predict`] holds that against a card: the time each [`Resource`]
//! would need for its [`Work`] were all else free (a roofline), the time that one warp's chain of
//! dependent instructions takes, and the launch; then the time all take together, with the interval that
//! measurements allow. [`rank`] orders configs by it.
//!
//! Rates and latencies are data with sources ([`Rates`]), or what was measured on the card ([`MeasuredCard`]); what was fitted to measurements is in one file
//! (`calibration.rs`). `docs/cost-model.md` says how well it does.
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

mod calibration;
mod lines;
mod measured;
mod observe;
mod predict;
mod rank;
mod rates;
pub mod roofline;
mod sm;
mod span;
mod work;

pub use calibration::{Clocks, LAUNCH_MICROS, Trust};
pub use lines::LineShare;
pub use measured::MeasuredCard;
pub use observe::{CostError, Observation};
pub use predict::{Bound, Prediction, StepFit, Use};
pub use rank::{Ranked, Ranking, Skipped, rank};
pub use rates::{Latencies, Rates};
pub use sm::Resource;
pub use work::Work;
