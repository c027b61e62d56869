//! PTX for the reader and the simulator: texts of compilers and of kernels of ours, and how far one comes.

use flashcore_check::foreign::{self, Fill, ForeignLaunch, Given, RunError};
use flashcore_ir::{Kernel, KernelBuilder, TileShape};
use flashcore_kernels::{Config, Plan};
use flashcore_problem::Problem;
use flashcore_ptx::Module;
use flashcore_sim::SimOptions;

use super::formats::Fate;

/// What compilers print: guards, a loop, shared symbols, an early return, inline assembly in its own block.
const COMPILED: [&str; 2] = [include_str!("seeds/sum.ptx"), include_str!("seeds/copies.ptx")];

/// A kernel of ours that is short: tiles, loops, branches, products, copies, votes.
fn small(k: &KernelBuilder) {
    let (from, to) = (k.param_ptr::<half::f16>("from"), k.param_ptr_mut::<f32>("to"));
    let n = k.param::<u32>("n");
    let tile = k.shared_tile::<half::f16>("tile", TileShape::new(16, 16));
    let (lane, acc) = (k.lane(), k.acc("acc", 1));
    k.cp_async(tile.at(0, 0).offset(lane * 8u32), from.offset(lane * 8u32), None);
    k.cp_async_commit();
    k.cp_async_wait(0);
    k.barrier();
    k.for_uniform(0u32, n, 1, |_| {
        let a = k.ldmatrix(tile.at(0, 0).offset(lane * 8u32), 4, false);
        let b = k.b_operand::<half::f16>(&[a[0], a[1]]);
        k.mma(acc, 0, k.a_operand(&[a[0], a[1], a[2], a[3]]), b);
    });
    let high = acc.var(0).get().reduce_max(4);
    k.if_else(
        high.gt(0.5).divergent(),
        || to.offset(lane).store(high),
        || to.offset(lane).reduce_add(high.exp2()),
    );
}

/// Texts that the reader knows: those of compilers, and of kernels of ours, without which no damaged one would come
/// far.
pub(super) fn texts() -> Vec<String> {
    let mut texts: Vec<String> = COMPILED.map(str::to_string).to_vec();
    texts.extend(Kernel::build("small", 32, small).map(|kernel| kernel.to_ptx_with_lines()));
    let problem = Problem::builder().heads(2, 1).seq_len_q(45).seq_len_kv(77).head_dim(40);
    let problem = problem.return_lse(true).build();
    for config in Config::all().into_iter().filter(|config| config.family() != "wgmma") {
        let plan = problem.as_ref().ok().and_then(|problem| {
            let plan = Plan::new(problem, &config, flashcore_ir::Target::Sm89);
            plan.ok()
        });
        texts.extend(plan.map(|plan| plan.main.kernel.to_ptx()));
    }
    texts
}

/// Operations of a warp, at most.
const MAX_INSTRUCTIONS: u64 = 2000;

/// Reads a text and simulates its kernels.
pub(super) fn fate(text: &str) -> Result<Fate, super::formats::Refused> {
    let module = Module::read(text)?;
    let declared = foreign::read(text.as_bytes()).map_or(0, |kernels| kernels.len());
    let mut fate = Fate::Read;
    for (entry, _) in module.entries().take(declared) {
        let args = entry.params.iter().map(|param| match (param.ty.as_str(), param.bytes) {
            ("f32" | "f64", _) => Given::Float(0.5),
            (_, 8) => Given::Buffer {
                bytes: 1024,
                fill: Fill::F32,
            },
            (_, 1 | 2 | 4) => Given::Integer(2),
            _ => Given::Struct(Vec::new()),
        });
        let launch = ForeignLaunch {
            grid: [entry.required_cluster.map_or(1, |[blocks, _, _]| blocks), 1, 1],
            threads: entry.threads_allowed().is_none().then_some(64),
            dynamic_shared: 256,
            args: args.collect(),
            schedules: 1,
            sim: SimOptions {
                max_instructions: MAX_INSTRUCTIONS,
                // Of late schedules, too.
                seed: text.len() as u64 % 2,
                ..SimOptions::default()
            },
            ..ForeignLaunch::default()
        };
        fate = fate.max(match foreign::run(text, &entry.name, "fuzz.ptx", &launch) {
            Ok(_) => Fate::Simulated,
            Err(RunError::Ptx(_)) => Fate::Read,
            Err(_) => Fate::Kernel,
        });
    }
    Ok(fate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::mutate::Corpus;

    #[test]
    fn what_is_not_damaged_is_simulated() {
        let small = Kernel::build("small", 32, small).unwrap().to_ptx();
        for text in COMPILED.into_iter().chain([small.as_str()]) {
            assert_eq!(fate(text).unwrap(), Fate::Simulated, "{text}");
        }
    }

    #[test]
    fn many_damaged_texts_are_ptx_still() {
        let texts: Vec<Vec<u8>> = texts().into_iter().map(String::into_bytes).collect();
        let corpus = Corpus::new(&texts);
        let mut counts = [0; 3];
        for number in 0..4000 {
            if let Ok(fate) = fate(&String::from_utf8_lossy(&corpus.damaged(number))) {
                counts[fate as usize] += 1;
            }
        }
        // A third is PTX still, and one in ten a kernel that runs.
        assert!(counts.iter().sum::<u32>() > 1000 && counts[2] > 200, "{counts:?}");
    }
}
