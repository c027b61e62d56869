//! Passes the revision of the source to the program, as the command's build script does. maturin packs no file of other
//! folders: `scripts/release/sdist.sh` puts that script into the source distribution.

#[path = "../../lab/cli/build.rs"]
mod command;

fn main() {
    command::main();
}
