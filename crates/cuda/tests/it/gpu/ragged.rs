//! Ragged tensor maps.

use flashcore_cuda::{DeviceBuffer, Function, ModuleOptions};
use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, Swizzle, TileShape};

use super::{Bench, Outcome, Own, ensure};

/// A ragged map: the driver takes its strides, and addresses wrap as the simulator has it. Sequences are copied, box by
/// box, to a tensor whose other rows keep their bytes.
pub(crate) fn copies(bench: &Bench) -> Outcome {
    const TOTAL: usize = 70;
    const HEADS: usize = 3;
    const DIM: usize = 32;
    const ROWS: u32 = 16;
    const SEQUENCES: [[u32; 2]; 5] = [[0, 17], [17, 0], [20, 1], [21, 32], [60, 10]];
    let kernel = Kernel::build("copy_sequences", 32, |k| {
        let tile = k.shared_tile::<f32>("tile", TileShape::new(ROWS, DIM as u32).swizzled(Swizzle::B128));
        let boxes = tile.tensor_box(&[ROWS, 1]).ragged(1);
        let (from, to) = (k.param_tensor_map("from", boxes), k.param_tensor_map_mut("to", boxes));
        let place = k.param_ptr::<u32>("sequences").offset(k.block_idx(0) * 2);
        let [first, len] = [0, 1].map(|word| place.plus(word).load());
        let full = k.mbarriers("full", 1).at(0);
        k.if_(k.elect().divergent(), || {
            full.init(1);
            k.fence_mbarrier_init();
            let phase = k.var(0u32);
            k.for_uniform(0, 3, 1, |part| {
                let at = [part * ROWS, k.block_idx(1)];
                full.arrive_expecting(tile.stage_bytes());
                tile.load_tma(0, from.rows(first, len).at(&at), full);
                full.wait(phase.get());
                phase.set(phase.get() ^ 1);
                tile.store_tma(0, to.rows(first, len).at(&at));
                k.bulk_commit();
                k.bulk_wait_read(0);
            });
        });
    })?;
    let values: Vec<f32> = (0..TOTAL * HEADS * DIM).map(|i| i as f32).collect();
    let tensor = DeviceBuffer::from_host(&bench.stream, &values)?;
    let out = DeviceBuffer::from_host(&bench.stream, &vec![-1f32; values.len()])?;
    let table = DeviceBuffer::from_host(&bench.stream, &SEQUENCES.concat())?;
    let mut launch = Launch::of(&kernel, [SEQUENCES.len() as u32, HEADS as u32, 1]);
    for (slot, name) in ["from", "to"].into_iter().enumerate() {
        let boxes = kernel.tensor_box(name).ok_or("no such map")?;
        let (dims, strides) = ([DIM, TOTAL, HEADS], [HEADS * DIM * 4, DIM * 4]);
        let (dims, strides) = (dims.map(|n| n as u64), strides.map(|n| n as u64));
        let recipe = boxes.recipe(slot, 0, dims.to_vec(), strides.to_vec());
        launch.args.push(Arg::TensorMap(recipe));
    }
    launch.args.push(Arg::Buffer {
        slot: 2,
        byte_offset: 0,
    });
    let buffers = [
        ("from", &tensor, false),
        ("to", &out, true),
        ("sequences", &table, false),
    ];
    launch.buffers = buffers
        .map(|(name, buffer, written)| BufferSpec {
            name,
            bytes: buffer.len() as u64,
            written,
            align: 16,
        })
        .to_vec();
    let function = match Function::load(&bench.context, &kernel, &ModuleOptions::default()) {
        Err(_) if bench.context.info().compute_capability.0 < 9 => return Ok("no tensor maps before sm_90".to_string()),
        loaded => loaded?,
    };
    function.ran(
        &bench.stream,
        &launch,
        &[tensor.as_slice(), out.as_slice(), table.as_slice()],
    )?;
    for (index, got) in out.to_vec::<f32>(&bench.stream)?.into_iter().enumerate() {
        let row = (index / (HEADS * DIM)) as u32;
        let copied = SEQUENCES
            .iter()
            .any(|&[first, len]| (first..first + len).contains(&row));
        let expected = if copied { values[index] } else { -1.0 };
        ensure!(got == expected, "row {row}: {got}, not {expected}");
    }
    Ok(format!("{} sequences of {TOTAL} rows", SEQUENCES.len()))
}
