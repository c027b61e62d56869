//! Values on a GPU are checked before calls read them: planted violations are errors that name argument, sequence and
//! value, right values are none, and a graph's violation is the error of the next call outside of a capture. What the
//! kernel finds is tested in the simulator (`operand_checks.rs` of `lab/check`).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use flashcore::cuda::{Context, DeviceBuffer, DeviceSlice, Graph, Stream};
use flashcore::{
    Append, AppendValues, Attention, DType, DeviceAppend, DeviceGradients, DevicePart, DeviceTensors, Error, KvLengths,
    Layout, Lengths, Mask, Options, Problem, ProblemBuilder, QLengths,
};

/// All calls that check share the record of graphs.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPU, and attention on it that checks, or does not; `None` where there is no GPU.
fn on_gpu(checks: bool) -> Option<(Context, Attention)> {
    let device = crate::gpu()?;
    let context = device.context()?.clone();
    let options = Options {
        checks: Some(checks),
        ..Options::default()
    };
    Some((context, Attention::with(device, options).unwrap()))
}

/// Tensors of a problem, zeros, with these lengths, on a device.
struct OnDevice {
    problem: Problem,
    tensors: Vec<DeviceBuffer>,
    lengths: Lengths<DeviceBuffer>,
    workspace: DeviceBuffer,
}

fn zeros(stream: &Stream, layout: &Layout, dtype: DType) -> DeviceBuffer {
    DeviceBuffer::from_host(stream, &vec![0u8; layout.span() * dtype.size_bytes()]).unwrap()
}

impl OnDevice {
    fn new(attention: &Attention, stream: &Stream, problem: Problem, lengths: &Lengths<Vec<i32>>) -> OnDevice {
        let layouts = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ];
        let mut tensors: Vec<_> = layouts.map(|layout| zeros(stream, layout, problem.dtype())).into();
        if let Some(layouts) = problem.gradient_layouts() {
            let gradients = [&layouts.dout, &layouts.dq, &layouts.dk, &layouts.dv];
            tensors.extend(gradients.map(|layout| zeros(stream, layout, problem.dtype())));
            tensors.push(DeviceBuffer::from_host(stream, &vec![0f32; problem.lse_len()]).unwrap());
        }
        let bytes = attention.workspace_bytes(&problem, 16).unwrap();
        OnDevice {
            tensors,
            lengths: lengths.map(|values| DeviceBuffer::from_host(stream, values).unwrap()),
            workspace: DeviceBuffer::new(stream.context(), bytes as usize).unwrap(),
            problem,
        }
    }

    fn write(&self, stream: &Stream, lengths: &Lengths<Vec<i32>>) {
        for (buffer, values) in self.lengths.arrays().into_iter().zip(lengths.arrays()) {
            if let (Some(buffer), Some(values)) = (buffer, values) {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                buffer.as_slice().copy_from_host(stream, &bytes).unwrap();
            }
        }
    }

    fn run(&self, attention: &Attention, stream: &Stream) -> Result<(), Error> {
        let slice = |n: usize| self.tensors[n].as_slice();
        let mut tensors = DeviceTensors::new(slice(0), slice(1), slice(2), slice(3));
        tensors.lengths = self.lengths.map(DeviceBuffer::as_slice);
        tensors.workspace = Some(self.workspace.as_slice());
        if self.tensors.len() > 4 {
            let [dout, dq, dk, dv] = [4, 5, 6, 7].map(slice);
            tensors.gradients = Some(DeviceGradients { dout, dq, dk, dv });
            tensors.lse = Some(slice(8));
        }
        // SAFETY: memory lives until the stream was waited for, and each value is used in one stream.
        #[allow(unsafe_code)]
        unsafe {
            attention.run_foreign(stream, &self.problem, &tensors, |_| None)
        }
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
    let (_lock, Some((context, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    let stream = Stream::new(&context).unwrap();
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
            let on = OnDevice::new(&attention, &stream, problem, &clean);
            // Kept graphs of launches do not hide it, and are there afterwards.
            for _ in 0..12 {
                on.run(&attention, &stream).unwrap();
            }
            on.write(&stream, &wrong);
            for _ in 0..3 {
                assert_names(on.run(&attention, &stream), parts);
            }
            on.write(&stream, &clean);
            on.run(&attention, &stream).unwrap();
            stream.synchronize().unwrap();
            runs += 1;
        }
    }
    println!("{runs} calls found each violation, and none in their clean twins");
}

/// A cache of two pages of 16 rows, to which two rows go at slots.
fn append_at(attention: &Attention, stream: &Stream, slots: [i64; 2]) -> Result<(), Error> {
    let (new, cache): (Layout, Layout) = ([2, 1, 2, 64].into(), [2, 16, 2, 64].into());
    let append = Append::to_slots(DType::BF16, [new, new], [cache, cache], true);
    let [a, b, c, d] = [&new, &new, &cache, &cache].map(|layout| zeros(stream, layout, DType::BF16));
    let slots = DeviceBuffer::from_host(stream, &slots).unwrap();
    let mut tensors = DeviceAppend::new([a.as_slice(), b.as_slice()], [c.as_slice(), d.as_slice()]);
    tensors.slot_mapping = Some(slots.as_slice());
    let appended = attention.append_on(&mut crate::queue_of(stream), &append, &tensors);
    stream.synchronize().unwrap();
    appended
}

#[test]
fn planted_values_of_appends_are_refused() {
    let (_lock, Some((context, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    let stream = Stream::new(&context).unwrap();
    append_at(&attention, &stream, [31, -1]).unwrap();
    let slots = "allowed are -1 (skip) and 0 to 31";
    assert_names(
        append_at(&attention, &stream, [0, 32]),
        &["slot_mapping has 32 for row 1", slots],
    );
    assert_names(
        append_at(&attention, &stream, [1 << 32, 3]),
        &["slot_mapping has 4294967296 for row 0", slots],
    );
    append_at(&attention, &stream, [0, 1]).unwrap();

    // To parts of a contiguous cache, with padding.
    let (new, cache): (Layout, Layout) = ([2, 1, 2, 64].into(), [3, 16, 2, 64].into());
    let append = Append {
        batch_idx: true,
        seqused_k: true,
        leftpad: true,
        ..Append::to_cache(DType::BF16, [new, new], [cache, cache])
    };
    let rows = [&new, &new, &cache, &cache].map(|layout| zeros(&stream, layout, DType::BF16));
    let [k_new, v_new, k_cache, v_cache] = rows.each_ref().map(DeviceBuffer::as_slice);
    let seqused_k = DeviceBuffer::from_host(&stream, &[0i32; 2]).unwrap();
    let run = |seqlens: [i32; 2], parts: [i32; 2], padding: [i32; 2]| {
        let values = [seqlens, parts, padding].map(|values| DeviceBuffer::from_host(&stream, &values).unwrap());
        let [seqlens, parts, padding] = values.each_ref().map(|buffer| Some(buffer.as_slice()));
        let mut tensors = DeviceAppend::new([k_new, v_new], [k_cache, v_cache]);
        tensors.values = AppendValues {
            cache_seqlens: seqlens,
            cache_batch_idx: parts,
            leftpad_k: padding,
            ..AppendValues::default()
        };
        tensors.seqused_k = Some(seqused_k.as_slice());
        let appended = attention.append_on(&mut crate::queue_of(&stream), &append, &tensors);
        stream.synchronize().unwrap();
        appended
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
fn merge(attention: &Attention, stream: &Stream) -> Result<(), Error> {
    let problem = base(1, 8, 8).build().unwrap();
    let [part, out] = [(), ()].map(|()| zeros(stream, problem.o_layout(), DType::BF16));
    let lse = DeviceBuffer::from_host(stream, &vec![0f32; problem.lse_len()]).unwrap();
    let part = DevicePart {
        out: part.as_slice(),
        lse: lse.as_slice(),
    };
    let merged = attention.combine_on(&mut crate::queue_of(stream), &problem, &[part], out.as_slice(), None);
    stream.synchronize().unwrap();
    merged
}

#[test]
fn a_graphs_violation_is_the_error_of_the_next_call_outside() {
    let (_lock, Some((context, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    let stream = Stream::new(&context).unwrap();
    let (clean, wrong) = (paged_lengths([100, 64], 19), paged_lengths([100, 101], 19));
    let [captured, other] = [(), ()].map(|()| OnDevice::new(&attention, &stream, paged(), &clean));
    captured.run(&attention, &stream).unwrap();
    let graph = Graph::capture(&stream, |stream| captured.run(&attention, stream)).unwrap();
    assert!(
        graph.kernels().next().unwrap().starts_with("check_"),
        "{:?}",
        graph.kernels().collect::<Vec<_>>()
    );
    for round in 0..4 {
        captured.write(&stream, &clean);
        graph.launch(&stream).unwrap();
        other.run(&attention, &stream).unwrap();
        captured.write(&stream, &wrong);
        for _ in 0..1 + round {
            graph.launch(&stream).unwrap();
        }
        let parts = ["seqused_k has 101 for sequence 1", "captured into a CUDA graph"];
        match round {
            0 => assert_names(other.run(&attention, &stream), &parts),
            // A call that has no values to check, too, and one that is itself captured is not told.
            1 => {
                Graph::capture(&stream, |stream| other.run(&attention, stream)).unwrap();
                let dense = OnDevice::new(&attention, &stream, base(1, 8, 8).build().unwrap(), &Lengths::default());
                assert_names(dense.run(&attention, &stream), &parts);
            }
            2 => assert_names(merge(&attention, &stream), &parts),
            _ => assert_names(append_at(&attention, &stream, [0, 1]), &parts),
        }
        other.run(&attention, &stream).unwrap();
    }
    stream.synchronize().unwrap();
}

/// Each of many calls at the same time has its own error.
#[test]
fn calls_in_streams_of_threads_are_told_of_their_own_values() {
    let (_lock, Some((context, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (context, attention) = (&context, &attention);
            scope.spawn(move || {
                let stream = Stream::new(context).unwrap();
                let used = [100, if n % 2 == 0 { 64 } else { 200 + n }];
                let on = OnDevice::new(attention, &stream, paged(), &paged_lengths(used, 19));
                for _ in 0..50 {
                    let result = on.run(attention, &stream);
                    match n % 2 {
                        0 => result.unwrap(),
                        _ => assert_names(result, &[&format!("seqused_k has {} for sequence 1", 200 + n)]),
                    }
                }
                stream.synchronize().unwrap();
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
        let Some((context, attention)) = on_gpu(checks) else {
            return;
        };
        let stream = Stream::new(&context).unwrap();
        let on = OnDevice::new(&attention, &stream, paged(), &paged_lengths([100, 64], 19));
        let calls = 2_000;
        (0..100).for_each(|_| on.run(&attention, &stream).unwrap());
        stream.synchronize().unwrap();
        let start = Instant::now();
        (0..calls).for_each(|_| on.run(&attention, &stream).unwrap());
        let enqueued = start.elapsed().as_secs_f64();
        stream.synchronize().unwrap();
        let done = start.elapsed().as_secs_f64();
        let micros = |seconds: f64| seconds / f64::from(calls) * 1e6;
        line += &format!(
            "{} checks: {:.2} us a call to enqueue, {:.2} us with its work; ",
            if checks { "with" } else { "without" },
            micros(enqueued),
            micros(done)
        );
        on.write(&stream, &paged_lengths([100, 101], 19));
        assert_eq!(on.run(&attention, &stream).is_err(), checks);
        stream.synchronize().unwrap();
    }
    println!("{line}");
}

/// A slice that another library could have given for the table of a schedule that is made without one.
#[test]
fn schedules_are_checked_without_their_pages() {
    let (_lock, Some((context, attention))) = (one_at_a_time(), on_gpu(true)) else {
        return;
    };
    let stream = Stream::new(&context).unwrap();
    let paged = KvLengths::Paged {
        page_size: 16,
        pages: 5 * 256,
        max_pages: 256,
    };
    let problem = base(5, 1, 4096).kv_lengths(paged).build().unwrap();
    let Some(schedule) = attention.schedule(&problem, 16).unwrap() else {
        println!("skipped: this plan has no schedule");
        return;
    };
    let workspace = DeviceBuffer::new(&context, schedule.workspace_bytes() as usize).unwrap();
    // SAFETY: nothing is read or written of these.
    #[allow(unsafe_code)]
    let [nothing, unread] =
        [(0, 0), (16, 4 * 5 * 256)].map(|(address, bytes)| unsafe { DeviceSlice::from_raw(&context, address, bytes) });
    for (last, is_wrong) in [(4096, false), (4097, true)] {
        let used = DeviceBuffer::from_host(&stream, &[1, 2, 3, 4, last]).unwrap();
        let mut tensors = DeviceTensors::new(nothing, nothing, nothing, nothing);
        tensors.lengths = Lengths {
            seqused_k: Some(used.as_slice()),
            block_table: Some(unread),
            ..Lengths::default()
        };
        tensors.workspace = Some(workspace.as_slice());
        // SAFETY: the workspace lives until the stream was waited for.
        #[allow(unsafe_code)]
        let made = unsafe { attention.run_foreign(&stream, &problem, &tensors.make_schedule(), |_| None) };
        match is_wrong {
            false => made.unwrap(),
            true => assert_names(made, &["seqused_k has 4097 for sequence 4; allowed are 0 to 4096"]),
        }
        stream.synchronize().unwrap();
    }
}
