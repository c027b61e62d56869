//! The bench, used as a library and through its evidence.

mod cheats;
mod evidence;
mod host;
mod revision;
