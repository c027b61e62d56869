//! The bench, used as a library and through its evidence.

mod cheats;
mod convert;
mod evidence;
mod host;
mod selfcheck;
mod simulate;
mod speed;
