//! The library as its users see it.

mod backward;
mod calls;
mod plans;
