//! The sandbox on Linux. Landlock bounds files, and seccomp refuses calls. How many processes there are, who started
//! the command counts ([`run_few`](crate::programs::run_few)): a filter that asked for each would fail those calls of
//! programs, such as a shell's `fork`, that a signal interrupts.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};
use libc::{c_int, c_long};
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter, sock_filter,
};

use super::{Limits, Policy, SandboxError};

/// What every program needs: no file of a user.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/etc/alternatives",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/dev/random",
    "/dev/urandom",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/meminfo",
    "/proc/stat",
    "/sys/devices/system/cpu",
];
const DEVICES: &[&str] = &["/dev/full", "/dev/null", "/dev/zero"];
/// What the driver of a GPU reads: the topology, its modules, and the maps of the process itself. Of other processes
/// the kernel shows nothing that only their debugger sees.
const OF_DRIVER: &[&str] = &["/proc", "/sys", "/etc/nvidia", "/run/nvidia-persistenced"];
/// How names of devices of GPUs begin.
const GPUS: &str = "nvidia";

/// The first call that no filter here knows, such as those of later kernels and of the x32 interface.
const UNKNOWN: u32 = 470;
/// Calls of late kernels that `libc` does not name: the same number everywhere.
const LATE: &[c_long] = &[
    452, // fchmodat2
    463, // setxattrat
    466, // removexattrat
    467, // open_tree_attr
    469, // file_setattr
];

/// Calls that are refused whatever their arguments.
const REFUSED: &[c_long] = &[
    // A network, and other processes through what Landlock does not bound.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_io_uring_setup,
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
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setscheduler,
    // Out of the group of processes that is ended with the command.
    libc::SYS_setsid,
    libc::SYS_setpgid,
    // Changes of files that Landlock does not bound.
    libc::SYS_truncate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // The system, and parts of the kernel that have had many faults.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_fanotify_init,
];
#[cfg(target_arch = "x86_64")]
const OF_THIS_PROCESSOR: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_kexec_file_load,
];
#[cfg(not(target_arch = "x86_64"))]
const OF_THIS_PROCESSOR: &[c_long] = &[];
/// Also refused where Landlock does not keep signals inside.
const SIGNALS: &[c_long] = &[
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
];
/// Calls whose arguments are in memory, where a filter cannot see them: libraries then take the older ones.
const IN_MEMORY: [c_long; 2] = [libc::SYS_clone3, libc::SYS_openat2];
/// Requests of `ioctl` that type words into a terminal or have signals sent, whose constants differ in type from C
/// library to C library.
const REQUESTS: [u64; 4] = [0x5412, 0x541C, 0x8901, 0x8902]; // TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP
/// Commands of `fcntl` that have signals sent.
const OWNERS: [u64; 3] = [8, 10, 15]; // F_SETOWN, F_SETSIG, F_SETOWN_EX
/// The bits of a socket's type that are no flags.
const KIND: u64 = 0xF;
/// Sockets of a pair that reach only each other. To others the name of a socket can be given.
const PAIRED: [c_int; 2] = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
const NAMESPACES: [c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

fn broken(error: impl ToString) -> SandboxError {
    SandboxError::Broken(error.to_string())
}

/// All that the child does, made before the fork: it allocates nothing. (A rule for its own `/proc/self` is one `open`
/// of a short path and one call.)
struct Prepared {
    limits: Limits,
    files: RulesetCreated,
    uses_gpus: bool,
    refused: BpfProgram,
    unknown: BpfProgram,
}

pub(super) fn confine(command: &mut Command, policy: &Policy) -> Result<(), SandboxError> {
    let are_signals_kept = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scope::Signal)
        .is_ok();
    let mut prepared = Prepared {
        limits: Limits::of(policy),
        files: files(policy, command.get_program().as_ref())?,
        uses_gpus: policy.uses_gpus,
        refused: refusals(are_signals_kept, policy)?,
        unknown: unknown(),
    };
    // SAFETY: `enter` makes system calls alone between fork and exec. All that it needs was allocated before.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || prepared.enter());
    }
    Ok(())
}

impl Prepared {
    fn enter(&mut self) -> io::Result<()> {
        let last = |_| io::Error::last_os_error();
        close_others()?;
        self.limits.set()?;
        // Root keeps what opens other users' files, which Landlock bounds. It cannot raise its limits then.
        let mut held = rustix::thread::capabilities(None)?;
        let files = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        held.permitted &= files;
        held.effective &= files;
        held.inheritable = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, held)?;
        rustix::thread::set_no_new_privs(true)?;
        let mut files = self.files.try_clone()?;
        if self.uses_gpus {
            // The driver names its threads in `/proc/self/task`. Only here is that this process.
            let own = PathFd::new("/proc/self").map_err(|_| io::Error::last_os_error())?;
            let named = AccessFs::WriteFile | AccessFs::Truncate;
            files = files
                .add_rule(PathBeneath::new(own, named))
                .map_err(|_| io::Error::last_os_error())?;
        }
        files.restrict_self().map_err(|_| io::Error::last_os_error())?;
        apply_filter(&self.unknown).map_err(last)?;
        apply_filter(&self.refused).map_err(last)
    }
}

/// What Landlock allows.
fn files(policy: &Policy, program: &Path) -> Result<RulesetCreated, SandboxError> {
    let abi = ABI::V6;
    let (read, all) = (AccessFs::from_read(abi), AccessFs::from_all(abi));
    let made = Ruleset::default()
        .handle_access(all)
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(Scope::from_all(abi)))
        .and_then(Ruleset::create)
        .map_err(broken)?;
    let handle: Option<OwnedFd> = made.try_clone().map_err(broken)?.into();
    if handle.is_none() {
        return Err(SandboxError::Missing(
            "Landlock (Linux 5.13, and `landlock` in the parameter lsm= of its kernel)",
        ));
    }
    let mut open: Vec<(PathBuf, _)> = vec![(policy.folder.clone(), all), (program.to_path_buf(), read)];
    open.extend(policy.reads.iter().map(|path| (path.clone(), read)));
    open.extend(SYSTEM.iter().map(|path| (PathBuf::from(path), read)));
    open.extend(DEVICES.iter().map(|path| (PathBuf::from(path), all)));
    if policy.uses_gpus {
        open.extend(OF_DRIVER.iter().map(|path| (PathBuf::from(path), read)));
        let devices = std::fs::read_dir("/dev").into_iter().flatten().flatten();
        let gpus = devices.filter(|device| device.file_name().to_string_lossy().starts_with(GPUS));
        open.extend(gpus.map(|device| (device.path(), all)));
    }
    let rules = open.into_iter().filter_map(|(path, access)| {
        // What is not there cannot be opened either.
        let opened = PathFd::new(&path).ok()?;
        let is_file = !path.is_dir();
        let access = access & if is_file { AccessFs::from_file(abi) } else { all };
        Some(Ok(PathBeneath::new(opened, access)))
    });
    made.add_rules(rules)
        .map_err(|error: landlock::RulesetError| broken(error))
}

/// The filter of calls that are refused.
fn refusals(are_signals_kept: bool, policy: &Policy) -> Result<BpfProgram, SandboxError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for calls in [REFUSED, OF_THIS_PROCESSOR, LATE] {
        rules.extend(calls.iter().map(|&call| (call, Vec::new())));
    }
    if policy.starts_groups {
        rules.remove(&libc::SYS_setpgid);
    }
    if policy.uses_gpus {
        rules.remove(&libc::SYS_socket);
        rules.remove(&libc::SYS_bind);
    }
    if !are_signals_kept {
        rules.extend(SIGNALS.iter().map(|&call| (call, Vec::new())));
    }
    let mut refuse = |call: c_long, argument: u8, is: SeccompCmpOp, value: u64| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value);
        let rule = condition
            .and_then(|condition| SeccompRule::new(vec![condition]))
            .map_err(broken)?;
        rules.entry(call).or_default().push(rule);
        Ok(())
    };
    for flag in NAMESPACES {
        let flag = u64::from(flag.cast_unsigned());
        refuse(libc::SYS_clone, 0, SeccompCmpOp::MaskedEq(flag), flag)?;
    }
    // The limits of other processes.
    refuse(libc::SYS_prlimit64, 0, SeccompCmpOp::Ne, 0)?;
    for request in REQUESTS {
        refuse(libc::SYS_ioctl, 1, SeccompCmpOp::Eq, request)?;
    }
    for command in OWNERS {
        refuse(libc::SYS_fcntl, 1, SeccompCmpOp::Eq, command)?;
    }
    let local = u64::from(libc::AF_UNIX.cast_unsigned());
    refuse(libc::SYS_socketpair, 0, SeccompCmpOp::Ne, local)?;
    let paired = PAIRED.map(|kind| u64::from(kind.cast_unsigned()));
    for kind in (0..=KIND).filter(|kind| !paired.contains(kind)) {
        refuse(libc::SYS_socketpair, 1, SeccompCmpOp::MaskedEq(KIND), kind)?;
    }
    if policy.uses_gpus {
        // The driver makes one socket with a name and connects to none: a program cannot, either.
        refuse(libc::SYS_socket, 0, SeccompCmpOp::Ne, local)?;
        let of_driver = u64::from(libc::SOCK_SEQPACKET.cast_unsigned());
        for kind in (0..=KIND).filter(|kind| *kind != of_driver) {
            refuse(libc::SYS_socket, 1, SeccompCmpOp::MaskedEq(KIND), kind)?;
        }
    }
    // An address of a receiver: a comparison of 64 bits.
    let has_address = SeccompCondition::new(4, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)
        .and_then(|condition| SeccompRule::new(vec![condition]));
    // What is opened to be read, or in mode 3, which asks for no right, is truncated, too.
    // Landlock refuses that only since Linux 6.2.
    let [truncates, mode] = [libc::O_TRUNC, libc::O_ACCMODE].map(|flags| u64::from(flags.cast_unsigned()));
    let flags = SeccompCmpOp::MaskedEq(truncates | mode);
    for value in [truncates, truncates | mode] {
        refuse(libc::SYS_openat, 2, flags.clone(), value)?;
        #[cfg(target_arch = "x86_64")]
        refuse(libc::SYS_open, 1, flags.clone(), value)?;
    }
    rules.insert(libc::SYS_sendto, vec![has_address.map_err(broken)?]);
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().map_err(broken)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch).map_err(broken)?;
    filter.try_into().map_err(broken)
}

/// The filter of calls that the other one cannot judge: they seem not to be there.
fn unknown() -> BpfProgram {
    let [load, equal, at_least, give] = [
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    ];
    let line = |code: u32, k, jf| sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let missing = || line(give, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(), 0);
    // The number of the call is first in what a filter reads. A comparison that fails jumps over the next line.
    let mut lines = vec![line(load, 0, 0), line(at_least, UNKNOWN, 1), missing()];
    for call in IN_MEMORY {
        lines.extend([line(equal, u32::try_from(call).unwrap_or(u32::MAX), 1), missing()]);
    }
    lines.push(line(give, libc::SECCOMP_RET_ALLOW, 0));
    lines
}

/// Has all descriptors but the three standard ones closed once the program begins.
#[allow(unsafe_code)]
fn close_others() -> io::Result<()> {
    // SAFETY: the call takes numbers alone, and closes nothing of this process yet.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, c_int::MAX, libc::CLOSE_RANGE_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
