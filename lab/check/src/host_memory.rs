//! Whether the host's memory holds the tensors of a problem, asked before they are allocated.

use std::fs;
use std::hint::black_box;

use flashcore_problem::{Problem, ProblemError};

/// Refuses a problem if the host cannot hold so many copies of its inputs and of its outputs, and
/// `more` bytes. What other programs take afterwards is not known.
///
/// ```
/// use flashcore_check::check_host_memory;
/// use flashcore_problem::Problem;
/// let problem = Problem::named("tiny")?;
/// assert!(check_host_memory(&problem, 3, 3, 0).is_ok());
/// let error = check_host_memory(&problem, 3, 3, 1 << 60).unwrap_err();
/// assert!(error.to_string().starts_with("the tensors need about 1152921504.6 GB of the host's memory"), "{error}");
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
///
/// # Errors
/// [`ProblemError::HostMemory`].
pub fn check_host_memory(problem: &Problem, inputs: u64, outputs: u64, more: u64) -> Result<(), ProblemError> {
    let bytes = |elements: usize, size: usize| elements as u64 * size as u64;
    // Inputs of e4m3 are drawn as f32.
    let size = problem.dtype().size_bytes();
    let [q, k, v, o] = [
        problem.q_layout(),
        problem.k_layout(),
        problem.v_layout(),
        problem.o_layout(),
    ]
    .map(|one| one.span());
    let saved = problem.gradient_layouts().map_or(0, |layouts| o + layouts.dout.span());
    let input = bytes(
        q + k + v + saved,
        size.max(if problem.num_scales() > 0 { 4 } else { 0 }),
    );
    let of_outputs = problem.outputs().into_iter();
    let output: u64 = of_outputs
        .map(|(_, dtype, layout)| bytes(layout.span(), dtype.size_bytes()))
        .sum();
    // What the reference widens of a head, and the numbers of its rows.
    let keys = bytes(
        problem.seq_len_kv() * (problem.head_dim() + problem.head_dim_v()),
        size_of::<f64>(),
    );
    let rows = bytes(problem.lse_len(), size_of::<[usize; 3]>());
    let needed = [
        input.saturating_mul(inputs),
        output.saturating_mul(outputs),
        keys,
        rows,
        more,
    ];
    let needed = needed.into_iter().fold(0, u64::saturating_add);
    check(needed, available())
}

fn check(needed: u64, available: Option<u64>) -> Result<(), ProblemError> {
    let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    let refused = |had: String| {
        let needed = gigabytes(needed);
        Err(ProblemError::HostMemory { needed, had })
    };
    match available {
        Some(available) if available < needed => refused(format!("{} are free", gigabytes(available))),
        // Limits of the process: memory that is never touched costs nothing.
        _ if !can_reserve(needed) => refused("this process may not have as much".to_string()),
        _ => Ok(()),
    }
}

fn can_reserve(bytes: u64) -> bool {
    let mut nothing: Vec<u8> = Vec::new();
    let reserved = usize::try_from(bytes).is_ok_and(|bytes| nothing.try_reserve_exact(bytes).is_ok());
    // Without a use the compiler may leave the reservation out, and take it for granted.
    black_box(&nothing);
    reserved
}

/// Bytes that Linux says can be had, swap included; `None` on other systems.
#[expect(clippy::disallowed_methods, reason = "a file of the kernel, and short")]
fn available() -> Option<u64> {
    available_of(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn available_of(meminfo: &str) -> Option<u64> {
    let kilobytes = |name: &str| -> Option<u64> {
        let mut lines = meminfo.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(1024 * (kilobytes("MemAvailable")? + kilobytes("SwapFree").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_compared_with_what_can_be_had() {
        let meminfo = "MemTotal:       16000000 kB\nMemAvailable:    1000000 kB\nSwapFree:         500000 kB\n";
        let available = available_of(meminfo);
        assert_eq!((available, available_of("MemFree: 3 kB")), (Some(1_536_000_000), None));
        assert!(check(1_000_000, available).is_ok() && check(1_000_000, None).is_ok());
        let error = check(2_000_000_000, available).unwrap_err().to_string();
        assert!(
            error.contains("about 2.0 GB of the host's memory; 1.5 GB are free"),
            "{error}"
        );
        let error = check(1 << 62, None).unwrap_err().to_string();
        assert!(error.contains("this process may not have as much"), "{error}");
    }
}
