//! Queues: who owns the workspace, what waits for what, and what is refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use flashcore::unstable::cuda::{DeviceBuffer, DeviceSlice};
use flashcore::{
    Attention, CudaTensor, DType, ElementType, Error, KvLengths, Layout, Mask, Name, Operands, Problem, QLengths,
    Queue, Task, Tensor, View, bf16,
};

use crate::device::OnDevice;
use crate::gpu;

/// A step of decoding whose kernels need a workspace, with a schedule in it.
fn decode(batch: usize) -> Problem {
    let cache = Problem::builder()
        .batch(batch)
        .heads(8, 2)
        .head_dim(64)
        .dtype(DType::BF16);
    let cache = cache
        .seq_len_q(1)
        .seq_len_kv(2048)
        .mask(Mask::CAUSAL)
        .kv_lengths(KvLengths::Cache);
    cache.build().unwrap()
}

/// Tensors of a step on a device.
struct Step {
    problem: Problem,
    tensors: OnDevice,
}

impl Step {
    fn new(queue: &mut Queue, batch: usize, seed: u32) -> Step {
        let problem = decode(batch);
        let value = |i: usize| ((((i as u32).wrapping_mul(2_654_435_761) ^ seed) >> 16) as f32) / 65_536.0;
        let of = |layout: &Layout| {
            Tensor::from_slice(
                *layout,
                &(0..layout.span()).map(|i| bf16::from_f32(value(i))).collect::<Vec<_>>(),
            )
        };
        let layouts = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ];
        let [q, k, v, mut out] = layouts.map(|layout| of(layout).unwrap());
        let lengths: Vec<i32> = (0..batch as i32)
            .map(|i| 1 + (i * 997 + seed as i32 * 31) % 2048)
            .collect();
        let operands = Operands::forward(&q, &k, &v, &mut out).with(Name::SequsedK, &lengths);
        Step {
            tensors: OnDevice::new(queue, &problem, &operands),
            problem,
        }
    }

    fn run(&mut self, attention: &Attention, queue: &mut Queue) -> Result<(), Error> {
        attention.run_on(queue, &self.problem, self.tensors.operands())
    }

    fn out(&mut self, queue: &mut Queue) -> Vec<bf16> {
        queue.read(self.tensors.get(Name::Out)).unwrap()
    }
}

#[cfg(feature = "cpu")]
#[test]
fn a_queue_is_of_a_gpu() {
    let cpu = flashcore::Device::cpu();
    for queue in [Queue::new(&cpu), Queue::recording(&cpu)] {
        assert_eq!(
            queue.unwrap_err().to_string(),
            "queues and operands in device memory need a GPU, and the device is the CPU: make it with Device::cuda(n)"
        );
    }
}

/// Layers of a step: one schedule, which belongs to its queue and to calls whose plan would make the same.
#[test]
fn a_schedule_is_made_once_for_all_layers() {
    let Some(device) = gpu() else { return };
    let (attention, mut queue) = (Attention::new(device.clone()).unwrap(), Queue::new(&device).unwrap());
    let mut step = Step::new(&mut queue, 4, 1);
    step.run(&attention, &mut queue).unwrap();
    let want = step.out(&mut queue);
    let prepared = attention.prepare(&step.problem).unwrap();
    let error = queue.schedule(&prepared, &Operands::new()).unwrap_err().to_string();
    assert!(error.starts_with("seqused_k was not given"), "{error}");
    let made = queue.schedule(&prepared, &step.tensors.operands()).unwrap();
    let Some(mut schedule) = made else {
        println!("skipped: this plan has no schedule");
        return;
    };
    for _layer in 0..3 {
        step.tensors
            .get(Name::Out)
            .as_slice()
            .fill(queue.stream(), 0xff)
            .unwrap();
        let operands = step.tensors.operands().schedule(&mut schedule);
        attention.run_on(&mut queue, &prepared, operands).unwrap();
        assert_eq!(step.out(&mut queue), want);
    }
    let mut refused = |queue: &mut Queue, step: &mut Step, task: &Problem| {
        let operands = step.tensors.operands().schedule(&mut schedule);
        let error = attention.run_on(queue, task, operands).unwrap_err();
        assert!(matches!(error, Error::Schedule { .. }), "{error}");
        error.to_string()
    };
    let mut other = Queue::new(&device).unwrap();
    let problem = step.problem.clone();
    assert!(refused(&mut other, &mut step, &problem).contains("another queue"));
    let mut five = Step::new(&mut queue, 5, 1);
    let problem = five.problem.clone();
    assert!(refused(&mut queue, &mut five, &problem).contains("another call"));
}

#[test]
fn what_a_recording_cannot_do_is_refused_by_name() {
    let Some(device) = gpu() else { return };
    let (attention, mut queue) = (Attention::new(device.clone()).unwrap(), Queue::new(&device).unwrap());
    let mut step = Step::new(&mut queue, 2, 1);
    attention.prepare(&step.problem).unwrap();
    let mut recording = Queue::recording(&device).unwrap();
    let told = |error: Error, what: &str| assert!(error.to_string().starts_with(what), "{error}");
    let out = step.tensors.get(Name::Out);
    told(
        recording.download(out).unwrap_err(),
        "this queue cannot download: it records",
    );
    told(
        recording.read::<bf16>(out).unwrap_err(),
        "this queue cannot read: it records",
    );
    told(
        recording.write(out, &[bf16::ZERO]).unwrap_err(),
        "this queue cannot write: it records",
    );
    told(
        recording.upload(&[1i32]).unwrap_err(),
        "this queue cannot upload: it records",
    );
    told(
        recording.synchronize().unwrap_err(),
        "this queue cannot synchronize: it records",
    );
    told(
        queue.finish().unwrap_err(),
        "this queue cannot finish: it does not record",
    );
    // Memory of another library, which the graph could not keep.
    let context = device.context().unwrap();
    let keys = step.tensors.get(Name::SequsedK).as_slice();
    // SAFETY: it is memory of a tensor that lives as long as the test.
    #[allow(unsafe_code)]
    let foreign = unsafe { DeviceSlice::from_raw(context, keys.address(), keys.len()) };
    step.tensors.0.retain(|(spec, _)| spec.name != Name::SequsedK);
    let operands = step
        .tensors
        .operands()
        .with(Name::SequsedK, View::new(ElementType::I32, [2], foreign));
    told(
        attention.run_on(&mut recording, &step.problem, operands).unwrap_err(),
        "seqused_k is memory of another library",
    );
}

/// Eight threads with a queue each, shapes in turn, so that workspaces grow while others are used. `FLASHCORE_CALLS`
/// says how many calls there are in all.
#[test]
fn eight_queues_of_eight_threads() {
    let Some(device) = gpu() else { return };
    let calls = std::env::var("FLASHCORE_CALLS").map_or(2_000, |calls| calls.parse().unwrap());
    let (attention, done) = (Attention::new(device.clone()).unwrap(), AtomicUsize::new(0));
    let want: Vec<Vec<bf16>> = (0..8)
        .map(|n| {
            let mut queue = Queue::new(&device).unwrap();
            let mut step = Step::new(&mut queue, 1 + n, n as u32);
            step.run(&attention, &mut queue).unwrap();
            step.out(&mut queue)
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (attention, device, want, done) = (&attention, &device, &want, &done);
            scope.spawn(move || {
                let mut queue = Queue::new(device).unwrap();
                let mut steps: Vec<_> = (0..8).map(|n| Step::new(&mut queue, 1 + n, n as u32)).collect();
                let mut number = thread;
                while done.fetch_add(1, Ordering::Relaxed) < calls {
                    number += 1;
                    let n = number * 5 % 8;
                    steps[n].run(attention, &mut queue).unwrap();
                    if number % 16 == 0 {
                        assert_eq!(steps[n].out(&mut queue), want[n], "thread {thread}, call {number}");
                    }
                }
                for (step, want) in steps.iter_mut().zip(want) {
                    step.run(attention, &mut queue).unwrap();
                    assert_eq!(step.out(&mut queue), *want);
                }
            });
        }
    });
    println!("{calls} calls");
}

/// A chain over two queues and a graph, each of which reads what the one before wrote.
#[test]
fn queues_wait_for_each_other() {
    let Some(device) = gpu() else { return };
    let attention = Attention::new(device.clone()).unwrap();
    let mut queues = [Queue::new(&device).unwrap(), Queue::new(&device).unwrap()];
    let problem = Problem::builder()
        .batch(4)
        .heads(16, 16)
        .seq_len(1024)
        .head_dim(64)
        .dtype(DType::BF16);
    let problem = problem.build().unwrap();
    let prepared = attention.prepare(&problem).unwrap();
    let value = |b: usize, s: usize, h: usize, d: usize| {
        (((b * 1024 + s) * 1024 + h * 64 + d) * 7919 % 251) as f32 / 100.0 - 1.25
    };
    let start = Tensor::from_fn(DType::BF16, *problem.q_layout(), value);
    let run = |queue: &mut Queue, pair: &mut [CudaTensor]| {
        let (from, to) = pair.split_at_mut(1);
        let x = &from[0];
        attention
            .run_on(queue, &prepared, Operands::forward(x, x, x, &mut to[0]))
            .unwrap();
    };
    let mut chain: Vec<_> = (0..17).map(|_| queues[0].upload(&start).unwrap()).collect();
    for n in 0..16 {
        run(&mut queues[0], &mut chain[n..n + 2]);
    }
    let want = queues[0].read::<bf16>(&chain[16]).unwrap();
    for tensor in &chain[1..] {
        tensor.as_slice().fill(queues[0].stream(), 0xff).unwrap();
    }
    for n in 0..16 {
        if n % 4 == 3 {
            let mut recording = Queue::recording(&device).unwrap();
            run(&mut recording, &mut chain[n..n + 2]);
            queues[1 - n % 2].launch(&mut recording.finish().unwrap()).unwrap();
        } else {
            run(&mut queues[n % 2], &mut chain[n..n + 2]);
        }
    }
    assert_eq!(queues[1].read::<bf16>(&chain[16]).unwrap(), want);
}

/// A graph has a workspace for itself: the queue that recorded it goes on, and its buffers may be dropped.
#[test]
fn a_graph_outlives_queue_and_buffers() {
    let Some(device) = gpu() else { return };
    let attention = Attention::new(device.clone()).unwrap();
    let mut queue = Queue::new(&device).unwrap();
    let mut step = Step::new(&mut queue, 6, 3);
    step.run(&attention, &mut queue).unwrap();
    let want = step.out(&mut queue);
    let result = queue.empty(&step.problem.tensor(Name::Out).unwrap()).unwrap();
    let mut recording = Queue::recording(&device).unwrap();
    step.run(&attention, &mut recording).unwrap();
    let out = step.tensors.get(Name::Out).as_slice();
    result.as_slice().copy_from(recording.stream(), out).unwrap();
    // Another thread may finish what this one began.
    let finished = std::thread::scope(|scope| scope.spawn(|| recording.finish()).join());
    let mut graph = finished.unwrap().unwrap();
    let mut small = Step::new(&mut queue, 1, 9);
    small.run(&attention, &mut queue).unwrap();
    drop((queue, step));
    let mut other = Queue::new(&device).unwrap();
    let poison: Vec<_> = (0..32)
        .map(|_| DeviceBuffer::new(device.context().unwrap(), 1 << 20).unwrap())
        .collect();
    poison
        .iter()
        .for_each(|buffer| buffer.as_slice().fill(other.stream(), 0xff).unwrap());
    for _ in 0..3 {
        other.launch(&mut graph).unwrap();
        assert_eq!(other.read::<bf16>(&result).unwrap(), want);
    }
    for buffer in &poison {
        assert!(
            buffer
                .to_vec::<u8>(other.stream())
                .unwrap()
                .iter()
                .all(|byte| *byte == 0xff)
        );
    }
}

/// Threads that use a buffer at a time, each in its own queue: what a copy reads is of one fill, and never torn.
#[test]
fn threads_that_share_a_buffer_have_no_race() {
    let Some(device) = gpu() else { return };
    let context = device.context().unwrap();
    let shared = DeviceBuffer::new(context, 32 << 20).unwrap();
    let work = |value: u8| {
        let queue = Queue::new(&device).unwrap();
        let copy = DeviceBuffer::new(context, shared.len()).unwrap();
        for round in 0..100 {
            shared.as_slice().fill(queue.stream(), value).unwrap();
            copy.as_slice().copy_from(queue.stream(), shared.as_slice()).unwrap();
            if round % 10 == 9 {
                let bytes = copy.to_vec::<u8>(queue.stream()).unwrap();
                assert!(
                    bytes.iter().all(|byte| *byte == bytes[0]),
                    "round {round} of {value} is torn"
                );
            }
        }
    };
    shared
        .as_slice()
        .fill(Queue::new(&device).unwrap().stream(), 9)
        .unwrap();
    std::thread::scope(|scope| (0..4).for_each(|value| drop(scope.spawn(move || work(value)))));
}

/// Kernels read lengths and page tables when they run: those that change meanwhile may cost values, and no memory but
/// their own, and every call ends. There are `FLASHCORE_CALLS` calls of each kind, while another stream rewrites both.
#[test]
fn lengths_that_change_during_calls_cost_values_only() {
    let Some(device) = gpu() else { return };
    let context = device.context().unwrap();
    let calls = std::env::var("FLASHCORE_CALLS").map_or(300, |calls| calls.parse().unwrap());
    let attention = Attention::new(device.clone()).unwrap();
    let (mut queue, writer) = (Queue::new(&device).unwrap(), Queue::new(&device).unwrap());
    let mut step = Step::new(&mut queue, 8, 5);
    let packed = {
        let lengths = KvLengths::Packed {
            total: 4096,
            used: false,
        };
        let problem = Problem::builder()
            .batch(8)
            .heads(4, 2)
            .head_dim(64)
            .dtype(DType::BF16)
            .mask(Mask::CAUSAL);
        let problem = problem.seq_len_q(1024).q_lengths(QLengths::Packed {
            total: 4096,
            used: false,
        });
        problem
            .seq_len_kv(1024)
            .kv_lengths(lengths)
            .return_lse(true)
            .build()
            .unwrap()
    };
    let backward = packed.backward().unwrap();
    let mut packed_tensors = OnDevice::new(&mut queue, &packed, &Operands::new());
    let mut backward_tensors = OnDevice::new(&mut queue, &backward, &Operands::new());
    let starts =
        DeviceBuffer::from_host(queue.stream(), &[0i32, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096]).unwrap();
    let used = DeviceBuffer::from_host(queue.stream(), &[1i32; 8]).unwrap();
    let (page_size, pages, max_pages) = (16, 64, 32);
    let paged = KvLengths::Paged {
        page_size,
        pages,
        max_pages,
    };
    let paged = Problem::builder()
        .batch(8)
        .heads(8, 2)
        .head_dim(64)
        .dtype(DType::BF16)
        .mask(Mask::CAUSAL)
        .seq_len_q(1)
        .seq_len_kv(page_size * max_pages)
        .kv_lengths(paged)
        .build()
        .unwrap();
    let mut paged_tensors = OnDevice::new(&mut queue, &paged, &Operands::new());
    let table = DeviceBuffer::from_host(queue.stream(), &[0i32; 8 * 32]).unwrap();
    let tables: Vec<DeviceBuffer> = (0..16i32)
        .map(|n| {
            let page = |i: usize| match n % 4 {
                0 => i as i32 % 64,
                1 => (i as i32 * 7919 + n) % 64,
                2 => [-1, i32::MAX, i32::MIN, 64, 0, 1 << 20][i % 6],
                _ => 63 - i as i32 % 64,
            };
            let pages: Vec<i32> = (0..8 * 32).map(page).collect();
            DeviceBuffer::from_host(writer.stream(), &pages).unwrap()
        })
        .collect();
    let guards: Vec<_> = (0..16).map(|_| DeviceBuffer::new(context, 1 << 20).unwrap()).collect();
    guards
        .iter()
        .for_each(|guard| guard.as_slice().fill(writer.stream(), 0x5a).unwrap());
    writer.synchronize().unwrap();
    let values: Vec<DeviceBuffer> = (0..64i32)
        .map(|n| {
            let value = |i: i32| match n % 4 {
                0 => (i * 512).min(4096),
                1 => (i * 977 + n * 131) % 4097,
                2 => [-1, i32::MAX, i32::MIN, 4096, 0, 5000, 17, 1 << 30, 2][i as usize],
                _ => 4096 - i * 400,
            };
            DeviceBuffer::from_host(writer.stream(), &[0, 1, 2, 3, 4, 5, 6, 7, 8].map(value)).unwrap()
        })
        .collect();
    // By raw addresses, so that no call waits for the writer.
    #[allow(unsafe_code)]
    // SAFETY: all memory lives until both queues were waited for.
    let raw =
        |buffer: &DeviceBuffer| unsafe { DeviceSlice::from_raw(context, buffer.as_slice().address(), buffer.len()) };
    for call in 0..calls {
        for n in 0..8 {
            let from = raw(&values[(call * 8 + n) % 64]);
            raw(&starts).copy_from(writer.stream(), from).unwrap();
            raw(&used)
                .copy_from(writer.stream(), from.range(0..32).unwrap())
                .unwrap();
        }
        raw(&table).copy_from(writer.stream(), raw(&tables[call % 16])).unwrap();
        for (task, tensors) in [
            (&paged, &mut paged_tensors),
            (&step.problem, &mut step.tensors),
            (&packed, &mut packed_tensors),
            (&backward, &mut backward_tensors),
        ] {
            tensors.0.retain(|(spec, _)| spec.element != ElementType::I32);
            let mut operands = tensors.operands();
            for spec in task.tensors().iter().filter(|spec| spec.element == ElementType::I32) {
                let memory = match spec.name {
                    Name::SequsedK => raw(&used),
                    Name::BlockTable => raw(&table),
                    _ => raw(&starts),
                };
                operands = operands.with(spec.name, View::new(spec.element, spec.layout, memory));
            }
            attention.run_on(&mut queue, task, operands).unwrap();
        }
        if call % 64 == 63 {
            queue.synchronize().unwrap();
        }
    }
    queue.synchronize().unwrap();
    writer.synchronize().unwrap();
    for guard in &guards {
        assert!(
            guard
                .to_vec::<u8>(writer.stream())
                .unwrap()
                .iter()
                .all(|byte| *byte == 0x5a)
        );
    }
    println!("{calls} calls of each kind ended");
}
