//! Times of listed kernels, which a model of the choice is fitted to.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::time::Instant;

use flashcore::unstable::cuda::Stream;
use flashcore_bench::Case;
use flashcore_cuda::Function;
use flashcore_ir::Chip;
use flashcore_kernels::{KernelCache, Plan, select};
use flashcore_tune::worker::Compilers;
use rayon::prelude::*;
use serde_json::json;

use super::bed::{Loaded, Memory};

/// Ids by the name of a problem.
pub(super) type Listed = BTreeMap<String, Vec<String>>;

/// A batch of each round, µs, and its rounds: of a kernel's rounds the median is written.
const BATCH_US: f64 = 400.0;
const ROUNDS: usize = 3;

/// Kernels that are compiled once: all splits of keys share one.
fn kernel_key(case: &Case, id: &str) -> String {
    let problem = &case.problem;
    let base = id
        .split('-')
        .filter(|part| !is_splits(part))
        .collect::<Vec<_>>()
        .join("-");
    let group = if id.contains("-gqa") { problem.group_size() } else { 1 };
    let splits = base.len() < id.len();
    format!(
        "{base} {splits} {group} {}/{} {}",
        problem.head_dim(),
        problem.head_dim_v(),
        problem.dtype()
    )
}

fn is_splits(part: &str) -> bool {
    part.strip_prefix('k').is_some_and(|n| n.parse::<u32>().is_ok())
}

/// The default of a problem, and what is listed for it.
fn ids(case: &Case, listed: &Listed, chip: Chip) -> Vec<String> {
    let default = select(&case.problem, chip, 16, &KernelCache::default()).ok();
    let mut ids: Vec<String> = default
        .into_iter()
        .map(|choice| choice.plan.config.to_string())
        .collect();
    for id in listed.get(&case.name).into_iter().flatten() {
        if !ids.contains(id) {
            ids.push(id.clone());
        }
    }
    ids
}

/// Times every listed kernel that serves its problem, and writes a row a problem.
pub(super) fn sweep(
    cases: &[Case],
    listed: &Listed,
    stream: &Stream,
    chip: Chip,
    compilers: &Compilers,
    times: &mut File,
) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let mut kernels: BTreeMap<String, (&Case, String)> = BTreeMap::new();
    let ids: Vec<Vec<String>> = cases.par_iter().map(|case| ids(case, listed, chip)).collect();
    for (case, ids) in cases.iter().zip(&ids) {
        for id in ids.clone() {
            kernels.entry(kernel_key(case, &id)).or_insert((case, id));
        }
    }
    for (case, id) in kernels.values() {
        compilers.begin(&case.problem, [id.clone()]);
    }
    compilers.wait(|_| ());
    eprintln!("{:.1?} {} kernels compiled", began.elapsed(), kernels.len());
    let mut functions: BTreeMap<Vec<String>, Result<Vec<Function>, String>> = BTreeMap::new();
    for (case, ids) in cases.iter().zip(ids) {
        let default = ids.first().cloned();
        let cache = KernelCache::default();
        let planned = |id: &String| {
            let config = id.parse().map_err(|error| format!("{error}"))?;
            Plan::with_cache(&case.problem, &config, chip, &cache).map_err(|refusal| refusal.to_string())
        };
        let planned: Vec<Result<Plan, String>> = ids.par_iter().map(planned).collect();
        let (mut plans, mut loaded, mut failed) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (id, plan) in ids.iter().zip(planned) {
            match plan {
                Ok(plan) => plans.push((plan, id)),
                Err(refusal) => drop(failed.insert(id, refusal)),
            }
        }
        let memory = Memory::new(stream, &case.problem, plans.iter().map(|(plan, _)| plan))?;
        for (plan, id) in &plans {
            let key: Vec<String> = plan.steps().map(|step| step.kernel.name().to_string()).collect();
            let functions = functions
                .entry(key)
                .or_insert_with(|| Loaded::functions(stream, plan).map_err(|error| error.to_string()));
            match functions {
                Ok(functions) => loaded.push((*id, Loaded::of(stream, plan, functions, &memory)?, Vec::new())),
                Err(error) => drop(failed.insert(*id, error.clone())),
            }
        }
        for round in 0..ROUNDS {
            // Every other round backwards, so that what the clock does is the same for all.
            let count = loaded.len();
            for at in 0..count {
                let at = if round % 2 == 0 { at } else { count - 1 - at };
                let (_, kernel, us) = &mut loaded[at];
                us.push(kernel.time(stream, 1, kernel.runs(BATCH_US)?)?);
            }
        }
        let us: BTreeMap<&String, f64> = loaded
            .iter_mut()
            .map(|(id, _, us)| {
                us.sort_by(f64::total_cmp);
                (*id, (us[ROUNDS / 2] * 100.0).round() / 100.0)
            })
            .collect();
        writeln!(
            times,
            "{}",
            json!({"case": case.name, "problem": case.problem.to_string(), "default": default, "us": us, "failed": failed})
        )?;
    }
    eprintln!("{:.1?} {} problems timed", began.elapsed(), cases.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{DType, Problem};

    use super::*;

    #[test]
    fn splits_share_a_kernel_and_packed_heads_have_one_for_each_group() {
        let case = |heads: usize| {
            let problem = Problem::builder().heads(heads, 2).head_dim(64).dtype(DType::BF16);
            Case::new("short", problem.seq_len(300).build().unwrap())
        };
        let key = |heads, id| kernel_key(&case(heads), id);
        let split = key(8, "wgmma/m128n128-s2-pingpong-spec-k3");
        assert_eq!(split, key(8, "wgmma/m128n128-s2-pingpong-spec-k5"));
        assert_eq!(split, key(4, "wgmma/m128n128-s2-pingpong-spec-k5"));
        assert_ne!(split, key(8, "wgmma/m128n128-s2-pingpong-spec"));
        let packed = "wgmma/m128n128-s2-pingpong-spec-gqa-k3";
        assert_ne!(split, key(8, packed));
        assert_ne!(key(8, packed), key(4, packed));
    }
}
