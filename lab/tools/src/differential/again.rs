//! Cases that were written before, simulated again: for a comparison with what a GPU has recorded of them.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use flashcore_ir::files;
use flashcore_sim::SimOptions;
use serde_json::Value;

use super::case::{Case, simulate};
use super::in_order;

/// The text that a case runs: its module, or of one with many programs the head and this one.
fn text(case: &Case, module: &str) -> String {
    if case.declaration.is_some() {
        return module.to_string();
    }
    let begin = module.find(&format!(".visible .entry {}(", case.entry)).unwrap_or(0);
    let head = module.find(".visible .entry ").unwrap_or(0);
    let end = module[begin + 1..].find("\n.visible .entry ");
    let end = end.map_or(module.len(), |at| begin + 1 + at);
    module[..head].to_string() + &module[begin..end]
}

/// Simulates the cases of a folder, and writes their results in the place of those before. Returns how many it cannot
/// simulate.
pub(super) fn again(folder: &Path) -> Result<usize, Box<dyn Error>> {
    let mut told: Value = serde_json::from_str(&files::read_text_capped(&folder.join("cases.json"), files::LARGE)?)?;
    let mut cases: Vec<Case> = serde_json::from_value(told["cases"].take())?;
    let mut data = files::read_capped(&folder.join("data.bin"), files::LARGE)?;
    let mut modules = HashMap::new();
    for case in &cases {
        if !modules.contains_key(&case.module) {
            let text = files::read_text_capped(&folder.join(&case.module), files::SMALL)?;
            modules.insert(case.module.clone(), text);
        }
    }
    let ran = in_order(&cases, |_, case| {
        let contents = case.buffers.iter().map(|held| match held.before {
            Some(at) => data[at as usize..][..held.bytes as usize].to_vec(),
            None => vec![0; held.bytes as usize],
        });
        let mut buffers: Vec<Vec<u8>> = contents.collect();
        let options = SimOptions {
            host_threads: 1,
            ..SimOptions::default()
        };
        let text = text(case, &modules[&case.module]);
        let findings = simulate(&text, &case.entry, &case.launch(), &mut buffers, options)?;
        Ok::<_, String>((buffers, findings))
    });
    let mut failed = 0;
    for (case, ran) in cases.iter_mut().zip(ran) {
        case.pending = ran.is_err();
        match ran {
            Ok((buffers, findings)) => {
                for (held, after) in case.buffers.iter().zip(buffers) {
                    if let Some(at) = held.after {
                        data[at as usize..][..after.len()].copy_from_slice(&after);
                    }
                }
                if let Some(finding) = findings.first() {
                    println!("{}: {finding}", case.name);
                }
                case.findings = findings;
            }
            Err(why) => {
                failed += 1;
                println!("{}: {why}", case.name);
            }
        }
    }
    println!("{} cases simulated again, {failed} not", cases.len() - failed);
    told["cases"] = serde_json::to_value(cases)?;
    std::fs::write(folder.join("data.bin"), data)?;
    std::fs::write(folder.join("cases.json"), serde_json::to_string(&told)?)?;
    Ok(failed)
}
