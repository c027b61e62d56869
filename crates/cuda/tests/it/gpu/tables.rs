//! Tables of launches: there once, held by who needs them, bounded where nobody does.

use flashcore_cuda::{DeviceBuffer, Function, Graph, Stream};
use flashcore_ir::{Arg, BufferSpec, Launch, Table};

use super::launches::load;
use super::{Bench, Outcome, Own, ensure, ptx};

/// Numbers of a table: a mebibyte.
const NUMBERS: u32 = 1 << 18;

/// Adds a table of the float `value` to a buffer of ones, into another.
struct Addition {
    add: Function,
    ones: DeviceBuffer,
    out: DeviceBuffer,
}

impl Addition {
    fn new(bench: &Bench) -> Result<Addition, Box<dyn std::error::Error>> {
        let ones = vec![1f32; NUMBERS as usize];
        Ok(Addition {
            add: load(bench, ptx::VECTOR_ADD, "vector_add")?,
            ones: DeviceBuffer::from_host(&bench.stream, &ones)?,
            out: DeviceBuffer::from_host(&bench.stream, &ones)?,
        })
    }

    fn launch(&self, value: u32) -> Launch {
        let buffer = |name, written| BufferSpec {
            name,
            bytes: u64::from(4 * NUMBERS),
            written,
            align: 4,
        };
        let slot = |slot| Arg::Buffer { slot, byte_offset: 0 };
        Launch {
            grid: [NUMBERS / 256, 1, 1],
            block: [256, 1, 1],
            cluster: [1, 1, 1],
            dynamic_shared_bytes: 0,
            programmatic: false,
            buffers: vec![buffer("ones", false), buffer("out", true)],
            args: vec![
                Arg::Table(Table::new(vec![(value as f32).to_bits(); NUMBERS as usize])),
                slot(0),
                slot(1),
                Arg::U32(NUMBERS),
            ],
        }
    }

    fn run(&self, stream: &Stream, launch: &Launch) -> Result<(), flashcore_cuda::CudaError> {
        self.add
            .ran(stream, launch, &[self.ones.as_slice(), self.out.as_slice()])
    }

    /// Asserts that the last addition was of `value`.
    fn check(&self, stream: &Stream, value: u32) -> Result<(), Box<dyn std::error::Error>> {
        let right = vec![value as f32 + 1.0; NUMBERS as usize];
        ensure!(
            self.out.to_vec::<f32>(stream)? == right,
            "the table of {value} was not read"
        );
        Ok(())
    }
}

/// Many tables one after the other take no more memory than a few.
pub(crate) fn bounded(bench: &Bench) -> Outcome {
    let addition = Addition::new(bench)?;
    // The least of several rounds: the device's free memory is that of other processes, too.
    let (mut before, mut least) = (u64::MAX, u64::MAX);
    for round in 0..10 {
        let mut most = 0;
        for value in 150 * round..150 * (round + 1) {
            addition.run(&bench.stream, &addition.launch(value))?;
            if value % 10 == 9 {
                addition.check(&bench.stream, value)?;
            }
            let (free, total) = bench.context.memory()?;
            before = before.min(total - free);
            most = most.max(total - free - before);
        }
        least = least.min(most);
    }
    ensure!(
        least <= 48 << 20,
        "150 tables of 1 MiB took {least} B more than the first"
    );
    Ok(format!("150 tables of 1 MiB: at most {} MiB at a time", least >> 20))
}

/// A graph keeps the tables that it captured, by whichever wrapper of its stream they came.
pub(crate) fn of_graphs(bench: &Bench) -> Outcome {
    let addition = Addition::new(bench)?;
    let stream = &bench.stream;
    // SAFETY: the stream lives to the end of this function.
    let theirs = unsafe { Stream::from_raw(&bench.context, stream.as_raw())? };
    let mut graphs = Vec::new();
    for (value, of_others) in [(1001, false), (1002, true)] {
        let launch = addition.launch(value);
        let _held = addition.add.hold_tables(&launch)?;
        let capture = |stream: &Stream| addition.run(if of_others { &theirs } else { stream }, &launch);
        graphs.push((value, Graph::capture(stream, capture)?));
    }
    for value in 2000..2050 {
        addition.run(stream, &addition.launch(value))?;
    }
    for (value, graph) in &graphs {
        graph.launch(stream)?;
        addition.check(stream, *value)?;
    }
    Ok("2 graphs after 50 other tables".to_string())
}
