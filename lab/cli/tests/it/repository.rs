//! Rules of the repository that the compiler does not enforce.

use std::path::{Path, PathBuf};

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files below a folder whose names end in this, but none of a build.
fn files(folder: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            files(&path, end, found);
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The packages in a folder of crates, and their manifests.
fn packages(folder: &str) -> Vec<(String, toml::Table)> {
    let mut manifests = Vec::new();
    files(&root().join(folder), "Cargo.toml", &mut manifests);
    let read = |path: &PathBuf| {
        let manifest: toml::Table = text(path).parse().unwrap();
        (manifest["package"]["name"].as_str().unwrap().to_string(), manifest)
    };
    manifests.iter().map(read).collect()
}

/// What of the library's manifests refers to packages of the lab. A dev-dependency is allowed if it is a path without
/// a version: what is published does not have it.
fn imports_of_lab(library: &[(String, toml::Table)], lab: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, manifest) in library {
        let targets = manifest.get("target").and_then(toml::Value::as_table);
        let tables = targets
            .into_iter()
            .flat_map(toml::Table::values)
            .filter_map(toml::Value::as_table);
        for table in tables.chain([manifest]) {
            for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
                let Some(dependencies) = table.get(kind).and_then(toml::Value::as_table) else {
                    continue;
                };
                for (key, value) in dependencies {
                    let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
                    let by_path_only = value.get("path").is_some() && value.get("version").is_none();
                    if lab.iter().any(|of| of == package) && !(kind == "dev-dependencies" && by_path_only) {
                        wrong.push(format!("{name}: {kind}: {key}"));
                    }
                }
            }
        }
    }
    wrong
}

#[test]
fn the_library_never_imports_the_lab() {
    let (library, lab) = (packages("crates"), packages("lab"));
    let lab: Vec<String> = lab.into_iter().map(|(name, _)| name).collect();
    assert!(library.len() >= 6 && lab.len() >= 6, "{lab:?}");
    assert_eq!(imports_of_lab(&library, &lab), Vec::<String>::new());

    // Nor do its sources include files of the lab.
    let mut sources = Vec::new();
    files(&root().join("crates"), ".rs", &mut sources);
    let includes = sources.iter().filter(|path| {
        let has = |line: &str| line.contains("../lab/") && !line.trim_start().starts_with("//");
        path.components().any(|part| part.as_os_str() == "src") && text(path).lines().any(has)
    });
    assert_eq!(includes.collect::<Vec<_>>(), Vec::<&PathBuf>::new());

    // The rule finds what it is for.
    let planted = |dependencies: &str| {
        let manifest: toml::Table = format!("[package]\nname = \"x\"\n{dependencies}").parse().unwrap();
        imports_of_lab(&[("x".to_string(), manifest)], &lab)
    };
    assert_eq!(
        planted("[dev-dependencies]\nflashcore-sim = { path = \"../../lab/sim\" }"),
        [""; 0]
    );
    assert_eq!(
        planted("[dev-dependencies]\nflashcore-sim.workspace = true"),
        ["x: dev-dependencies: flashcore-sim"]
    );
    assert_eq!(
        planted("[dependencies]\nsim = { package = \"flashcore-sim\", path = \"\" }"),
        ["x: dependencies: sim"]
    );
    assert_eq!(
        planted("[target.'cfg(unix)'.dependencies]\nflashcore-check.workspace = true"),
        ["x: dependencies: flashcore-check"]
    );
}

/// A key that is there or not, depending on what was found, breaks who reads it: `--json` prints `null`.
#[test]
fn json_has_all_its_keys() {
    // Lines of a protocol, in which a part is sent once; and a problem and a row of a plan table, whose JSON identifies
    // stored evidence: those of a forward pass print as they did before there was another direction.
    const MAY_LEAVE_OUT: [&str; 3] = [
        "lab/tune/src/strategy/outside.rs",
        "crates/problem/src/problem.rs",
        "crates/flashcore/src/plans/table.rs",
    ];
    let mut sources = Vec::new();
    for folder in ["crates", "lab", "bindings"] {
        files(&root().join(folder), ".rs", &mut sources);
    }
    let omits = sources.iter().filter(|path| {
        let allowed = MAY_LEAVE_OUT.iter().any(|file| path.ends_with(file)) || path.ends_with(file!());
        !allowed && text(path).contains("skip_serializing_if")
    });
    assert_eq!(omits.collect::<Vec<_>>(), Vec::<&PathBuf>::new());
}

/// Macros that panic where the reader has gone; `style::print` and `style::eprint` do not.
#[test]
fn the_command_prints_in_one_place() {
    let mut sources = Vec::new();
    files(&root().join("lab/cli/src"), ".rs", &mut sources);
    let prints = sources.iter().filter(|path| {
        let has = |line: &str| line.contains("print!(") || line.contains("println!(");
        text(path).lines().any(has)
    });
    assert_eq!(prints.collect::<Vec<_>>(), Vec::<&PathBuf>::new());
}
