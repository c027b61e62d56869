//! The bench, used as a library and through its evidence.

mod cheats;
mod cold;
mod convert;
mod evidence;
mod gpu;
mod host;
mod kbench;
mod selfcheck;
mod simulate;
mod speed;
