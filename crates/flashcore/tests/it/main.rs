//! The library as its users see it.

// Tests read what they wrote, and what lies in the repository.
#![allow(clippy::disallowed_methods)]

mod append;
mod backward;
mod calls;
#[cfg(feature = "cuda")]
mod checks;
mod combine;
#[cfg(feature = "cuda")]
mod device;
mod plans;
mod plans_backward;
#[cfg(feature = "cuda")]
mod queue;
mod tune;

/// The GPU; without one the test is skipped and says why.
#[cfg(feature = "cuda")]
fn gpu() -> Option<flashcore::Device> {
    let device = flashcore::Device::best();
    if device.context().is_none() {
        let why = flashcore::Device::why_not_cuda().map(|why| why.to_string());
        assert!(std::env::var_os("FLASHCORE_REQUIRE_GPU").is_none(), "{why:?}");
        println!("skipped: {}", why.unwrap_or_default());
        return None;
    }
    Some(device)
}
