//! The `flashcore` command as its users run it.

// Tests read what they wrote, and what lies in the repository.
#![allow(clippy::disallowed_methods)]

mod backward;
mod bad_input;
mod bad_names;
mod calibrated;
mod cheats;
mod checked;
mod closed_pipe;
mod common;
mod docs;
mod embedded;
mod gate;
mod guessed;
#[cfg(unix)]
mod hostile;
mod kbench;
mod measured;
mod memory;
mod missing_forms;
#[cfg(unix)]
mod odd_files;
mod output;
mod own;
mod parity;
mod picture;
mod problem_files;
mod profile;
mod ranked;
mod report;
mod repository;
mod revision;
mod surroundings;
mod tune;
