//! Appends on the best device there is, against the float64 reference: on a machine with a GPU these are tests of its
//! kernel.
//!
//! `FLASHCORE_SEED` moves to other appends, `FLASHCORE_PROBLEMS` sets how many (300).

use flashcore::{Append, AppendTensors, AppendValues, Attention, DType, Device, Error, RotaryTensors, Tensor};
use flashcore_problem::append::{AppendCase, AppendReference, Expected, e4m3_pairs, random_append};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Fails unless a tensor has what it must, and its other bytes as before.
fn compare(what: &str, expected: &[Option<Expected>], before: &Tensor, after: &Tensor) {
    let same = AppendReference::compare(expected, after.dtype(), after.layout(), before.bytes(), after.bytes());
    same.unwrap_or_else(|why| panic!("{what}: {why}"));
}

/// Whether the kernel refuses a case: e4m3 rows that it cannot move in words, or before sm_90 cannot rotate.
fn is_refused(case: &AppendCase, result: Result<(), Error>) -> bool {
    match result {
        Ok(()) => false,
        Err(Error::Refused { .. }) if case.append.dtype == DType::E4M3 => true,
        Err(error) => panic!("{error}\n{:?}", case.append),
    }
}

#[test]
fn appends_equal_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 300));
    let attention = Attention::new(Device::best()).unwrap();
    let mut refused = 0;
    let pairs = [false, true].map(|interleaved| (e4m3_pairs(interleaved), "pairs of e4m3".to_string()));
    let random = (first..first + count).map(|seed| (random_append(seed), format!("seed {seed}")));
    for (case, which) in pairs.into_iter().chain(random) {
        let (mut k_cache, mut v_cache) = (case.k_cache.clone(), case.v_cache.clone());
        let poisoned = case
            .append
            .rotary
            .map(|rotary| Tensor::poisoned(case.append.dtype, rotary.q_out));
        let (mut q_out, mut keys) = (poisoned.clone(), vec![0; case.append.batch]);
        let cache = [k_cache.view_mut(), v_cache.view_mut()];
        let mut tensors = AppendTensors::new([case.k_new.view(), case.v_new.view()], cache);
        tensors.values = case.values();
        tensors.slot_mapping = case.slots();
        tensors.seqused_k = case.append.seqused_k.then_some(&mut keys);
        let rotary = case.rotary.as_ref().zip(q_out.as_mut());
        tensors.rotary = rotary.map(|([cos, sin, q], q_out)| RotaryTensors {
            cos: cos.view(),
            sin: sin.view(),
            q: Some(q.view()),
            q_out: q_out.view_mut(),
        });
        if is_refused(&case, attention.append(&case.append, tensors)) {
            refused += 1;
            continue;
        }
        let (want, name) = (case.reference(), |tensor| format!("{which}, {tensor}"));
        compare(&name("k_cache"), &want.k_cache, &case.k_cache, &k_cache);
        compare(&name("v_cache"), &want.v_cache, &case.v_cache, &v_cache);
        if let (Some(before), Some(after)) = (&poisoned, &q_out) {
            compare(&name("q_out"), &want.q, before, after);
        }
        if case.append.seqused_k {
            assert_eq!(keys, want.seqused_k, "{}", name("seqused_k"));
        }
    }
    println!(
        "{} appends on {}, {refused} refused",
        count + 2 - refused,
        attention.device()
    );
}

#[test]
fn what_is_wrong_is_named() {
    let (new, cache) = ([2, 3, 1, 8].into(), [2, 10, 1, 8].into());
    let append = Append::to_cache(DType::F32, [new, new], [cache, cache]);
    let attention = Attention::new(Device::best()).unwrap();
    let rows = Tensor::filled(DType::F32, new, 0);
    let (mut k, mut v) = (
        Tensor::filled(DType::F32, cache, 0),
        Tensor::filled(DType::F32, cache, 0),
    );
    let mut error = |append: &Append, lengths: &'static [i32]| {
        let mut tensors = AppendTensors::new([rows.view(), rows.view()], [k.view_mut(), v.view_mut()]);
        tensors.values = AppendValues {
            cache_seqlens: Some(lengths),
            ..AppendValues::default()
        };
        attention.append(append, tensors).unwrap_err().to_string()
    };
    assert!(error(&append, &[1]).starts_with("cache_seqlens has 1 entries; this append needs 2"));
    assert!(error(&append, &[1, 8]).starts_with("cache_seqlens has 8 for sequence 1, which appends 3 rows"));
    let wrong = Append { batch: 3, ..append };
    assert!(error(&wrong, &[1, 2]).starts_with("k_new has shape [2, 3, 1, 8]"));
    assert!(attention.warmup_append(&[append, wrong]).is_err());
    assert!(attention.warmup_append(&[append]).is_ok());
}

/// Device memory, and values outside their bounds.
#[cfg(feature = "cuda")]
mod on_a_gpu {
    use std::cell::RefCell;

    use flashcore::cuda::{DeviceBuffer, Stream};
    use flashcore::{DeviceAppend, DeviceRotary, Queue, SlotMapping};

    use super::*;
    use crate::gpu;

    /// The memory of a case on the device.
    struct Memory {
        new: [DeviceBuffer; 2],
        cache: [DeviceBuffer; 2],
        values: AppendValues<DeviceBuffer>,
        slots: Option<DeviceBuffer>,
        keys: DeviceBuffer,
        rotary: Option<[DeviceBuffer; 4]>,
    }

    impl Memory {
        fn new(stream: &Stream, case: &AppendCase, in_place: bool) -> Memory {
            let upload = |tensor: &Tensor| DeviceBuffer::from_host(stream, tensor.bytes()).unwrap();
            let q_out = case.append.rotary.map(|r| Tensor::poisoned(case.append.dtype, r.q_out));
            let rotary = case.rotary.as_ref().zip(q_out.as_ref());
            Memory {
                new: [upload(&case.k_new), upload(&case.v_new)],
                cache: [upload(&case.k_cache), upload(&case.v_cache)],
                values: case
                    .values
                    .map(|values| DeviceBuffer::from_host(stream, values).unwrap()),
                slots: case.slots().map(|slots| match slots {
                    SlotMapping::I32(slots) => DeviceBuffer::from_host(stream, slots).unwrap(),
                    SlotMapping::I64(slots) => DeviceBuffer::from_host(stream, slots).unwrap(),
                }),
                keys: DeviceBuffer::from_host(stream, &vec![0; case.append.batch]).unwrap(),
                rotary: rotary
                    .map(|([cos, sin, q], q_out)| [cos, sin, q, if in_place { q } else { q_out }].map(upload)),
            }
        }

        fn tensors(&self, case: &AppendCase, in_place: bool) -> DeviceAppend<'_> {
            let [k_new, v_new] = &self.new;
            let [k_cache, v_cache] = &self.cache;
            let mut tensors = DeviceAppend::new(
                [k_new.as_slice(), v_new.as_slice()],
                [k_cache.as_slice(), v_cache.as_slice()],
            );
            tensors.values = self.values.map(DeviceBuffer::as_slice);
            tensors.slot_mapping = self.slots.as_ref().map(DeviceBuffer::as_slice);
            tensors.seqused_k = case.append.seqused_k.then(|| self.keys.as_slice());
            tensors.rotary = self.rotary.as_ref().map(|[cos, sin, q, q_out]| DeviceRotary {
                cos: cos.as_slice(),
                sin: sin.as_slice(),
                q: if in_place { q_out } else { q }.as_slice(),
                q_out: q_out.as_slice(),
            });
            tensors
        }
    }

    /// Rows whose place is not in the cache are not written, in a captured launch that is replayed.
    #[test]
    fn values_outside_the_cache_touch_nothing() {
        let Some(device) = gpu() else { return };
        let mut queue = Queue::new(&device).unwrap();
        let attention = Attention::new(device).unwrap();
        let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 300));
        for seed in first..first + count {
            let mut case = random_append(seed);
            let in_place = seed % 3 == 0;
            if let (true, Some(rotary)) = (in_place, case.append.rotary.as_mut()) {
                rotary.q_out = rotary.q;
            }
            if seed % 2 == 0 {
                case.spoil(seed, false);
            }
            let memory = Memory::new(queue.stream(), &case, in_place);
            let tensors = memory.tensors(&case, in_place);
            // Of other memory, so that what is captured is compiled and nothing of it has run.
            let other = Memory::new(queue.stream(), &case, in_place);
            let warm = attention.append_on(&mut queue, &case.append, &other.tensors(&case, in_place));
            if is_refused(&case, warm) {
                continue;
            }
            let graph = queue.capture(|queue| attention.append_on(queue, &case.append, &tensors));
            let stream = queue.stream();
            graph.unwrap().launch(stream).unwrap();
            let want = case.reference();
            let download = |like: &Tensor, buffer: &DeviceBuffer| {
                let mut tensor = like.clone();
                buffer.as_slice().copy_to_host(stream, tensor.bytes_mut()).unwrap();
                tensor
            };
            let [k_cache, v_cache] =
                [(&case.k_cache, 0), (&case.v_cache, 1)].map(|(like, i)| download(like, &memory.cache[i]));
            compare(&format!("seed {seed}, k_cache"), &want.k_cache, &case.k_cache, &k_cache);
            compare(&format!("seed {seed}, v_cache"), &want.v_cache, &case.v_cache, &v_cache);
            if let (Some(rotary), Some([.., q]), Some([.., q_out])) = (case.append.rotary, &case.rotary, &memory.rotary)
            {
                let poison = Tensor::poisoned(case.append.dtype, rotary.q_out);
                let before = if in_place { q } else { &poison };
                compare(
                    &format!("seed {seed}, q_out"),
                    &want.q,
                    before,
                    &download(before, q_out),
                );
            }
            if case.append.seqused_k {
                assert_eq!(
                    memory.keys.to_vec::<i32>(stream).unwrap(),
                    want.seqused_k,
                    "seed {seed}"
                );
            }
        }
    }

    #[test]
    fn memory_that_is_shared_is_refused() {
        let Some(device) = gpu() else { return };
        let queue = RefCell::new(Queue::new(&device).unwrap());
        let attention = Attention::new(device).unwrap();
        let case = (0..).map(random_append).find(|case| {
            let spans = [case.append.k_new, case.append.k_cache].map(|layout| layout.span());
            let is_served = case.append.dtype != DType::E4M3 && case.append.rotary.is_some();
            case.append.seqused_k && is_served && spans[0] <= spans[1]
        });
        let case = case.unwrap();
        let memory = Memory::new(queue.borrow().stream(), &case, false);
        let refused = |change: &dyn Fn(&mut DeviceAppend<'_>)| {
            let mut tensors = memory.tensors(&case, false);
            change(&mut tensors);
            attention
                .append_on(&mut queue.borrow_mut(), &case.append, &tensors)
                .unwrap_err()
                .to_string()
        };
        let after = refused(&|tensors| tensors.seqused_k = tensors.values.cache_seqlens);
        assert!(
            after.starts_with("seqused_k shares memory with cache_seqlens"),
            "{after}"
        );
        let new = refused(&|tensors| tensors.k_new = tensors.k_cache);
        assert!(new.starts_with("k_cache shares memory with k_new"), "{new}");
        assert!(refused(&|tensors| tensors.rotary = None).starts_with("rotary_cos is given"));
    }
}
