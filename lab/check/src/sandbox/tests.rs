//! Each test runs this binary again as a stranger who tries one thing: confined, and then without the sandbox, where it
//! must succeed.

use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Stdio;
use std::thread;

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socketpair};
use rustix::process::{Pid, Resource, Rlimit, setrlimit, setsid, test_kill_process};

use super::*;
use crate::programs::{self, Ran};

/// What the child is to try, and with what.
const PART: &str = "FLASHCORE_TEST_PART";
/// How a part begins that may use GPUs.
const GPU: &str = "gpu ";
/// Makes it an error that the system has no sandbox.
const REQUIRE: &str = "FLASHCORE_REQUIRE_SANDBOX";
const DENIED: &str = "Permission denied (os error 13)";
const NOT_PERMITTED: &str = "Operation not permitted (os error 1)";
const BAD_DESCRIPTOR: &str = "Bad file descriptor (os error 9)";
const LONG: Duration = Duration::from_secs(3600);

/// Whether to skip a test, which is then said.
fn is_missing() -> bool {
    let Err(error) = available() else { return false };
    assert!(std::env::var_os(REQUIRE).is_none(), "{REQUIRE} is set: {error}");
    println!("NOT CHECKED: the sandbox: {error}");
    true
}

fn pair(kind: SocketType) -> io::Result<std::os::fd::OwnedFd> {
    Ok(socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?.0)
}

/// A system call by its number, with its arguments.
#[allow(unsafe_code)]
fn call(words: &str) -> io::Result<()> {
    let mut numbers: Vec<i64> = words.split(' ').map(|word| word.parse().unwrap()).collect();
    numbers.resize(7, 0);
    // SAFETY: the tests give it calls that change nothing here, and no pointers to anything.
    let returned = unsafe {
        let [a, b, c, d, e, f] = numbers[1..].try_into().unwrap();
        libc::syscall(numbers[0], a, b, c, d, e, f)
    };
    let is_done = returned >= 0;
    is_done.then_some(()).ok_or_else(io::Error::last_os_error)
}

/// The child: tries what it is told, and prints what came of it.
#[test]
#[allow(unsafe_code)]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let (what, with) = part.trim_start_matches(GPU).split_once(' ').unwrap();
    let words = |error: io::Error| error.to_string();
    let done = match what {
        "tcp" => TcpListener::bind("127.0.0.1:0").map(drop).map_err(words),
        "udp" => UdpSocket::bind("127.0.0.1:0").map(drop).map_err(words),
        "unix" => UnixStream::connect(with).map(drop).map_err(words),
        "datagram" => pair(SocketType::DGRAM)
            .and_then(|socket| Ok(sendto(socket, b"x", SendFlags::empty(), &SocketAddrUnix::new(with)?)?))
            .map(drop)
            .map_err(words),
        "socket" => rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)
            .and_then(|socket| rustix::net::bind(socket, &SocketAddrUnix::new_unnamed()))
            .map_err(|error| words(error.into())),
        "thread" => fs::write("/proc/thread-self/comm", "named").map_err(words),
        "pairs" => [SocketType::STREAM, SocketType::SEQPACKET]
            .into_iter()
            .try_for_each(|kind| pair(kind).map(drop).map_err(words)),
        "call" => call(with).map_err(words),
        "read" => fs::read(with).map(drop).map_err(words),
        "list" => fs::read_dir(with).map(drop).map_err(words),
        "write" => fs::write(with, "planted").map_err(words),
        "mode" => fs::set_permissions(with, fs::Permissions::from_mode(0o666)).map_err(words),
        "truncate" => {
            let mut options = fs::OpenOptions::new();
            let opened = options.read(true).custom_flags(libc::O_TRUNC).open(with);
            opened.map(drop).map_err(words)
        }
        "mode-3" => {
            let path = std::ffi::CString::new(with).unwrap();
            // SAFETY: the path ends with a zero, and outlives the call.
            let opened = unsafe { libc::open(path.as_ptr(), libc::O_ACCMODE | libc::O_TRUNC) };
            let is_opened = opened >= 0;
            is_opened.then_some(()).ok_or_else(|| words(io::Error::last_os_error()))
        }
        "own" => {
            let file = std::env::temp_dir().join("own");
            fs::write(&file, "mine")
                .and_then(|()| fs::read(file))
                .map(drop)
                .map_err(words)
        }
        "memory" => {
            let kept = Vec::<u8>::new().try_reserve_exact(1 << 30);
            kept.map_err(|error| error.to_string())
        }
        "limit" => {
            let (current, maximum) = (None, None);
            let raised = setrlimit(Resource::Data, Rlimit { current, maximum });
            raised.map_err(|error| words(error.into()))
        }
        "signal" => {
            let target = Pid::from_raw(with.parse().unwrap()).unwrap();
            test_kill_process(target).map_err(|error| words(error.into()))
        }
        "leave" => setsid().map(drop).map_err(|error| words(error.into())),
        "processes" => {
            let started = (0..40).map(|_| Command::new("/bin/sleep").arg("60").stdout(Stdio::null()).spawn());
            let _all: Vec<_> = started.map(Result::unwrap).collect();
            thread::sleep(LONG);
            Ok(())
        }
        "threads" => {
            let started = (0..40).map(|_| thread::Builder::new().spawn(thread::park));
            let _all: Vec<_> = started.map(Result::unwrap).collect();
            thread::sleep(LONG);
            Ok(())
        }
        "variable" => std::env::var_os(with).map(drop).ok_or("not set".to_string()),
        _ => panic!("{part}"),
    };
    println!("\n<{}>", done.err().unwrap_or("done".to_string()));
}

fn ran(part: &str, confinement: Confinement) -> io::Result<Ran> {
    let program = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut policy = Policy::compiler(folder.path(), LONG).run(&program);
    policy.tasks = 20;
    policy.uses_gpus = part.starts_with(GPU);
    // Without the sandbox what it tries must succeed.
    policy.memory = match (part, confinement) {
        ("memory -", Confinement::Sandboxed) => 1 << 29,
        _ => 1 << 40,
    };
    let mut command = Command::new(&program);
    command
        .args(["--exact", "sandbox::tests::part", "--nocapture"])
        .env(PART, part);
    wrap(&mut command, &policy, confinement).unwrap();
    programs::run_few(&mut command, LONG, policy.tasks)
}

fn ask(part: &str, confinement: Confinement) -> String {
    let ran = ran(part, confinement).unwrap();
    let said = ran
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix('<')?.strip_suffix('>'));
    said.unwrap_or_else(|| panic!("{part}: {ran:?}")).to_string()
}

/// That a stranger is refused, in these words, what anybody else may do.
fn refused(part: &str, why: &str) {
    if is_missing() {
        return;
    }
    assert_eq!(ask(part, Confinement::Sandboxed), why, "{part}");
    assert_eq!(ask(part, Confinement::Unsandboxed), "done", "{part}");
}

#[test]
fn no_network() {
    refused("tcp -", NOT_PERMITTED);
    refused("udp -", NOT_PERMITTED);
    // A socket's path has at most 107 bytes.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let socket = folder.path().join("socket");
    let _listens = UnixListener::bind(&socket).unwrap();
    refused(&format!("unix {}", socket.display()), NOT_PERMITTED);
    let socket = folder.path().join("datagrams");
    let _receives = UnixDatagram::bind(&socket).unwrap();
    refused(&format!("datagram {}", socket.display()), NOT_PERMITTED);
    if is_missing() {
        return;
    }
    assert_eq!(ask("pairs -", Confinement::Sandboxed), "done");
    refused_calls(&[(libc::SYS_connect, "-1"), (libc::SYS_bind, "-1")]);
    // The address of a receiver, by either half, and none.
    for address in ["1", "4294967296"] {
        refused_calls(&[(libc::SYS_sendto, &format!("-1 0 0 0 {address}"))]);
    }
    let none = format!("call {} -1", libc::SYS_sendto);
    assert_eq!(ask(&none, Confinement::Sandboxed), BAD_DESCRIPTOR);
}

/// Seen on an H200 with driver 580.159.04: without either `cuInit` fails.
#[test]
fn a_worker_with_gpus_names_threads_and_one_kind_of_socket() {
    refused("socket -", NOT_PERMITTED);
    refused("thread -", DENIED);
    if is_missing() {
        return;
    }
    for part in ["gpu socket -", "gpu thread -"] {
        assert_eq!(ask(part, Confinement::Sandboxed), "done", "{part}");
    }
    // Nothing of another process, and no connection.
    let other = format!("gpu write /proc/{}/comm", std::process::id());
    assert_eq!(ask(&other, Confinement::Sandboxed), DENIED);
    for part in ["gpu tcp -", "gpu udp -", "gpu unix -", "gpu datagram -"] {
        assert_eq!(ask(part, Confinement::Sandboxed), NOT_PERMITTED, "{part}");
    }
    let connect = format!("gpu call {} -1", libc::SYS_connect);
    assert_eq!(ask(&connect, Confinement::Sandboxed), NOT_PERMITTED);
}

/// That calls are refused, which without the sandbox have another error or none.
fn refused_calls(calls: &[(libc::c_long, &str)]) {
    if is_missing() {
        return;
    }
    for (number, arguments) in calls {
        let part = format!("call {number} {arguments}");
        assert_eq!(ask(&part, Confinement::Sandboxed), NOT_PERMITTED, "{part}");
        assert_ne!(ask(&part, Confinement::Unsandboxed), NOT_PERMITTED, "{part}");
    }
}

#[test]
fn no_shared_memory_semaphores_and_queues() {
    refused_calls(
        &[
            libc::SYS_shmget,
            libc::SYS_shmat,
            libc::SYS_shmdt,
            libc::SYS_shmctl,
            libc::SYS_semget,
            libc::SYS_semop,
            libc::SYS_semtimedop,
            libc::SYS_semctl,
            libc::SYS_msgget,
            libc::SYS_msgsnd,
            libc::SYS_msgrcv,
            libc::SYS_msgctl,
            libc::SYS_mq_open,
            libc::SYS_mq_unlink,
            libc::SYS_mq_timedsend,
            libc::SYS_mq_timedreceive,
            libc::SYS_mq_notify,
            libc::SYS_mq_getsetattr,
        ]
        // Of a key that nobody has.
        .map(|call| (call, "1234567891")),
    );
}

#[test]
fn no_descriptors_but_the_standard_ones() {
    let file = tempfile::tempfile().unwrap();
    // Of no number that the child has for itself.
    let kept = rustix::io::fcntl_dupfd_cloexec(&file, 500).unwrap();
    rustix::io::fcntl_setfd(&kept, rustix::io::FdFlags::empty()).unwrap();
    let number = kept.as_raw_fd();
    refused(
        &format!("call {} {number} {}", libc::SYS_fcntl, libc::F_GETFD),
        BAD_DESCRIPTOR,
    );
}

#[test]
fn no_change_outside_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "before").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    if is_missing() {
        return;
    }
    // The folder of its own is not this.
    let new = format!("write {}", folder.path().join("new").display());
    for (part, why) in [
        ("write", DENIED),
        ("mode", NOT_PERMITTED),
        ("truncate", NOT_PERMITTED),
        ("mode-3", NOT_PERMITTED),
    ] {
        assert_eq!(
            ask(&format!("{part} {}", file.display()), Confinement::Sandboxed),
            why,
            "{part}"
        );
    }
    assert_eq!(fs::read(&file).unwrap(), b"before");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    refused(&new, DENIED);
    for part in ["mode", "truncate"] {
        assert_eq!(
            ask(&format!("{part} {}", file.display()), Confinement::Unsandboxed),
            "done"
        );
    }
    assert_eq!(fs::read(&file).unwrap(), b"");
}

#[test]
fn no_home_folder_and_no_files_of_others() {
    let home = std::env::home_dir().unwrap();
    refused(&format!("list {}", home.display()), DENIED);
    let secret = tempfile::NamedTempFile::new().unwrap();
    refused(&format!("read {}", secret.path().display()), DENIED);
    // Not by way of a policy either.
    let folder = tempfile::tempdir().unwrap();
    let above = home.ancestors().map(Path::to_path_buf);
    let policy = above.fold(Policy::compiler(folder.path(), LONG), Policy::read);
    assert_eq!(policy.reads, Vec::<PathBuf>::new());
    let reads = policy.run(&home.join("bin/nvcc")).reads;
    assert!(reads.contains(&home.join("bin")) && !reads.contains(&home), "{reads:?}");
    // Next to a compiler, what is installed with it.
    for name in ["bin", "lib", "share", "x86_64-conda-linux-gnu"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let mut reads = Policy::compiler(folder.path(), LONG)
        .run(&folder.path().join("bin/nvcc"))
        .reads;
    reads.sort();
    assert_eq!(
        reads,
        ["bin", "lib", "x86_64-conda-linux-gnu"].map(|name| folder.path().join(name))
    );
}

#[test]
fn no_variables_but_those_that_tools_read() {
    let others = std::env::vars().map(|(name, _)| name);
    let mut others = others.filter(|name| !KEPT.iter().any(|kept| name.starts_with(kept)) && name != "HOME");
    let other = others.find(|name| name != "TMPDIR").expect("cargo sets some");
    refused(&format!("variable {other}"), "not set");
    assert_eq!(ask("variable PATH", Confinement::Unsandboxed), "done");
}

/// Also for root, whom the system's own limit of processes does not bind.
#[test]
fn a_fork_bomb_ends() {
    if is_missing() {
        return;
    }
    for part in ["processes -", "threads -"] {
        let error = ran(part, Confinement::Sandboxed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded, "{part}");
        assert_eq!(
            error.to_string(),
            "it had more than 20 processes and threads at a time, and was ended"
        );
    }
}

#[test]
fn memory_is_limited_for_good() {
    refused(
        "memory -",
        "memory allocation failed because the memory allocator returned an error",
    );
    if !is_missing() {
        assert_eq!(ask("limit -", Confinement::Sandboxed), NOT_PERMITTED);
    }
}

#[test]
fn no_signals_to_others_and_no_way_out_of_the_group() {
    refused(&format!("signal {}", std::process::id()), NOT_PERMITTED);
    if !is_missing() {
        assert_eq!(ask("leave -", Confinement::Sandboxed), NOT_PERMITTED);
    }
    // Nor by way of a file's owner, to whom the system sends them.
    refused_calls(&[
        (libc::SYS_fcntl, "0 8"),
        (libc::SYS_fcntl, "0 10"),
        (libc::SYS_fcntl, "0 15"),
        (libc::SYS_ioctl, "0 35073"),
        (libc::SYS_ioctl, "0 35074"),
    ]);
}

#[test]
fn it_has_a_folder_of_its_own() {
    if !is_missing() {
        assert_eq!(ask("own -", Confinement::Sandboxed), "done");
        assert_eq!(ask("list /usr", Confinement::Sandboxed), "done");
        assert_eq!(ask("write /dev/null", Confinement::Sandboxed), "done");
    }
}
