//! What a kernel's memory accesses cost under the simulator, line by line.

use flashcore_check::layout::advise;
use flashcore_check::{CheckOptions, log_of, source};
use flashcore_kernels::Plan;
use flashcore_sim::{Class, MemorySite};

use crate::failure::Failure;
use crate::style::{self, HEAD};

/// Characters that a source line is cut to.
const QUOTE: usize = 40;

/// A table of accesses, by line in the order of the program. Conflicts are passes over the banks of shared memory,
/// or sectors of global memory, beyond the fewest that the same bytes could take.
pub(crate) fn table(sites: &[MemorySite]) -> String {
    let mut text = format!("\n{HEAD}Memory{HEAD:#}, passes over the banks and sectors of 32 bytes by line\n");
    text.push_str(&format!(
        "  {:<22} {:<12} {:>11} {:>11} {:>11}  {}\n",
        "line", "access", "executed", "passes", "beyond", "source"
    ));
    for site in sites {
        let file = site.line.file.rsplit('/').next().unwrap_or(site.line.file);
        let quote = source::quote(site.line.file, site.line.line).unwrap_or_default();
        let quote: String = quote.chars().take(QUOTE).collect();
        text.push_str(&format!(
            "  {:<22} {:<12} {:>11} {:>11} {:>11}  {}\n",
            format!("{file}:{}", site.line.line),
            access(site.class),
            style::whole(site.requests),
            style::whole(site.transactions),
            style::whole(site.transactions.saturating_sub(site.ideal)),
            quote.trim_end(),
        ));
    }
    let shared = |site: &&MemorySite| matches!(site.class, Class::LoadShared | Class::StoreShared);
    let beyond = |site: &MemorySite| site.transactions.saturating_sub(site.ideal);
    let conflicts: u64 = sites.iter().filter(shared).map(beyond).sum();
    text.push_str(&style::field(
        "conflicts",
        &format!(
            "{} passes beyond those that shared memory needs",
            style::whole(conflicts)
        ),
    ));
    text
}

/// Accesses of the first block that advice and pictures are made from.
pub(crate) const LOGGED: usize = 200_000;

/// For each buffer of the first kernel whose accesses meet in banks, the layout that would spread them.
pub(crate) fn advice(plan: &Plan, options: &CheckOptions) -> Result<String, Failure> {
    let log = log_of(plan, options, LOGGED).map_err(Failure::failed)?;
    let mut text = String::new();
    for advice in advise(plan.main.kernel.ledger(), &log) {
        let file = advice.worst.file.rsplit('/').next().unwrap_or(advice.worst.file);
        let best = match &advice.best {
            None => "no swizzle and no padding would make them fewer".to_string(),
            Some(best) => {
                let bytes = match best.ledger_bytes {
                    0 => "for no bytes more".to_string(),
                    bytes if bytes > 0 => format!("for {} B more", style::whole(bytes as u64)),
                    bytes => format!("and save {} B", style::whole(bytes.unsigned_abs())),
                };
                format!("{} would leave {} {bytes}", best.what, style::whole(best.beyond))
            }
        };
        let what = format!(
            "{}: {} of {} passes of block 0 are conflicts, most at {file}:{}; {best}",
            advice.buffer,
            style::whole(advice.beyond),
            style::whole(advice.passes),
            advice.worst.line,
        );
        text.push_str(&style::field("advice", &what));
    }
    Ok(text)
}

/// What an access does, and to which memory.
fn access(class: Class) -> &'static str {
    match class {
        Class::LoadShared => "load shared",
        Class::StoreShared => "store shared",
        Class::LoadGlobal => "load global",
        Class::StoreGlobal => "store global",
        Class::CopyAsync => "copy from",
        _ => "atomic",
    }
}
