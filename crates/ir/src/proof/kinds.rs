//! Arguments against the kinds of a kernel's parameters.

use super::LaunchRefusal;
use crate::{Arg, Kernel, Launch, Param, ParamKind, ScalarType, TensorBox, TensorMapRecipe};

/// The first argument that is none for its parameter: of another kind, of a buffer that the launch declares read-only
/// or does not declare, or with other boxes than the kernel copies.
pub(super) fn prove_kinds(kernel: &Kernel, launch: &Launch) -> Option<LaunchRefusal> {
    let (params, args) = (kernel.params(), &launch.args);
    if params.len() != args.len() {
        let (given, needed) = (args.len(), params.len());
        return Some(LaunchRefusal::ArgumentCount { given, needed });
    }
    let mut pairs = params.iter().zip(args).enumerate();
    pairs.find_map(|(index, (param, arg))| prove_kind(launch, index, param, arg))
}

fn prove_kind(launch: &Launch, index: usize, param: &Param, arg: &Arg) -> Option<LaunchRefusal> {
    use {Arg as A, ParamKind as P, ScalarType as T};
    let name = || param.name.clone();
    match (param.kind, arg) {
        (P::Pointer { writable, .. }, A::Buffer { slot, .. }) => prove_buffer(launch, index, param, *slot, writable),
        (P::Pointer { writable: false, .. }, A::Table(_))
        | (P::Value(T::U32), A::U32(_))
        | (P::Value(T::S32), A::I32(_))
        | (P::Value(T::F32), A::F32(_))
        // An i64 is passed as its bits.
        | (P::Value(T::U64 | T::S64), A::U64(_)) => None,
        (P::TensorMap { boxes, writable }, A::TensorMap(recipe)) => {
            if copies(recipe, &boxes) {
                return prove_buffer(launch, index, param, recipe.slot, writable);
            }
            Some(LaunchRefusal::ArgumentBoxes {
                name: name(),
                given: recipe.box_dims.clone(),
                needed: boxes.dims().to_vec(),
            })
        }
        (kind, _) => Some(LaunchRefusal::ArgumentKind {
            index,
            name: name(),
            given: match arg {
                A::Buffer { .. } => "the address of a buffer",
                A::Table(_) => "a table",
                A::TensorMap(_) => "a tensor map",
                A::U32(_) => T::U32.ptx(),
                A::I32(_) => T::S32.ptx(),
                A::U64(_) => T::U64.ptx(),
                A::F32(_) => T::F32.ptx(),
            },
            needed: match kind {
                P::Pointer { writable: true, .. } => "a pointer that is written through",
                P::Pointer { writable: false, .. } => "a pointer",
                P::TensorMap { .. } => "a tensor map",
                P::Value(ty) => ty.ptx(),
            },
        }),
    }
}

fn prove_buffer(launch: &Launch, index: usize, param: &Param, slot: usize, writable: bool) -> Option<LaunchRefusal> {
    let count = launch.buffers.len();
    let Some(spec) = launch.buffers.get(slot) else {
        return Some(LaunchRefusal::Slot { index, slot, count });
    };
    (writable && !spec.written).then(|| LaunchRefusal::BufferNotWritten {
        name: param.name.clone(),
        buffer: spec.name.to_string(),
    })
}

/// Whether the boxes of a recipe are those that the kernel copies.
fn copies(recipe: &TensorMapRecipe, boxes: &TensorBox) -> bool {
    recipe.box_dims == boxes.dims()
        && recipe.element == boxes.element
        && recipe.swizzle == boxes.swizzle
        && recipe.ragged == boxes.ragged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::prove_launch;
    use crate::{BufferSpec, Target};

    const ADDRESS: Arg = Arg::Buffer {
        slot: 0,
        byte_offset: 0,
    };

    /// Every kind of argument for every kind of parameter: the one that fits is taken, the others are refused.
    #[test]
    fn arguments_must_be_of_the_kinds_of_the_parameters() {
        let kernel = Kernel::build("kinds", 32, |k| {
            let (read, written) = (k.param_ptr::<u32>("read"), k.param_ptr_mut::<u32>("written"));
            let (int, float) = (k.param::<i32>("int"), k.param::<f32>("float"));
            let tile = k.shared_tile::<f32>("tile", crate::TileShape::new(8, 32));
            let _ = (
                k.param::<u32>("number"),
                k.param_tensor_map("map", tile.tensor_box(&[8])),
            );
            written.store(read.load() + int.reinterpret::<u32>() + float.reinterpret::<u32>());
        })
        .unwrap();
        let map = |name| {
            let boxes = kernel.tensor_box(name).unwrap();
            Arg::TensorMap(boxes.recipe(0, 0, vec![32, 8], vec![128]))
        };
        let spec = |name, written| BufferSpec {
            name,
            bytes: 1024,
            written,
            align: 16,
        };
        let mut fits = Launch::of(&kernel, [1, 1, 1]);
        fits.buffers = vec![spec("input", false), spec("output", true)];
        let to_output = Arg::Buffer {
            slot: 1,
            byte_offset: 0,
        };
        fits.args = vec![ADDRESS, to_output, Arg::I32(1), Arg::F32(1.0), Arg::U32(1), map("map")];
        let refusal = |launch: &Launch| {
            let refusals = prove_launch(&kernel, launch, Target::Sm90a, None);
            refusals.first().map(|refusal| refusal.to_string())
        };
        assert_eq!(refusal(&fits), None);
        let table = Arg::Table(crate::Table::new(vec![1]));
        let kinds = [("table", table), ("u64", Arg::U64(1))].into_iter();
        let kinds = kinds.chain(fits.args.iter().map(|arg| ("another's", arg.clone())));
        for (what, arg) in kinds {
            for (index, param) in kernel.params().iter().enumerate() {
                let mut launch = fits.clone();
                launch.args[index] = arg.clone();
                let is_table_to_read = what == "table" && index == 0;
                let is_buffer_to_read = matches!(arg, Arg::Buffer { .. }) && index == 0;
                if is_table_to_read || is_buffer_to_read || arg == fits.args[index] {
                    assert_eq!(refusal(&launch), None);
                    continue;
                }
                let text = refusal(&launch).unwrap_or_else(|| panic!("{what} for `{}`", param.name));
                assert!(text.contains(&format!("parameter `{}` is", param.name)), "{text}");
            }
        }
        let refused = |change: fn(&mut Launch)| {
            let mut launch = fits.clone();
            change(&mut launch);
            refusal(&launch).unwrap()
        };
        assert_eq!(
            refused(|l| l.args[0] = Arg::U64(0x7000)),
            "argument 0 is u64; parameter `read` is a pointer; bring an argument of the parameter's type"
        );
        assert_eq!(
            refused(|l| l.args[1] = ADDRESS),
            "parameter `written` is written through; its buffer `input` is declared `written: false`; store to an \
             output instead, or declare it `written: true`"
        );
        let other_boxes = refused(|l| {
            if let Arg::TensorMap(recipe) = &mut l.args[5] {
                recipe.swizzle = crate::Swizzle::B32;
            }
        });
        assert!(
            other_boxes.starts_with("tensor map `map` has boxes of [32, 8]"),
            "{other_boxes}"
        );
        assert!(refused(|l| l.buffers.truncate(1)).contains("names buffer slot 1, but the launch declares 1 buffers"));
        assert!(refused(|l| l.args.truncate(5)).contains("5 arguments given; the kernel has 6 parameters"));
    }
}
