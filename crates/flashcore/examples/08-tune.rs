//! A server's start: time kernels for the problems it will serve, and keep the table for the next
//! start.
//!
//! ```sh
//! cargo run --release --example 08-tune                 # a second, best device
//! cargo run --release --example 08-tune -- 60 plans.json  # a minute; FLASHCORE_PLANS=plans.json uses it
//! ```

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use flashcore::{Attention, Device, Mask, Problem, ProblemError, TuneProgress};

/// Llama 8B's layers: prompts of some lengths. Shorter ones on a host.
fn problems(device: &Device) -> Result<Vec<Problem>, ProblemError> {
    let (heads, lengths) = match device {
        Device::Cpu => ((4, 1), [64, 128]),
        _ => ((32, 8), [1462, 3000]),
    };
    let problem = |length| {
        let problem = Problem::builder().heads(heads.0, heads.1).head_dim(128);
        problem.seq_len(length).mask(Mask::CAUSAL).build()
    };
    lengths.into_iter().map(problem).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let file = arguments.next().map(PathBuf::from);

    let device = Device::best();
    let problems = problems(&device)?;
    // With FLASHCORE_PLANS=FILE it begins with the rows of an earlier start, and tunes only what is new.
    let mut attention = Attention::new(device)?;
    let tuned = attention.tune_watched(
        &problems,
        Duration::from_secs_f64(seconds),
        &mut |progress| match progress {
            TuneProgress::Problem { problem, index, count } => println!("{}/{count} {problem}", index + 1),
            TuneProgress::Timed(kernel, ratio) => println!("  {ratio:.3} {kernel}"),
            TuneProgress::LeftOut(kernel, why) => println!("  left out {kernel}: {why}"),
            TuneProgress::Done(found) => println!("  {:.1} % gained by {}", 100.0 * found.gain, found.kernel),
            _ => {}
        },
    )?;
    let (known, left) = (tuned.known.len(), tuned.left.len());
    println!("{known} problems were tuned before, {left} are left for another call");
    for problem in &problems {
        let plan = attention.plan(problem)?;
        println!("{problem}: {}, {}", plan.kernel(), plan.why());
    }
    if let Some(file) = file {
        tuned.save(&file)?;
        println!("saved in {}", file.display());
    }
    Ok(())
}
