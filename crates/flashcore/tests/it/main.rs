//! The library as its users see it.

mod append;
mod backward;
mod calls;
mod combine;
mod plans;
mod tune;
