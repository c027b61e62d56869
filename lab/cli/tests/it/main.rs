//! The `flashcore` command as its users run it.

mod bad_input;
mod checked;
mod common;
mod measured;
mod output;
mod tune;
