//! Whether a process ended for a reason outside of it: somebody killed it, or the machine ran out of memory, disk or
//! files. Such an end says nothing about the kernel that the process ran.

use std::process::ExitStatus;

/// Signals that others send, and limits of the system: HUP, INT, QUIT, KILL, PIPE, TERM, XCPU, XFSZ, PWR. A kernel's
/// own fault raises others (SEGV, BUS, FPE, ILL, ABRT, TRAP).
const SIGNALS: [i32; 9] = [1, 2, 3, 9, 13, 15, 24, 25, 30];
/// Errors of the system that say that the machine ran out of something: EAGAIN, ENOMEM, ENFILE, EMFILE, EFBIG, ENOSPC,
/// EDQUOT.
const ERRORS: [i32; 7] = [11, 12, 23, 24, 27, 28, 122];
/// What a shell adds to the number of the signal that ended its child.
const SHELL: i32 = 128;

/// Why a process ended, if not for its own reasons: by its status (`None` if unknown) and the end of what it wrote to
/// standard error.
pub fn from_outside(status: Option<ExitStatus>, words: &str) -> Option<String> {
    let signal = status.and_then(signal_of).filter(|signal| SIGNALS.contains(signal));
    if let Some(signal) = signal {
        return Some(match signal {
            9 => "it was killed from outside (SIGKILL: by somebody, or because memory ran out)".to_string(),
            25 => "the limit of a file's size ended it (SIGXFSZ; see `ulimit -f`)".to_string(),
            24 => "the limit of its time ended it (SIGXCPU; see `ulimit -t`)".to_string(),
            signal => format!("it was ended from outside (signal {signal})"),
        });
    }
    // Rust prints the number of the error, and names memory that is not there before it aborts.
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = |error: &i32| words.contains(&format!("(os error {error})"));
    let lacks = ERRORS.iter().any(says) || (words.contains("memory allocation of") && words.contains("failed"));
    lacks.then(|| "this machine ran out of memory, disk space, files or threads".to_string())
}

/// The signal that ended a process, or a child of the shell that it is.
#[cfg(unix)]
fn signal_of(status: ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    let of_child = || status.code().map(|code| code - SHELL).filter(|signal| *signal > 0);
    status.signal().or_else(of_child)
}

#[cfg(not(unix))]
fn signal_of(status: ExitStatus) -> Option<i32> {
    status.code().map(|code| code - SHELL).filter(|signal| *signal > 0)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn signals_of_others_are_told_from_faults() {
        let of = |signal| from_outside(Some(ExitStatus::from_raw(signal)), "");
        for outside in [1, 2, 9, 15, 24, 25] {
            assert!(of(outside).is_some(), "signal {outside}");
            let code = ExitStatus::from_raw((SHELL + outside) << 8);
            assert!(from_outside(Some(code), "").is_some(), "a shell's child");
        }
        for fault in [4, 6, 7, 8, 11] {
            assert_eq!(of(fault), None, "signal {fault}");
        }
    }

    #[test]
    fn what_ran_out_is_read_from_its_words() {
        let code = Some(ExitStatus::from_raw(1 << 8));
        for words in [
            "error: No space left on device (os error 28)",
            "error: File too large (os\n  error 27)",
            "memory allocation of 8 bytes failed",
        ] {
            assert!(from_outside(code, words).is_some(), "{words}");
        }
        assert_eq!(from_outside(code, "No such file or directory (os error 2)"), None);
        assert_eq!(from_outside(None, "it faulted"), None);
    }
}
