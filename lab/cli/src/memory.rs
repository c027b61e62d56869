//! The shared memory of a kernel, and the cost of its accesses under the simulator, by line.

use flashcore_check::layout::advise;
use flashcore_check::{CheckOptions, log_of, source};
use flashcore_ir::Ledger;
use flashcore_kernels::Plan;
use flashcore_sim::{Class, MemorySite};

use crate::{Failure, HEAD, Page, whole};

const QUOTE: usize = 40;

/// Adds a line for each buffer of shared memory, and the sum. Padding counts what rows are padded by and what alignment
/// leaves free before a buffer.
pub(crate) fn add_ledger(page: &mut Page, ledger: &Ledger) {
    if ledger.buffers.is_empty() {
        return page.line("  no shared memory");
    }
    let names: Vec<String> = ledger.buffers.iter().map(|b| shortened(&b.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).fold(6, usize::max);
    page.line(format_args!(
        "  {:>8}  {:>8}  {:<width$}  {:<28}  {:>7}  swizzle",
        "offset", "bytes", "buffer", "shape", "padding"
    ));
    for (b, name) in ledger.buffers.iter().zip(&names) {
        let stages = match b.stages {
            1 => String::new(),
            n => format!("{n} stages × "),
        };
        let shape = format!("{stages}{} × {} {}", b.rows, b.cols, b.element.ptx());
        let padding = b.padding_bytes() + b.gap_before;
        let swizzle = format!("{:?}", b.swizzle).to_lowercase();
        let within = b
            .reuses
            .map_or(String::new(), |other| format!(", in {}", names[other.0 as usize]));
        page.line(format_args!(
            "  {:>8}  {:>8}  {name:<width$}  {shape:<28}  {padding:>7}  {swizzle}{within}",
            b.offset, b.bytes
        ));
    }
    let kind = if ledger.is_static { "static" } else { "dynamic" };
    page.line(format_args!("  {:>8}  {:>8}  total, {kind}", "", ledger.total_bytes()));
}

fn shortened(name: &str) -> String {
    const MOST: usize = 14;
    if name.chars().count() <= MOST {
        return name.to_string();
    }
    name.chars().take(MOST - 1).chain(['…']).collect()
}

/// Adds a table of accesses by line, in the order of the program. Conflicts are passes over the banks of
/// shared memory, or sectors of global memory, beyond the fewest that the same bytes can take.
pub(crate) fn add_table(page: &mut Page, sites: &[MemorySite]) {
    let about = "passes over the banks and sectors of 32 bytes by line";
    page.line(format_args!("\n{HEAD}Memory{HEAD:#}, {about}"));
    let mut row = |line: &str, access: &str, counts: [&str; 3], source: &str| {
        let [executed, passes, beyond] = counts;
        page.line(format_args!(
            "  {line:<22} {access:<12} {executed:>11} {passes:>11} {beyond:>11}  {source}"
        ));
    };
    row("line", "access", ["executed", "passes", "beyond"], "source");
    let beyond = |site: &MemorySite| site.transactions.saturating_sub(site.ideal);
    for site in sites {
        let quote = source::quote(site.line.file, site.line.line).unwrap_or_default();
        let quote: String = quote.chars().take(QUOTE).collect();
        let line = format!("{}:{}", file_name(site.line.file), site.line.line);
        let [executed, passes, beyond] = [site.requests, site.transactions, beyond(site)].map(whole);
        let counts = [executed.as_str(), &passes, &beyond];
        row(&line, access(site.class), counts, quote.trim_end());
    }
    let shared = |site: &&MemorySite| matches!(site.class, Class::LoadShared | Class::StoreShared);
    let conflicts = whole(sites.iter().filter(shared).map(beyond).sum::<u64>());
    let text = format!("{conflicts} passes beyond those that shared memory needs");
    page.field("conflicts", text);
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Number of accesses of the first block that advice and pictures are made from.
pub(crate) const LOGGED: usize = 200_000;

/// Adds, for each buffer of the first kernel with bank conflicts, the layout that would remove most.
pub(crate) fn add_advice(page: &mut Page, plan: &Plan, options: &CheckOptions) -> Result<(), Failure> {
    let log = log_of(plan, options, LOGGED).map_err(Failure::failed)?;
    for advice in advise(plan.main.kernel.ledger(), &log) {
        let best = match &advice.best {
            None => "no swizzle and no padding would make them fewer".to_string(),
            Some(best) => {
                let bytes = match best.ledger_bytes {
                    0 => "for no bytes more".to_string(),
                    bytes if bytes > 0 => format!("for {} B more", whole(bytes)),
                    bytes => format!("and save {} B", whole(bytes.unsigned_abs())),
                };
                format!("{} would leave {} {bytes}", best.what, whole(best.beyond))
            }
        };
        let (beyond, passes) = (whole(advice.beyond), whole(advice.passes));
        let at = format!("{}:{}", file_name(advice.worst.file), advice.worst.line);
        let buffer = advice.buffer;
        let text = format!("{buffer}: {beyond} of {passes} passes of block 0 are conflicts, most at {at}; {best}");
        page.field("advice", text);
    }
    Ok(())
}

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

#[cfg(test)]
mod tests {
    use flashcore::{bf16, f16};
    use flashcore_ir::{Kernel, KernelBuilder, Swizzle, TileShape};

    use super::*;

    fn shown(body: impl FnOnce(&KernelBuilder)) -> String {
        let mut page = Page::default();
        add_ledger(&mut page, Kernel::build("k", 128, body).unwrap().ledger());
        page.to_string()
    }

    #[test]
    fn shared_memory_is_told_within_100_columns() {
        let extreme = shown(|k| {
            let whole = k.shared_tile::<bf16>("everything_that_there_is", TileShape::new(1024, 512).stages(12));
            k.shared_tile_reusing::<bf16, _>("reused_everything", TileShape::new(1024, 512).stages(12), whole);
        });
        assert!(extreme.lines().all(|line| line.chars().count() <= 100), "{extreme}");
        // The tiles of a pipelined kernel: staged, swizzled, padded, reused.
        let text = shown(|k| {
            k.shared_tile::<f32>("bias", TileShape::new(1, 3));
            let q = k.shared_tile::<f16>("q", TileShape::new(64, 64).swizzled(Swizzle::B128));
            k.shared_tile::<f16>("k", TileShape::new(64, 64).swizzled(Swizzle::B128).stages(2));
            k.shared_tile::<bf16>("v", TileShape::new(64, 64).padded(8).stages(2));
            k.shared_tile_reusing::<f32, _>("partial_sums_of_all_warps", TileShape::new(16, 64), q);
        });
        insta::assert_snapshot!(text);
        assert_eq!(shown(|_| ()), "  no shared memory\n");
    }
}
