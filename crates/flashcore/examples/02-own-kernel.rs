//! A kernel of one's own: written in Rust, checked by the simulator, launched where there is a GPU.
//!
//! It computes the softmax of each row of an f32 matrix, a warp a row, in one pass over memory.
//!
//! run with: cargo run --release -p flashcore --example 02-own-kernel

use std::error::Error;

use flashcore::Device;
use flashcore::unstable::cuda::{DeviceBuffer, Function, ModuleOptions, Stream};
use flashcore::unstable::kernel::{BuildErrors, Cache, Kernel, Launch};
use flashcore_sim::{Case, SimOptions};

const WARPS: u32 = 4;
const COLS: u32 = 1024;

/// The kernel. Shapes that shape the code (COLS) are Rust values; the rest are parameters.
fn row_softmax() -> Result<Kernel, BuildErrors> {
    Kernel::build("row_softmax", 32 * WARPS, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let rows = k.param::<u32>("rows");

        let row = k.block_idx(0) * WARPS + k.thread_idx() / 32;
        // All lanes of a warp have one row, so they agree; the simulator checks that they do.
        k.if_(row.lt(rows).uniform(), || {
            // Lane i takes quads i, i + 32, …: neighbouring lanes read neighbouring 16 bytes.
            let first = row * COLS + k.lane() * 4;
            let at = |quad: u32| (quad * 128) as i32;
            let quads = 0..COLS / 128;
            let x: Vec<_> = quads
                .clone()
                .flat_map(|q| input.offset(first).plus(at(q)).load_words(4, Cache::ReadOnly))
                .collect();

            let max = x[1..].iter().fold(x[0], |max, &x| max.max(x)).reduce_max(32);
            let e: Vec<_> = x
                .iter()
                .map(|&x| ((x - max) * std::f32::consts::LOG2_E).exp2())
                .collect();
            let sum = e[1..].iter().fold(e[0], |sum, &e| sum + e).reduce_sum(32);
            let norm = sum.recip();

            for q in quads {
                let quad: Vec<_> = e[4 * q as usize..][..4].iter().map(|&e| e * norm).collect();
                output.offset(first).plus(at(q)).store_words(&quad, Cache::Streaming);
            }
        });
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let rows = 10u32;
    let input: Vec<f32> = (0..rows * COLS).map(|i| (i as f32 * 0.7).sin() * 8.0).collect();
    let input_bytes: Vec<u8> = input.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let bytes = input_bytes.len();
    let kernel = row_softmax()?;
    // Arguments go to the parameters by name, so that none is in the place of another.
    let launch = Launch::builder(&kernel, [rows.div_ceil(WARPS), 1, 1])
        .buffer("input", bytes as u64)
        .buffer("output", bytes as u64)
        .arg("rows", rows)
        .build()?;
    let mut case = Case {
        kernel,
        launch,
        buffers: vec![input_bytes, vec![0; bytes]],
    };

    // Checked on any machine: every access in bounds, nothing read before it is written, no race.
    let report = case.simulate(&SimOptions::default())?;
    report.findings.iter().for_each(|finding| println!("{finding}"));
    let (words, _) = case.buffers[1].as_chunks();
    let simulated: Vec<f32> = words.iter().map(|&word| f32::from_ne_bytes(word)).collect();
    println!(
        "simulator: {} findings, worst error {:.1e}",
        report.findings.len(),
        worst_error(&input, &simulated)
    );

    assert!(report.is_clean() && worst_error(&input, &simulated) < 1e-6);

    // Launched where there is a GPU: the same kernel, the same launch.
    let device = Device::best();
    let Some(context) = device.context() else {
        let why = Device::why_not_cuda().map(|why| why.to_string());
        println!("no GPU here: {}", why.unwrap_or_default());
        return Ok(());
    };
    let stream = Stream::new(context)?;
    let device_input = DeviceBuffer::from_host(&stream, &input)?;
    let output = DeviceBuffer::from_host(&stream, &vec![f32::NAN; input.len()])?;
    let function = Function::load(context, &case.kernel, &ModuleOptions::default())?;
    let buffers = [device_input.as_slice(), output.as_slice()];
    // SAFETY: the simulator has just seen this kernel, with this launch, touch its two buffers only. They are alive
    // until the copy below has waited for it, and nothing else uses them.
    #[allow(unsafe_code)]
    unsafe {
        function.run(&stream, &case.launch, &buffers)?;
    }
    let worst = worst_error(&input, &output.to_vec::<f32>(&stream)?);
    println!("{}: worst error {worst:.1e}", context.info().name);
    assert!(worst < 1e-6);
    Ok(())
}

/// The largest error of any row, against float64.
fn worst_error(input: &[f32], output: &[f32]) -> f64 {
    let rows = input.chunks(COLS as usize).zip(output.chunks(COLS as usize));
    rows.flat_map(|(x, y)| {
        let sum: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
        x.iter()
            .zip(y)
            .map(move |(&x, &y)| (f64::from(y) - f64::from(x).exp() / sum).abs())
    })
    .max_by(f64::total_cmp)
    .unwrap_or(0.0)
}
