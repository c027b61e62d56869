//! See the library.

fn main() -> std::process::ExitCode {
    flashcore_tools::run()
}
