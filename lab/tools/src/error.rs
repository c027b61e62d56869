//! Errors of kernels and of PyTorch against float64, on the same standard normal inputs.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use flashcore::testing::{Comparison, InputKind, Inputs, Tolerance, reference_rows};
use flashcore::{Attention, DType, Device, KernelId, Mask, Problem, Tensor};
use flashcore_problem::rng::Rng;
use flashcore_problem::{POISON, ReferenceRow, compare};
use rayon::prelude::*;
use serde_json::{Value, json};

/// Rows of a head that are compared (or all, if it has fewer).
const ROWS: usize = 256;
/// Edges of tiles among them: every one of 64 rows would leave none to chance.
const EDGES: usize = 64;

/// Compares kernels, and PyTorch on the same inputs, with float64.
///
/// For fp16 and bf16, full and causal: the Frobenius norm of the error over that of the output, and
/// the largest error, over at least 256 rows of every head. Fails where an error is above 3.5e-4
/// (fp16), 2.5e-3 (bf16), or 1.25 times that of PyTorch's FlashAttention-2.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(default_value = "best")]
    device: Device,
    #[arg(long = "seq", default_value_t = 4096)]
    seq_len: usize,
    #[arg(long, default_value_t = 16)]
    heads: usize,
    #[arg(long = "head-dim", default_values_t = [64, 96, 128, 256])]
    head_dims: Vec<usize>,
    /// Kernels to compare, in place of the default.
    #[arg(long = "kernel")]
    kernels: Vec<KernelId>,
    /// A Python with PyTorch, which runs `scripts/attend_with_torch.py` (this program has a copy).
    #[arg(long)]
    torch: Option<String>,
    /// Where to write a report.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let start = |python: &String| Torch::start(python, &options.device);
    let mut torch = options.torch.as_ref().map(start).transpose()?;
    let (mut cases, mut failed) = (Vec::new(), 0);
    println!(
        "{:<40} {:<42} {:>9} {:>9} {:>6}",
        "problem", "kernel", "frobenius", "max abs", "x FA2"
    );
    for &head_dim in &options.head_dims {
        for (dtype, allowed) in [(DType::F16, 3.5e-4), (DType::BF16, 2.5e-3)] {
            for mask in [Mask::FULL, Mask::CAUSAL] {
                let builder = Problem::builder()
                    .heads(options.heads, options.heads)
                    .seq_len(options.seq_len);
                let problem = builder.head_dim(head_dim).dtype(dtype).mask(mask).build()?;
                let found = errors(&problem, options, torch.as_mut())?;
                let fa2 = found.get("torch/flash").map(|error| error.frobenius);
                let mut errors = serde_json::Map::new();
                for (kernel, Comparison { frobenius, max_abs, .. }) in &found {
                    let ratio = fa2.map(|fa2| frobenius / fa2);
                    let peer = kernel.starts_with("torch/");
                    let right = *frobenius <= allowed && ratio.is_none_or(|ratio| ratio <= 1.25);
                    failed += usize::from(!peer && !right);
                    println!(
                        "{:<40} {kernel:<42} {frobenius:>9.3e} {max_abs:>9.3e} {:>6}{}",
                        problem.to_string(),
                        ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}")),
                        if peer || right { "" } else { " TOO LARGE" }
                    );
                    let error = json!({ "frobenius": frobenius, "max_abs": max_abs, "ratio_to_fa2": ratio });
                    errors.insert(kernel.clone(), error);
                }
                let rows = ROWS.min(options.seq_len) * options.heads;
                cases.push(json!({ "problem": problem.to_string(), "rows": rows, "errors": errors }));
            }
        }
    }
    println!("{failed} of our errors too large");
    if let Some(path) = &options.json {
        let report = json!({
            "device": crate::device_name(&options.device), "inputs": "standard normal", "against": "float64",
            "too_large": failed, "cases": cases,
        });
        crate::write_json(path, &report)?;
    }
    crate::verdict(failed == 0)
}

/// Errors by kernel; PyTorch's backends come as `torch/flash` and the like.
fn errors(
    problem: &Problem,
    options: &Options,
    torch: Option<&mut Torch>,
) -> Result<BTreeMap<String, Comparison>, Box<dyn Error>> {
    let inputs = Inputs::generate(problem, InputKind::Normal, 1);
    let want = wanted(problem, &inputs)?;
    let compared = |out: &Tensor| compare(problem, &out.view(), &want, Tolerance::of(problem.dtype()));
    let mut found = BTreeMap::new();
    let with_kernel = |id: &KernelId| Attention::with_kernel(options.device.clone(), *id);
    let mut attentions = options.kernels.iter().map(with_kernel).collect::<Result<Vec<_>, _>>()?;
    if attentions.is_empty() {
        attentions.push(Attention::new(options.device.clone()));
    }
    for attention in attentions {
        let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), POISON);
        let Inputs { q, k, v } = &inputs;
        attention.forward_into(problem, q, k, v, &mut out, None)?;
        found.insert(attention.plan(problem)?.kernel().to_string(), compared(&out)?);
    }
    if let Some(torch) = torch {
        for (name, out) in torch.outputs(problem, &inputs)? {
            found.insert(name, compared(&out)?);
        }
    }
    Ok(found)
}

/// The reference, in rows of every head.
fn wanted(problem: &Problem, inputs: &Inputs) -> Result<Vec<ReferenceRow>, Box<dyn Error>> {
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let mut indices = Vec::new();
    for head in 0..problem.num_heads() {
        let rows = rows(problem.seq_len_q(), head as u64);
        indices.extend(rows.into_iter().map(|row| [0, head, row]));
    }
    let tasks = indices.par_chunks(32);
    let found: Result<Vec<_>, _> = tasks.map(|rows| reference_rows(problem, &q, &k, &v, rows)).collect();
    Ok(found?.concat())
}

/// Rows to compare: the first, the last, both sides of edges of tiles all over the sequence, and
/// others drawn.
fn rows(seq_len: usize, seed: u64) -> Vec<usize> {
    let last = seq_len - 1;
    let mut rows = vec![0, last];
    let tiles = seq_len / 64;
    for edge in (0..EDGES.min(tiles)).map(|i| 64 * (1 + i * tiles / EDGES.min(tiles))) {
        rows.extend([(edge - 1).min(last), edge.min(last)]);
    }
    let mut rng = Rng::new(seed);
    while rows.len() < ROWS.min(seq_len) {
        rows.push(rng.below(seq_len));
        rows.sort_unstable();
        rows.dedup();
    }
    rows
}

/// A process with PyTorch. It reads problems from a folder and writes outputs there.
struct Torch {
    process: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    /// With the script in it; removed at the end.
    folder: tempfile::TempDir,
}

impl Torch {
    fn start(python: &str, device: &Device) -> Result<Torch, Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        let script = folder.path().join("attend_with_torch.py");
        std::fs::write(&script, include_str!("../../../scripts/attend_with_torch.py"))?;
        let mut command = Command::new(python);
        let device = device.context().map_or("cpu", |_| "cuda");
        let command = command
            .arg(script)
            .args(["--device", device])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{python}: {error}"))?;
        let (Some(requests), Some(replies)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("no pipes to PyTorch's process".into());
        };
        Ok(Torch {
            process,
            requests,
            replies: BufReader::new(replies),
            folder,
        })
    }

    /// The output of each backend that serves the problem.
    fn outputs(&mut self, problem: &Problem, inputs: &Inputs) -> Result<Vec<(String, Tensor)>, Box<dyn Error>> {
        let mut description = json!({
            "dtype": problem.dtype().to_string(),
            "causal": problem.mask().window_right == Some(0),
            "scale": problem.softmax_scale(),
        });
        for (name, tensor) in [("q", &inputs.q), ("k", &inputs.k), ("v", &inputs.v)] {
            std::fs::write(self.folder.path().join(format!("{name}.bin")), tensor.bytes())?;
            description[name] = Value::from(tensor.layout().shape.to_vec());
        }
        std::fs::write(self.folder.path().join("problem.json"), description.to_string())?;
        writeln!(self.requests, "{}", self.folder.path().display())?;
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err("PyTorch's process has ended without an output; its own message is above".into());
        }
        let backends: BTreeMap<String, Option<String>> = serde_json::from_str(&line)?;
        let mut outputs = Vec::new();
        for (backend, refusal) in backends {
            if let Some(refusal) = refusal {
                eprintln!("torch/{backend} does not serve {problem}: {refusal}");
                continue;
            }
            let bytes = std::fs::read(self.folder.path().join(format!("torch-{backend}.bin")))?;
            let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), POISON);
            if bytes.len() != out.bytes_mut().len() {
                return Err(format!("torch/{backend} wrote {} bytes", bytes.len()).into());
            }
            out.bytes_mut().copy_from_slice(&bytes);
            outputs.push((format!("torch/{backend}"), out));
        }
        Ok(outputs)
    }
}

impl Drop for Torch {
    /// Ends the process, which reads the folder, before that is removed.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
