//! The backward pass of `wgmma` against float64, in the simulator or on a GPU, and its times there.
//!
//! ```sh
//! cargo run --release -p flashcore-tools --example backward              # simulated
//! cargo run --release -p flashcore-tools --example backward -- gpu       # on a GPU, then times
//! ```

use std::error::Error;

use flashcore::cuda::{DeviceBuffer, DeviceSlice, Event, Graph, Stream};
use flashcore::{Attention, DType, Device, DeviceTensors, Mask, Problem};
use flashcore_cuda::{Function, ModuleOptions};
use flashcore_kernels::Step;
use flashcore_kernels::wgmma::backward::{Levers, steps};
use flashcore_problem::rng::Rng;
use flashcore_sim::{SimOptions, simulate};
use half::bf16;
use rayon::prelude::*;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Clone, Copy)]
struct Case {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    seq_q: usize,
    seq_kv: usize,
    head_dim: usize,
    mask: Mask,
}

impl Case {
    fn problem(&self) -> Problem {
        Problem::builder()
            .batch(self.batch)
            .heads(self.heads, self.kv_heads)
            .seq_len_q(self.seq_q)
            .seq_len_kv(self.seq_kv)
            .head_dim(self.head_dim)
            .dtype(DType::BF16)
            .mask(self.mask)
            .return_lse(true)
            .build()
            .unwrap()
    }

    fn flops(&self) -> f64 {
        let pairs = match self.mask == Mask::CAUSAL {
            true => self.seq_q as f64 * self.seq_kv as f64 / 2.0,
            false => self.seq_q as f64 * self.seq_kv as f64,
        };
        10.0 * (self.batch * self.heads * self.head_dim) as f64 * pairs
    }

    fn name(&self) -> String {
        let causal = if self.mask == Mask::FULL { "" } else { " masked" };
        format!(
            "B{} H{}/{} {}x{} D{}{causal}",
            self.batch, self.heads, self.kv_heads, self.seq_q, self.seq_kv, self.head_dim
        )
    }
}

/// dQ, dK and dV in float64, with out and lse.
struct Reference {
    out: Vec<f64>,
    lse: Vec<f64>,
    grads: [Vec<f64>; 3],
}

fn reference(case: &Case, [q, k, v, dout]: [&[bf16]; 4]) -> Reference {
    let Case { batch, heads, kv_heads, seq_q, seq_kv, head_dim: d, .. } = *case;
    let (problem, group) = (case.problem(), heads / kv_heads);
    let range = problem.key_range();
    let scale = f64::from(problem.softmax_scale());
    let at = |x: &[bf16], i: usize| f64::from(x[i]);
    let per_head: Vec<_> = (0..batch * heads)
        .into_par_iter()
        .map(|bh| {
            let (b, h) = (bh / heads, bh % heads);
            let row_q = |i: usize| ((b * seq_q + i) * heads + h) * d;
            let row_k = |j: usize| ((b * seq_kv + j) * kv_heads + h / group) * d;
            let mut out = vec![0.0; seq_q * d];
            let mut lse = vec![f64::NEG_INFINITY; seq_q];
            let (mut dq, mut dk, mut dv) = (vec![0.0; seq_q * d], vec![0.0; seq_kv * d], vec![0.0; seq_kv * d]);
            for i in 0..seq_q {
                let first = (i as i64 + i64::from(range.lo)).max(0) as usize;
                let end = (i as i64 + i64::from(range.hi) + 1).clamp(0, seq_kv as i64) as usize;
                if first >= end {
                    continue;
                }
                let dot = |x: &[bf16], a: usize, y: &[bf16], c: usize| (0..d).map(|e| at(x, a + e) * at(y, c + e)).sum::<f64>();
                let s: Vec<f64> = (first..end).map(|j| scale * dot(q, row_q(i), k, row_k(j))).collect();
                let max = s.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = s.iter().map(|s| (s - max).exp()).sum();
                lse[i] = max + sum.ln();
                let p: Vec<f64> = s.iter().map(|s| (s - lse[i]).exp()).collect();
                for (j, p) in (first..end).zip(&p) {
                    for e in 0..d {
                        out[i * d + e] += p * at(v, row_k(j) + e);
                    }
                }
                let delta: f64 = (0..d).map(|e| out[i * d + e] * at(dout, row_q(i) + e)).sum();
                for (j, p) in (first..end).zip(&p) {
                    let dp = dot(dout, row_q(i), v, row_k(j));
                    let ds = p * (dp - delta) * scale;
                    for e in 0..d {
                        dv[j * d + e] += p * at(dout, row_q(i) + e);
                        dk[j * d + e] += ds * at(q, row_q(i) + e);
                        dq[i * d + e] += ds * at(k, row_k(j) + e);
                    }
                }
            }
            (out, lse, dq, dk, dv)
        })
        .collect();
    let (mut out, mut lse) = (vec![0.0; batch * seq_q * heads * d], vec![0.0; batch * heads * seq_q]);
    let mut grads = [out.clone(), vec![0.0; batch * seq_kv * kv_heads * d], vec![0.0; batch * seq_kv * kv_heads * d]];
    for (bh, (o, l, dq, dk, dv)) in per_head.into_iter().enumerate() {
        let (b, h) = (bh / heads, bh % heads);
        lse[bh * seq_q..][..seq_q].copy_from_slice(&l);
        for i in 0..seq_q * d {
            let to = ((b * seq_q + i / d) * heads + h) * d + i % d;
            out[to] = o[i];
            grads[0][to] = dq[i];
        }
        for i in 0..seq_kv * d {
            let to = ((b * seq_kv + i / d) * kv_heads + h / group) * d + i % d;
            grads[1][to] += dk[i];
            grads[2][to] += dv[i];
        }
    }
    Reference { out, lse, grads }
}

fn random(rng: &mut Rng, n: usize) -> Vec<bf16> {
    (0..n).map(|_| bf16::from_f32(rng.normal())).collect()
}

/// The largest error, and that over the root mean square of the values.
fn error(got: &[bf16], wanted: &[f64]) -> (f64, f64) {
    let square: f64 = wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len() as f64;
    let worst = got.iter().zip(wanted).map(|(g, w)| {
        let error = (f64::from(*g) - w).abs();
        if error.is_nan() { f64::INFINITY } else { error }
    });
    let worst = worst.fold(0.0, f64::max);
    (worst, worst / square.sqrt().max(1e-30))
}

fn bytes<T: bytemuck::NoUninit>(x: &[T]) -> Vec<u8> {
    bytemuck::cast_slice(x).to_vec()
}

fn levers(head_dim: usize, args: &[String]) -> Levers {
    let given = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)?.parse().ok());
    Levers {
        rows: given("m=").unwrap_or(if head_dim == 64 { 128 } else { 64 }),
        cols: 128,
        stages: given("s=").unwrap_or(2),
        bundle: given("g=").unwrap_or(0),
        dv_first: given("dv=").unwrap_or(0) == 1,
    }
}

fn simulated(case: &Case, levers: Levers) -> Result<()> {
    let problem = case.problem();
    let mut rng = Rng::new(5);
    let spans = [problem.q_layout(), problem.k_layout(), problem.v_layout(), problem.o_layout()].map(|l| l.span());
    let inputs = spans.map(|n| random(&mut rng, n));
    let reference = reference(case, inputs.each_ref().map(|x| x.as_slice()));
    let out: Vec<bf16> = reference.out.iter().map(|x| bf16::from_f64(*x)).collect();
    let lse: Vec<f32> = reference.lse.iter().map(|x| *x as f32).collect();
    let [q, k, v, dout] = inputs.each_ref().map(|x| bytes(x));
    let mut memory: Vec<(&str, Vec<u8>)> = vec![("q", q), ("k", k), ("v", v), ("dout", dout), ("out", bytes(&out)), ("lse", bytes(&lse))];
    for (name, span) in [("dq", spans[0]), ("dk", spans[1]), ("dv", spans[2])] {
        memory.push((name, vec![0xff; 2 * span]));
    }
    let mut written = flashcore_sim::Written::default();
    for Step { kernel, launch } in steps(&problem, levers)? {
        let mut buffers = Vec::new();
        for spec in &launch.buffers {
            let held = memory.iter_mut().find(|(name, _)| *name == spec.name);
            buffers.push(held.map_or_else(|| vec![0xff; spec.bytes as usize], |(_, bytes)| bytes.clone()));
        }
        let mut options = SimOptions::default();
        let slot = launch.buffers.iter().position(|spec| spec.name == "workspace").unwrap();
        options.written.insert(slot, written.clone());
        let report = simulate(&kernel, &launch, &mut buffers, &options)?;
        if let Some(now) = report.written.get(&slot) {
            written.add(now);
        }
        for finding in report.findings.iter().take(5) {
            println!("{finding}");
        }
        if !report.is_clean() {
            return Err(format!("{}: {} findings", kernel.name(), report.findings.len()).into());
        }
        for (spec, bytes) in launch.buffers.iter().zip(buffers) {
            if let Some(held) = memory.iter_mut().find(|(name, _)| *name == spec.name) {
                held.1 = bytes;
            } else {
                memory.push((spec.name, bytes));
            }
        }
    }
    print!("{:40}", case.name());
    for (name, wanted) in ["dq", "dk", "dv"].into_iter().zip(&reference.grads) {
        let held = &memory.iter().find(|(held, _)| *held == name).unwrap().1;
        let (worst, relative) = error(bytemuck::cast_slice(held), wanted);
        print!("  {name} {worst:.2e} ({relative:.2e} of rms)");
    }
    println!();
    Ok(())
}

enum Run {
    Once,
    Check,
    Time,
}

struct Gpu {
    stream: Stream,
    attention: Attention,
}

impl Gpu {
    fn run(&self, case: &Case, levers: Levers, run: Run) -> Result<()> {
        let problem = case.problem();
        let (stream, context) = (&self.stream, self.stream.context());
        let mut rng = Rng::new(7);
        let spans = [problem.q_layout(), problem.k_layout(), problem.v_layout(), problem.o_layout()].map(|l| l.span());
        let pattern = random(&mut rng, 1 << 20);
        let input = |salt: usize, n: usize| -> Vec<bf16> { (0..n).map(|i| pattern[(i * (2 * salt + 1) + 77 * salt) % ((1 << 20) - 3)]).collect() };
        let inputs: [Vec<bf16>; 4] = [0, 1, 2, 3].map(|i| input(i, spans[i]));
        let held = inputs.each_ref().map(|x| DeviceBuffer::from_host(stream, x));
        let [q, k, v, dout] = held;
        let (q, k, v, dout) = (q?, k?, v?, dout?);
        let out = DeviceBuffer::new(context, 2 * spans[3])?;
        let lse = DeviceBuffer::new(context, 4 * problem.lse_len())?;
        let grads = [spans[0], spans[1], spans[2]].map(|n| DeviceBuffer::new(context, 2 * n));
        let [dq, dk, dv] = grads;
        let (dq, dk, dv) = (dq?, dk?, dv?);
        for grad in [&dq, &dk, &dv] {
            grad.as_slice().fill(stream, 0xff)?;
        }
        let workspace = DeviceBuffer::new(context, (self.attention.workspace_bytes(&problem, 16)? as usize).max(16))?;
        let mut tensors = DeviceTensors::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice());
        tensors.workspace = Some(workspace.as_slice());
        tensors.lse = Some(lse.as_slice());
        self.attention.forward_on(stream, &problem, &tensors)?;
        let steps = steps(&problem, levers)?;
        let bytes = steps[1].launch.workspace_bytes() as usize;
        let sums = DeviceBuffer::new(context, bytes)?;
        sums.as_slice().fill(stream, 0xff)?;
        let mut loaded = Vec::new();
        for step in &steps {
            loaded.push(Function::load(context, &step.kernel, &ModuleOptions::default())?);
        }
        let by_name = |name: &str| -> DeviceSlice<'_> {
            match name {
                "q" => q.as_slice(),
                "k" => k.as_slice(),
                "v" => v.as_slice(),
                "dout" => dout.as_slice(),
                "out" => out.as_slice(),
                "lse" => lse.as_slice(),
                "dq" => dq.as_slice(),
                "dk" => dk.as_slice(),
                "dv" => dv.as_slice(),
                _ => sums.as_slice(),
            }
        };
        let mut prepared = Vec::new();
        for (step, kernel) in steps.iter().zip(&loaded) {
            let buffers: Vec<_> = step.launch.buffers.iter().map(|spec| by_name(spec.name)).collect();
            prepared.push(kernel.prepare(&step.launch, &buffers)?);
        }
        for step in &prepared {
            step.enqueue(stream)?;
        }
        stream.synchronize()?;
        print!("{:40} m{}n{} s{} dv{}", case.name(), levers.rows, levers.cols, levers.stages, u32::from(levers.dv_first));
        if let Run::Once = run {
            println!();
            return Ok(());
        }
        if let Run::Check = run {
            let reference = reference(case, inputs.each_ref().map(|x| x.as_slice()));
            for (name, (grad, wanted)) in ["dq", "dk", "dv"].into_iter().zip([&dq, &dk, &dv].into_iter().zip(&reference.grads)) {
                let (worst, relative) = error(&grad.to_vec::<bf16>(stream)?, wanted);
                print!("  {name} {worst:.2e} ({relative:.2e} of rms)");
            }
            println!();
            return Ok(());
        }
        let mut names = String::new();
        for (what, range) in [("all", 0..3), ("before", 0..1), ("main", 1..2), ("after", 2..3)] {
            const CALLS: usize = 10;
            let graph = Graph::capture(stream, |stream| {
                for _ in 0..CALLS {
                    for step in &prepared[range.clone()] {
                        step.enqueue(stream)?;
                    }
                }
                Ok(())
            })?;
            graph.launch(stream)?;
            let mut times = Vec::new();
            for _ in 0..7 {
                let (start, end) = (Event::new(context)?, Event::new(context)?);
                start.record(stream)?;
                graph.launch(stream)?;
                end.record(stream)?;
                end.synchronize()?;
                times.push(f64::from(start.elapsed_ms(&end)?) * 1e3 / CALLS as f64);
            }
            times.sort_by(f64::total_cmp);
            if what == "all" {
                print!("  {:.1} us {:.0} TFLOP/s", times[3], case.flops() / times[3] / 1e6);
            } else {
                names += &format!(" {what} {:.1}", times[3]);
            }
        }
        println!(" {names}");
        Ok(())
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let case = |batch, heads, kv_heads, seq_q, seq_kv, head_dim, mask| Case { batch, heads, kv_heads, seq_q, seq_kv, head_dim, mask };
    let window = Mask::window(Some(70), Some(9));
    if let Some(folder) = args.iter().find_map(|arg| arg.strip_prefix("ptx=")) {
        for d in [64, 128] {
            for step in steps(&case(1, 2, 1, 512, 512, d, Mask::CAUSAL).problem(), levers(d, &args))? {
                std::fs::write(format!("{folder}/{}.ptx", step.kernel.name()), step.kernel.to_ptx())?;
            }
        }
        return Ok(());
    }
    if !args.iter().any(|arg| arg == "gpu") {
        for d in [64, 128] {
            for (h, hk, m, n, mask) in [(1, 1, 128, 128, Mask::FULL), (2, 1, 130, 200, Mask::CAUSAL), (2, 2, 200, 130, Mask::CAUSAL), (1, 1, 300, 330, window), (1, 1, 70, 300, Mask::CAUSAL.top_left())] {
                simulated(&case(1, h, hk, m, n, d, mask), levers(d, &args))?;
            }
        }
        return Ok(());
    }
    let device = Device::cuda(0)?;
    let attention = Attention::new(device.clone());
    let Device::Cuda(context) = device else {
        return Err("a CUDA device is needed".into());
    };
    let gpu = Gpu { stream: Stream::new(&context)?, attention };
    if args.iter().any(|arg| arg == "once") {
        for d in [64, 128] {
            gpu.run(&case(1, 2048 / d, 2048 / d, 8192, 8192, d, Mask::FULL), levers(d, &args), Run::Once)?;
        }
        return Ok(());
    }
    let checks = if args.iter().any(|arg| arg == "fast") { &[][..] } else { &[64, 128] };
    for &d in checks {
        for (b, h, hk, m, n, mask) in [(2, 2, 1, 130, 200, Mask::CAUSAL), (1, 4, 2, 1000, 777, Mask::CAUSAL), (2, 3, 3, 515, 1030, window), (1, 2, 2, 1024, 1024, Mask::FULL)] {
            gpu.run(&case(b, h, hk, m, n, d, mask), levers(d, &args), Run::Check)?;
        }
    }
    for d in [64, 128] {
        for mask in [Mask::FULL, Mask::CAUSAL] {
            for s in [512, 2048, 8192, 16_384] {
                gpu.run(&case(16_384 / s, 2048 / d, 2048 / d, s, s, d, mask), levers(d, &args), Run::Time)?;
            }
        }
    }
    gpu.run(&case(1, 32, 8, 8192, 8192, 128, Mask::CAUSAL), levers(128, &args), Run::Time)
}
