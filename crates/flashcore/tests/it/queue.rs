//! Queues: who owns the workspace, what waits for what, and what is refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use flashcore::cuda::DeviceBuffer;
use flashcore::{
    Attention, DType, DeviceGradients, DeviceTensors, Error, KvLengths, Layout, Lengths, Mask, Problem, QLengths,
    Queue, bf16,
};

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

/// Tensors of a step on a device: q, k, v, out, and the lengths.
struct Step {
    problem: Problem,
    tensors: [DeviceBuffer; 4],
    lengths: DeviceBuffer,
}

impl Step {
    fn new(queue: &Queue, batch: usize, seed: u32) -> Step {
        let problem = decode(batch);
        let layouts = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ];
        let value =
            |i: usize| bf16::from_f32((((i as u32).wrapping_mul(2_654_435_761) ^ seed) >> 16) as f32 / 65_536.0);
        let upload = |values: Vec<bf16>| DeviceBuffer::from_host(queue.stream(), &values).unwrap();
        let tensors = layouts.map(|layout| upload((0..layout.span()).map(value).collect()));
        let lengths: Vec<i32> = (0..batch as i32)
            .map(|i| 1 + (i * 997 + seed as i32 * 31) % 2048)
            .collect();
        Step {
            problem,
            tensors,
            lengths: DeviceBuffer::from_host(queue.stream(), &lengths).unwrap(),
        }
    }

    fn operands(&self) -> DeviceTensors<'_> {
        let [q, k, v, out] = self.tensors.each_ref().map(DeviceBuffer::as_slice);
        let mut tensors = DeviceTensors::new(q, k, v, out);
        tensors.lengths = Lengths {
            seqused_k: Some(self.lengths.as_slice()),
            ..Lengths::default()
        };
        tensors
    }

    fn run(&self, attention: &Attention, queue: &mut Queue) -> Result<(), Error> {
        attention.forward_on(queue, &self.problem, &self.operands())
    }

    fn out(&self, queue: &Queue) -> Vec<u16> {
        self.tensors[3].to_vec(queue.stream()).unwrap()
    }
}

#[cfg(feature = "cpu")]
#[test]
fn a_queue_is_of_a_gpu() {
    let error = Queue::new(&flashcore::Device::cpu()).unwrap_err().to_string();
    assert!(error.contains("cpu"), "{error}");
}

#[test]
fn the_workspace_is_the_queues() {
    let Some(device) = gpu() else { return };
    let (attention, mut queue) = (Attention::new(device.clone()).unwrap(), Queue::new(&device).unwrap());
    let step = Step::new(&queue, 4, 1);
    let own = DeviceBuffer::new(device.context().unwrap(), 1 << 20).unwrap();
    let mut tensors = step.operands();
    tensors.workspace = Some(own.as_slice());
    let error = attention.forward_on(&mut queue, &step.problem, &tensors).unwrap_err();
    assert!(error.to_string().contains("workspace"), "{error}");
    let error = attention
        .forward_on(&mut queue, &step.problem, &step.operands().make_schedule())
        .unwrap_err();
    assert!(error.to_string().contains("schedule"), "{error}");
    assert!(
        attention.workspace_bytes(&step.problem, 16).unwrap() > 0,
        "the test shows nothing without one"
    );
    step.run(&attention, &mut queue).unwrap();
    queue.synchronize().unwrap();
}

/// Eight threads with a queue each, shapes in turn, so that workspaces grow while others are used. `FLASHCORE_CALLS`
/// says how many calls there are in all.
#[test]
fn eight_queues_of_eight_threads() {
    let Some(device) = gpu() else { return };
    let calls = std::env::var("FLASHCORE_CALLS").map_or(2_000, |calls| calls.parse().unwrap());
    let (attention, done) = (Attention::new(device.clone()).unwrap(), AtomicUsize::new(0));
    let want: Vec<Vec<u16>> = (0..8)
        .map(|n| {
            let mut queue = Queue::new(&device).unwrap();
            let step = Step::new(&queue, 1 + n, n as u32);
            step.run(&attention, &mut queue).unwrap();
            step.out(&queue)
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (attention, device, want, done) = (&attention, &device, &want, &done);
            scope.spawn(move || {
                let mut queue = Queue::new(device).unwrap();
                let steps: Vec<_> = (0..8).map(|n| Step::new(&queue, 1 + n, n as u32)).collect();
                let mut number = thread;
                while done.fetch_add(1, Ordering::Relaxed) < calls {
                    number += 1;
                    let n = number * 5 % 8;
                    steps[n].run(attention, &mut queue).unwrap();
                    if number % 16 == 0 {
                        assert_eq!(steps[n].out(&queue), want[n], "thread {thread}, call {number}");
                    }
                }
                for (step, want) in steps.iter().zip(want) {
                    step.run(attention, &mut queue).unwrap();
                    assert_eq!(step.out(&queue), *want);
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
    attention.warmup(std::slice::from_ref(&problem)).unwrap();
    let elements = problem.q_layout().span();
    let start: Vec<_> = (0..elements)
        .map(|i| bf16::from_f32((i * 7919 % 251) as f32 / 100.0 - 1.25))
        .collect();
    let buffer = |queue: &Queue| DeviceBuffer::from_host(queue.stream(), &start).unwrap();
    let run = |queue: &mut Queue, from: &DeviceBuffer, to: &DeviceBuffer| {
        let x = from.as_slice();
        attention
            .forward_on(queue, &problem, &DeviceTensors::new(x, x, x, to.as_slice()))
            .unwrap();
    };
    let chain: Vec<_> = (0..17).map(|_| buffer(&queues[0])).collect();
    let pairs = || chain.windows(2).enumerate();
    for (_, pair) in pairs() {
        run(&mut queues[0], &pair[0], &pair[1]);
    }
    let want = chain[16].to_vec::<u16>(queues[0].stream()).unwrap();
    chain[1..]
        .iter()
        .for_each(|buffer| buffer.as_slice().fill(queues[0].stream(), 0xff).unwrap());
    for (n, pair) in pairs() {
        if n % 4 == 3 {
            let queue = &mut queues[n % 2];
            let graph = queue.capture(|queue| {
                run(queue, &pair[0], &pair[1]);
                Ok(())
            });
            graph.unwrap().launch(queues[1 - n % 2].stream()).unwrap();
        } else {
            run(&mut queues[n % 2], &pair[0], &pair[1]);
        }
    }
    assert_eq!(chain[16].to_vec::<u16>(queues[1].stream()).unwrap(), want);
}

/// A graph has a workspace for itself: the queue that recorded it goes on, and its buffers may be dropped.
#[test]
fn a_graph_outlives_queue_and_buffers() {
    let Some(device) = gpu() else { return };
    let attention = Attention::new(device.clone()).unwrap();
    let mut queue = Queue::new(&device).unwrap();
    let (step, out) = (Step::new(&queue, 6, 3), decode(6).o_layout().span());
    step.run(&attention, &mut queue).unwrap();
    let want = step.out(&queue);
    let result = DeviceBuffer::new(device.context().unwrap(), 2 * out).unwrap();
    let graph = queue.capture(|queue| {
        step.run(&attention, queue)?;
        Ok(result
            .as_slice()
            .copy_from(queue.stream(), step.tensors[3].as_slice())?)
    });
    let graph = graph.unwrap();
    let small = Step::new(&queue, 1, 9);
    small.run(&attention, &mut queue).unwrap();
    drop((queue, step));
    let other = Queue::new(&device).unwrap();
    let poison: Vec<_> = (0..32)
        .map(|_| DeviceBuffer::new(device.context().unwrap(), 1 << 20).unwrap())
        .collect();
    poison
        .iter()
        .for_each(|buffer| buffer.as_slice().fill(other.stream(), 0xff).unwrap());
    for _ in 0..3 {
        graph.launch(other.stream()).unwrap();
        assert_eq!(result.to_vec::<u16>(other.stream()).unwrap(), want);
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
    let step = Step::new(&queue, 8, 5);
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
    let rows = |heads: usize| DeviceBuffer::from_host(queue.stream(), &vec![0x3c00u16; 4096 * heads * 64]).unwrap();
    let [q, k, v, out, dout, dq, dk, dv] = [4, 2, 2, 4, 4, 4, 2, 2].map(rows);
    let lse = DeviceBuffer::from_host(queue.stream(), &vec![1f32; packed.lse_len()]).unwrap();
    let starts =
        DeviceBuffer::from_host(queue.stream(), &[0i32, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096]).unwrap();
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
    let new = |layout: &Layout| DeviceBuffer::from_host(queue.stream(), &vec![0x3c00u16; layout.span()]).unwrap();
    let [paged_q, paged_k, paged_v, paged_out] =
        [paged.q_layout(), paged.k_layout(), paged.v_layout(), paged.o_layout()].map(new);
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
    let raw = |buffer: &DeviceBuffer| unsafe {
        flashcore::cuda::DeviceSlice::from_raw(context, buffer.as_slice().address(), buffer.len())
    };
    for call in 0..calls {
        for n in 0..8 {
            let from = raw(&values[(call * 8 + n) % 64]);
            raw(&starts).copy_from(writer.stream(), from).unwrap();
            raw(&step.lengths)
                .copy_from(writer.stream(), from.range(0..32).unwrap())
                .unwrap();
        }
        raw(&table).copy_from(writer.stream(), raw(&tables[call % 16])).unwrap();
        let [q_slice, k_slice, v_slice, out_slice] =
            [&paged_q, &paged_k, &paged_v, &paged_out].map(DeviceBuffer::as_slice);
        let mut decode = DeviceTensors::new(q_slice, k_slice, v_slice, out_slice);
        (decode.lengths.seqused_k, decode.lengths.block_table) = (Some(raw(&step.lengths)), Some(raw(&table)));
        attention.forward_on(&mut queue, &paged, &decode).unwrap();
        let mut decode = step.operands();
        decode.lengths.seqused_k = Some(raw(&step.lengths));
        attention.forward_on(&mut queue, &step.problem, &decode).unwrap();
        let mut tensors = DeviceTensors::new(q.as_slice(), k.as_slice(), v.as_slice(), out.as_slice());
        (tensors.lengths.cu_seqlens_q, tensors.lengths.cu_seqlens_k) = (Some(raw(&starts)), Some(raw(&starts)));
        tensors.lse = Some(lse.as_slice());
        attention.forward_on(&mut queue, &packed, &tensors).unwrap();
        let [dout, dq, dk, dv] = [&dout, &dq, &dk, &dv].map(DeviceBuffer::as_slice);
        tensors.gradients = Some(DeviceGradients { dout, dq, dk, dv });
        attention.backward_on(&mut queue, &backward, &tensors).unwrap();
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
