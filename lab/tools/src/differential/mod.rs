//! Cases for a GPU: random programs over the forms of PTX that the simulator executes, and the kernels of a corpus,
//! with what the simulator computes. `scripts/run_differential.py` runs them on a GPU, and compares.
//!
//! A program is a line of instructions, each with operands from a pool of ordinary and special values or of results
//! before it; each result is stored, so that the first that differs names its instruction. It is made from a seed.
//! What is not exact is stored and not computed with.

mod case;
mod corpus;
mod memory;
mod pool;
mod rows;
mod scalar;
mod warp;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use flashcore_problem::rng::Rng;
use flashcore_ptx::{Spelled, print};
use flashcore_sim::{PtxArg, PtxBuffer, PtxLaunch, SimOptions};
use serde::Serialize;

use case::{Case, Data};
use rows::{LeftOut, Rows, assembled};
use writer::{Area, BLOCK, COMMON, OWN, TABLE, THREADS, Writer};

/// Writes programs and kernels with what the simulator computes, for a GPU (`scripts/run_differential.py`).
///
/// Exits with 0 where the simulator runs all of them and finds nothing, 1 where it does not.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The folder to write to.
    out: PathBuf,
    /// Seed of the programs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Programs.
    #[arg(long, default_value_t = 2000)]
    count: u64,
    /// Instructions of a program, without those around them.
    #[arg(long, default_value_t = 16)]
    length: usize,
    /// The architecture of the programs.
    #[arg(long, default_value = "sm_90")]
    target: String,
    /// An assembler: forms that it refuses for the architecture are left out.
    #[arg(long, default_value = "ptxas")]
    ptxas: PathBuf,
    /// A folder of PTX as scripts/compile_corpus.py leaves it, or with a launch file for each; its kernels are written,
    /// too.
    #[arg(long)]
    corpus: Option<PathBuf>,
}

#[derive(Serialize)]
struct Told<'a> {
    seed: u64,
    target: &'a str,
    /// How often each opcode is in the programs.
    opcodes: BTreeMap<&'a str, u64>,
    #[serde(flatten)]
    left_out: &'a LeftOut,
    cases: Vec<Case>,
}

/// Programs of a module: a GPU's driver compiles them at once.
const A_MODULE: usize = 32;

/// Writes one instruction with what it needs around it. None if programs cannot have it.
fn write(writer: &mut Writer, form: &Spelled) -> Option<()> {
    writer.form = print(form);
    match form.name() {
        "ld" | "ldu" => writer.loads(form),
        "st" => writer.stores(form),
        "atom" | "red" => writer.atomics(form),
        "cp" => writer.copies(form),
        "cvta" | "isspacep" => writer.addresses(form),
        "bar" | "barrier" => writer.barriers(form),
        "membar" | "fence" | "nanosleep" | "pmevent" | "prefetch" | "prefetchu" => writer.orders(form),
        "mbarrier" => writer.mbarriers(form),
        "ldmatrix" | "stmatrix" => writer.tiles(form),
        "mma" | "wmma" => writer.products(form),
        // Of clusters.
        "mapa" | "getctarank" => None,
        "mov" => writer.moves(form),
        _ => writer.scalar(form),
    }
}

/// A program: its forms are those of as many rows, in an order that comes to each row equally often.
fn program(options: &Options, rows: &Rows, number: u64) -> Writer {
    let mut writer = Writer::new(Rng::stream(options.seed, number));
    let all = rows.rows.len() as u64;
    let mut order: Vec<u64> = (0..all).collect();
    for place in 0..options.length as u64 {
        let turn = number * options.length as u64 + place;
        // Each deck of all rows has its own order.
        let (deck, at) = (turn / all, turn % all);
        order.sort_by_cached_key(|row| Rng::stream(!options.seed, deck * all + row).next_u64());
        let forms = &rows.rows[order[at as usize] as usize];
        if let Some(form) = writer.rng.clone().pick(forms) {
            writer.rng.next_u64();
            write(&mut writer, form);
        }
    }
    writer
}

/// What the simulator leaves in the output and in scratch memory.
fn simulated(text: &str, entry: &str, writer: &Writer, pool: &[u8]) -> Result<(PtxLaunch, Vec<Vec<u8>>), String> {
    let scratch = scratch(pool);
    let mut buffers = vec![pool.to_vec(), vec![0; writer.out_bytes.max(16) as usize], scratch];
    let launch = launch(&buffers, pool);
    let options = SimOptions {
        host_threads: 1,
        ..SimOptions::default()
    };
    match case::simulate(text, entry, &launch, &mut buffers, options)?.first() {
        Some(finding) => Err(finding.clone()),
        None => Ok((launch, buffers)),
    }
}

fn scratch(pool: &[u8]) -> Vec<u8> {
    let own = (OWN * THREADS) as usize;
    [&pool[pool::SECTION as usize..][..own], &vec![0; COMMON as usize]].concat()
}

fn launch(buffers: &[Vec<u8>], pool: &[u8]) -> PtxLaunch {
    let names = ["pool", "output", "scratch"];
    let named = buffers.iter().zip(names);
    let pointer = |slot| PtxArg {
        bytes: vec![0; 8],
        pointers: vec![(0, slot)],
        ..PtxArg::default()
    };
    let block = PtxArg {
        bytes: pool[..BLOCK as usize].to_vec(),
        ..PtxArg::default()
    };
    PtxLaunch {
        file: "program.ptx".to_string(),
        grid: [1, 1, 1],
        block: [THREADS, 1, 1],
        buffers: named
            .map(|(bytes, name)| PtxBuffer {
                name: name.to_string(),
                bytes: bytes.len() as u64,
                element: 8,
                written: true,
            })
            .collect(),
        args: vec![pointer(0), pointer(1), pointer(2), block],
        ..PtxLaunch::default()
    }
}

/// Of each item what a function makes of it, in their order. The simulator has its own pool of threads, and a thread of
/// another pool that waits for it would begin with other items in its stack.
fn in_order<T: Sync, R: Send>(items: &[T], of: impl Fn(usize, &T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = items.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let of = &of;
        let parts = items.chunks(each).enumerate();
        let parts = parts.map(|(part, items)| {
            scope.spawn(move || -> Vec<R> {
                let numbered = items.iter().enumerate();
                numbered.map(|(at, item)| of(part * each + at, item)).collect()
            })
        });
        let parts: Vec<_> = parts.collect();
        let done = parts.into_iter().map(|part| part.join());
        done.flat_map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    std::fs::create_dir_all(&options.out)?;
    let pool = pool::pool(options.seed);
    let rows = Rows::new(options)?;
    let numbers: Vec<u64> = (0..options.count).collect();
    let programs = in_order(&numbers, |_, &number| program(options, &rows, number));
    let table = &pool[..TABLE as usize];
    let head = writer::module(&options.target, table);
    let ran = in_order(&programs, |number, writer| {
        let entry = format!("program_{number}");
        let kernel = writer.kernel(&entry);
        let ran = simulated(&(head.clone() + &kernel), &entry, writer, &pool);
        (entry, kernel, ran)
    });
    let (mut data, mut cases, mut opcodes, mut failed) = (Data::default(), Vec::new(), BTreeMap::new(), 0);
    let (pool_at, scratch_at) = (data.add(&pool), data.add(&scratch(&pool)));
    for (at, chunk) in ran.chunks(A_MODULE).enumerate() {
        let module = format!("programs_{at}.ptx");
        let mut text = head.clone();
        for ((entry, kernel, ran), writer) in chunk.iter().zip(&programs[at * A_MODULE..]) {
            let (launch, after) = match ran {
                Ok(ran) => ran,
                Err(why) => {
                    failed += 1;
                    println!("{entry}: {why}");
                    std::fs::write(options.out.join(format!("failed_{entry}.ptx")), head.clone() + kernel)?;
                    continue;
                }
            };
            text += kernel;
            for opcode in &writer.opcodes {
                *opcodes.entry(opcode.as_str()).or_default() += 1;
            }
            let outputs = [data.add(&after[1]), data.add(&after[2])];
            let whole = Area::whole(after[2].len() as u64, "scratch memory");
            cases.push(Case::new(entry, &module, entry, launch, |slot| match slot {
                0 => (Some(pool_at), None, Vec::new()),
                1 => (None, Some(outputs[0]), writer.areas.clone()),
                _ => (Some(scratch_at), Some(outputs[1]), vec![whole.clone()]),
            }));
        }
        std::fs::write(options.out.join(&module), text)?;
    }
    let programs = cases.len();
    if let Some(folder) = &options.corpus {
        failed += corpus::write(folder, &options.out, &mut data, &mut cases)?;
    }
    let modules: BTreeSet<&String> = cases.iter().map(|case| &case.module).collect();
    let modules: Vec<PathBuf> = modules.into_iter().map(|module| options.out.join(module)).collect();
    for (module, said) in modules
        .iter()
        .zip(in_order(&modules, |_, module| assembled(options, module)))
    {
        let said = said?;
        if let Some(error) = said.lines().find(|line| line.contains("error")) {
            failed += 1;
            println!("{}: {error}", module.display());
        }
    }
    let report = Told {
        seed: options.seed,
        target: &options.target,
        left_out: &rows.left_out,
        opcodes,
        cases,
    };
    println!(
        "{programs} programs of {} rows, {} opcodes; {} kernels; {failed} failed; rows not executed {}, not written {}, refused {}",
        rows.rows.len(),
        report.opcodes.len(),
        report.cases.len() - programs,
        rows.left_out.missing.len(),
        rows.left_out.unwritten.len(),
        rows.left_out.refused.len()
    );
    std::fs::write(options.out.join("data.bin"), &data.0)?;
    std::fs::write(options.out.join("cases.json"), serde_json::to_string(&report)?)?;
    crate::verdict(failed == 0)
}

#[cfg(test)]
mod tests {
    use flashcore_ptx::{Module, spellings};
    use flashcore_sim::{PtxKernel, TensorSums, executes};

    use super::*;

    /// One program of a form of each row that the simulator executes.
    fn of_each_row() -> Vec<(String, Writer)> {
        let rows = spellings(1).into_iter().enumerate();
        let first = rows.filter_map(|(row, forms)| Some((row as u64, forms.into_iter().next()?)));
        let written = first
            .filter(|(_, form)| executes(&print(form)))
            .filter_map(|(row, form)| {
                let mut writer = Writer::new(Rng::stream(1, row));
                write(&mut writer, &form).map(|()| (print(&form), writer))
            });
        written.collect()
    }

    #[test]
    fn the_simulator_runs_a_program_of_each_row() {
        let pool = pool::pool(1);
        let head = writer::module("sm_90", &pool[..TABLE as usize]);
        let (mut ran, mut written) = (0, 0);
        for (form, writer) in of_each_row() {
            let text = head.clone() + &writer.kernel("k");
            match simulated(&text, "k", &writer, &pool) {
                Ok((_, after)) => {
                    ran += 1;
                    written += u32::from(after[1].iter().any(|&byte| byte != 0));
                }
                Err(why) => assert!(
                    why.contains("not execute") || why.contains("cluster"),
                    "{form}: {why}\n{text}"
                ),
            }
        }
        // Reductions of scratch memory and fences leave no output; a comparison may hold nowhere.
        assert!(ran > 200 && written > 150, "{ran} {written}");
    }

    /// Barriers at which a warp arrives and does not wait.
    #[test]
    fn a_form_in_a_row_is_clean() {
        let pool = pool::pool(1);
        let head = writer::module("sm_90", &pool[..TABLE as usize]);
        for opcode in [
            "bar.arrive",
            "barrier.cta.arrive.aligned",
            "bar.sync",
            "bar.red.popc.u32",
        ] {
            let form = flashcore_ptx::read(opcode).unwrap();
            let mut writer = Writer::new(Rng::stream(1, 0));
            for _ in 0..8 {
                assert!(write(&mut writer, &form).is_some());
            }
            let text = head.clone() + &writer.kernel("k");
            let ran = simulated(&text, "k", &writer, &pool);
            assert!(ran.is_ok(), "{opcode}: {:?}\n{text}", ran.err());
        }
    }

    /// What tensor cores compute is within the bounds that are stated for other sums.
    #[test]
    fn sums_of_a_gpu_are_within_the_bounds_of_exact_ones() {
        let pool = pool::pool(1);
        let head = writer::module("sm_90", &pool[..TABLE as usize]);
        let mut worst = 0.0f64;
        for opcode in [
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
        ] {
            let form = flashcore_ptx::read(opcode).unwrap();
            for seed in 0..16 {
                let mut writer = Writer::new(Rng::stream(1, seed));
                assert!(write(&mut writer, &form).is_some());
                let module = Module::read(&(head.clone() + &writer.kernel("k"))).unwrap();
                let buffers = [pool.clone(), vec![0; writer.out_bytes as usize], scratch(&pool)];
                let kernel = PtxKernel::read(&module, "k", &launch(&buffers, &pool)).unwrap();
                let outputs = [TensorSums::Exact, TensorSums::Hopper].map(|tensor_sums| {
                    let (mut after, options) = (buffers.clone(), SimOptions::default());
                    let options = SimOptions { tensor_sums, ..options };
                    assert!(kernel.simulate(&mut after, &options).unwrap().is_clean());
                    let [_, output, _] = after;
                    output
                });
                for area in writer.areas.iter().filter(|area| area.absolute > 0.0) {
                    let bytes = area.at as usize..(area.at + area.bytes) as usize;
                    let [exact, found] = outputs.each_ref().map(|output| &output[bytes.clone()]);
                    for (exact, found) in exact.as_chunks().0.iter().zip(found.as_chunks().0) {
                        let [exact, found] = [exact, found].map(|it| f64::from(f32::from_le_bytes(*it)));
                        worst = worst.max((exact - found).abs() / area.absolute);
                    }
                }
            }
        }
        // They differ, and the bounds are not far from what comes up.
        assert!(worst > 0.01 && worst <= 1.0, "{worst}");
    }

    #[test]
    fn a_seed_has_one_program() {
        let texts = || {
            of_each_row()
                .into_iter()
                .map(|(_, writer)| writer.kernel("k"))
                .collect::<Vec<_>>()
        };
        assert_eq!(texts(), texts());
    }
}
