//! The `flashcore` command as its users run it.

mod backward;
mod bad_input;
mod bad_names;
mod checked;
mod closed_pipe;
mod common;
mod docs;
mod gate;
mod kbench;
mod measured;
mod memory;
mod output;
mod own;
mod parity;
mod problem_files;
mod profile;
mod report;
mod repository;
mod revision;
mod surroundings;
mod tune;
