//! Passes the revision of the source to the package as the command's build script does to the command.

#[path = "../../lab/cli/build.rs"]
mod of_command;

fn main() {
    of_command::main();
}
