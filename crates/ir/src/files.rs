//! Reads files that a stranger may have written: never without a limit, and never from what is no file.
//!
//! A FIFO without a writer would block a plain read for ever, and a link to `/dev/zero` would fill the memory. The
//! lints (`clippy.toml`) refuse the functions of the standard library that would do so; an exception says why at its
//! place.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Bytes of a declaration, a table, a problem file, a config: far more than any has.
pub const SMALL: u64 = 16 << 20;
/// Bytes of what machines write: evidence, journals, profiles, PTX.
pub const LARGE: u64 = 1 << 30;

/// The bytes of a regular file that has at most so many. `-` is standard input, and names of open descriptors
/// (`/dev/stdin`, `/dev/fd/63`, which shells write for `<(command)`) may be pipes: only a user gives such names.
///
/// ```
/// use flashcore_ir::files;
/// let folder = std::env::temp_dir();
/// let error = files::read_capped(&folder, files::SMALL).unwrap_err();
/// assert_eq!(error.to_string(), "it is a folder, not a file");
/// ```
///
/// # Errors
/// A folder, a FIFO or a device; more bytes; and what the system says.
pub fn read_capped(path: &Path, most: u64) -> Result<Vec<u8>> {
    if path == Path::new("-") {
        return capped(&mut std::io::stdin().lock(), most);
    }
    whole(open_regular(path)?, most)
}

fn whole((mut file, metadata): (File, Metadata), most: u64) -> Result<Vec<u8>> {
    if metadata.len() > most {
        return Err(too_long(&format!("{} bytes", metadata.len()), most));
    }
    capped(&mut file, most)
}

/// The same as text.
///
/// # Errors
/// As [`read_capped`], and bytes that are not UTF-8.
pub fn read_text_capped(path: &Path, most: u64) -> Result<String> {
    text(read_capped(path, most)?)
}

/// The same of what was written by a program that may read less than this one: it is no link to something else.
///
/// # Errors
/// As [`read_text_capped`], and a link.
pub fn read_text_unlinked(path: &Path, most: u64) -> Result<String> {
    text(whole(open(path, NO_LINK)?, most)?)
}

fn text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(
            ErrorKind::InvalidData,
            format!("it is not UTF-8 text, from byte {at} on"),
        )
    })
}

/// Opens a regular file to read, or an open descriptor by its name, and never blocks.
///
/// # Errors
/// A folder, a FIFO or a device; and what the system says.
pub fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    open(path, 0)
}

#[cfg(unix)]
const NO_LINK: i32 = libc::O_NOFOLLOW;
#[cfg(not(unix))]
const NO_LINK: i32 = 0;

fn open(path: &Path, flags: i32) -> Result<(File, Metadata)> {
    let is_descriptor = is_descriptor(path);
    let mut options = OpenOptions::new();
    options.read(true);
    // What was opened is asked, not what the name meant before.
    #[cfg(unix)]
    if !is_descriptor {
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY | flags);
    }
    #[cfg(not(unix))]
    let _ = flags;
    // A folder cannot be opened on every system.
    let file = options.open(path).map_err(|error| {
        if path.is_dir() {
            Error::new(ErrorKind::IsADirectory, "it is a folder, not a file")
        } else {
            error
        }
    })?;
    let metadata = file.metadata()?;
    if !is_descriptor || metadata.is_dir() {
        regular(&metadata).map_err(|why| match why.kind() {
            ErrorKind::InvalidInput if is_fifo(&metadata) => {
                Error::new(why.kind(), format!("{why}; to read from a pipe, name /dev/stdin"))
            }
            _ => why,
        })?;
    }
    Ok((file, metadata))
}

/// Opens a file of ours to write, as `options` say, in a folder that others may have filled: only a regular file, and
/// never blocks. (What the user names as an output may be a pipe.)
///
/// # Errors
/// A folder, a FIFO or a device; and what the system says.
pub fn open_to_write(path: &Path, options: &mut OpenOptions) -> Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path).map_err(|error| {
        // A FIFO without a reader has an error that does not say so.
        let there = std::fs::metadata(path).map_or(Ok(()), |there| regular(&there));
        there.err().unwrap_or(error)
    })?;
    regular(&file.metadata()?)?;
    Ok(file)
}

fn regular(metadata: &Metadata) -> Result<()> {
    let (kind, why) = match metadata {
        it if it.is_file() => return Ok(()),
        it if it.is_dir() => (ErrorKind::IsADirectory, "it is a folder, not a file"),
        it if is_fifo(it) => (ErrorKind::InvalidInput, "it is a pipe (FIFO), not a regular file"),
        _ => (ErrorKind::InvalidInput, "it is a device, not a regular file"),
    };
    Err(Error::new(kind, why))
}

#[cfg(unix)]
fn is_fifo(metadata: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&metadata.file_type())
}

#[cfg(not(unix))]
fn is_fifo(_: &Metadata) -> bool {
    false
}

/// Whether a name is that of a descriptor which this process was started with.
fn is_descriptor(path: &Path) -> bool {
    let path = path.to_str().unwrap_or_default();
    let number = ["/dev/fd/", "/proc/self/fd/"]
        .iter()
        .find_map(|folder| path.strip_prefix(folder));
    path == "/dev/stdin" || number.is_some_and(|number| number.parse::<u32>().is_ok())
}

fn capped(from: &mut impl Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Files of /proc and pipes do not say how long they are, and others grow.
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        Err(too_long("more bytes", most))
    } else {
        Ok(bytes)
    }
}

fn too_long(bytes: &str, most: u64) -> Error {
    let why = format!("it has {bytes}; such a file has at most {most}");
    Error::new(ErrorKind::FileTooLarge, why)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    fn refused(path: &Path) -> String {
        read_capped(path, 8).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_are_read_and_only_so_far() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("whole"), "12345678").unwrap();
        std::fs::write(at("long"), "123456789").unwrap();
        assert_eq!(read_text_capped(&at("whole"), 8).unwrap(), "12345678");
        assert_eq!(refused(&at("long")), "it has 9 bytes; such a file has at most 8");
        // Sparse: a terabyte that takes no room.
        File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(
            refused(&at("sparse")),
            "it has 1099511627776 bytes; such a file has at most 8"
        );
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        for (target, why) in [
            ("fifo", "it is a pipe (FIFO)"),
            ("/dev/zero", "it is a device"),
            ("/dev/tty", ""),
            (".", "it is a folder"),
            ("nowhere", "No such file"),
            ("loop", ""),
        ] {
            let link = at(&format!("link-{}", target.replace('/', "-")));
            std::os::unix::fs::symlink(if target == "loop" { &link } else { Path::new(target) }, &link).unwrap();
            let said = refused(&link);
            assert!(said.contains(why), "{target}: {said}");
        }
        assert!(refused(&at("fifo")).contains("name /dev/stdin"));
        // A link to a regular file is one.
        std::os::unix::fs::symlink("whole", at("link")).unwrap();
        assert_eq!(read_capped(&at("link"), 8).unwrap().len(), 8);
        // It says that it has 0 bytes.
        let proc = Path::new("/proc/self/maps");
        assert!(!proc.exists() || refused(proc).contains("it has more bytes"));
        std::fs::write(at("latin"), b"ab\xe4").unwrap();
        let said = read_text_capped(&at("latin"), 8).unwrap_err().to_string();
        assert_eq!(said, "it is not UTF-8 text, from byte 2 on");
    }

    #[test]
    fn only_regular_files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let open = |name: &str| open_to_write(&at(name), OpenOptions::new().create(true).append(true));
        open("new").unwrap().write_all(b"12").unwrap();
        open("new").unwrap().write_all(b"34").unwrap();
        assert_eq!(std::fs::read(at("new")).unwrap(), b"1234");
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/null", at("device")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        for (name, why) in [
            ("fifo", "it is a pipe (FIFO), not a regular file"),
            ("device", "it is a device, not a regular file"),
            ("folder", "it is a folder, not a file"),
        ] {
            assert_eq!(open(name).unwrap_err().to_string(), why);
        }
        assert_eq!(open("none/new").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_descriptor_that_the_user_names_may_be_a_pipe() {
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = std::io::pipe().unwrap();
        let name = format!("/dev/fd/{}", reader.as_raw_fd());
        writer.write_all(b"1234").unwrap();
        drop(writer);
        assert_eq!(read_capped(Path::new(&name), 8).unwrap(), b"1234");
        let zero = File::open("/dev/zero").unwrap();
        let name = format!("/dev/fd/{}", zero.as_raw_fd());
        assert_eq!(
            refused(Path::new(&name)),
            "it has more bytes; such a file has at most 8"
        );
        for (name, is_one) in [
            ("/dev/stdin", true),
            ("/proc/self/fd/3", true),
            ("/dev/fd/x", false),
            ("/dev/fd/../zero", false),
            ("fd/3", false),
        ] {
            assert_eq!(is_descriptor(Path::new(name)), is_one, "{name}");
        }
    }
}
