//! What a kernel's memory accesses cost under the simulator, line by line.

use flashcore_check::source;
use flashcore_sim::{Class, MemorySite};

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
