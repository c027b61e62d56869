//! The bench, used as a library and through its evidence.

// Tests read what they wrote, and what lies in the repository.
#![allow(clippy::disallowed_methods)]

mod cheats;
mod cold;
mod evidence;
mod gpu;
mod host;
mod kbench;
mod selfcheck;
mod simulate;
