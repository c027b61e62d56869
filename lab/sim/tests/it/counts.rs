//! Counts of a report: nodes of the kernel's tree, single blocks, sectors of copies.

use crate::common;

use common::Case;
use flashcore_ir::TileShape;
use flashcore_sim::Class;

/// Each thread increments its word of `data` in ten rounds; blocks after the first run twenty.
fn rounds() -> Case {
    Case::new(64, |k| {
        let data = k.param_ptr_mut::<f32>("data");
        let block = k.block_idx(0);
        let at = data.offset(block * 64 + k.thread_idx());
        let sum = k.var(0.0);
        let rounds = block.gt(0u32).select(20u32, 10u32);
        k.for_uniform(k.constant(0u32), rounds, 1u32, |_| sum.add_assign(1.0));
        at.store(sum.get());
    })
    .grid(3)
    .output("data", 3 * 64 * 4)
}

#[test]
fn instructions_are_counted_and_the_longest_path_is_recorded() {
    let mut case = rounds();
    case.options.path = 1000;
    let report = case.run_clean();
    let text = flashcore_ptx::Module::read(&case.kernel.to_ptx()).unwrap();
    let instructions = &text.kernels[0].instructions;
    assert_eq!(report.instructions.len(), instructions.len());
    let is = |at: usize, name: &str| {
        let form = &text.forms()[instructions[at].form as usize];
        form.as_ref().unwrap().name() == name
    };
    // Two warps in each of three blocks enter the loop; 10, 20 and 20 rounds.
    let sums = (0..instructions.len()).find(|&at| is(at, "add") && report.instructions[at].warps > 6);
    assert_eq!(report.instructions[sums.unwrap()].warps, 2 * (10 + 20 + 20));
    let store = (0..instructions.len()).find(|&at| is(at, "st")).unwrap();
    assert_eq!(
        (report.instructions[store].warps, report.instructions[store].lanes),
        (6, 6 * 32)
    );
    assert_eq!(report.counts.get(Class::Fma).warps, 100);
    // A warp of 20 rounds.
    let rounds = report.path.iter().filter(|&&at| at as usize == sums.unwrap()).count();
    assert_eq!(rounds, 20);
}

#[test]
fn only_block_runs_one_block() {
    let fmas = |block| {
        let mut case = rounds();
        case.options.only_block = block;
        case.run_clean().counts.get(Class::Fma).warps
    };
    assert_eq!((fmas(Some(0)), fmas(Some(1)), fmas(None)), (20, 40, 100));
    assert_eq!(fmas(Some(3)), 0, "there is no such block");
    let mut case = rounds();
    case.options.only_block = Some(1);
    case.run_clean();
    let word = |i: usize| f32::from_le_bytes(case.buffers[0][4 * i..4 * i + 4].try_into().unwrap());
    assert_eq!(word(64), 20.0);
    assert_eq!(case.buffers[0][0], 0xcc, "other blocks have written nothing");
}

#[test]
fn copies_are_counted_in_sectors() {
    // 32 lanes copy 16 bytes each: contiguous 512 bytes are 16 sectors, stride 64 bytes touches 32.
    let sectors = |stride: u32| {
        let mut case = Case::new(32, |k| {
            let src = k.param_ptr::<f32>("src");
            let out = k.param_ptr_mut::<f32>("out");
            let tile = k.shared_tile::<f32>("tile", TileShape::new(1, 128));
            let me = k.thread_idx();
            k.cp_async(tile.at(0u32, me * 4u32), src.offset(me * stride), None);
            k.cp_async_commit();
            k.cp_async_wait(0);
            k.barrier();
            out.offset(me).store(tile.at(0u32, me).load());
        })
        .input("src", &vec![1.0f32; 32 * stride as usize])
        .output("out", 128);
        case.options.memory_counts = true;
        let report = case.run_clean();
        let copies = report.memory.iter().filter(|site| site.class == Class::CopyAsync);
        copies.map(|site| (site.transactions, site.ideal)).next()
    };
    assert_eq!(sectors(4), Some((16, 16)));
    assert_eq!(sectors(16), Some((32, 16)));
}

#[test]
fn registers_count_live_values() {
    let registers = |live: usize| {
        let mut case = Case::new(32, |k| {
            let data = k.param_ptr_mut::<f32>("data").offset(k.thread_idx());
            let values: Vec<_> = (0..live).map(|i| data.load() + i as f32).collect();
            data.store(values.iter().fold(k.constant(0.0), |sum, &value| sum + value));
        })
        .output("data", 128);
        case.run_clean().registers
    };
    assert_eq!(registers(40) - registers(20), 20);
}
