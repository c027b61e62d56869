//! The `flashcore` command.

fn main() {}
