//! Appends on the best device there is, against the float64 reference: on a machine with a GPU these are tests of its
//! kernel.
//!
//! `FLASHCORE_SEED` moves to other appends, `FLASHCORE_PROBLEMS` sets how many (300).

use flashcore::{Append, AppendValues, Attention, DType, Device, Error, Host, Name, Operands, SlotMapping, Tensor};
use flashcore_testkit::{AppendCase, AppendReference, Expected, e4m3_pairs, random_append};

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

/// The operands of a case.
fn of_case<'a>(
    case: &'a AppendCase,
    [k_cache, v_cache]: [&'a mut Tensor; 2],
    q_out: Option<&'a mut Tensor>,
    keys: &'a mut Vec<i32>,
) -> Operands<'a, Host> {
    let mut operands = Operands::append(&case.k_new, &case.v_new, k_cache, v_cache);
    for (word, values) in AppendValues::<()>::NAMES.into_iter().zip(case.values.arrays()) {
        if let Some(values) = values {
            operands = operands.with(Name::from_word(word).unwrap(), values);
        }
    }
    operands = match case.slots() {
        Some(SlotMapping::I32(slots)) => operands.with(Name::SlotMapping, slots),
        Some(SlotMapping::I64(slots)) => operands.with(Name::SlotMapping, slots),
        None => operands,
    };
    if case.append.seqused_k {
        operands = operands.with_mut(Name::SequsedK, keys);
    }
    match (&case.rotary, q_out) {
        (Some([cos, sin, q]), Some(q_out)) => {
            let tables = operands.with(Name::RotaryCos, cos).with(Name::RotarySin, sin);
            tables.with(Name::Q, q).with_mut(Name::QOut, q_out)
        }
        _ => operands,
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
        let operands = of_case(&case, [&mut k_cache, &mut v_cache], q_out.as_mut(), &mut keys);
        if is_refused(&case, attention.run(&case.append, operands)) {
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
        let operands = Operands::append(&rows, &rows, &mut k, &mut v).with(Name::CacheSeqlens, lengths);
        attention.run(append, operands).unwrap_err().to_string()
    };
    assert!(error(&append, &[1]).starts_with("cache_seqlens has shape [1]; this call needs [2]"));
    assert!(error(&append, &[1, 8]).starts_with("cache_seqlens has 8 for sequence 1, which appends 3 rows"));
    let wrong = Append { batch: 3, ..append };
    assert!(error(&wrong, &[1, 2]).starts_with("k_new has shape [2, 3, 1, 8]"));
    assert!(attention.prepare(&wrong).is_err());
    assert_eq!(attention.prepare(&append).unwrap().kernel(), "append");
}

/// Device memory, and values outside their bounds.
#[cfg(feature = "cuda")]
mod on_a_gpu {
    use flashcore::{Cuda, Queue, View, ViewMut};

    use super::*;
    use crate::device::OnDevice;
    use crate::gpu;

    /// A case on the device; Q where it is rotated, if it is in place.
    fn upload(queue: &mut Queue, case: &AppendCase, in_place: bool) -> OnDevice {
        let (mut caches, mut keys) = ([case.k_cache.clone(), case.v_cache.clone()], vec![0; case.append.batch]);
        let mut q_out = case.append.rotary.map(|r| Tensor::poisoned(case.append.dtype, r.q_out));
        if let (true, Some([.., q])) = (in_place, &case.rotary) {
            q_out = Some(q.clone());
        }
        let [k, v] = &mut caches;
        let mut on = OnDevice::new(queue, &case.append, &of_case(case, [k, v], q_out.as_mut(), &mut keys));
        if in_place {
            on.0.retain(|(spec, _)| spec.name != Name::Q);
        }
        on
    }

    /// Rows whose place is not in the cache are not written, in a captured launch that is replayed.
    #[test]
    fn values_outside_the_cache_touch_nothing() {
        let Some(device) = gpu() else { return };
        let mut queue = Queue::new(&device).unwrap();
        let attention = Attention::new(device.clone()).unwrap();
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
            let mut on = upload(&mut queue, &case, in_place);
            // Of other memory, so that what is captured is compiled and nothing of it has run.
            let mut other = upload(&mut queue, &case, in_place);
            if is_refused(&case, attention.run_on(&mut queue, &case.append, other.operands())) {
                continue;
            }
            let mut recording = Queue::recording(&device).unwrap();
            attention.run_on(&mut recording, &case.append, on.operands()).unwrap();
            queue.launch(&mut recording.finish().unwrap()).unwrap();
            let want = case.reference();
            let mut compared = |name: Name, want: &[Option<Expected>], before: &Tensor| {
                let after = queue.download(on.get(name)).unwrap();
                compare(&format!("seed {seed}, {name}"), want, before, &after);
            };
            compared(Name::KCache, &want.k_cache, &case.k_cache);
            compared(Name::VCache, &want.v_cache, &case.v_cache);
            if let (Some(rotary), Some([.., q])) = (case.append.rotary, &case.rotary) {
                let poison = Tensor::poisoned(case.append.dtype, rotary.q_out);
                compared(Name::QOut, &want.q, if in_place { q } else { &poison });
            }
            if case.append.seqused_k {
                let keys = queue.read::<i32>(on.get(Name::SequsedK)).unwrap();
                assert_eq!(keys, want.seqused_k, "seed {seed}");
            }
        }
    }

    #[test]
    fn memory_that_is_shared_is_refused() {
        let Some(device) = gpu() else { return };
        let mut queue = Queue::new(&device).unwrap();
        let attention = Attention::new(device).unwrap();
        let case = (0..).map(random_append).find(|case| {
            let spans = [case.append.k_new, case.append.k_cache].map(|layout| layout.span());
            let is_served = case.append.dtype != DType::E4M3 && case.append.rotary.is_some();
            case.append.seqused_k && is_served && spans[0] <= spans[1]
        });
        let case = case.unwrap();
        let on = upload(&mut queue, &case, false);
        let mut refused = |written: Name, over: Name| {
            let place = |name: Name| on.0.iter().find(|(spec, _)| spec.name == name).unwrap().1.as_slice();
            let mut operands = Operands::<Cuda>::new();
            for (spec, _) in &on.0 {
                let memory = place(if spec.name == over { written } else { spec.name });
                operands = if spec.is_written() {
                    // SAFETY: the call is refused.
                    #[allow(unsafe_code)]
                    let memory = unsafe { flashcore::DeviceSliceMut::new(memory) };
                    operands.with_mut(spec.name, ViewMut::new(spec.element, spec.layout, memory))
                } else {
                    operands.with(spec.name, View::new(spec.element, spec.layout, memory))
                };
            }
            attention
                .run_on(&mut queue, &case.append, operands)
                .unwrap_err()
                .to_string()
        };
        let after = refused(Name::SequsedK, Name::CacheSeqlens);
        assert!(
            after.starts_with("seqused_k shares memory with cache_seqlens"),
            "{after}"
        );
        let new = refused(Name::KCache, Name::KNew);
        assert!(new.starts_with("k_cache shares memory with k_new"), "{new}");
    }
}
