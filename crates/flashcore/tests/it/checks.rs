//! Values on a GPU are checked before calls read them: planted violations are errors that name argument, sequence and
//! value, right values are none, and a graph's violation is the error of the next call outside of a capture. What the
//! kernel finds is tested in the simulator (`operand_checks.rs` of `lab/check`).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use flashcore::{
    Append, Attention, Combine, DType, Device, Error, KvLengths, Layout, Lengths, Mask, Name, Operands, Options,
    Problem, ProblemBuilder, QLengths, Queue,
};

use crate::device::OnDevice;

/// All calls that check share the record of graphs.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPU, and attention on it that checks, or does not; `None` where there is no GPU.
fn on_gpu(checks: bool) -> Option<(Device, Attention)> {
    let device = crate::gpu()?;
    let options = Options {
        checks: Some(checks),
        ..Options::default()
    };
    Some((device.clone(), Attention::with(device, options).unwrap()))
}

/// Tensors of a problem, zeros, with these lengths, on a device.
struct Call {
    problem: Problem,
    tensors: OnDevice,
}

impl Call {
    fn new(queue: &mut Queue, problem: Problem, lengths: &Lengths<Vec<i32>>) -> Call {
        let operands = Operands::new().with_lengths(&lengths.as_slices());
        let tensors = OnDevice::new(queue, &problem, &operands);
        Call { problem, tensors }
    }

    fn write(&mut self, queue: &mut Queue, lengths: &Lengths<Vec<i32>>) {
        for (word, values) in Lengths::<()>::NAMES.into_iter().zip(lengths.arrays()) {
            if let Some(values) = values {
                self.tensors.write(queue, Name::from_word(word).unwrap(), values);
            }
        }
    }

    fn run(&mut self, attention: &Attention, queue: &mut Queue) -> Result<(), Error> {
        attention.run_on(queue, &self.problem, self.tensors.operands())
    }
}

fn base(batch: usize, q: usize, kv: usize) -> ProblemBuilder {
    let problem = Problem::builder()
        .batch(batch)
        .heads(4, 2)
        .head_dim(64)
        .dtype(DType::BF16);
    problem.seq_len_q(q).seq_len_kv(kv).mask(Mask::CAUSAL)
}

fn packed() -> Problem {
    let problem = base(3, 40, 60).q_lengths(QLengths::Packed { total: 90, used: false });
    problem
        .kv_lengths(KvLengths::Packed {
            total: 120,
            used: false,
        })
        .build()
        .unwrap()
}

fn packed_lengths(q: [i32; 4], k: [i32; 4]) -> Lengths<Vec<i32>> {
    Lengths {
        cu_seqlens_q: Some(q.to_vec()),
        cu_seqlens_k: Some(k.to_vec()),
        ..Lengths::default()
    }
}

fn paged() -> Problem {
    let paged = KvLengths::Paged {
        page_size: 16,
        pages: 20,
        max_pages: 8,
    };
    base(2, 1, 100).kv_lengths(paged).build().unwrap()
}

/// With a page in entry 3 of sequence 1.
fn paged_lengths(used: [i32; 2], page: i32) -> Lengths<Vec<i32>> {
    Lengths {
        seqused_k: Some(used.to_vec()),
        block_table: Some((0..16).map(|i| if i == 11 { page } else { i }).collect()),
        ..Lengths::default()
    }
}

/// Parts of an error's text.
type Parts = &'static [&'static str];

fn assert_names(result: Result<(), Error>, parts: &[&str]) {
    let error = result.expect_err(parts[0]);
    assert!(matches!(error, Error::Problem(_) | Error::Captured(_)), "{error}");
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
}

#[test]
fn planted_lengths_are_refused_and_their_clean_twins_are_not() {
    let (_lock, Some((device, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    let mut queue = Queue::new(&device).unwrap();
    let (q, k) = ([0, 40, 50, 90], [0, 60, 60, 120]);
    let of_packed = |q, k, parts: Parts| {
        (
            packed(),
            packed_lengths([0, 40, 50, 90], [0, 60, 60, 120]),
            packed_lengths(q, k),
            parts,
        )
    };
    let of_pages = |used, page, parts: Parts| (paged(), paged_lengths([100, 64], 19), paged_lengths(used, page), parts);
    let planted = [
        of_packed(
            [0, 40, 30, 70],
            k,
            &["cu_seqlens_q has 30 in entry 2, of sequence 1", "allowed are 40 to 90"],
        ),
        of_packed(
            q,
            [0, 60, 60, 121],
            &[
                "cu_seqlens_k has 121 in entry 3, of sequence 2",
                "allowed are 60 to 120",
            ],
        ),
        of_packed([-2, 38, 50, 90], k, &["cu_seqlens_q has -2 in entry 0, of sequence 0"]),
        of_packed(
            [0, 40, 49, 90],
            k,
            &[
                "cu_seqlens_q gives sequence 2 41 rows",
                "max_seqlen_q",
                "is 40: raise it",
            ],
        ),
        of_pages([-5, 64], 19, &["seqused_k has -5 for sequence 0; allowed are 0 to 100"]),
        of_pages(
            [100, 101],
            19,
            &["seqused_k has 101 for sequence 1; allowed are 0 to 100"],
        ),
        of_pages(
            [100, 64],
            20,
            &["block_table has 20 in entry 3 of sequence 1", "pages 0 to 19"],
        ),
    ];
    let mut runs = 0;
    for (problem, clean, wrong, parts) in planted {
        let backward = problem.clone().backward().ok();
        for problem in [Some(problem), backward].into_iter().flatten() {
            let mut on = Call::new(&mut queue, problem, &clean);
            on.run(&attention, &mut queue).unwrap();
            on.write(&mut queue, &wrong);
            for _ in 0..3 {
                assert_names(on.run(&attention, &mut queue), parts);
            }
            on.write(&mut queue, &clean);
            on.run(&attention, &mut queue).unwrap();
            queue.synchronize().unwrap();
            runs += 1;
        }
    }
    println!("{runs} calls found each violation, and none in their clean twins");
}

/// A cache of two pages of 16 rows, to which two rows go at slots.
fn append_at(attention: &Attention, queue: &mut Queue, slots: [i64; 2]) -> Result<(), Error> {
    let (new, cache): (Layout, Layout) = ([2, 1, 2, 64].into(), [2, 16, 2, 64].into());
    let append = Append::to_slots(DType::BF16, [new, new], [cache, cache], true);
    let mut on = OnDevice::new(queue, &append, &Operands::new().with(Name::SlotMapping, &slots));
    attention.run_on(queue, &append, on.operands())
}

#[test]
fn planted_values_of_appends_are_refused() {
    let (_lock, Some((device, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    let mut queue = Queue::new(&device).unwrap();
    append_at(&attention, &mut queue, [31, -1]).unwrap();
    let slots = "allowed are -1 (skip) and 0 to 31";
    assert_names(
        append_at(&attention, &mut queue, [0, 32]),
        &["slot_mapping has 32 for row 1", slots],
    );
    assert_names(
        append_at(&attention, &mut queue, [1 << 32, 3]),
        &["slot_mapping has 4294967296 for row 0", slots],
    );
    append_at(&attention, &mut queue, [0, 1]).unwrap();

    // To parts of a contiguous cache, with padding.
    let (new, cache): (Layout, Layout) = ([2, 1, 2, 64].into(), [3, 16, 2, 64].into());
    let append = Append {
        batch_idx: true,
        seqused_k: true,
        leftpad: true,
        ..Append::to_cache(DType::BF16, [new, new], [cache, cache])
    };
    let mut run = |seqlens: [i32; 2], parts: [i32; 2], padding: [i32; 2]| {
        let values = Operands::new().with(Name::CacheSeqlens, &seqlens);
        let values = values.with(Name::CacheBatchIdx, &parts).with(Name::LeftpadK, &padding);
        let mut on = OnDevice::new(&mut queue, &append, &values);
        attention.run_on(&mut queue, &append, on.operands())
    };
    run([15, 0], [2, 0], [16, 0]).unwrap();
    let room = "room for 0 to 16 in all";
    assert_names(
        run([16, 0], [2, 0], [0, 0]),
        &["cache_seqlens has 16 for sequence 0, which appends 1 rows", room],
    );
    assert_names(
        run([3, 4], [1, 3], [0, 0]),
        &["cache_batch_idx has 3 for sequence 1; allowed are 0 to 2"],
    );
    assert_names(
        run([3, 4], [1, 0], [0, 6]),
        &["leftpad_k has 6 for sequence 1; allowed are 0 to 5"],
    );
}

/// A merge of one part, which has no values to check.
fn merge(attention: &Attention, queue: &mut Queue) -> Result<(), Error> {
    let merge = Combine::of(&base(1, 8, 8).build().unwrap(), 1).unwrap();
    let mut on = OnDevice::new(queue, &merge, &Operands::new());
    attention.run_on(queue, &merge, on.operands())
}

#[test]
fn a_graphs_violation_is_the_error_of_the_next_call_outside() {
    let (_lock, Some((device, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    let mut queue = Queue::new(&device).unwrap();
    let (clean, wrong) = (paged_lengths([100, 64], 19), paged_lengths([100, 101], 19));
    let [mut captured, mut other] = [(), ()].map(|()| Call::new(&mut queue, paged(), &clean));
    captured.run(&attention, &mut queue).unwrap();
    let mut recording = Queue::recording(&device).unwrap();
    captured.run(&attention, &mut recording).unwrap();
    let mut graph = recording.finish().unwrap();
    assert!(
        graph.kernels().next().unwrap().starts_with("check_"),
        "{:?}",
        graph.kernels().collect::<Vec<_>>()
    );
    for round in 0..4 {
        captured.write(&mut queue, &clean);
        queue.launch(&mut graph).unwrap();
        other.run(&attention, &mut queue).unwrap();
        captured.write(&mut queue, &wrong);
        for _ in 0..1 + round {
            queue.launch(&mut graph).unwrap();
        }
        let parts = ["seqused_k has 101 for sequence 1", "captured into a CUDA graph"];
        match round {
            0 => assert_names(other.run(&attention, &mut queue), &parts),
            // A call that has no values to check, too, and one that is itself captured is not told.
            1 => {
                let mut recording = Queue::recording(&device).unwrap();
                other.run(&attention, &mut recording).unwrap();
                recording.finish().unwrap();
                let mut dense = Call::new(&mut queue, base(1, 8, 8).build().unwrap(), &Lengths::default());
                assert_names(dense.run(&attention, &mut queue), &parts);
            }
            2 => assert_names(merge(&attention, &mut queue), &parts),
            _ => assert_names(append_at(&attention, &mut queue, [0, 1]), &parts),
        }
        other.run(&attention, &mut queue).unwrap();
    }
    queue.synchronize().unwrap();
}

/// Each of many calls at the same time has its own error.
#[test]
fn calls_in_streams_of_threads_are_told_of_their_own_values() {
    let (_lock, Some((device, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (device, attention) = (&device, &attention);
            scope.spawn(move || {
                let mut queue = Queue::new(device).unwrap();
                let used = [100, if n % 2 == 0 { 64 } else { 200 + n }];
                let mut on = Call::new(&mut queue, paged(), &paged_lengths(used, 19));
                for _ in 0..50 {
                    let result = on.run(attention, &mut queue);
                    match n % 2 {
                        0 => result.unwrap(),
                        _ => assert_names(result, &[&format!("seqused_k has {} for sequence 1", 200 + n)]),
                    }
                }
                queue.synchronize().unwrap();
            });
        }
    });
}

/// What a check costs on the host, printed for who asks: nothing is asserted of times.
#[test]
fn without_checks_nothing_is_refused_and_with_them_a_call_takes_longer() {
    let _lock = one_at_a_time();
    let mut line = String::new();
    for checks in [false, true] {
        let Some((device, attention)) = on_gpu(checks) else {
            return;
        };
        let mut queue = Queue::new(&device).unwrap();
        let mut on = Call::new(&mut queue, paged(), &paged_lengths([100, 64], 19));
        let calls = 2_000;
        (0..100).for_each(|_| on.run(&attention, &mut queue).unwrap());
        queue.synchronize().unwrap();
        let start = Instant::now();
        (0..calls).for_each(|_| on.run(&attention, &mut queue).unwrap());
        let enqueued = start.elapsed().as_secs_f64();
        queue.synchronize().unwrap();
        let done = start.elapsed().as_secs_f64();
        let micros = |seconds: f64| seconds / f64::from(calls) * 1e6;
        line += &format!(
            "{} checks: {:.2} us a call to enqueue, {:.2} us with its work; ",
            if checks { "with" } else { "without" },
            micros(enqueued),
            micros(done)
        );
        on.write(&mut queue, &paged_lengths([100, 101], 19));
        assert_eq!(on.run(&attention, &mut queue).is_err(), checks);
        queue.synchronize().unwrap();
    }
    println!("{line}");
}

/// Of a schedule that is made without its pages.
#[test]
fn schedules_are_checked_without_their_pages() {
    let (_lock, Some((device, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    let mut queue = Queue::new(&device).unwrap();
    let paged = KvLengths::Paged {
        page_size: 16,
        pages: 5 * 256,
        max_pages: 256,
    };
    let prepared = attention
        .prepare(&base(5, 1, 4096).kv_lengths(paged).build().unwrap())
        .unwrap();
    for (last, is_wrong) in [(4096, false), (4097, true)] {
        let used = queue.upload(&[1, 2, 3, 4, last]).unwrap();
        let made = queue.schedule(&prepared, &Operands::new().with(Name::SequsedK, &used));
        if is_wrong {
            assert_names(
                made.map(drop),
                &["seqused_k has 4097 for sequence 4; allowed are 0 to 4096"],
            )
        } else {
            println!("a schedule: {}", made.unwrap().is_some())
        }
    }
}
