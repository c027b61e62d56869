//! Cases that were written before, simulated again: for a comparison with what a GPU has recorded of them.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use flashcore_ir::files;
use flashcore_ptx::Module;
use flashcore_sim::{PtxArg, PtxBuffer, PtxKernel, PtxLaunch, SimOptions, TensorSums};
use serde_json::Value;

use super::in_order;

fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or(0) as usize
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("").to_string()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap_or("").as_bytes();
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap_or(""), 16).unwrap_or(0);
    digits.chunks(2).map(byte).collect()
}

/// The launch of a case, and what its buffers hold before it.
fn launch(case: &Value, data: &[u8]) -> (PtxLaunch, Vec<Vec<u8>>) {
    let axes = |value: &Value| std::array::from_fn(|axis| number(&value[axis]) as u32);
    let buffers = list(&case["buffers"]);
    let args = list(&case["args"]).iter().map(|arg| PtxArg {
        bytes: bytes(&arg[0]),
        pointers: list(&arg[1])
            .iter()
            .map(|at| (number(&at[0]), number(&at[1])))
            .collect(),
    });
    let variables = list(&case["variables"]).iter();
    let contents = buffers.iter().map(|held| match held["before"].as_u64() {
        Some(at) => data[at as usize..][..number(&held["bytes"])].to_vec(),
        None => vec![0; number(&held["bytes"])],
    });
    let launch = PtxLaunch {
        file: text(&case["module"]),
        grid: axes(&case["grid"]),
        block: axes(&case["block"]),
        dynamic_shared: number(&case["shared"]) as u32,
        buffers: buffers
            .iter()
            .map(|held| PtxBuffer {
                name: text(&held["name"]),
                bytes: number(&held["bytes"]) as u64,
                element: 4,
                written: true,
            })
            .collect(),
        args: args.collect(),
        variables: variables.map(|of| (text(&of[0]), bytes(&of[1]))).collect(),
    };
    (launch, contents.collect())
}

/// Simulates the cases of a folder, and writes their results in the place of those before. Returns how many it cannot
/// simulate.
pub(super) fn again(folder: &Path) -> Result<usize, Box<dyn Error>> {
    let mut told: Value = serde_json::from_str(&files::read_text_capped(&folder.join("cases.json"), files::LARGE)?)?;
    let mut data = files::read_capped(&folder.join("data.bin"), files::LARGE)?;
    let mut modules = HashMap::new();
    for case in list(&told["cases"]) {
        let name = text(&case["module"]);
        if !modules.contains_key(&name) {
            modules.insert(
                name.clone(),
                files::read_text_capped(&folder.join(&name), files::SMALL)?,
            );
        }
    }
    let ran = in_order(list(&told["cases"]), |_, case| {
        // The head of the module, and this kernel of it.
        let (module, entry) = (&modules[&text(&case["module"])], text(&case["entry"]));
        let begin = module.find(&format!(".visible .entry {entry}(")).unwrap_or(0);
        let head = module.find(".visible .entry ").unwrap_or(0);
        let end = module[begin + 1..]
            .find("\n.visible .entry ")
            .map_or(module.len(), |at| begin + 1 + at);
        let is_one = !case["declaration"].is_null();
        let kernel = if is_one {
            module.clone()
        } else {
            module[..head].to_string() + &module[begin..end]
        };
        let (launch, mut buffers) = launch(case, &data);
        let options = SimOptions {
            tensor_sums: TensorSums::Hopper,
            host_threads: 1,
            ..SimOptions::default()
        };
        let module = Module::read(&kernel).map_err(|error| error.to_string())?;
        let kernel = PtxKernel::read(&module, &entry, &launch);
        let report = kernel.and_then(|kernel| kernel.simulate(&mut buffers, &options));
        let report = report.map_err(|error| error.to_string())?;
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        Ok::<_, String>((buffers, findings))
    });
    let mut failed = 0;
    for (case, ran) in told["cases"].as_array_mut().into_iter().flatten().zip(ran) {
        case["pending"] = ran.is_err().into();
        match ran {
            Ok((buffers, findings)) => {
                for (held, after) in list(&case["buffers"]).iter().zip(buffers) {
                    if let Some(at) = held["after"].as_u64() {
                        data[at as usize..][..after.len()].copy_from_slice(&after);
                    }
                }
                findings
                    .first()
                    .iter()
                    .for_each(|finding| println!("{}: {finding}", text(&case["name"])));
                case["findings"] = findings.into();
            }
            Err(why) => {
                failed += 1;
                println!("{}: {why}", text(&case["name"]));
            }
        }
    }
    println!(
        "{} cases simulated again, {failed} not",
        list(&told["cases"]).len() - failed
    );
    std::fs::write(folder.join("data.bin"), data)?;
    std::fs::write(folder.join("cases.json"), serde_json::to_string(&told)?)?;
    Ok(failed)
}
