//! The library as its users see it.

mod append;
mod backward;
mod calls;
mod plans;
mod tune;
