use super::*;

const PTX: &str = "// Cuda compilation tools, release 13.0, V13.0.88\\n.version 9.0\\n.target sm_89\\n";

/// A compiler that is this script. Its last argument is the file to write.
fn script(folder: &Path, name: &str, body: &str) -> Compiler {
    let path = folder.join(name);
    // A file that this process has open cannot be run, nor can one that a child got from another thread.
    let mut write = Command::new("/bin/sh");
    write.args([
        "-c",
        "printf '%s\n' '#!/bin/sh' 'for to; do :; done' \"$1\" > \"$0\"; chmod 755 \"$0\"",
    ]);
    assert!(write.arg(&path).arg(body).status().unwrap().success());
    Compiler::Nvcc(path)
}

fn run(compiler: &Compiler, options: &[&str], limit: Duration) -> Result<Compiled, CompileError> {
    let confinement = match sandbox::available() {
        Ok(()) => Confinement::Sandboxed,
        Err(_) => Confinement::Unsandboxed,
    };
    run_as(confinement, compiler, options, limit)
}

fn run_as(
    confinement: Confinement,
    compiler: &Compiler,
    options: &[&str],
    limit: Duration,
) -> Result<Compiled, CompileError> {
    let options: Vec<String> = options.iter().map(|option| option.to_string()).collect();
    let source = Source {
        file: Path::new("kernels/sum.cu"),
        target: Target::Sm89,
        options: &options,
        reads: &named(&options),
        limit,
        confinement,
    };
    compile_with(compiler, &source)
}

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn options_reach_the_compiler_and_paths_are_as_they_were_given() {
    let folder = tempfile::tempdir().unwrap();
    let here = std::env::current_dir().unwrap();
    let file = format!(".file 1 \\\"{}/kernels/sum.cu\\\"\\n", here.display());
    let body = format!("echo \"$@\" | sed 's/ -o .*//'; printf '{PTX}' > \"$to\"; printf \"{file}\" >> \"$to\"");
    let compiler = script(folder.path(), "nvcc", &body);
    let made = run(&compiler, &["-DN=4", "-Iinclude"], LONG).unwrap();
    assert_eq!(
        made.messages,
        "-ptx -lineinfo -arch=sm_89 -DN=4 -Iinclude kernels/sum.cu"
    );
    assert!(made.ptx.ends_with(".file 1 \"kernels/sum.cu\"\n"), "{}", made.ptx);
    assert_eq!(made.compiler, format!("{compiler} (CUDA 13.0)"));
    assert_eq!(made.ptxas, None);
    std::fs::write(folder.path().join("ptxas"), "").unwrap();
    let made = run(&compiler, &["--gpu-architecture=sm_80"], LONG).unwrap();
    assert_eq!(made.messages, "-ptx -lineinfo --gpu-architecture=sm_80 kernels/sum.cu");
    assert_eq!(made.ptxas, Some(folder.path().join("ptxas")));
}

#[test]
fn refusals_are_the_compilers_words() {
    let folder = tempfile::tempdir().unwrap();
    let refused = run(
        &script(folder.path(), "nvcc", "echo 'sum.cu(3): error: x' >&2; exit 2"),
        &[],
        LONG,
    );
    assert!(matches!(refused, Err(CompileError::Refused { ref messages, .. }) if messages == "sum.cu(3): error: x"));
    let silent = run(&script(folder.path(), "silent", "exit 2"), &[], LONG);
    assert!(matches!(silent, Err(CompileError::Refused { ref messages, .. }) if messages == "exit status: 2"));
    let nothing = run(&script(folder.path(), "nothing", "exit 0"), &[], LONG);
    assert!(matches!(nothing, Err(CompileError::Broken(..))), "{nothing:?}");
    let missing = Compiler::Nvcc(folder.path().join("missing"));
    assert!(matches!(run(&missing, &[], LONG), Err(CompileError::Broken(..))));
}

#[test]
fn a_compiler_that_never_ends_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = script(folder.path(), "nvcc", "exec sleep 3600");
    let late = run(&compiler, &[], Duration::from_millis(200));
    assert!(matches!(late, Err(CompileError::Late { .. })), "{late:?}");
}

/// Of what a source can make it do: an include of any file, and a file where the compiler was told to write one.
#[test]
fn a_compiler_reads_and_writes_no_files_of_the_user() {
    if let Err(error) = sandbox::available() {
        return println!("NOT CHECKED: compilers in the sandbox: {error}");
    }
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let secret = other.path().join("secret");
    std::fs::write(&secret, "").unwrap();
    for (name, does) in [
        ("reads", format!("cat {}", secret.display())),
        ("writes", format!("echo > {}/new", other.path().display())),
    ] {
        let compiler = script(folder.path(), name, &format!("{does} && printf '{PTX}' > \"$to\""));
        let refused = run_as(Confinement::Sandboxed, &compiler, &[], LONG);
        let is_told = |messages: &str| messages.contains("Permission denied") && messages.contains("ran in a sandbox");
        assert!(
            matches!(&refused, Err(CompileError::Refused { messages, .. }) if is_told(messages)),
            "{refused:?}"
        );
        assert!(run_as(Confinement::Unsandboxed, &compiler, &[], LONG).is_ok(), "{name}");
    }
    // Nor does a link in place of its output have this process read one.
    let link = format!("ln -sf {} \"$to\"", secret.display());
    let linked = script(folder.path(), "links", &link);
    let refused = run_as(Confinement::Sandboxed, &linked, &[], LONG).unwrap_err();
    assert!(refused.to_string().contains("symbolic links"), "{refused}");
    // A folder of headers is named by an option.
    let compiler = script(
        folder.path(),
        "includes",
        &format!("cat {} && printf '{PTX}' > \"$to\"", secret.display()),
    );
    let include = format!("-I{}", other.path().display());
    assert!(run_as(Confinement::Sandboxed, &compiler, &[&include], LONG).is_ok());
}

#[test]
fn memory_and_time_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let body = format!("ulimit -v; ulimit -t; printf '{PTX}' > \"$to\"");
    let made = run(&script(folder.path(), "nvcc", &body), &[], LONG).unwrap();
    assert_eq!(made.messages, format!("{}\n{}", 16 << 20, LONG.as_secs()));
}
