//! Standard output: the one writer of every subcommand, so that text that is lost is told by the exit code.

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Failure;
use crate::style::escaped;

/// Exit code of a command whose reader went away before it had all, as of programs that SIGPIPE ends: 128 + 13.
pub(crate) const UNREAD: u8 = 141;

/// Whether the reader has gone.
static UNREADABLE: AtomicBool = AtomicBool::new(false);
/// Whether there was no standard output when the program began.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Rust's start-up code opens `/dev/null` in place of a standard output that is closed (`>&-`), so this looks before.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod before_main {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    extern "C" fn look() {
        // A copy of a descriptor that is not open is an error.
        let is_missing = std::io::stdout().as_fd().try_clone_to_owned().is_err();
        super::MISSING.store(is_missing, Ordering::Relaxed);
    }

    // The C library calls what is in this section, with no arguments that are used here, before Rust's start-up code.
    // The function needs nothing of that code: it copies a descriptor and stores a flag.
    #[allow(unsafe_code)]
    #[used]
    #[unsafe(link_section = ".init_array")]
    static LOOK: extern "C" fn() = look;
}

/// Prints to standard output. After the reader has gone (`| head`) nothing more is printed and the command goes on, so
/// that a verdict of it is in its exit code; one without findings has [`UNREAD`]. Any other error, such as a full disk
/// or an output that is closed, ends the command as a failure.
pub(crate) fn print(text: &str) {
    if UNREADABLE.load(Ordering::Relaxed) {
        return;
    }
    let fail = |why: &dyn std::fmt::Display| {
        Failure::failed(format!("standard output cannot be written: {why}")).report();
        std::process::exit(1);
    };
    if MISSING.load(Ordering::Relaxed) {
        fail(&"it is closed; redirect it to a file, or to /dev/null to drop it");
    }
    let text = escaped(text);
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => UNREADABLE.store(true, Ordering::Relaxed),
        Err(error) => {
            drop(stdout);
            fail(&error);
        }
    }
}

/// Whether the reader went away before everything was printed.
pub(crate) fn is_unread() -> bool {
    UNREADABLE.load(Ordering::Relaxed)
}
