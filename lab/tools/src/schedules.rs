//! Every shipped kernel on small problems under many schedules.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_problem::DType;
use serde_json::json;

use crate::shipped::{Shipped, shipped};

/// Runs every shipped kernel under many schedules; fails on a finding or a wrong output.
///
/// The schedules of a kernel are shared out among its problems, each with another mask.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 100)]
    schedules: u32,
    /// Kernels whose id contains this.
    #[arg(long, default_value = "")]
    kernel: String,
    /// One kernel of each config, that of its largest head size.
    #[arg(long)]
    one_per_config: bool,
    /// Where to write a report.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let (mut rows, mut clean, mut refused, mut simulations) = (Vec::new(), 0, 0, 0);
    let mut all = shipped()?;
    if options.one_per_config {
        all = one_of_each_config(all);
    }
    all.retain(|kernel| kernel.config.to_string().contains(&options.kernel));
    let schedules = options.schedules;
    for kernel in all {
        let started = Instant::now();
        let (mut ran, mut problems) = (0, 0);
        let verdict = match &kernel.plans {
            Err(refusal) => {
                refused += 1;
                format!("refused: {refusal}")
            }
            Ok(plans) => {
                let each = schedules.div_ceil(plans.len() as u32);
                let mut found = None;
                for (i, plan) in plans.iter().enumerate() {
                    let check = CheckOptions {
                        schedules: each,
                        first_schedule: u64::from(each) * i as u64,
                        ..CheckOptions::default()
                    };
                    let report = check_plan(plan, &check)?;
                    (ran, problems) = (ran + report.schedules.len(), problems + 1);
                    if report.verdict != Verdict::Clean {
                        found = Some(report.to_string());
                        break;
                    }
                }
                clean += usize::from(found.is_none());
                found.unwrap_or("clean".to_string())
            }
        };
        simulations += ran;
        println!("{} {} {}: {verdict}", kernel.config, kernel.target, kernel.what());
        rows.push(json!({
            "kernel": kernel.config.to_string(), "target": kernel.target.to_string(), "what": kernel.what(),
            "schedules": ran, "problems": problems, "verdict": verdict, "seconds": started.elapsed().as_secs_f64(),
        }));
    }
    let wrong = rows.len() - clean - refused;
    println!(
        "{} kernels: {clean} clean, {refused} refuse such problems, {wrong} not clean; {simulations} simulations",
        rows.len()
    );
    if let Some(file) = &options.json {
        crate::write_json(file, &json!({ "schedules": schedules, "kernels": rows }))?;
    }
    crate::verdict(wrong == 0)
}

/// The last kernel that serves its problems of each config, in 16 and in 8 bits: head sizes go
/// upwards.
fn one_of_each_config(all: Vec<Shipped>) -> Vec<Shipped> {
    let mut last = BTreeMap::new();
    for kernel in all.into_iter().filter(|kernel| kernel.plans.is_ok()) {
        last.insert((kernel.config.to_string(), kernel.dtype == DType::E4M3), kernel);
    }
    last.into_values().collect()
}
