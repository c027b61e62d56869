//! Runs every shipped kernel on small problems under many schedules, and looks for findings, wrong answers, and answers
//! that depend on the schedule: `cargo run --release -p flashcore-tools -- schedules --schedules 100 --json FILE`.
//!
//! The schedules of a kernel are shared out among its problems, each of another mask. `--kernel TEXT` takes those alone
//! whose id contains it, `--of config` one kernel of each config, that of its largest head size. Exits with 1 if anything
//! is found.

mod shipped;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Instant;

use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_problem::DType;
use serde::Serialize;

use shipped::{Shipped, shipped};

#[derive(Serialize)]
struct Evidence {
    schedules: u32,
    kernels: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    kernel: String,
    target: String,
    what: String,
    /// Schedules it ran under, and problems.
    schedules: usize,
    problems: usize,
    /// `clean`, `refused`, or what was found.
    verdict: String,
    seconds: f64,
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (mut schedules, mut text, mut json, mut largest) = (100u32, String::new(), None, false);
    let mut arguments = crate::arguments();
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--schedules" => schedules = value.parse()?,
            "--kernel" => text = value,
            "--json" => json = Some(value),
            "--of" if value == "config" => largest = true,
            other => {
                return Err(
                    format!("{other} is not known; known are --schedules, --kernel, --of config, --json").into(),
                );
            }
        }
    }
    let mut rows = Vec::new();
    let mut all = shipped()?;
    if largest {
        all = one_of_each_config(all);
    }
    for kernel in all
        .into_iter()
        .filter(|kernel| kernel.config.to_string().contains(&text))
    {
        let started = Instant::now();
        let (mut verdict, mut ran, mut problems) = ("clean".to_string(), 0, 0);
        match &kernel.plans {
            Err(refusal) => verdict = format!("refused: {refusal}"),
            Ok(plans) => {
                let each = schedules.div_ceil(plans.len() as u32);
                for (i, plan) in plans.iter().enumerate() {
                    let options = CheckOptions {
                        schedules: each,
                        first_schedule: u64::from(each) * i as u64,
                        ..CheckOptions::default()
                    };
                    let report = check_plan(plan, &options)?;
                    ran += report.schedules.len();
                    problems += 1;
                    if report.verdict != Verdict::Clean {
                        verdict = report.to_string();
                        break;
                    }
                }
            }
        }
        let row = Row {
            kernel: kernel.config.to_string(),
            target: kernel.target.to_string(),
            what: kernel.what(),
            schedules: ran,
            problems,
            verdict,
            seconds: started.elapsed().as_secs_f64(),
        };
        println!("{} {} {}: {}", row.kernel, row.target, row.what, row.verdict);
        rows.push(row);
    }
    let count = |verdict: &str| rows.iter().filter(|row| row.verdict.starts_with(verdict)).count();
    let (clean, refused) = (count("clean"), count("refused"));
    let ran: usize = rows.iter().map(|row| row.schedules).sum();
    println!(
        "{} kernels: {clean} clean, {refused} refuse such problems, {} not clean; {ran} simulations",
        rows.len(),
        rows.len() - clean - refused
    );
    let failed = clean + refused < rows.len();
    if let Some(file) = json {
        let evidence = Evidence {
            schedules,
            kernels: rows,
        };
        std::fs::write(file, serde_json::to_string_pretty(&evidence)?)?;
    }
    if failed {
        std::process::exit(1);
    }
    Ok(())
}

/// The last kernel that serves its problems of each config, in 16 and in 8 bits: head sizes go upwards.
fn one_of_each_config(all: Vec<Shipped>) -> Vec<Shipped> {
    let mut last = BTreeMap::new();
    for kernel in all.into_iter().filter(|kernel| kernel.plans.is_ok()) {
        last.insert((kernel.config.to_string(), kernel.dtype == DType::E4M3), kernel);
    }
    last.into_values().collect()
}
