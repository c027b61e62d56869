//! A plan as a CUDA C++ file that PyTorch's extension loader takes: PTX in strings, launches as
//! data, and host code that loads and launches them.

use std::fmt::Write;

use flashcore_ir::{Arg, BufferSpec, Launch, ScalarType, Swizzle, Table, TensorMapRecipe};
use flashcore_kernels::Plan;
use flashcore_problem::{DType, Direction};

use crate::{BenchError, Result};

/// The buffers that the loader gives a kernel, in the order of `Slot` in the template.
const SLOTS: [(&str, &str); 10] = [
    ("q", "Q"),
    ("k", "K"),
    ("v", "V"),
    ("out", "OUT"),
    ("workspace", "WORKSPACE"),
    ("dout", "DOUT"),
    ("lse", "LSE"),
    ("dq", "DQ"),
    ("dk", "DK"),
    ("dv", "DV"),
];

/// What the arrays of the template are made of.
#[derive(Default)]
struct Data {
    /// Name and PTX of each kernel, the most dynamic shared memory of its launches, and whether a
    /// cluster of them is of more than 8 blocks.
    kernels: Vec<(String, String, u32, bool)>,
    tables: Vec<Table>,
    maps: Vec<String>,
    arguments: Vec<String>,
    steps: Vec<String>,
    cases: Vec<String>,
    align: u32,
}

pub(super) fn write(plans: &[Plan], is_bhsd: bool, version: &str) -> Result<String> {
    let mut data = Data {
        align: 16,
        ..Data::default()
    };
    for plan in plans {
        data.add(plan)?;
    }
    let plan = &plans[0];
    let (seq, heads) = if is_bhsd { (2, 1) } else { (1, 2) };
    let scalar = match plan.problem.dtype() {
        DType::BF16 => "kBFloat16",
        DType::F32 => "kFloat",
        _ => "kHalf",
    };
    let entry = match plan.problem.direction() {
        Direction::Forward => include_str!("entry_forward.cu.txt"),
        Direction::Backward => include_str!("entry_backward.cu.txt"),
    };
    let replaced = [
        (
            "@TITLE@",
            format!("{}: {} for {}", plan.problem, plan.config, plan.target),
        ),
        ("@VERSION@", version.to_string()),
        ("@SCALAR@", scalar.to_string()),
        ("@SEQ@", seq.to_string()),
        ("@HEADS@", heads.to_string()),
        ("@SCALE@", format!("{:?}", plan.problem.softmax_scale())),
        ("@ALIGN@", data.align.to_string()),
        ("@DATA@", data.text()),
        ("@ENTRY@", entry.to_string()),
    ];
    let template = include_str!("kernel.cu.txt").to_string();
    Ok(replaced
        .iter()
        .fold(template, |text, (name, value)| text.replace(name, value)))
}

impl Data {
    fn add(&mut self, plan: &Plan) -> Result<()> {
        let first = self.steps.len();
        for step in plan.steps() {
            let (launch, from) = (&step.launch, self.arguments.len());
            let kernel = self.kernel(step.kernel.name(), || step.kernel.to_ptx(), launch);
            for arg in &launch.args {
                let argument = self.argument(arg, &launch.buffers)?;
                self.arguments.push(argument);
            }
            let sizes = [launch.grid, launch.block, launch.cluster];
            let [grid, block, cluster] = sizes.map(|sizes| braced(&sizes));
            let (shared, count) = (launch.dynamic_shared_bytes, launch.args.len());
            self.align = launch
                .buffers
                .iter()
                .map(|buffer| buffer.align)
                .fold(self.align, u32::max);
            self.steps.push(format!(
                "{{{kernel}, {grid}, {block}, {cluster}, {shared}, {from}, {count}}}"
            ));
        }
        let problem = &plan.problem;
        let sizes = [
            problem.batch(),
            problem.seq_len_q(),
            problem.seq_len_kv(),
            problem.num_heads(),
            problem.num_kv_heads(),
            problem.head_dim(),
            problem.head_dim_v(),
        ];
        let (sizes, workspace) = (sizes.map(|size| size.to_string()).join(", "), plan.workspace_bytes());
        let count = self.steps.len() - first;
        self.cases.push(format!("{{{sizes}, {workspace}, {first}, {count}}}"));
        Ok(())
    }

    /// The number of a kernel, which is added if it is new. Kernels of one name have the same code.
    fn kernel(&mut self, name: &str, ptx: impl FnOnce() -> String, launch: &Launch) -> usize {
        let known = self.kernels.iter().position(|kernel| kernel.0 == name);
        let index = known.unwrap_or_else(|| {
            self.kernels.push((name.to_string(), ptx(), 0, false));
            self.kernels.len() - 1
        });
        let (_, _, shared, large_cluster) = &mut self.kernels[index];
        *shared = launch.dynamic_shared_bytes.max(*shared);
        *large_cluster |= launch.cluster.iter().product::<u32>() > 8;
        index
    }

    fn argument(&mut self, arg: &Arg, buffers: &[BufferSpec]) -> Result<String> {
        let value = |value: u64| format!("{{Kind::Value, 0, {value}u}}");
        Ok(match arg {
            Arg::Buffer { slot, byte_offset } => {
                format!("{{Kind::Buffer, {}, {byte_offset}u}}", slot_of(buffers, *slot)?)
            }
            Arg::U32(number) => value(u64::from(*number)),
            Arg::I32(number) => value(u64::from(number.cast_unsigned())),
            Arg::U64(number) => value(*number),
            Arg::F32(number) => value(u64::from(number.to_bits())),
            Arg::Table(table) => {
                let known = self.tables.iter().position(|other| other == table);
                let index = known.unwrap_or_else(|| {
                    self.tables.push(table.clone());
                    self.tables.len() - 1
                });
                format!("{{Kind::Table, {index}, 0}}")
            }
            Arg::TensorMap(recipe) => {
                self.maps.push(map(recipe, slot_of(buffers, recipe.slot)?));
                format!("{{Kind::Map, {}, 0}}", self.maps.len() - 1)
            }
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (index, (_, ptx, _, _)) in self.kernels.iter().enumerate() {
            let _ = writeln!(text, "const char PTX_{index}[] =");
            for line in ptx.lines() {
                let _ = writeln!(text, "    \"{}\\n\"", line.replace('\\', "\\\\").replace('"', "\\\""));
            }
            let _ = writeln!(text, "    ;");
        }
        for (index, table) in self.tables.iter().enumerate() {
            let _ = writeln!(text, "const uint32_t TABLE_{index}[] = {{");
            for words in table.chunks(12) {
                let words: String = words.iter().map(|word| format!(" {word}u,")).collect();
                let _ = writeln!(text, "   {words}");
            }
            let _ = writeln!(text, "}};");
        }
        let kernels = self
            .kernels
            .iter()
            .enumerate()
            .map(|(index, (name, _, shared, large))| format!("{{\"{name}\", PTX_{index}, {shared}, {large}}}"));
        let tables = self.tables.iter().enumerate();
        let tables: Vec<String> = tables
            .map(|(index, table)| format!("{{TABLE_{index}, {}}}", table.len()))
            .collect();
        // An array has an element at least.
        let at_least = |list: &[String], none: &str| match list {
            [] => vec![none.to_string()],
            some => some.to_vec(),
        };
        let arrays = [
            ("Kernel KERNELS", kernels.collect()),
            ("Table TABLES", at_least(&tables, "{nullptr, 0}")),
            ("Map MAPS", at_least(&self.maps, "{}")),
            ("Argument ARGUMENTS", at_least(&self.arguments, "{}")),
            ("Step STEPS", self.steps.clone()),
            ("Case CASES", self.cases.clone()),
        ];
        for (name, elements) in arrays {
            let elements: String = elements.iter().map(|element| format!("    {element},\n")).collect();
            let _ = writeln!(text, "const {name}[] = {{\n{elements}}};");
        }
        text
    }
}

fn braced<T: ToString>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    format!("{{{}}}", values.join(", "))
}

fn slot_of(buffers: &[BufferSpec], slot: usize) -> Result<&'static str> {
    let name = buffers.get(slot).map_or("?", |buffer| buffer.name);
    let found = SLOTS.iter().find(|(known, _)| *known == name);
    let why = || {
        let known = SLOTS.map(|(known, _)| known).join(", ");
        BenchError::Given(format!(
            "the kernel takes a buffer `{name}`; a robust-kbench kernel has {known}"
        ))
    };
    found.map(|(_, slot)| *slot).ok_or_else(why)
}

fn map(recipe: &TensorMapRecipe, slot: &str) -> String {
    let element = match recipe.element {
        ScalarType::F16 => "FLOAT16",
        ScalarType::BF16 => "BFLOAT16",
        ScalarType::F32 => "FLOAT32",
        // Other types do not pass `TensorMapRecipe::check`.
        _ => "UINT8",
    };
    let swizzle = match recipe.swizzle {
        Swizzle::None => "NONE",
        Swizzle::B32 => "32B",
        Swizzle::B64 => "64B",
        Swizzle::B128 => "128B",
    };
    let (rank, offset) = (recipe.dims.len(), recipe.byte_offset);
    let (dims, strides, sizes) = (
        braced(&recipe.dims),
        braced(&recipe.byte_strides),
        braced(&recipe.box_dims),
    );
    format!(
        "{{{slot}, {offset}, CU_TENSOR_MAP_DATA_TYPE_{element}, {rank}, {dims}, {strides}, {sizes}, \
         CU_TENSOR_MAP_SWIZZLE_{swizzle}}}"
    )
}
