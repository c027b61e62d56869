//! The kernels of a corpus, with what their buffers hold after the simulator has run them.

use std::error::Error;
use std::path::{Path, PathBuf};

use flashcore_check::foreign::{LaunchFile, prepare};
use flashcore_ptx::Module;
use flashcore_sim::{PtxKernel, SimOptions, TensorSums};

use super::writer::Area;
use super::{Case, Data, Held, args_of, hex};

/// Adds the kernels of a folder, and the twins of its folder `faults`, with launch files next to them or those of the
/// repository's corpus. Returns how many the simulator does not run, or finds something in.
pub(super) fn write(ptx: &Path, out: &Path, data: &mut Data, cases: &mut Vec<Case>) -> Result<usize, Box<dyn Error>> {
    let declarations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../check/corpus");
    let mut failed = 0;
    for folder in ["", "faults"] {
        if !ptx.join(folder).is_dir() {
            continue;
        }
        let mut files: Vec<PathBuf> = std::fs::read_dir(ptx.join(folder))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        files.retain(|path| path.extension().is_some_and(|ending| ending == "ptx"));
        files.sort();
        for file in files {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if folder == "faults" && !stem.ends_with(".twin") {
                continue;
            }
            let own = file.with_extension("toml");
            let declaration = declarations
                .join(folder)
                .join(format!("{}.toml", stem.trim_end_matches(".twin")));
            let declaration = if own.is_file() { own } else { declaration };
            match case(&stem, &file, &declaration, out, data) {
                Ok(case) => {
                    failed += usize::from(!case.findings.is_empty());
                    case.findings
                        .iter()
                        .take(2)
                        .for_each(|finding| println!("{stem}: {finding}"));
                    cases.push(case);
                }
                Err(why) => {
                    failed += 1;
                    println!("{stem}: {why}");
                }
            }
        }
    }
    Ok(failed)
}

fn case(stem: &str, file: &Path, declaration: &Path, out: &Path, data: &mut Data) -> Result<Case, Box<dyn Error>> {
    let text = flashcore_ir::files::read_text_capped(file, flashcore_ir::files::SMALL)?;
    let module = Module::read(&text)?;
    let entry = module.entries().next().ok_or("no kernel")?.0.name.clone();
    let asked = LaunchFile::read(declaration)?.launch;
    let prepared = prepare(&module, &entry, stem, &asked)?;
    let mut after = prepared.contents.clone();
    let options = SimOptions {
        uninitialized: prepared.unwritten.clone(),
        tensor_sums: TensorSums::Hopper,
        ..SimOptions::default()
    };
    let report = PtxKernel::read(&module, &entry, &prepared.launch)?.simulate(&mut after, &options)?;
    let name = format!("corpus_{stem}.ptx");
    std::fs::write(out.join(&name), &text)?;
    let launch = &prepared.launch;
    let buffers = launch
        .buffers
        .iter()
        .zip(prepared.contents.iter().zip(&after))
        .map(|(buffer, (before, after))| Held {
            name: buffer.name.clone(),
            bytes: buffer.bytes,
            before: Some(data.add(before)),
            after: Some(data.add(after)),
            areas: vec![Area {
                at: 0,
                bytes: buffer.bytes,
                kind: "u",
                absolute: 0.0,
                relative: 0.0,
                form: buffer.name.clone(),
            }],
        });
    Ok(Case {
        name: stem.to_string(),
        module: name,
        entry,
        grid: launch.grid,
        block: launch.block,
        shared: launch.dynamic_shared,
        args: args_of(launch),
        variables: launch
            .variables
            .iter()
            .map(|(name, bytes)| (name.clone(), hex(bytes)))
            .collect(),
        buffers: buffers.collect(),
        declaration: Some(flashcore_ir::files::read_text_capped(
            declaration,
            flashcore_ir::files::SMALL,
        )?),
        pending: false,
        findings: report.findings.iter().map(ToString::to_string).collect(),
    })
}
