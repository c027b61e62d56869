//! Operands of random tasks: the right ones are accepted, and each change of one is refused by its name.

use flashcore_problem::view::sealed::Sealed;
use flashcore_problem::{
    Access, Combine, DType, ElementType, Layout, Memory, Name, Operands, Problem, ProblemError, Task, TensorSpec, View,
    ViewMut,
};
use flashcore_testkit::random_append;
use flashcore_testkit::{RandomLimits, random_backward, random_problem};
use proptest::prelude::*;

/// Memory that is an address and a number of bytes, as another library's is.
#[derive(Debug)]
enum Foreign {}

impl Sealed for Foreign {}

impl Memory for Foreign {
    type Ref<'a> = (u64, u64);
    type Mut<'a> = (u64, u64);
    type Schedule<'a> = ();

    fn extent(memory: (u64, u64)) -> (u64, u64) {
        memory
    }

    fn shorter<'m, 'a: 'm>(memory: &'m (u64, u64)) -> (u64, u64) {
        *memory
    }

    fn shared(memory: &(u64, u64)) -> (u64, u64) {
        *memory
    }
}

/// A tensor as it is given.
#[derive(Clone)]
struct Given {
    name: Name,
    element: ElementType,
    layout: Layout,
    memory: (u64, u64),
    is_written: bool,
}

/// All tensors of a task, apart.
fn right_ones(specs: &[TensorSpec]) -> Vec<Given> {
    let mut end = 256;
    let of = |spec: &TensorSpec| {
        let memory = (end, spec.bytes());
        end += spec.bytes().next_multiple_of(256) + 256;
        Given {
            name: spec.name,
            element: spec.element,
            layout: spec.layout,
            memory,
            is_written: spec.is_written(),
        }
    };
    specs.iter().map(of).collect()
}

fn check(specs: &[TensorSpec], given: &[Given]) -> Result<(), ProblemError> {
    let mut operands = Operands::<Foreign>::new();
    for one in given {
        let Given {
            name,
            element,
            layout,
            memory,
            ..
        } = *one;
        operands = if one.is_written {
            operands.with_mut(name, ViewMut::new(element, layout, memory))
        } else {
            operands.with(name, View::new(element, layout, memory))
        };
    }
    operands.check(specs)
}

fn assert_refused(specs: &[TensorSpec], given: &[Given], of: Name, part: &str) -> Result<(), TestCaseError> {
    match check(specs, given) {
        Err(ProblemError::Operand { name, why }) => {
            prop_assert_eq!(name, of, "{}", why);
            prop_assert!(why.contains(part), "{name} {why}: no `{part}`");
            Ok(())
        }
        other => Err(TestCaseError::fail(format!("{of} with `{part}`: {other:?}"))),
    }
}

fn tasks(seed: u64) -> Vec<Vec<TensorSpec>> {
    const DTYPES: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::E4M3];
    let limits = RandomLimits {
        dtypes: DTYPES,
        ..RandomLimits::default()
    };
    let problem = random_problem(seed, &limits).unwrap();
    let backward = random_backward(seed, &RandomLimits { dtypes: &[], ..limits }).unwrap();
    let merge = Combine::of(&problem, 1 + seed as usize % 8).unwrap();
    vec![
        problem.tensors(),
        backward.tensors(),
        merge.tensors(),
        random_append(seed).append.tensors(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn only_the_right_operands_are_accepted(seed in any::<u64>(), pick in any::<prop::sample::Index>()) {
        for specs in tasks(seed) {
            let right = right_ones(&specs);
            check(&specs, &right).unwrap();
            let at = pick.index(right.len());
            let (spec, name) = (specs[at], specs[at].name);
            let changed = |change: &dyn Fn(&mut Given)| {
                let mut given = right.clone();
                change(&mut given[at]);
                given
            };

            let mut without = right.clone();
            without.remove(at);
            if spec.required {
                assert_refused(&specs, &without, name, "was not given")?;
            } else {
                prop_assert!(check(&specs, &without).is_ok());
            }
            let mut twice = right.clone();
            twice.push(right[at].clone());
            assert_refused(&specs, &twice, name, "twice")?;
            let other = [Name::Q, Name::SlotMapping, Name::PartLse(7), Name::Dk, Name::SeqlensRotary];
            for other in other.into_iter().filter(|other| specs.iter().all(|spec| spec.name != *other)) {
                let mut extra = right.clone();
                extra.insert(at, Given { name: other, ..right[at].clone() });
                let why = if other == Name::Dk { "of a backward pass" } else { "no use" };
                assert_refused(&specs, &extra, other, why)?;
            }
            let element = if spec.element == ElementType::I32 { ElementType::I64 } else { ElementType::I32 };
            assert_refused(&specs, &changed(&|one| one.element = element), name, "holds")?;
            let more = changed(&|one| one.layout.shape[2] += 1);
            assert_refused(&specs, &more, name, "has shape")?;
            if spec.layout.shape[0] > 1 && !spec.layout.shape.contains(&0) {
                let apart = changed(&|one| one.layout.strides[0] += 1);
                assert_refused(&specs, &apart, name, "has strides")?;
            }
            if spec.is_written() {
                assert_refused(&specs, &changed(&|one| one.is_written = false), name, "with_mut")?;
            }
            if spec.bytes() > 0 {
                assert_refused(&specs, &changed(&|one| one.memory.1 -= 1), name, "bytes; this call needs")?;
                assert_refused(&specs, &changed(&|one| one.memory.0 = 0), name, "bytes; this call needs")?;
                if spec.element.size_bytes() > 1 {
                    assert_refused(&specs, &changed(&|one| one.memory.0 += 1), name, "aligned")?;
                }
                // On the last byte, and on the first one, of what is written.
                let outputs = specs.iter().zip(&right).filter(|(spec, _)| spec.is_written() && spec.name != name);
                for (output, placed) in outputs.filter(|(spec, _)| spec.bytes() > 0) {
                    let size = spec.element.size_bytes().max(output.element.size_bytes()) as u64;
                    let in_place = (output.name, name) == (Name::QOut, Name::Q) || (name, output.name) == (Name::QOut, Name::Q);
                    let between = output.name == Name::QOut && !spec.is_written() || name == Name::QOut && !output.is_written();
                    if in_place || between {
                        continue;
                    }
                    let end = placed.memory.0 + (output.bytes() - 1) / size * size;
                    for start in [placed.memory.0, end] {
                        let found = check(&specs, &changed(&|one| one.memory.0 = start));
                        let is_shared = |e: &ProblemError| e.to_string().contains("shares memory with");
                        // Rows of two outputs may lie between each other.
                        let may = start == end && spec.is_written();
                        prop_assert!(found.as_ref().is_err_and(is_shared) || may, "{name} on {}: {found:?}", output.name);
                    }
                }
            }
        }
    }
}

/// Values have no order of dimensions to mistake.
#[test]
fn values_may_be_flat_and_tensors_may_not() {
    let problem = Problem::builder()
        .batch(2)
        .heads(4, 2)
        .seq_len(8)
        .head_dim(16)
        .return_lse(true);
    let specs = problem.build().unwrap().tensors();
    let mut given = right_ones(&specs);
    let lse = given.iter().position(|one| one.name == Name::Lse).unwrap();
    for layout in [
        Layout::from([64]),
        Layout::from([2, 4, 8]),
        [2, 4, 8, 1].into(),
        [2, 1, 4, 8].into(),
    ] {
        given[lse].layout = layout;
        check(&specs, &given).unwrap();
    }
    for layout in [
        Layout::from([63]),
        Layout::from([2, 8, 4]),
        Layout::from([8, 8]),
        Layout::bhsd([1, 2, 4, 8]),
    ] {
        given[lse].layout = layout;
        let error = check(&specs, &given).unwrap_err();
        assert!(error.to_string().starts_with("lse has"), "{error}");
    }
    let mut given = right_ones(&specs);
    given[0].layout = Layout::from([specs[0].layout.num_elements()]);
    assert_eq!(
        check(&specs, &given).unwrap_err().to_string(),
        "q has shape [1, 1, 1, 1024]; this call needs [2, 8, 4, 16] as [batch, seq, heads, head_dim]"
    );
    // A stride along one element is no stride.
    let one = Problem::builder().heads(1, 1).seq_len(8).head_dim(16).build().unwrap();
    let mut given = right_ones(&one.tensors());
    (given[0].layout.strides[0], given[0].layout.strides[2]) = (7, 3);
    check(&one.tensors(), &given).unwrap();
}

/// K and V of an interleaved cache, and Q that is rotated where it is, between K and V.
#[test]
fn outputs_may_lie_between_each_other_but_not_on_each_other() {
    let new: Layout = [2, 3, 1, 8].into();
    let cache = Layout {
        shape: [2, 10, 1, 8],
        strides: [160, 16, 8, 1],
    };
    let append = flashcore_problem::Append::to_cache(DType::F32, [new, new], [cache, cache]);
    let specs = append.tensors();
    let mut given = right_ones(&specs);
    let base = given[2].memory.0;
    for (offset, is_right) in [
        (8, true),
        (12, false), // begins in a gap, and ends in the next row
        (16, false),
        (4, false),
        (0, false),
        (168, true),
        (176, false),
    ] {
        given[3].memory.0 = base + 4 * offset;
        assert_eq!(check(&specs, &given).is_ok(), is_right, "{offset}");
    }
}

/// A layout of few elements: rows in gaps of others, strides that divide nothing, repeated elements.
fn small_layout() -> impl Strategy<Value = Layout> {
    let sizes = prop::array::uniform4(0usize..4);
    (sizes, prop::array::uniform4(0i64..9)).prop_map(|(shape, strides)| Layout { shape, strides })
}

/// The bytes of all elements.
fn bytes_of(given: &Given) -> Vec<u64> {
    let (shape, size) = (given.layout.shape, given.element.size_bytes() as u64);
    let indices = (0..shape.iter().product::<usize>()).map(|i| {
        let [_, s, h, d] = shape;
        given.layout.offset(i / (s * h * d), i / (h * d) % s, i / d % h, i % d) as u64
    });
    let bytes = indices.flat_map(|at| (0..size).map(move |byte| at * size + byte));
    bytes.map(|byte| given.memory.0 + byte).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    /// Two tensors, one or both of which are written, are refused exactly where some byte is of both.
    #[test]
    fn tensors_are_apart_exactly_if_no_byte_is_shared(
        layouts in [small_layout(), small_layout()],
        offset in 0u64..100,
        elements in prop::array::uniform2(prop::sample::select(&[DType::E4M3, DType::F16, DType::F32])),
        both in any::<bool>(),
    ) {
        let names = [Name::KCache, if both { Name::VCache } else { Name::KNew }];
        let mut specs = Vec::new();
        for ((name, layout), element) in names.into_iter().zip(layouts).zip(elements) {
            let access = if name == Name::KNew { Access::Read } else { Access::Write };
            specs.push(TensorSpec { name, access, element: element.into(), layout, required: true });
        }
        let mut given = right_ones(&specs);
        let size = elements[1].size_bytes() as u64;
        given[0].memory.0 = 4096;
        given[1].memory.0 = 4096 + offset * size - 50 * size;
        let [one, other] = [bytes_of(&given[0]), bytes_of(&given[1])];
        let shared = one.iter().any(|byte| other.contains(byte));
        let found = check(&specs, &given);
        prop_assert_eq!(found.is_err(), shared, "{:?} {:?}", specs, found);
        if let Err(error) = found {
            prop_assert!(error.to_string().contains("some bytes are of both"), "{error}");
        }
    }
}

/// What takes too long to tell is refused, and says so.
#[test]
fn strides_that_are_too_many_are_refused() {
    let layout = |strides| Layout {
        shape: [300; 4],
        strides,
    };
    let spec = |name, layout| TensorSpec {
        name,
        access: Access::Write,
        element: DType::F16.into(),
        layout,
        required: true,
    };
    // All bytes of one lie between those of the other, at even elements: sums of even numbers are never odd.
    let specs = [
        spec(Name::KCache, layout([1002, 1004, 1006, 1008])),
        spec(Name::VCache, layout([1010, 1012, 1014, 1016])),
    ];
    let mut given = right_ones(&specs);
    given[1].memory.0 = given[0].memory.0 + 2;
    let error = check(&specs, &given).unwrap_err().to_string();
    assert!(
        error.contains("shares memory with v_cache: their strides are too many to tell"),
        "{error}"
    );
}

/// No call has more than eight parts, and an error does not call another one by their names.
#[test]
fn parts_past_the_last_have_a_name_of_their_own() {
    let problem = Problem::builder()
        .heads(1, 1)
        .seq_len(4)
        .head_dim(8)
        .return_lse(true)
        .build()
        .unwrap();
    let specs = Combine::of(&problem, 8).unwrap().tensors();
    let mut given = right_ones(&specs);
    let extra = Given {
        name: Name::PartOut(9),
        ..given[0].clone()
    };
    given.insert(0, extra);
    let error = check(&specs, &given).unwrap_err().to_string();
    assert!(
        error.starts_with("out of a part past out7 was given, but this call has no use for it"),
        "{error}"
    );
    assert_eq!(Name::PartLse(8).as_str(), "lse of a part past lse7");
}
