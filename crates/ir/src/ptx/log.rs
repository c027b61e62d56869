//! Reads the log of a PTX compiler, the driver's or `ptxas -v`: registers, spills, shared memory,
//! and the warnings that mean a slow kernel.

/// What the compiler's log says about a module.
///
/// The driver's log is complete after a fresh compilation and nearly empty when the module came from
/// its disk cache; [`JitLog::is_complete`] tells which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JitLog {
    /// One entry a kernel that the log describes.
    pub kernels: Vec<KernelLog>,
    /// Lines with a performance warning of the C75xx family: wgmma serialised, registers not set as
    /// asked, waits injected. A kernel that carries one is not the kernel that was written.
    pub performance_warnings: Vec<String>,
}

/// What the compiler's log says about one kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelLog {
    /// The kernel's name.
    pub name: String,
    /// Registers a thread.
    pub registers: Option<u32>,
    /// Bytes of spill stores and loads a thread.
    pub spills: Option<(u32, u32)>,
    /// Bytes of static shared memory a block, if it has any.
    pub static_shared_bytes: Option<u32>,
}

impl JitLog {
    /// Reads a log.
    pub fn parse(log: &str) -> Self {
        let mut out = Self::default();
        for line in log.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if is_performance_warning(line) {
                out.performance_warnings.push(without_prefix(line).to_string());
            } else if let Some((_, rest)) = line.split_once("Compiling entry function '") {
                let name = rest.split('\'').next().unwrap_or_default().to_string();
                out.kernels.push(KernelLog {
                    name,
                    ..KernelLog::default()
                });
            } else if let Some(kernel) = out.kernels.last_mut() {
                kernel.read(line);
            }
        }
        out
    }

    /// Whether the log describes at least one kernel, as it does after a fresh compilation.
    pub fn is_complete(&self) -> bool {
        !self.kernels.is_empty()
    }

    /// The entry for a kernel.
    pub fn kernel(&self, name: &str) -> Option<&KernelLog> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

impl KernelLog {
    fn read(&mut self, line: &str) {
        // "256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" and
        // "Used 168 registers, used 1 barriers, 49152 bytes smem, 400 bytes cmem[0]".
        let number = |unit: &str| {
            let mut parts = without_prefix(line).split(',').map(str::trim);
            parts.find_map(|part| part.trim_start_matches("Used ").strip_suffix(unit)?.trim().parse().ok())
        };
        self.registers = self.registers.or(number("registers"));
        self.spills = self
            .spills
            .or(number("bytes spill stores").zip(number("bytes spill loads")));
        self.static_shared_bytes = self.static_shared_bytes.or(number("bytes smem"));
    }
}

/// Drops `ptxas info    : ` or `info    : `.
fn without_prefix(line: &str) -> &str {
    match line.split_once(':') {
        Some((prefix, rest)) if prefix.contains("info") || prefix.contains("warning") => rest.trim_start(),
        _ => line,
    }
}

/// Whether the line carries `C75` and two more digits.
fn is_performance_warning(line: &str) -> bool {
    line.match_indices("C75").any(|(at, _)| {
        let starts_word = !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        let tail: Vec<char> = line[at + 3..].chars().take(3).collect();
        let two_digits = tail.len() >= 2 && tail[..2].iter().all(char::is_ascii_digit);
        starts_word && two_digits && !tail.get(2).is_some_and(char::is_ascii_digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ptxas -v` 12.4 and 13.0 on one kernel with a local array.
    const LOCAL: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'local_array' for 'sm_80'
ptxas info    : Function properties for local_array
    256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 256 bytes cumulative stack size, 364 bytes cmem[0]
ptxas info    : Compile time = 1.944 ms";

    /// `ptxas -v` 12.4 on a wgmma whose accumulators are read before the wait.
    const SERIALISED: &str = "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions reading accumulator registers of  a wgmma between start and end of the pipeline stage in the function 'unwaited'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'unwaited' for 'sm_90a'
ptxas info    : Function properties for unwaited
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers";

    #[test]
    fn registers_stack_and_spills_are_read() {
        let log = JitLog::parse(LOCAL);
        assert!(log.is_complete());
        let kernel = log.kernel("local_array").unwrap();
        assert_eq!((kernel.registers, kernel.spills), (Some(8), Some((0, 0))));
        assert_eq!(log.kernel("other"), None);
    }

    #[test]
    fn several_kernels_keep_their_own_numbers() {
        let log = JitLog::parse(
            "info    : 0 bytes gmem
info    : Compiling entry function 'first' for 'sm_90a'
info    : Function properties for first
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
info    : Used 255 registers, used 3 barriers, 1024 bytes smem, 400 bytes cmem[0]
info    : Compiling entry function 'second' for 'sm_90a'
info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
info    : Used 32 registers",
        );
        assert_eq!(log.kernel("first").unwrap().spills, Some((12, 20)));
        assert_eq!(log.kernel("first").unwrap().registers, Some(255));
        assert_eq!(log.kernel("first").unwrap().static_shared_bytes, Some(1024));
        assert_eq!(log.kernel("second").unwrap().registers, Some(32));
        assert_eq!(log.kernel("second").unwrap().spills, Some((0, 0)));
    }

    #[test]
    fn warnings_of_the_c75_family_are_found_whatever_line_they_are_in() {
        let log = JitLog::parse(SERIALISED);
        assert_eq!(log.performance_warnings.len(), 1);
        assert!(log.performance_warnings[0].starts_with("(C7514) Potential Performance Loss"));
        for line in [
            "ptxas info    : (C7517) warpgroup.wait is injected in around line 13 by compiler to allow use of registers defined by GMMA in function 'unwaited'",
            "ptxas warning : (C7504) setmaxnreg ignored to maintain minimum register requirements",
            "C7512",
        ] {
            assert_eq!(JitLog::parse(line).performance_warnings.len(), 1, "{line}");
        }
        for line in [
            "ptxas info : (C7600) x",
            "ABC7512",
            "(C75)",
            "(C75123)",
            "ptxas info : 0 bytes gmem",
        ] {
            assert!(JitLog::parse(line).performance_warnings.is_empty(), "{line}");
        }
        let other = JitLog::parse("ptxas warning : Value of threads per SM for entry k is out of range");
        assert!(other.performance_warnings.is_empty());
    }

    #[test]
    fn a_log_from_the_cache_says_nothing() {
        assert!(!JitLog::parse("").is_complete());
        assert!(!JitLog::parse("\n  \n").is_complete());
    }
}
