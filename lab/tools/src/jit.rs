//! Time to load each default kernel: the first time, when the driver compiles it, and in later processes, when it
//! lies in the driver's cache.
//!
//! usage: jit [DEVICE] [JSON]
//!
//! Runs itself twice with a cache folder of its own, which is removed afterwards; the user's cache is not touched. Each
//! run first loads a kernel that is not counted, so that no time is that of starting the compiler.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::Command;

use flashcore::{DType, Device, Mask, Problem};
use flashcore_cuda::{Context, Module, ModuleOptions};
use flashcore_kernels::{KernelCache, Plan, select};
use serde_json::{Value, json};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut args = crate::arguments();
    let device = args.next().unwrap_or_else(|| "best".to_string());
    let Device::Cuda(context) = device.parse()? else {
        return Err(match Device::why_not_cuda() {
            Some(reason) => reason.to_string(),
            None => "the CPU compiles nothing; leave the device out".to_string(),
        }
        .into());
    };
    if let Some("--load") = args.next().as_deref() {
        return load_all(&context);
    }
    let json = crate::arguments().nth(1);
    let folder = tempfile::tempdir()?;
    let cold = in_new_process(&device, folder.path())?;
    let cached = in_new_process(&device, folder.path())?;

    println!("{:<78} {:>9} {:>9}", "kernel", "cold ms", "cached ms");
    let mut kernels = Vec::new();
    for (name, first) in &cold {
        let Some(later) = cached.get(name) else { continue };
        if !first.compiled || later.compiled {
            return Err(format!("{name}: the driver's cache did not do as expected: {first:?}, then {later:?}").into());
        }
        println!("{name:<78} {:>9.1} {:>9.2}", first.ms, later.ms);
        kernels.push(json!({ "kernel": name, "cold_ms": first.ms, "cached_ms": later.ms }));
    }
    if let Some(path) = json {
        let info = context.info();
        let report = json!({
            "device": info.name, "driver": info.driver_release, "what": "load time of each default kernel", "kernels": kernels,
        });
        std::fs::write(path, format!("{report:#}\n"))?;
    }
    Ok(())
}

/// A kernel's load.
#[derive(Debug)]
struct Load {
    compiled: bool,
    ms: f64,
}

/// Loads by kernel, as a process of its own with this cache folder finds them.
fn in_new_process(device: &str, cache: &Path) -> Result<BTreeMap<String, Load>, Box<dyn Error>> {
    let output = Command::new(std::env::current_exe()?)
        .args(["jit", device, "--load"])
        .env("CUDA_CACHE_PATH", cache)
        .env_remove("CUDA_CACHE_DISABLE")
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let loads: Value = serde_json::from_slice(&output.stdout)?;
    let load = |(name, load): (&String, &Value)| {
        let compiled = load["compiled"].as_bool()?;
        let ms = load["ms"].as_f64()?;
        Some((name.clone(), Load { compiled, ms }))
    };
    let loads = loads.as_object().into_iter().flatten();
    Ok(loads.filter_map(load).collect())
}

/// Prints how long each default took to load.
fn load_all(context: &Context) -> Result<(), Box<dyn Error>> {
    let warm_up = Plan::new(
        &Problem::named("tiny")?,
        &"scalar/naive-t64-v16".parse()?,
        target(context)?,
    )?;
    Module::load(context, &warm_up.main.kernel.to_ptx(), &ModuleOptions::default())?;
    let mut loads = serde_json::Map::new();
    for plan in defaults(target(context)?)? {
        for step in plan.steps() {
            // What spills here is passed over when a kernel is chosen, and has cost its compilation all the same.
            let options = ModuleOptions {
                allow_local_memory: true,
                ..ModuleOptions::default()
            };
            let module = Module::load(context, &step.kernel.to_ptx(), &options)?;
            let (name, report) = (step.kernel.name().to_string(), module.report());
            loads
                .entry(name)
                .or_insert_with(|| json!({ "compiled": report.compiled, "ms": report.load_ms }));
        }
    }
    println!("{}", Value::Object(loads));
    Ok(())
}

fn target(context: &Context) -> Result<flashcore_ir::Target, Box<dyn Error>> {
    let (major, minor) = context.info().compute_capability;
    Ok(flashcore_ir::Target::for_capability(major, minor).ok_or("kernels are not made for this device")?)
}

/// What is chosen for small, medium and large problems, at each usual head size, dtype and mask.
fn defaults(target: flashcore_ir::Target) -> Result<Vec<Plan>, Box<dyn Error>> {
    let kernels = KernelCache::default();
    let mut plans = Vec::new();
    for head_dim in [64, 96, 128, 192, 256] {
        for dtype in [DType::F16, DType::BF16] {
            for mask in [Mask::FULL, Mask::CAUSAL] {
                for (batch, rows, keys) in [(1, 512, 512), (1, 1, 4096), (4, 1024, 1024), (8, 4096, 4096)] {
                    let builder = Problem::builder()
                        .batch(batch)
                        .heads(8, 8)
                        .seq_len_q(rows)
                        .seq_len_kv(keys);
                    let problem = builder.head_dim(head_dim).dtype(dtype).mask(mask).build()?;
                    plans.push(select(&problem, target, 16, &kernels)?.plan);
                }
            }
        }
    }
    Ok(plans)
}
