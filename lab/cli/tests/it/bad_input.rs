//! Every bad input: a message that says what was given, what is allowed and what to do, and the exit code.

use crate::common::{assert_fits, command, flashcore, run, words};

/// Arguments, the exit code, and part of the message.
const USAGE: &[(&str, &str)] = &[
    // Files and pieces that are not there, flags that belong to files.
    ("explain no/such/file.ptx", "no/such/file.ptx: No such file"),
    ("gate", "required arguments were not provided: --against <FILE>"),
    ("gate --against no-such.json", "no-such.json: No such file"),
    ("gate --write x --profile l5", "known are l4"),
    ("gate --write x --allow error=-1%", "write a share above 0 and below 1"),
    ("gate --write x --plant drop-barrier:2", "write drop-barrier"),
    ("gate --write x -o x", "x is named for two outputs"),
    ("gate --write x --kernel cpu/m64n64", "runs on the CPU"),
    (
        "gate --write x --evidence no-such-run",
        "no-such-run; allowed: a key or revision",
    ),
    ("parity 0", "0 is not in 1.."),
    ("parity --only 18446744073709551615", "18446744073709551615 is not in"),
    (
        "run tiny --batch-invariant 18446744073709551615",
        "batch_invariant is 18446744073709551615; at most 268435456 is supported",
    ),
    ("parity 3 --only 2", "cannot be used with"),
    ("parity --family wmma", "invalid value 'wmma' for '--family"),
    ("parity --device sim:l5", "no card is named `l5`; known are l4"),
    (
        "parity --device cpu --plant drop-barrier",
        "--plant is for --device sim",
    ),
    (
        "parity --plant drop-everything",
        "no mistake is named `drop-everything`; known are",
    ),
    ("device x.json --measure", "--measure is not for a file of rates"),
    ("device --device cpu", "--device is cpu; allowed: cuda, cuda:N"),
    (
        "explain --launch smem=100",
        "--launch is not for a problem; it needs a FILE.ptx or FILE.cubin in place of a problem",
    ),
    ("explain x.ptx --heads 3", "--heads is not for a file of kernels"),
    (
        "explain x.cubin --dtype bf16 --window 1,1",
        "is not for a file of kernels in place of a problem; allowed: --profile, --json, --launch",
    ),
    ("explain x.ptx --svg x", "--svg is not for a file of kernels"),
    ("explain x.cubin --claim tile", "write SYMBOL=BYTES"),
    (
        "check --launch grid=1",
        "--launch is not for a problem; it needs a FILE.ptx",
    ),
    ("check x.ptx --arg buf:many", "`buf:many` is not an argument"),
    (
        "check x.ptx --arg buf:99999999999999",
        "at most 1073741824 B are simulated",
    ),
    ("check x.ptx --kernel mma/m64", "--kernel is not for a file of kernels"),
    (
        "check x.ptx -- -O3",
        "what stands after `--` is not for a file of kernels",
    ),
    (
        "check tiny -- -DN=4",
        "what stands after `--` is not for a problem; it needs a FILE.cu in place of a problem",
    ),
    ("check x.cu -- -std=c++17", "x.cu: No such file or directory"),
    ("check museum/no-opt-in --memory", "--memory is not for museum/NAME"),
    (
        "check museum/no-opt-in --kernel mma/m64",
        "--kernel is not for museum/NAME",
    ),
    ("check tiny --launch opted-in", "--launch is not for a problem"),
    (
        "check x.ptx --trace x.rs:1,block=1",
        "--trace is not for a file of kernels",
    ),
    ("check tiny --trace x.rs:1,lane=32", "lane is 32; allowed: 0 to 31"),
    (
        "check x.ptx --launch threads=abc",
        "invalid value 'threads=abc' for '--launch <FIELDS|FILE>': write XxYxZ, e.g. 8x1x1",
    ),
    (
        "explain x.ptx --launch smem=64x",
        "write a whole number from 0 to 4294967295",
    ),
    ("check museum/no-opt-in --blocks 3", "--blocks is not for museum/NAME"),
    ("check tiny --trace kernel,block=99x99x99", "`kernel` takes no fields"),
    (
        "check tiny --profile l4 --kernel scalar/tiled-m16n16-w4-v16 --trace x.rs:1,block=1,warp=4",
        "block 1,0,0 warp 4 is outside the grid",
    ),
    ("check tiny --blocks 0", "0 is not in 1.."),
    ("check museum/mona-lisa", "the museum has no exhibit `museum/mona-lisa`"),
    ("run museum/mona-lisa", "the museum has no exhibit `museum/mona-lisa`"),
    (
        "explain museum/static-m64",
        "museum/static-m64 is a museum exhibit, not a problem help: `flashcore check museum/static-m64` runs it; \
         `flashcore explain lab/check/museum/static-m64.ptx` explains its file",
    ),
    (
        "explain museum/shuffle-as-fence --launch smem=100",
        "museum/shuffle-as-fence is a museum exhibit, not a problem help: `flashcore check museum/shuffle-as-fence` \
         runs it",
    ),
    ("run no/such/file.ptx", "no/such/file.ptx: No such file"),
    // Tasks and kernels of a benchmark.
    (
        "kbench export small",
        "no folder to write to: name a problem and a folder",
    ),
    (
        "kbench export small a-b",
        "a-b: the benchmark names the compiled module after the folder",
    ),
    (
        "kbench export small tasks/x --dtype e4m3",
        "cannot have e4m3 tensors with scales",
    ),
    (
        "kbench export small tasks/x --lse",
        "cannot have a second output; leave out --lse",
    ),
    (
        "kbench export small tasks/x --kernel none --profile l4",
        "--profile is for a kernel",
    ),
    (
        "kbench verify no/such --kernel x.cu",
        "no/such/func_forward.py: No such file",
    ),
    (
        "kbench verify x --kernel x.cu --tolerance abs=-1",
        "write a number from 0, e.g. 1e-3",
    ),
    (
        "kbench verify x --kernel x.cu --device gpu",
        "allowed: cuda, cuda:N and cpu",
    ),
    // Shapes that make no sense.
    (
        "run --head-dim 7",
        "head_dim is 7; allowed are multiples of 8 from 8 to 256",
    ),
    (
        "run --head-dim 264",
        "head_dim is 264; allowed are multiples of 8 from 8 to 256",
    ),
    ("explain --head-dim-v 12", "head_dim_v is 12"),
    ("run --batch 0", "batch is 0; it must be at least 1"),
    ("run --heads 0", "heads is 0"),
    ("run --kv-heads 0", "kv_heads is 0"),
    ("check --seq 0", "seq_len_q is 0"),
    ("check --seq-kv 0", "seq_len_kv is 0"),
    ("explain --head-dim 0", "head_dim is 0"),
    (
        "run --heads 8 --kv-heads 3",
        "8 query heads are not a multiple of 3 K/V heads",
    ),
    (
        "run --batch 65536 --heads 65536",
        "the number of elements of q is 140737488355328; at most 2147483648",
    ),
    ("run --seq-kv 4294967296", "seq_len_kv is 4294967296; at most 268435456"),
    ("run --batch 18446744073709551615", "at most 2147483648 is supported"),
    (
        "run --batch 99999999999999999999999",
        "invalid value '99999999999999999999999' for '--batch <N>'",
    ),
    (
        "run --batch -1",
        "invalid value '-1' for '--batch <N>': write a whole number",
    ),
    ("run --softcap 0", "softcap is 0; it must be finite, from 1e-5 to 1e3"),
    ("run --softcap nan", "softcap is NaN"),
    (
        "run --scale -1",
        "softmax_scale is -1; it must be finite, above 0 and at most 1e5",
    ),
    (
        "run --scale 1e7",
        "softmax_scale is 10000000; it must be finite, above 0 and at most 1e5",
    ),
    ("check --scale inf", "softmax_scale is inf; it must be finite"),
    ("run --q-offset 999999999", "q_offset is 999999999; it must lie within"),
    (
        "run --q-offset 9999999999",
        "invalid value '9999999999' for '--q-offset <N>'",
    ),
    // Masks.
    (
        "run --window 128",
        "write the keys before and after each row's own as L,R",
    ),
    (
        "run --window a,b",
        "write the keys before and after each row's own as L,R",
    ),
    (
        "run --window 1,2,3",
        "write the keys before and after each row's own as L,R",
    ),
    (
        "run --window -5,0",
        "write the keys before and after each row's own as L,R",
    ),
    ("run --causal --window 1,0", "cannot be used with"),
    ("run --causal --full", "cannot be used with"),
    ("run --seq 5 --seq-q 6", "cannot be used with"),
    // Names that are none.
    (
        "run smoll",
        "`smoll` is no problem, no set of problems and no readable file",
    ),
    ("run smoll", "did you mean small?"),
    ("explain whisper", "`flashcore list problems` shows them"),
    ("run --dtype int8", "known are f32, fp16, bf16, e4m3"),
    ("run --layout sbhd", "possible values: bshd, bhsd"),
    ("run --inputs zeros", "possible values: normal, small-integers"),
    (
        "run --kernel mma/m64",
        "no kernel is named `mma/m64`: at its end it needs cols (n and a number); ids look like",
    ),
    (
        "explain --kernel scalar/tiled-m48n32-w4-v16",
        "at `tiled-m48n32-w4-v16` it needs tile (",
    ),
    ("run --kernel mma/m64", "`flashcore list kernels` shows them all"),
    (
        "run --kernel cpu/fast",
        "is not a CPU config; ids look like `cpu/m128n64`",
    ),
    (
        "run --kernel cpu/m7n128",
        "tile_q is 7; allowed are multiples of 16 from 16 to 1024",
    ),
    (
        "run --device cpu --kernel scalar/naive-t128-v16",
        "does not run on cpu; leave the kernel out, or choose a CUDA device",
    ),
    (
        "run --device sim --kernel cpu/m64n128",
        "does not run on sim; leave the kernel out, or choose the device cpu",
    ),
    (
        "explain --kernel cpu/m64n128",
        "cpu/m64n128 runs on the CPU; this is about GPU kernels",
    ),
    (
        "run --device tpu",
        "no device is named `tpu`; allowed: best, cpu, cuda, cuda:N, and sim",
    ),
    ("check --device cpu", "--device is cpu; allowed: cuda, cuda:N"),
    ("check --device cuda --schedules 3", "--schedules is not for --device"),
    (
        "check --kernel k.toml --device cuda",
        "--device is not for the declaration of a kernel",
    ),
    ("run --device cuda:x", "no device is named `cuda:x`"),
    (
        "explain --profile gtx480",
        "known are l4, a10, l40s, rtx3090, rtx4090, rtx5090, a100, h100-pcie, h100, h200, and architectures",
    ),
    ("run --device sim:l5", "no card is named `l5`; known are l4"),
    // Flags.
    ("explain --ptx=x", "write the number of a kernel, from 1, or `lines`"),
    ("explain --ptx --json", "cannot be used with"),
    ("check --schedules 0", "write a number from 1"),
    (
        "list everything",
        "possible values: problems, kernels, levers, profiles, ladder, museum, devices",
    ),
    ("sing", "unrecognized subcommand 'sing'"),
    (
        "tune --strategy magic",
        "strategy is magic; allowed: exhaustive, random, elite",
    ),
    ("tune --predicted --profile l4", "is `tune --device predict:CARD`"),
    ("bench small-set --sweep", "`tune --strategy exhaustive` tries a space"),
    ("tune --budget fast", "write a time above 0 as 90s, 5m or 500ms"),
    ("tune tiny --device cpu --counters", "the device is the CPU"),
    ("tune --device cpu,cpu", "several devices must be different GPUs"),
    (
        "tune tiny --device cpu --family tensor",
        "family is tensor; allowed: mma, wgmma",
    ),
    ("tune --device foo", "device is foo; allowed: best, cpu, cuda:N"),
    ("tune --device predict:sm_89", "card is sm_89; allowed: l4"),
    (
        "tune tiny --device predict:l4 --torture",
        "torture is asked for; allowed: none",
    ),
    (
        "tune tiny --device predict:l4 --strategy elite --counters",
        "the device is predict:l4",
    ),
    ("tune --device sim", "device is sim; allowed: best, cpu, cuda:N"),
    (
        "tune tiny --device cpu --family mma",
        "family is mma; allowed: families with a kernel for this problem here",
    ),
    (
        "tune tiny --device replay:shipped --torture",
        "torture is asked for; allowed: none",
    ),
    ("run small gpt2", "unexpected argument 'gpt2'"),
    (
        "bench tiny --device cpu --kernel wgmma/none*",
        "no kernel's id begins with `wgmma/none`",
    ),
    (
        "device no/such.json",
        "no/such.json: No such file or directory (os error 2); `flashcore device --measure` measures anew",
    ),
    (
        "explain --rates no/such.json",
        "`flashcore device --measure` measures anew",
    ),
    (
        "bench tiny --device cpu -o no/such/x.csv",
        "there is no folder no/such help: make it first",
    ),
    ("gate --write no/such/x.json", "there is no folder no/such"),
    ("bench tiny --device cpu -o .", ". is a folder; name a file in it"),
    ("bench scores --caches 8", "--caches is not for `bench scores`"),
    ("bench tiny --device cpu --peers none --caches 8", "name a CUDA device"),
    ("bench tiny --budget nan", "write a time above 0 as 90s, 5m or 500ms"),
    ("reproduce 3f0a9c1d2e --budget 0", "write a time above 0"),
    // Flags that would change nothing.
    (
        "run tiny --deterministic",
        "--deterministic is for backward passes: every forward pass is help: leave it out, or add --backward",
    ),
    (
        "explain --top-left",
        "--top-left moves a mask, and this problem has none help: add --causal or --window L,R",
    ),
    (
        "list problems --profile l4",
        "--profile is not for this list; it is for `list ladder`",
    ),
    ("list problems small", "`small` is not for this list"),
    (
        "parity 2 --device cpu --family wgmma",
        "--family wgmma is a family of GPU kernels, and the device is the CPU",
    ),
    (
        "evidence compare cpu/m16n16 cpu/m32n32",
        "`flashcore bench --kernel cpu/m16n16,cpu/m32n32 --baseline cpu/m16n16` times kernels against each other",
    ),
    (
        "evidence compare cpu/m16n16 latest",
        "cpu/m16n16 is a kernel, and evidence is compared",
    ),
    // Numbers below 0 are values, not flags.
    ("run --seed -1", "invalid value '-1' for '--seed <N>'"),
    ("tune --trials -5", "write a whole number"),
];

/// The same for what makes sense and cannot be done.
const REFUSED: &[(&str, &str)] = &[
    (
        "explain --dtype e4m3",
        "scalar does not serve e4m3 tensors; family wgmma does, on Hopper",
    ),
    (
        "explain --profile sm_75",
        "sm_75 is not supported: it has no cp.async and no bf16",
    ),
    (
        "explain --kernel scalar/tiled-m64n64-w4-v16 --head-dim 256",
        "registers a thread",
    ),
    (
        "explain --kernel scalar/tiled-m64n64-w8-v16 --head-dim 256",
        "B of dynamic shared memory; sm_89 allows 101376 B",
    ),
    (
        "check --kernel scalar/naive-t128-v2 --dtype f32",
        "vector_bytes is 2; allowed: 16, 8, 4, 2, and not less than an element",
    ),
];

fn expect(code: i32, cases: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    let home = tempfile::tempdir().expect("a folder");
    for (arguments, message) in cases {
        let ran = run(command(arguments).env("XDG_DATA_HOME", home.path()));
        let said = words(&ran.stderr);
        if ran.code != code || !said.starts_with("error: ") || !said.contains(message) || !ran.stdout.is_empty() {
            wrong.push(format!(
                "flashcore {arguments}\nexit code {}\n{}{}",
                ran.code, ran.stdout, ran.stderr
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_makes_no_sense_is_usage() {
    expect(2, USAGE);
}

#[test]
fn what_cannot_be_done_is_refused() {
    expect(1, REFUSED);
}

#[test]
fn a_device_that_is_not_there_is_the_environment() {
    for device in ["cuda", "cuda:0", "cuda:7"] {
        let ran = flashcore(&format!("run tiny --device {device}"));
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        assert!(words(&ran.stderr).contains("NVIDIA driver"), "{}", ran.stderr);
        let ran = flashcore(&format!("tune tiny --device {device}"));
        assert_eq!(ran.code, 3, "{}", ran.stderr);
        // The simulator has no clock.
        let said = words(&ran.stderr);
        assert!(
            said.contains("`--device replay:shipped` need no GPU") && !said.contains("sim`"),
            "{said}"
        );
    }
    assert_eq!(flashcore("device").code, 3);
    let ran = flashcore("run tiny --device cuda");
    assert!(
        words(&ran.stderr).contains("help: `--device cpu` and `--device sim` need no GPU"),
        "{}",
        ran.stderr
    );
}

/// A driver that is there and fails is no machine without a GPU: whoever is given the host is told why.
#[test]
#[cfg(target_os = "linux")]
fn a_driver_that_cannot_be_loaded_is_said_where_the_host_is_used_instead() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    std::fs::write(
        home.join("libcuda.so.1"),
        "no library at all, though it is called one\n",
    )
    .unwrap();
    for arguments in [
        "run tiny",
        "run tiny --json",
        "plans",
        "explain small",
        "bench tiny --kernel default --peers none --store none --budget 0.01",
        "tune tiny --trials 1 --skip plan --json",
    ] {
        let mut command = command(arguments);
        command.env("LD_LIBRARY_PATH", home).env("XDG_DATA_HOME", home);
        let ran = run(&mut command);
        let said = words(&ran.stderr);
        assert_eq!(said.matches("note: no GPU is used").count(), 1, "{arguments}: {said}");
        assert!(said.contains("libcuda.so.1: "), "{arguments}: {said}");
        assert_eq!(ran.code, 0, "{arguments}: {said}");
        // Where there is none that is no news.
        let ran = run(command.env_remove("LD_LIBRARY_PATH"));
        assert!(
            !words(&ran.stderr).contains("no GPU is used"),
            "{arguments}: {}",
            ran.stderr
        );
    }
    // Asked for by name, it is an error that says the same.
    let ran = run(command("run tiny --device cuda").env("LD_LIBRARY_PATH", home));
    let said = words(&ran.stderr);
    assert!(
        ran.code == 3 && said.contains("the NVIDIA driver library cannot be loaded"),
        "{said}"
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_cache_folder_that_cannot_be_written_is_said_and_no_failure() {
    let ran = run(command("list devices").env("CUDA_CACHE_PATH", "/proc/flashcore-cache"));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let said = words(&ran.stdout);
    assert!(
        said.contains("/proc/flashcore-cache cannot be written") && said.contains("set CUDA_CACHE_PATH"),
        "{said}"
    );
}

#[test]
fn no_message_is_wider_than_100_columns() {
    for (arguments, _) in USAGE.iter().chain(REFUSED) {
        assert_fits(arguments, &flashcore(arguments).stderr);
    }
}
