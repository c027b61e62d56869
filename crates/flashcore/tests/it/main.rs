//! The library as its users see it.

mod calls;
mod plans;
