//! The CUDA kernels of `lab/check/corpus`, as nvcc compiles them: correct ones are clean and compute what their
//! references do, and faults are found at their lines.
//!
//! `FLASHCORE_CORPUS` names the folder that `scripts/corpus_reference.py --write` has filled.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use flashcore_check::foreign::{Given, LaunchFile};
use flashcore_ir::TensorMapRecipe;
use flashcore_ptx::Module;
use flashcore_sim::{FindingKind, PtxArg, PtxBuffer, PtxKernel, PtxLaunch, SimOptions, SimReport};
use half::{bf16, f16};
use serde_json::Value;

struct Output {
    slot: usize,
    ty: String,
    check: String,
    rtol: f64,
    atol: f64,
    expected: Vec<Value>,
}

struct Case {
    name: String,
    text: String,
    launch: PtxLaunch,
    buffers: Vec<Vec<u8>>,
    unwritten: Vec<usize>,
    outputs: Vec<Output>,
    printed: Option<Vec<String>>,
    fault: Option<String>,
    lines: Vec<u32>,
}

fn numbers<const N: usize>(value: &Value) -> [u32; N] {
    let all = value.as_array().unwrap();
    std::array::from_fn(|i| all.get(i).map_or(1, |n| n.as_u64().unwrap() as u32))
}

fn scalar(ty: &str, value: &Value) -> Vec<u8> {
    let (float, integer) = (
        value.as_f64().unwrap(),
        value.as_i64().unwrap_or(value.as_f64().unwrap() as i64),
    );
    match ty {
        "f32" => (float as f32).to_le_bytes().to_vec(),
        "f64" => float.to_le_bytes().to_vec(),
        "f16" => f16::from_f64(float).to_le_bytes().to_vec(),
        "bf16" => bf16::from_f64(float).to_le_bytes().to_vec(),
        _ => integer.to_le_bytes()[..size_of(ty)].to_vec(),
    }
}

fn size_of(ty: &str) -> usize {
    match ty {
        "e4m3" => 1,
        "bf16" => 2,
        _ => ty[1..].parse::<usize>().unwrap() / 8,
    }
}

fn bytes_of(told: &Value) -> Vec<u8> {
    let hex = told["stored"].as_str().unwrap();
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    (0..hex.len() / 2).map(byte).collect()
}

/// The launch file of what `scripts/corpus_reference.py --write` has left.
fn declaration(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap().to_string_lossy();
    let stem = name.split('.').next().unwrap();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let folder = if path.parent().unwrap().ends_with("faults") {
        "faults"
    } else {
        ""
    };
    corpus.join(folder).join(format!("{stem}.toml"))
}

/// The fields of a struct, or the one argument.
fn fields(value: &Value) -> Vec<&Value> {
    value["struct"]
        .as_array()
        .map_or(vec![value], |fields| fields.iter().collect())
}

impl Case {
    fn read(path: &Path) -> Case {
        let told: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let text = std::fs::read_to_string(told["ptx"].as_str().unwrap()).unwrap();
        let module = Module::read(&text).unwrap();
        let (entry, _) = module.entries().next().unwrap();
        let mut case = Case {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            launch: PtxLaunch {
                file: told["ptx"].as_str().unwrap().to_string(),
                grid: numbers(&told["grid"]),
                block: numbers(&told["block"]),
                dynamic_shared: told["shared"].as_u64().unwrap() as u32,
                ..PtxLaunch::default()
            },
            buffers: Vec::new(),
            unwritten: Vec::new(),
            outputs: Vec::new(),
            fault: told["fault"].as_str().map(str::to_string),
            lines: told["lines"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap() as u32)
                .collect(),
            printed: told["printed"]
                .as_array()
                .map(|all| all.iter().map(|line| line.as_str().unwrap().to_string()).collect()),
            text: String::new(),
        };
        let declared = LaunchFile::read(&declaration(path)).unwrap().launch.args;
        let args = told["args"].as_array().unwrap();
        for ((param, value), given) in entry.params.iter().zip(args).zip(&declared) {
            let mut arg = PtxArg::default();
            if let Given::Map { recipe, .. } = given {
                let slot = case.buffer(value);
                arg.map = Some(TensorMapRecipe { slot, ..recipe.clone() });
            }
            let given_as_bytes = if arg.map.is_some() { Vec::new() } else { fields(value) };
            for field in given_as_bytes {
                if field["value"].is_null() {
                    let at = arg.bytes.len().next_multiple_of(8);
                    arg.bytes.resize(at + 8, 0);
                    arg.pointers.push((at, case.buffer(field)));
                } else {
                    let ty = field["type"].as_str().unwrap_or(&param.ty);
                    arg.bytes.resize(arg.bytes.len().next_multiple_of(size_of(ty)), 0);
                    arg.bytes.extend(scalar(ty, &field["value"]));
                }
            }
            arg.bytes.resize(param.bytes as usize, 0);
            case.launch.args.push(arg);
        }
        for symbol in told["symbols"].as_array().unwrap() {
            let name = symbol["name"].as_str().unwrap().to_string();
            case.launch.variables.push((name, bytes_of(symbol)));
        }
        case.text = text;
        case
    }

    fn buffer(&mut self, told: &Value) -> usize {
        let (slot, ty) = (self.buffers.len(), told["type"].as_str().unwrap());
        let bytes = bytes_of(told);
        self.launch.buffers.push(PtxBuffer {
            name: told["name"].as_str().unwrap().to_string(),
            bytes: bytes.len() as u64,
            element: size_of(ty) as u32,
            written: true,
        });
        self.unwritten
            .extend(told["unwritten"].as_bool().unwrap().then_some(slot));
        self.buffers.push(bytes);
        if let Some(check) = told["check"].as_str() {
            self.outputs.push(Output {
                slot,
                ty: ty.to_string(),
                check: check.to_string(),
                rtol: told["rtol"].as_f64().unwrap(),
                atol: told["atol"].as_f64().unwrap(),
                expected: told["expected"].as_array().unwrap().clone(),
            });
        }
        slot
    }

    fn run(&self, seed: u64) -> Result<(SimReport, Vec<Vec<u8>>), String> {
        let module = Module::read(&self.text).map_err(|error| error.to_string())?;
        let name = module.declared.entries[0].name.clone();
        let mut buffers = self.buffers.clone();
        let options = SimOptions {
            seed,
            uninitialized: self.unwritten.clone(),
            max_instructions: 2_000_000,
            ..SimOptions::default()
        };
        let kernel = PtxKernel::read(&module, &name, &self.launch);
        let report = kernel.and_then(|kernel| kernel.simulate(&mut buffers, &options));
        report
            .map(|report| (report, buffers))
            .map_err(|error| error.to_string())
    }

    /// What is wrong with the lines that it prints, in any order.
    fn misprinted(&self, report: &SimReport) -> Option<String> {
        let mut expected = self.printed.clone()?;
        let all: String = report.printed.iter().map(|printed| printed.text.as_str()).collect();
        let mut found: Vec<&str> = all.lines().collect();
        expected.sort();
        found.sort_unstable();
        (expected != found).then(|| format!("PRINTED {found:?}, expected {expected:?}"))
    }

    /// What is wrong with the outputs, if anything.
    fn wrong(&self, buffers: &[Vec<u8>]) -> Option<String> {
        self.outputs.iter().find_map(|output| {
            let size = size_of(&output.ty);
            let mut found: Vec<Number> = buffers[output.slot]
                .chunks_exact(size)
                .map(|bytes| number(&output.ty, bytes))
                .collect();
            let mut expected: Vec<Number> = output.expected.iter().map(Number::of).collect();
            found.truncate(expected.len());
            if output.check == "sorted" {
                found.sort_by(Number::order);
                expected.sort_by(Number::order);
            }
            let is_close = |(found, expected): &(&Number, &Number)| match (output.check.as_str(), found, expected) {
                ("close", found, expected) => {
                    let (found, expected) = (found.float(), expected.float());
                    (found - expected).abs() <= output.atol + output.rtol * expected.abs()
                }
                (_, Number::Integer(found), Number::Integer(expected)) => found == expected,
                (_, found, expected) if output.ty != "f64" => found.float() as f32 == expected.float() as f32,
                (_, found, expected) => found.float() == expected.float(),
            };
            let at = found.iter().zip(&expected).position(|pair| !is_close(&pair))?;
            let name = &self.launch.buffers[output.slot].name;
            Some(format!("{name}[{at}] is {:?}, expected {:?}", found[at], expected[at]))
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Number {
        match (value.as_i64(), value.as_u64()) {
            (Some(n), _) => Number::Integer(n.into()),
            (_, Some(n)) => Number::Integer(n.into()),
            // JSON's numbers may be off by an ulp.
            _ => Number::Float(value.as_str().unwrap().parse().unwrap()),
        }
    }

    fn float(&self) -> f64 {
        match *self {
            Number::Integer(n) => n as f64,
            Number::Float(x) => x,
        }
    }

    fn order(a: &Number, b: &Number) -> std::cmp::Ordering {
        a.float().total_cmp(&b.float())
    }
}

fn number(ty: &str, bytes: &[u8]) -> Number {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(raw);
    match ty {
        "f16" => Number::Float(f16::from_bits(bits as u16).into()),
        "bf16" => Number::Float(bf16::from_bits(bits as u16).into()),
        "f32" => Number::Float(f32::from_bits(bits as u32).into()),
        "f64" => Number::Float(f64::from_bits(bits)),
        "e4m3" => {
            let (exponent, fraction) = (bits >> 3 & 15, (bits & 7) as f64);
            let size = if exponent > 0 {
                (8.0 + fraction) * 2f64.powi(exponent as i32 - 10)
            } else {
                fraction / 512.0
            };
            Number::Float(if bits >> 7 == 1 { -size } else { size })
        }
        _ if ty.starts_with('i') => {
            let shift = 64 - 8 * bytes.len() as u32;
            Number::Integer(((bits << shift) as i64 >> shift).into())
        }
        _ => Number::Integer(bits.into()),
    }
}

/// Whether a finding is a fault of a kind.
fn is_kind(fault: &str, kind: FindingKind) -> bool {
    use FindingKind as K;
    match fault {
        "shared-race" | "missing-wait" => matches!(kind, K::Race | K::MissingWait),
        "global-race" | "missing-fence" => matches!(kind, K::Race | K::BlockRace),
        "misaligned" => kind == K::Misaligned,
        "uninitialised-shared" | "uninitialised-global" => kind == K::NeverWritten,
        "barrier-divergence" => matches!(kind, K::MissingLanes | K::BarrierMismatch | K::Deadlock),
        "wrong-phase" => kind == K::WrongPhase,
        "missing-proxy-fence" => kind == K::MissingFence,
        "product-in-flight" => kind == K::InFlight,
        "wrong-mask" => kind == K::MissingLanes,
        _ => kind == K::OutOfBounds,
    }
}

fn cases(folder: &Path) -> Vec<Case> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    paths.sort();
    let only = std::env::var("FLASHCORE_CORPUS_ONLY").unwrap_or_default();
    let cases = paths.iter().map(|path| Case::read(path));
    cases.filter(|case| case.name.contains(&only)).collect()
}

fn findings(report: &SimReport) -> String {
    report.findings.iter().fold(String::new(), |mut text, finding| {
        let _ = write!(
            text,
            "\n    {:?} line {}: {}",
            finding.kind,
            finding.line().unwrap().line,
            finding.message
        );
        text
    })
}

/// Schedules of each case. A fault is to be found under one of them: the order of its atomics may hide that of
/// `race_slot_counter`.
const SCHEDULES: u64 = 4;

/// Of each case what came of it: none where all is as it should be.
fn judge(case: &Case) -> Option<String> {
    let mut told = (0..SCHEDULES).map(|seed| judge_under(case, seed));
    match case.fault {
        None => told.find_map(|what| what),
        Some(_) => told.collect::<Option<Vec<String>>>()?.pop(),
    }
}

fn judge_under(case: &Case, seed: u64) -> Option<String> {
    let kernels = flashcore_check::foreign::read(case.text.as_bytes()).unwrap();
    let missing = &kernels[0].understood.as_ref().unwrap().missing;
    if !missing.is_empty() {
        return Some(format!("NOT UNDERSTOOD {missing:?}"));
    }
    let run = match case.run(seed) {
        Err(why) => return Some(format!("NOT RUN {why}")),
        Ok(run) => run,
    };
    let (report, buffers) = run;
    let lines: Vec<u32> = report
        .findings
        .iter()
        .map(|finding| finding.line().unwrap().line)
        .collect();
    match &case.fault {
        None if !report.is_clean() => Some(format!("NOT CLEAN{}", findings(&report))),
        None => {
            let wrong = case.wrong(&buffers).map(|why| format!("WRONG {why}"));
            wrong.or_else(|| case.misprinted(&report))
        }
        Some(fault) => {
            let found = report.findings.iter().any(|finding| {
                let other = finding.other_line().map(|line| line.line);
                let at = case.lines.contains(&finding.line().unwrap().line)
                    || other.is_some_and(|line| case.lines.contains(&line));
                at && is_kind(fault, finding.kind)
            });
            (!found).then(|| {
                format!(
                    "MISSED {fault} of lines {:?}, found {lines:?}{}",
                    case.lines,
                    findings(&report)
                )
            })
        }
    }
}

mod with_nvcc {
    use super::*;

    /// The buffers of an argument: name, bytes, and whether nothing was written there.
    fn buffers<'a>(given: &'a Given, all: &mut Vec<(&'a str, &'a [u8], bool)>) {
        match given {
            Given::Contents {
                name,
                contents,
                is_unwritten,
                ..
            } => all.push((name, contents, *is_unwritten)),
            Given::Map { buffer, .. } => buffers(buffer, all),
            Given::Struct(fields) => fields.iter().for_each(|(_, field)| buffers(field, all)),
            _ => {}
        }
    }

    fn told<'a>(argument: &'a Value, all: &mut Vec<&'a Value>) {
        match argument["struct"].as_array() {
            Some(fields) => fields.iter().for_each(|field| told(field, all)),
            None if argument["stored"].is_string() => all.push(argument),
            None => {}
        }
    }

    /// Declarations mean the same in Rust and in Python, to the bit.
    #[test]
    #[ignore = "needs what scripts/corpus_reference.py --write leaves"]
    fn declarations_have_the_values_of_the_references() {
        let folder = PathBuf::from(std::env::var("FLASHCORE_CORPUS").expect("FLASHCORE_CORPUS names a folder"));
        let mut compared = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
            let file = LaunchFile::read(&corpus.join(format!("{stem}.toml"))).unwrap();
            let reference: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            let (args, told_args) = (&file.launch.args, reference["args"].as_array().unwrap());
            args.iter().for_each(|argument| buffers(argument, &mut ours));
            told_args.iter().for_each(|argument| told(argument, &mut theirs));
            assert_eq!(ours.len(), theirs.len(), "{stem}");
            for ((name, contents, is_unwritten), told) in ours.into_iter().zip(theirs) {
                let unwritten = told["unwritten"].as_bool().unwrap();
                assert_eq!((name, is_unwritten), (told["name"].as_str().unwrap(), unwritten));
                let hex: String = contents.iter().map(|byte| format!("{byte:02x}")).collect();
                assert!(unwritten || hex == told["stored"].as_str().unwrap(), "{stem}: {name}");
                compared += usize::from(!unwritten);
            }
        }
        assert!(compared > 100, "{compared}");
    }

    #[test]
    #[ignore = "needs the corpus as nvcc compiles it"]
    fn kernels_are_as_they_should_be() {
        let folder = PathBuf::from(std::env::var("FLASHCORE_CORPUS").expect("FLASHCORE_CORPUS names a folder"));
        let mut all = cases(&folder);
        all.extend(cases(&folder.join("faults")));
        let told: Vec<(&str, String)> = all
            .iter()
            .filter_map(|case| Some((case.name.as_str(), judge(case)?)))
            .collect();
        told.iter().for_each(|(name, what)| println!("{name}: {what}"));
        println!("{} of {} as they should be", all.len() - told.len(), all.len());
        if std::env::var("FLASHCORE_CORPUS_ONLY").is_err() {
            assert!(told.is_empty() && all.len() >= 174);
        }
    }
}

/// A lane that waits for others of its warp may hold a lock that these ask for: each gets on.
#[test]
fn a_lock_that_a_waiting_lane_holds_is_no_deadlock() {
    let text = ".version 8.0 .target sm_80 .entry add(.param .u64 p) {
        .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<3>; .shared .align 4 .b32 sum;
        ld.param.u64 %rd1, [p]; cvta.to.global.u64 %rd1, %rd1; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0;
        @%p1 bra READY; mov.u32 %r2, 0; st.shared.u32 [sum], %r2;
        READY: bar.sync 0;
        LOCK: atom.global.cas.b32 %r3, [%rd1], 0, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra LOCK;
        membar.gl; ld.volatile.shared.u32 %r4, [sum]; add.u32 %r4, %r4, 1; st.volatile.shared.u32 [sum], %r4; membar.gl;
        atom.global.exch.b32 %r5, [%rd1], 0;
        bar.sync 0; @%p1 bra END; ld.shared.u32 %r6, [sum]; st.global.u32 [%rd1+4], %r6; END: ret; }";
    let module = Module::read(text).unwrap();
    let launch = PtxLaunch {
        file: "add.ptx".to_string(),
        grid: [1, 1, 1],
        block: [64, 1, 1],
        buffers: vec![PtxBuffer {
            name: "p".to_string(),
            bytes: 8,
            element: 4,
            written: true,
        }],
        args: vec![PtxArg {
            bytes: vec![0; 8],
            pointers: vec![(0, 0)],
            ..PtxArg::default()
        }],
        ..PtxLaunch::default()
    };
    let kernel = PtxKernel::read(&module, "add", &launch).unwrap();
    for seed in 0..4 {
        let mut buffers = [vec![0u8; 8]];
        let options = SimOptions {
            seed,
            max_instructions: 10_000_000,
            ..SimOptions::default()
        };
        let report = kernel.simulate(&mut buffers, &options).unwrap();
        assert!(report.is_clean(), "{}", findings(&report));
        assert_eq!(buffers[0][4..], 64u32.to_le_bytes());
    }
}
