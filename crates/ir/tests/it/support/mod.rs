//! Runs PTX through an offline ptxas, where there is one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use flashcore_ir::{Kernel, Target};

/// ptxas: `$FLASHCORE_PTXAS`, or what `scripts/get-ptxas.sh` put into `.bin`.
pub(crate) fn ptxas() -> Option<PathBuf> {
    tool("ptxas", "FLASHCORE_PTXAS")
}

/// nvdisasm: `$FLASHCORE_NVDISASM`, or what `scripts/get-ptxas.sh` put into `.bin`.
pub(crate) fn nvdisasm() -> Option<PathBuf> {
    tool("nvdisasm", "FLASHCORE_NVDISASM")
}

fn tool(name: &str, variable: &str) -> Option<PathBuf> {
    let found = match std::env::var_os(variable) {
        Some(path) => Some(PathBuf::from(path)),
        None => {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.bin").join(name);
            path.exists().then_some(path)
        }
    };
    if found.is_none() {
        let message = format!("no {name}: scripts/get-ptxas.sh fetches one");
        assert!(std::env::var_os("FLASHCORE_REQUIRE_PTXAS").is_none(), "{message}");
        eprintln!("skipped, {message}");
    }
    found
}

/// Assembles a kernel for every target it can run on; any remark beyond statistics is a failure.
pub(crate) fn assemble_everywhere(kernel: &Kernel) {
    let Some(ptxas) = ptxas() else { return };
    let help = Command::new(&ptxas).arg("--help").output().expect("ptxas runs").stdout;
    let help = String::from_utf8_lossy(&help);
    for target in Target::ALL.into_iter().filter(|t| t.is_supported()) {
        let known = help.contains(&format!("'{target}'"));
        if known && kernel.requires().is_met_by(target) {
            remove(&assemble(&ptxas, kernel.name(), &kernel.to_ptx(), target));
        }
    }
}

/// Assembles PTX for a target and returns the cubin's path, which the caller removes.
pub(crate) fn assemble(ptxas: &Path, name: &str, ptx: &str, target: Target) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let unique = format!(
        "{name}-{target}-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let (source, cubin) = (
        folder.join(format!("{unique}.ptx")),
        folder.join(format!("{unique}.cubin")),
    );
    std::fs::write(&source, ptx).expect("the test's own folder is writable");
    let run = Command::new(ptxas)
        .args(["-v", "-arch", target.name(), "-o"])
        .args([&cubin, &source])
        .output()
        .expect("ptxas runs");
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    let remarks: Vec<&str> = said
        .lines()
        .filter(|line| !line.contains(" info ") && !line.contains("0 bytes stack frame, 0 bytes spill stores"))
        .collect();
    assert!(
        run.status.success() && remarks.is_empty(),
        "{name} for {target}: {}\n{ptx}",
        remarks.join("\n")
    );
    remove(&source);
    cubin
}

fn remove(path: &Path) {
    // A file that stays behind harms nobody: the folder is the tests' own.
    let _ = std::fs::remove_file(path);
}

/// The machine code of PTX on a target, an instruction each, predicates and operands included.
pub(crate) fn machine_code(ptx: &str, target: Target) -> Option<Vec<String>> {
    let (ptxas, nvdisasm) = (ptxas()?, nvdisasm()?);
    let cubin = assemble(&ptxas, "machine-code", ptx, target);
    let run = Command::new(nvdisasm)
        .arg("-c")
        .arg(&cubin)
        .output()
        .expect("nvdisasm runs");
    remove(&cubin);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let text = String::from_utf8_lossy(&run.stdout);
    // Lines of code are `/*0010*/ IADD3 R1, …;`.
    let code = text.lines().filter_map(|line| {
        let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
        let is_code = !address.is_empty() && address.chars().all(|c| c.is_ascii_hexdigit());
        is_code.then(|| rest.trim().trim_end_matches(';').trim().to_string())
    });
    Some(code.collect())
}
