//! The kernels of a corpus, with what their buffers hold after the simulator has run them.

use std::error::Error;
use std::path::Path;

use flashcore_bench::store::files_in;
use flashcore_check::foreign::{ForeignLaunch, Given, LaunchFile, prepare};
use flashcore_ptx::Module;
use flashcore_sim::SimOptions;

use super::case::{Case, Data, simulate};
use super::writer::Area;

/// Adds the kernels of a folder, and the twins of its folder `faults`, with launch files next to them or those of the
/// repository's corpus. Returns how many the simulator does not run, or finds something in.
pub(super) fn write(ptx: &Path, out: &Path, data: &mut Data, cases: &mut Vec<Case>) -> Result<usize, Box<dyn Error>> {
    let declarations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../check/corpus");
    let mut failed = 0;
    for folder in ["", "faults"] {
        if !ptx.join(folder).is_dir() {
            continue;
        }
        for file in files_in(&ptx.join(folder), "ptx")? {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if folder == "faults" && !stem.ends_with(".twin") {
                continue;
            }
            let own = file.with_extension("toml");
            let declaration = declarations
                .join(folder)
                .join(format!("{}.toml", stem.trim_end_matches(".twin")));
            let declaration = if own.is_file() { own } else { declaration };
            let asked = LaunchFile::read(&declaration)?.launch;
            if asked.args.iter().any(|given| matches!(given, Given::Map { .. })) {
                println!("{stem}: left out: tensor maps are not made for a GPU");
                continue;
            }
            match case(&stem, &file, (&declaration, &asked), out, data) {
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

fn case(
    stem: &str,
    file: &Path,
    (declaration, asked): (&Path, &ForeignLaunch),
    out: &Path,
    data: &mut Data,
) -> Result<Case, Box<dyn Error>> {
    let text = flashcore_ir::files::read_text_capped(file, flashcore_ir::files::SMALL)?;
    let module = Module::read(&text)?;
    let entry = module.entries().next().ok_or("no kernel")?.0.name.clone();
    let prepared = prepare(&module, &entry, stem, asked)?;
    let mut after = prepared.contents.clone();
    let options = SimOptions {
        uninitialized: prepared.unwritten.clone(),
        ..SimOptions::default()
    };
    let launch = &prepared.launch;
    let findings = simulate(&text, &entry, launch, &mut after, options)?;
    let name = format!("corpus_{stem}.ptx");
    std::fs::write(out.join(&name), &text)?;
    let mut case = Case::new(stem, &name, &entry, launch, |slot| {
        let (before, after) = (data.add(&prepared.contents[slot]), data.add(&after[slot]));
        let buffer = &launch.buffers[slot];
        (Some(before), Some(after), vec![Area::whole(buffer.bytes, &buffer.name)])
    });
    let declaration = flashcore_ir::files::read_text_capped(declaration, flashcore_ir::files::SMALL)?;
    (case.declaration, case.findings) = (Some(declaration), findings);
    Ok(case)
}
