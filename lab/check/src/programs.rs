//! Finds programs without ever looking in the current folder, which may be a stranger's: entries of `PATH` that are
//! empty or relative are passed over. Runs them with a deadline.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use flashcore_ir::files::read_text_capped;
use tempfile::TempDir;

/// Bytes of what the system tells of a process, at most: 52 numbers.
const LONGEST_STAT: u64 = 4096;
/// Between two counts of processes.
const BETWEEN_COUNTS: Duration = Duration::from_millis(50);
/// What a program has that is asked for its version or its folders.
pub const TO_ANSWER: Duration = Duration::from_secs(60);
/// Most bytes that are read of what a program wrote.
const MOST_WORDS: u64 = 64 << 20;

/// A word as it is typed to a shell.
///
/// ```
/// use flashcore_check::programs::quoted;
///
/// let typed = ["runs/a", "my run's"].map(|word| quoted(word.as_ref()));
/// assert_eq!(typed, ["runs/a", r"'my run'\''s'"]);
/// ```
pub fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+%@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Where a system without `PATH` looks.
const USUAL: &str = "/usr/local/bin:/usr/bin:/bin";

/// The absolute path of a program: of a name, in the folders of `PATH`; an absolute path is taken as it is.
///
/// # Errors
/// [`ErrorKind::NotFound`]: no such program in any absolute folder of `PATH`. [`ErrorKind::InvalidInput`]: a relative
/// path, whose meaning would depend on the current folder.
pub fn find(name: &OsStr) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL.into());
    find_in(name, &path)
}

/// The same for a program that the user names now, such as in a flag: a relative path is one from the current folder.
///
/// # Errors
/// As [`find`], without the second.
pub fn find_named(name: &OsStr) -> Result<PathBuf, Error> {
    if is_name(name) {
        find(name)
    } else {
        std::path::absolute(name)
    }
}

/// A new folder for what a program reads and writes, which is removed when it goes out of scope.
pub(crate) fn scratch_folder() -> Result<TempDir, Error> {
    tempfile::Builder::new().prefix("flashcore-").tempdir()
}

fn is_name(name: &OsStr) -> bool {
    Path::new(name).file_name() == Some(name)
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, Error> {
    let given = Path::new(name);
    if given.is_absolute() {
        return Ok(given.to_path_buf());
    }
    if !is_name(name) {
        let why = "is a relative path, which would depend on the current folder; give an absolute one";
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    let mut with_suffix = OsString::from(name);
    with_suffix.push(std::env::consts::EXE_SUFFIX);
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    let mut candidates = folders.map(|folder| folder.join(&with_suffix));
    candidates.find(|file| is_program(file)).ok_or_else(|| {
        let why = "not found in any folder of PATH (its relative and empty entries are not looked in)";
        Error::new(ErrorKind::NotFound, why)
    })
}

fn is_program(file: &Path) -> bool {
    let Ok(found) = std::fs::metadata(file) else {
        return false;
    };
    #[cfg(unix)]
    let may_run = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o111 != 0;
    #[cfg(not(unix))]
    let may_run = true;
    found.is_file() && may_run
}

/// A program that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// How.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs a program, without input, to its end. What it started and left is ended then, and all of one that takes longer.
///
/// # Errors
/// It cannot be started or read. [`ErrorKind::TimedOut`]: it was ended.
pub fn run(command: &mut Command, limit: Duration) -> Result<Ran, Error> {
    run_few(command, limit, u32::MAX)
}

/// As [`run`] while the program and what it has started are at most so many processes and threads, where Linux tells
/// it. They are counted a few times a second: with more all of them are ended.
///
/// # Errors
/// As of [`run`], or [`ErrorKind::QuotaExceeded`].
pub fn run_few(command: &mut Command, limit: Duration, most: u32) -> Result<Ran, Error> {
    // Files hold any number of messages, where a full pipe would stop the program.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let mut child = command.spawn()?;
    let began = Instant::now();
    let mut counted = began;
    while !has_ended(&mut child)? {
        if most < u32::MAX && counted.elapsed() >= BETWEEN_COUNTS {
            counted = Instant::now();
            if tasks(child.id()) > most {
                end(&mut child)?;
                let why = format!("it had more than {most} processes and threads at a time, and was ended");
                return Err(Error::new(ErrorKind::QuotaExceeded, why));
            }
        }
        if began.elapsed() >= limit {
            end(&mut child)?;
            let why = format!("it did not end within {} s", limit.as_secs());
            return Err(Error::new(ErrorKind::TimedOut, why));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Ran {
        status: end(&mut child)?,
        stdout: text(&mut stdout)?,
        stderr: text(&mut stderr)?,
    })
}

/// Processes and threads of a group; those that have ended and were not waited for count.
fn tasks(group: u32) -> u32 {
    let of = |entry: std::io::Result<std::fs::DirEntry>| -> Option<u32> {
        let folder = entry.ok()?;
        folder.file_name().to_str()?.parse::<u32>().ok()?;
        let stat = read_text_capped(&folder.path().join("stat"), LONGEST_STAT).ok()?;
        // After the name, which may hold anything: state, parent, group; 14 others; threads (proc_pid_stat(5)).
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let is_member = fields.nth(2)?.parse() == Ok(group);
        is_member.then(|| fields.nth(14)?.parse().ok())?
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten();
    all.filter_map(of).fold(0, u32::saturating_add)
}

/// Whether it has ended. Its number stays its own, and that of its group, until it is waited for.
fn has_ended(child: &mut Child) -> Result<bool, Error> {
    #[cfg(unix)]
    if let Some(id) = id(child) {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        return Ok(waitid(WaitId::Pid(id), look)?.is_some());
    }
    Ok(child.try_wait()?.is_some())
}

#[cfg(unix)]
fn id(child: &Child) -> Option<rustix::process::Pid> {
    i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw)
}

fn end(child: &mut Child) -> Result<ExitStatus, Error> {
    #[cfg(unix)]
    if let Some(group) = id(child) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
    child.wait()
}

fn text(file: &mut File) -> Result<String, Error> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MOST_WORDS).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_program_wrote_is_read_however_much() {
        let much = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo out; exit 3";
        let ran = run(&mut shell(much), TO_ANSWER).unwrap();
        assert_eq!((ran.status.code(), ran.stdout.as_str()), (Some(3), "out\n"));
        assert_eq!(ran.stderr, "x".repeat(300_000));
    }

    /// Of all its processes: those that it started hold the pipe.
    #[test]
    fn one_that_never_ends_is_ended_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut hangs = shell(&format!("sleep 3600 > {} & wait", pipe.display()));
        let late = std::thread::spawn(move || run(&mut hangs, Duration::from_millis(200)));
        // The end of the file comes when no process has it open for writing any more.
        assert_eq!(std::fs::read(&pipe).unwrap(), b"");
        assert_eq!(late.join().unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    }

    /// Its reader would wait for an hour otherwise.
    #[test]
    fn what_a_program_leaves_behind_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut leaves = shell(&format!("exec 3> {}; sleep 3600 & exit 4", pipe.display()));
        let ran = std::thread::spawn(move || run(&mut leaves, TO_ANSWER));
        let _ = std::fs::read(&pipe).unwrap();
        assert_eq!(ran.join().unwrap().unwrap().status.code(), Some(4));
    }

    #[test]
    fn only_absolute_folders_of_path_are_looked_in() {
        let folder = tempfile::tempdir().unwrap();
        let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
        for place in [&here, &there] {
            std::fs::create_dir(place).unwrap();
            std::fs::write(place.join("tool"), "").unwrap();
        }
        let find = |path: &str| find_in("tool".as_ref(), path.as_ref()).map_err(|error| error.kind());
        let both = format!("{}:{}", here.display(), there.display());
        // A file that may not be run is none.
        assert_eq!(find(&both), Err(ErrorKind::NotFound));
        std::fs::set_permissions(there.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(&both), Ok(there.join("tool")));
        // A relative way to a folder that has the program, whatever the current folder is.
        let up = "../".repeat(std::env::current_dir().unwrap().components().count());
        let relative = format!("{up}{}", there.strip_prefix("/").unwrap().display());
        assert!(Path::new(&relative).join("tool").is_file());
        for path in [relative.clone(), String::new(), format!("{relative}::.")] {
            assert_eq!(find(&path), Err(ErrorKind::NotFound), "{path}");
            assert_eq!(find(&format!("{path}:{both}")), Ok(there.join("tool")), "{path}");
        }
        let find = |name: &str| find_in(name.as_ref(), both.as_ref()).map_err(|error| error.kind());
        for name in ["./tool", "there/tool", ".", "..", ""] {
            assert_eq!(find(name), Err(ErrorKind::InvalidInput), "{name}");
        }
        assert_eq!(find("/some/tool"), Ok("/some/tool".into()));
    }
}
