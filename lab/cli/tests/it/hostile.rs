//! Commands in a folder of a stranger: nothing of what lies in it runs or is read, unless the user names it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Ran, command, run};

/// Modules that Python, its start-up, or our programs import.
const MODULES: [&str; 20] = [
    "sitecustomize",
    "usercustomize",
    "runpy",
    "pkgutil",
    "importlib",
    "types",
    "json",
    "ctypes",
    "numpy",
    "torch",
    "flashcore_attn",
    "inspect",
    "hashlib",
    "pathlib",
    "os",
    "re",
    "time",
    "random",
    "judge_arrays",
    "judge_task",
];
/// Programs that commands start.
const PROGRAMS: [&str; 9] = [
    "python3", "python", "ptxas", "nvcc", "clang++", "ncu", "git", "sh", "ldconfig",
];

/// A folder in which everything says that it ran, and a folder of modules that the user has installed.
struct Hostile {
    home: tempfile::TempDir,
}

impl Hostile {
    fn new() -> Hostile {
        let hostile = Hostile {
            home: tempfile::tempdir().expect("a folder"),
        };
        let ran = hostile.at("ran");
        let write = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        let says = |what: &str| format!("open({:?}, 'a').write({what:?} + '\\n')\n", ran.display().to_string());
        for name in MODULES {
            write(hostile.at(&format!("here/{name}.py")), &says(name));
        }
        // As a user's own folder of packages, for a relative PYTHONUSERBASE.
        for version in 9..15 {
            let packages = format!("here/lib/python3.{version}/site-packages");
            write(
                hostile.at(&format!("{packages}/evil.pth")),
                &format!("import sys; {}", says("pth")),
            );
        }
        write(hostile.at("here/evil.pth"), &format!("import sys; {}", says("pth")));
        for name in PROGRAMS {
            let path = hostile.at(&format!("here/{name}"));
            write(
                path.clone(),
                &format!("#!/bin/sh\necho {name} >> '{}'\n", ran.display()),
            );
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
        }
        for name in [
            "tiny",
            "tiny.toml",
            "plans/x.json",
            "flashcore/plans/x.json",
            ".local/share/flashcore/plans/x.json",
        ] {
            write(hostile.at(&format!("here/{name}")), "PLANTED\n");
        }
        // What is really installed: stand-ins for PyTorch and for the package.
        let was_run = hostile.at("was-run");
        let honest = format!(
            "open({:?}, 'a').write(__name__ + '\\n')\n",
            was_run.display().to_string()
        );
        for (name, text) in [
            ("torch/__init__.py", "__version__ = '9.9'\n"),
            ("torch/nn/__init__.py", ""),
            ("torch/nn/functional.py", "def scaled_dot_product_attention(): pass\n"),
            ("flashcore_attn/__init__.py", ""),
            (
                "flashcore_attn/_bench.py",
                "if __name__ == '__main__':\n    print('{\"failed\": \"a stand-in\"}')\n",
            ),
        ] {
            write(hostile.at(&format!("installed/{name}")), &format!("{honest}{text}"));
        }
        write(hostile.at("mine.py"), "def attention(q, k, v):\n    return q\n");
        write(hostile.at("kernel.cu"), "__global__ void f() {}\n");
        hostile
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Runs a command in the folder, and gives what ran of it and what ran of the installed modules.
    fn run(&self, arguments: &str, variables: &[(&str, &str)]) -> (Ran, String, String) {
        let arguments = arguments.replace("HOME", &self.home.path().display().to_string());
        let mut command = command(&arguments);
        command
            .current_dir(self.at("here"))
            .env("HOME", self.at("home"))
            .env("FLASHCORE_CACHE_DIR", self.at("cache"))
            .env_remove("FLASHCORE_PLANS")
            .env_remove("XDG_DATA_HOME")
            .env_remove("FLASHCORE_PYTHON")
            .envs(variables.iter().copied());
        let ran = run(&mut command);
        let said = |name: &str| {
            let text = std::fs::read_to_string(self.at(name)).unwrap_or_default();
            let _ = std::fs::remove_file(self.at(name));
            text
        };
        (ran, said("ran"), said("was-run"))
    }
}

/// The interpreters on this machine's `PATH`, each once: of every version if there are several.
fn pythons() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = (9..15)
        .map(|minor| format!("python3.{minor}"))
        .chain(["python3".to_string()]);
    let mut found = Vec::new();
    for name in names {
        let places = std::env::split_paths(&path).map(|folder| folder.join(&name));
        for place in places.filter(|place| place.is_absolute() && place.is_file()) {
            // Some are stand-ins that start another one.
            let mut asked = Command::new(place);
            let asked = asked
                .current_dir("/")
                .env_remove("PYTHONPATH")
                .args(["-c", "import sys; print(sys.executable)"]);
            let said = asked
                .output()
                .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
            let executable = said.ok().and_then(|said| Path::new(&said).canonicalize().ok());
            found.extend(executable.filter(|one| !found.contains(one)));
        }
    }
    found
}

#[test]
fn no_code_of_the_current_folder_runs() {
    let hostile = Hostile::new();
    let toy = format!("{}/../bench/tests/data/kbench/toy", env!("CARGO_MANIFEST_DIR"));
    let judge = format!("kbench verify {toy} --kernel {toy}/honest.py --trust --device cpu --rounds 1x1 --seed 3");
    // What starts Python, and the marks that its modules leave where they should run.
    let bench = "bench tiny --device cpu --store none --budget 0.01";
    let commands = [
        (bench, "flashcore_attn._bench"),
        (
            "bench tiny --device cpu --store none --budget 0.01 --peers none --kernel HOME/mine.py:attention --trust",
            "__main__",
        ),
        ("parity 1 --device cpu", "torch"),
        (
            "parity 1 --device cpu --kernel HOME/mine.py:attention --trust",
            "__main__",
        ),
        (
            "tune tiny --device cpu --trials 2 --folder HOME/run",
            "flashcore_attn._bench",
        ),
        ("profile tiny --device cpu --peers all", ""),
        // nvcc is looked for in its packages, too.
        ("check HOME/kernel.cu --launch threads=32", ""),
        (judge.as_str(), ""),
    ];
    let installed = hostile.at("installed").display().to_string();
    let pythons = pythons();
    if pythons.is_empty() {
        return println!("skipped: there is no python3 on PATH");
    }
    for (index, python) in pythons.iter().enumerate() {
        let bin = hostile.at(&format!("bin{index}"));
        std::fs::create_dir(&bin).expect("a folder");
        std::os::unix::fs::symlink(python, bin.join("python3")).expect("a link");
        let bin = bin.display().to_string();
        for (place, (arguments, mark)) in commands.iter().enumerate() {
            // The current folder in different ways, one with each command and one after another.
            let paths = [format!(":{bin}"), format!(".:{bin}:"), format!("../here:{bin}")];
            let modules = [
                installed.clone(),
                format!(":{installed}"),
                format!("{installed}:.:../here:"),
            ];
            let folder = [
                ("PYTHONUSERBASE", "."),
                ("PYTHONPYCACHEPREFIX", "cache"),
                ("PYTHONHOME", "../here"),
            ];
            let which = (place + index) % 3;
            let variables = [
                ("PATH", paths[which].as_str()),
                ("PYTHONPATH", modules[which].as_str()),
                folder[(which + usize::from(index % 2 == 1)) % 3],
            ];
            let (ran, evil, honest) = hostile.run(arguments, &variables);
            let context = format!(
                "{} {variables:?}: flashcore {arguments}\n{}",
                python.display(),
                ran.words()
            );
            assert_eq!(evil, "", "{context}");
            assert!(!ran.words().contains("PLANTED"), "{context}");
            // What the user installed is found all the same.
            assert!(honest.contains(mark), "{honest}{context}");
            let _ = std::fs::remove_dir_all(hostile.at("run"));
        }
        // Nothing installed: a module of this name in the folder is none.
        let (ran, evil, _) = hostile.run(bench, &[("PATH", &format!(".:{bin}"))]);
        assert_eq!((evil.as_str(), ran.code), ("", 0), "{}", ran.words());
        assert!(ran.words().contains("No module named 'torch'"), "{}", ran.words());
    }
}

#[test]
fn a_python_that_depends_on_the_current_folder_is_refused() {
    let hostile = Hostile::new();
    for (name, why) in [
        ("./python3", "a relative path"),
        ("../here/python3", "a relative path"),
        ("python3", "not found in"),
    ] {
        let variables = [("FLASHCORE_PYTHON", name), ("PATH", ":.:../here")];
        let (ran, evil, _) = hostile.run("bench tiny --device cpu --store none --budget 0.01", &variables);
        assert_eq!((evil.as_str(), ran.code), ("", 0), "{}", ran.words());
        assert!(
            ran.words().contains(&format!("{name}: {why}").replace(": a", ": is a")),
            "{}",
            ran.words()
        );
    }
}

#[test]
fn a_compiler_that_depends_on_the_current_folder_is_refused() {
    let hostile = Hostile::new();
    for variable in ["FLASHCORE_NVCC", "FLASHCORE_PYTHON"] {
        for (name, why) in [("./nvcc", "is a relative path"), ("clang++", "not found in any folder")] {
            let (ran, evil, _) = hostile.run("check HOME/kernel.cu", &[(variable, name), ("PATH", ":.:../here")]);
            assert_eq!((evil.as_str(), ran.code), ("", 3), "{}", ran.words());
            let said = format!("{name} could not be used: {why}");
            assert!(ran.words().contains(&said), "{said}: {}", ran.words());
        }
    }
}

#[test]
fn other_commands_start_no_program_of_the_current_folder() {
    let hostile = Hostile::new();
    let others = [
        "",
        "run tiny --device cpu",
        "gate --against HOME/none.json",
        "evidence compare latest latest",
        "reproduce 0123456789ab",
        "kbench export tiny HOME/task --force",
        "worker --bench",
        "check tiny",
        "check HOME/kernel.cu",
        "explain tiny --profile h200",
        "list problems",
        "evidence",
        "report -o HOME/report.html",
        "tune show",
        "plans",
        "device",
        "profile tiny --device cpu",
        "tune tiny --device cpu --trials 1 --peers none --proposer sh",
        "tune tiny --device cpu --trials 1 --peers none --workers git",
        // Above, with a Python.
        "bench --help",
        "parity --help",
    ];
    let help = hostile.run("--help", &[]).0.stdout;
    let listed = help.split("Commands:\n").nth(1).expect("a list of commands");
    let listed = listed.lines().map_while(|line| line.strip_prefix("  "));
    for command in listed
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !name.is_empty())
    {
        let is_run = others.iter().any(|words| words.split(' ').next() == Some(command));
        assert!(is_run || command == "help", "{command} is not among what is run here");
    }
    for arguments in others {
        for path in ["", ".", "../here:"] {
            let (ran, evil, _) = hostile.run(arguments, &[("PATH", path)]);
            assert_eq!(evil, "", "PATH={path} flashcore {arguments}\n{}", ran.words());
            assert!(
                !ran.words().contains("PLANTED"),
                "flashcore {arguments}\n{}",
                ran.words()
            );
        }
    }
}
