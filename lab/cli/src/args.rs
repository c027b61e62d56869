//! Flags that several subcommands share: the problem, the inputs.

use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use flashcore::unstable::testing::InputKind;
use flashcore::{Alibi, DType, Direction, Layout, Mask, Problem};
use flashcore_bench::{Case, problem_file, problems};
use flashcore_check::render::few;
use flashcore_problem::{Lengths, ProblemBuilder, current_name};

use crate::quantity::size;
use crate::{Failure, in_place, style};

/// The problem: a name, and flags that override its fields.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProblemArgs {
    /// A name (`list problems`), a shape as b4,h32/8,s3000,d96,bf16,causal, or a FILE
    ///
    /// A shape is also what is printed of a problem. FILE.toml, FILE.json and FILE.yaml hold problems, of which
    /// FILE:NAME picks one. Flags override the fields of each.
    #[arg(value_name = "PROBLEM", default_value = crate::tune::USUAL)]
    pub(crate) name: String,
    #[command(flatten)]
    flags: ProblemFlags,
}

/// The heading of the flags of a problem, which `-h` names in one line ([`crate::commands`]).
pub(crate) const PROBLEM: &str = "Problem";

/// The fields that each command with a problem has flags for.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = PROBLEM)]
pub(crate) struct ShapeFlags {
    /// Sequences in the batch
    #[arg(long, value_name = "N", value_parser = size, alias = "batch-size")]
    batch: Option<usize>,
    /// Query heads
    #[arg(long, value_name = "N", value_parser = size)]
    heads: Option<usize>,
    /// Query rows and keys; 4k is 4,096, here as in all sizes
    #[arg(long, value_name = "N", value_parser = size, aliases = ["seq-len", "seqlen"])]
    seq: Option<usize>,
    /// Columns of Q and K: a multiple of 8 up to 256
    #[arg(long, value_name = "N", value_parser = size, aliases = ["head-size", "hdim"])]
    head_dim: Option<usize>,
    /// Element type: f32, fp16, bf16, e4m3 (fp8 with scales; the output is bf16)
    #[arg(long, value_parser = dtype)]
    pub(crate) dtype: Option<DType>,
    /// Each row sees the keys up to its own position; the last row sees the last key
    #[arg(long)]
    causal: bool,
}

/// The direction of a problem.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = PROBLEM)]
pub(crate) struct DirectionFlags {
    /// The backward pass: the gradients of Q, K and V, from O and the log-sum-exp of the forward pass
    #[arg(long)]
    pub(crate) backward: bool,
    /// Of backward passes: gradients that are the same bits in every run
    #[arg(long)]
    pub(crate) deterministic: bool,
}

impl ShapeFlags {
    /// The names of the flags that change a shape, as [`Given`](crate::Given) knows them.
    pub(crate) const NAMES: [&str; 5] = ["batch", "heads", "seq", "head_dim", "causal"];

    /// With what the flags say. A problem with one K/V head for each query head keeps that.
    fn on(&self, named: &Problem, kv_heads: Option<usize>) -> ProblemBuilder {
        let mut builder = ProblemBuilder::from(named);
        if self.heads.is_some() || kv_heads.is_some() {
            let heads = self.heads.unwrap_or(named.num_heads());
            let same = match named.group_size() {
                1 => heads,
                _ => named.num_kv_heads(),
            };
            builder = builder.heads(heads, kv_heads.unwrap_or(same));
        }
        if let Some(batch) = self.batch {
            builder = builder.batch(batch);
        }
        if let Some(seq) = self.seq {
            builder = builder.seq_len(seq);
        }
        if let Some(head_dim) = self.head_dim {
            builder = builder.head_dim(head_dim);
        }
        builder
    }

    /// Problems with what the flags say. One that they change is named by its shape, and stands once.
    pub(crate) fn apply(&self, cases: Vec<Case>) -> Result<Vec<Case>, Failure> {
        let mut all: Vec<Case> = Vec::new();
        for case in &cases {
            let mut builder = self.on(&case.problem, None);
            if self.causal {
                builder = builder.mask(Mask::CAUSAL);
            }
            let problem = builder.build()?;
            if problem == case.problem {
                all.push(case.clone());
            } else if !case.sequences.is_empty() || case.values.is_some() {
                let why = "its lengths are given one by one: write the shape where they are";
                return Err(Failure::usage(format!("flags of a shape do not change {}", case.name)).help(why));
            } else if cases.iter().chain(&all).all(|other| other.problem != problem) {
                all.push(Case::new(problem.to_string(), problem));
            }
        }
        Ok(all)
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = PROBLEM)]
struct ProblemFlags {
    #[command(flatten)]
    shape: ShapeFlags,
    #[command(flatten)]
    direction: DirectionFlags,
    /// Key/value heads; heads must be a multiple of it
    #[arg(long, value_name = "N", value_parser = size)]
    kv_heads: Option<usize>,
    /// Query rows
    #[arg(long, value_name = "N", value_parser = size, conflicts_with = "seq")]
    seq_q: Option<usize>,
    /// Keys
    #[arg(long, value_name = "N", value_parser = size, conflicts_with = "seq")]
    seq_kv: Option<usize>,
    /// Columns of V and of the output, if they differ from those of Q and K
    #[arg(long, value_name = "N", value_parser = size)]
    head_dim_v: Option<usize>,
    /// Each row sees every key; removes the named problem's mask
    #[arg(long, conflicts_with_all = ["causal", "window"])]
    full: bool,
    /// Each row sees L keys before its own position and R after it; `inf` is all of them
    #[arg(long, value_name = "L,R", value_parser = window, allow_hyphen_values = true,
          conflicts_with = "causal")]
    window: Option<Mask>,
    /// The mask's diagonal begins at the first key, as in PyTorch's is_causal
    #[arg(long)]
    top_left: bool,
    /// Scores pass through cap·tanh(score/cap)
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    softcap: Option<f32>,
    /// Each head has a sink of this dtype (f32, fp16, bf16): a logit in the softmax that has no value
    #[arg(long, value_name = "DTYPE", value_parser = dtype)]
    sinks: Option<DType>,
    /// ALiBi: scores are lowered by slope·distance, with a slope per head, or per batch and head
    #[arg(long, value_name = "SLOPES", value_enum)]
    alibi: Option<AlibiArg>,
    /// Factor of Q·Kᵀ [default: 1/√head_dim]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    scale: Option<f32>,
    /// Position of the first query row in its sequence
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    q_offset: Option<i32>,
    /// Position of the first key in its sequence
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    kv_offset: Option<i32>,
    /// Also compute the log-sum-exp of each row
    #[arg(long)]
    lse: bool,
    /// Split keys every KEYS of them, and choose a kernel, whatever the batch is
    #[arg(long, value_name = "KEYS", value_parser = size)]
    batch_invariant: Option<usize>,
    /// Memory order of all four tensors
    #[arg(long, value_enum)]
    layout: Option<LayoutArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AlibiArg {
    /// A slope for each head
    Heads,
    /// A slope for each head of each sequence
    BatchHeads,
}

impl From<AlibiArg> for Alibi {
    fn from(slopes: AlibiArg) -> Alibi {
        match slopes {
            AlibiArg::Heads => Alibi::Heads,
            AlibiArg::BatchHeads => Alibi::BatchHeads,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LayoutArg {
    /// [batch, seq, heads, head_dim], as in FlashAttention
    Bshd,
    /// [batch, heads, seq, head_dim], as in PyTorch's SDPA
    Bhsd,
}

pub(crate) fn dtype(name: &str) -> Result<DType, String> {
    DType::from_name(name).ok_or_else(|| format!("known are {}", DType::ALL.map(DType::name).join(", ")))
}

/// Peers by label, as the Python package has them.
const PEERS: [&str; 12] = [
    "all",
    "none",
    "torch/flash",
    "torch/cudnn",
    "torch/efficient",
    "torch/math",
    "torch/sdpa",
    "fa3",
    "fa3-deterministic",
    "fa4",
    "flashinfer",
    // Of `bench scores`.
    "torch/baddbmm",
];

pub(crate) fn peer(label: &str) -> Result<String, String> {
    if PEERS.contains(&label) {
        Ok(label.to_string())
    } else {
        Err(format!("known are {}", PEERS.join(", ")))
    }
}

fn window(text: &str) -> Result<Mask, String> {
    let side = |side: &str| match side.trim() {
        "inf" | "-1" => Ok(None),
        number => size(number)
            .ok()
            .and_then(|keys| u32::try_from(keys).ok())
            .map(Some)
            .ok_or(()),
    };
    match text.split_once(',').map(|(left, right)| (side(left), side(right))) {
        Some((Ok(left), Ok(right))) => Ok(Mask::window(left, right)),
        _ => {
            let wrong =
                "write the keys before and after each row's own as L,R, e.g. `128,0` (sliding and causal) or `inf,16`";
            Err(wrong.to_string())
        }
    }
}

impl ProblemArgs {
    pub(crate) fn file(&self) -> Option<&Path> {
        let path = Path::new(&self.name);
        in_place::holds_kernels(path).then_some(path)
    }

    /// The named problem with its sequences, or a problem that flags changed, named by its shape; a note says if the
    /// sequences of a file are left out so.
    pub(crate) fn case(&self, problem: &Problem) -> Case {
        let unchanged = Case::new(problem.to_string(), problem.clone());
        match case(&self.name) {
            Ok(case) if case.problem == *problem => case,
            Ok(case) if problem.has_lengths() && (case.sequences != unchanged.sequences || case.values.is_some()) => {
                style::note("flags change the problem, so the file's lengths of sequences are not used");
                unchanged
            }
            _ => unchanged,
        }
    }

    /// The name of the problem, or its shape if flags changed it.
    pub(crate) fn label(&self, problem: &Problem) -> String {
        match case(&self.name) {
            Ok(case) if case.problem == *problem => case.name,
            _ => problem.to_string(),
        }
    }

    /// The values that a file gives for the lengths of the problem.
    pub(crate) fn lengths(&self, problem: &Problem) -> Result<Option<Lengths<Vec<i32>>>, Failure> {
        let values = case(&self.name)?.values;
        Ok(values.map(|values| values.lengths(problem)).transpose()?)
    }

    pub(crate) fn problem(&self) -> Result<Problem, Failure> {
        let named = case(&self.name)?.problem;
        let flags = &self.flags;
        let mut builder = flags.shape.on(&named, flags.kv_heads);
        macro_rules! set {
            ($($given:expr => $method:ident),* $(,)?) => {
                $(if let Some(value) = $given { builder = builder.$method(value); })*
            };
        }
        set! {
            flags.seq_q => seq_len_q,
            flags.seq_kv => seq_len_kv,
            flags.head_dim_v => head_dim_v,
            flags.shape.dtype => dtype,
            flags.scale => softmax_scale,
            flags.softcap => softcap,
            flags.sinks => sinks,
            flags.alibi.map(Alibi::from) => alibi,
            flags.lse.then_some(true) => return_lse,
            flags.direction.backward.then_some(Direction::Backward) => direction,
            flags.direction.deterministic.then_some(true) => deterministic,
            flags.batch_invariant => batch_invariant,
        }
        let mut mask = match flags.window {
            _ if flags.full => Mask::FULL,
            _ if flags.shape.causal => Mask::CAUSAL,
            Some(window) => window,
            None => named.mask(),
        };
        if flags.top_left {
            mask = mask.top_left();
        }
        let q_offset = flags.q_offset.unwrap_or(named.q_offset());
        let kv_offset = flags.kv_offset.unwrap_or(named.kv_offset());
        builder = builder.mask(mask).offsets(q_offset, kv_offset);
        builder = match flags.layout {
            None => builder,
            Some(LayoutArg::Bshd) => builder.layout(Layout::bshd),
            Some(LayoutArg::Bhsd) => builder.layout(Layout::bhsd),
        };
        let problem = builder.build()?;
        // Flags that would change nothing: what was meant is something else.
        if flags.direction.deterministic && problem.direction() == Direction::Forward {
            let why = "--deterministic is for backward passes: every forward pass is";
            return Err(Failure::usage(why).help("leave it out, or add --backward"));
        }
        if flags.top_left && problem.mask().is_full() {
            let why = "--top-left moves a mask, and this problem has none";
            return Err(Failure::usage(why).help("add --causal or --window L,R"));
        }
        Ok(problem)
    }
}

pub(crate) fn case(name: &str) -> Result<Case, Failure> {
    if problem_file::is_file(name) {
        return Ok(problem_file::read_one(name)?);
    }
    if let Ok(problem) = Problem::named(name) {
        return Ok(Case::new(current_name(name), problem));
    }
    match problems::cases(name, None) {
        Ok(mut cases) if cases.len() == 1 => Ok(cases.remove(0)),
        Ok(cases) => {
            let members = few(&cases.iter().map(|case| case.name.as_str()).collect::<Vec<_>>());
            let why = format!("{name} is a set of {} problems, and one is needed", cases.len());
            Err(Failure::usage(why).help(format!("name one of it: {members}; `bench` takes sets")))
        }
        Err(error) => Err(error.into()),
    }
}

/// Data to compute on.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "How")]
pub(crate) struct InputArgs {
    /// What the numbers look like, such as huge-logit
    ///
    /// normal, small-integers, equal-rows, huge-logit, rising-scores, negative-scores, extremes or one-hot.
    #[arg(long, value_name = "KIND", default_value = "normal", value_parser = input_kinds(), hide_possible_values = true)]
    pub(crate) inputs: InputKind,
    /// Seed of the inputs
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

pub(crate) fn input_kinds() -> impl TypedValueParser<Value = InputKind> {
    PossibleValuesParser::new(InputKind::ALL.map(InputKind::name))
        .map(|name| InputKind::from_name(&name).unwrap_or(InputKind::Normal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        problem: ProblemArgs,
    }

    fn line(args: &str) -> String {
        let args = std::iter::once("flashcore").chain(args.split_whitespace());
        Only::try_parse_from(args)
            .unwrap()
            .problem
            .problem()
            .unwrap()
            .to_string()
    }

    #[test]
    fn flags_override_the_named_problem() {
        assert_eq!(line(""), "B1 H8/8 Sq512 Skv512 D64 fp16 full");
        assert_eq!(line("--seq 4k --hdim 128"), "B1 H8/8 Sq4096 Skv4096 D128 fp16 full");
        assert_eq!(
            line("--seqlen 9 --batch-size 2 --head-size 16"),
            "B2 H8/8 Sq9 Skv9 D16 fp16 full"
        );
        assert_eq!(line("--heads 4 --head-dim 128"), "B1 H4/4 Sq512 Skv512 D128 fp16 full");
        assert_eq!(line("gpt2 --full --seq 77"), "B4 H12/12 Sq77 Skv77 D64 fp16 full");
        assert_eq!(
            line("llama8b-decode-8k --heads 16 --dtype half"),
            "B16 H16/8 Sq1 Skv8192 D128 fp16 causal"
        );
        assert_eq!(
            line("gemma2-9b-4k --window 128,inf --top-left --seq-q 3 --lse --q-offset -5 --scale 0.5"),
            "B1 H16/8 Sq3 Skv4096 D256 bf16 window(128,inf) top-left off(-5,0) scale0.5 cap50 lse"
        );
        assert_eq!(line("tiny --backward --causal"), line("tiny-backward --causal"));
        assert_eq!(line("mission-b2 --seq 9"), line("small-b2 --seq 9"));
        assert_eq!(case("mission-backward").unwrap().name, "small-backward");
        assert_eq!(line("--backward"), "B1 H8/8 Sq512 Skv512 D64 fp16 full backward");
        assert_eq!(
            line("tiny --batch-invariant 512"),
            "B1 H1/1 Sq32 Skv32 D16 fp16 full batch-invariant512"
        );
        assert_eq!(
            line("tiny --backward --deterministic"),
            "B1 H1/1 Sq32 Skv32 D16 fp16 full deterministic backward"
        );
        assert_eq!(line("--window -1,0"), "B1 H8/8 Sq512 Skv512 D64 fp16 causal");
        assert_eq!(
            line("--layout bhsd --head-dim-v 32"),
            "B1 H8/8 Sq512 Skv512 D64 fp16 full Dv32 strided"
        );
    }

    #[test]
    fn flags_override_the_problem_of_a_file() {
        let path = std::env::temp_dir().join(format!("flashcore-args-{}.toml", std::process::id()));
        let text = "[[problems]]\nname = \"mine\"\nheads = 8\nkv_heads = 2\nseq = 64\nlayout = \"bhsd\"\nscale = 0.5\n";
        std::fs::write(&path, text).unwrap();
        let name = path.display();
        assert_eq!(
            line(&format!("{name}")),
            "B1 H8/2 Sq64 Skv64 D64 fp16 full scale0.5 strided"
        );
        assert_eq!(
            line(&format!("{name}:mine --seq-kv 99 --causal --layout bshd")),
            "B1 H8/2 Sq64 Skv99 D64 fp16 causal scale0.5"
        );
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn flags_of_shapes_change_each_problem_of_a_set_once() {
        let cases = flashcore_bench::problems::cases("small-set", None).unwrap();
        let flags = ShapeFlags {
            seq: Some(64),
            causal: true,
            ..ShapeFlags::default()
        };
        let names: Vec<String> = flags.apply(cases).unwrap().into_iter().map(|case| case.name).collect();
        assert_eq!(
            names,
            [
                "B1 H8/8 Sq64 Skv64 D64 fp16 causal",
                "B2 H8/8 Sq64 Skv64 D64 fp16 causal"
            ]
        );
    }

    #[test]
    fn windows_that_are_none_are_refused() {
        for text in ["", "3", "3,", "a,b", "1,2,3", "-2,0"] {
            assert!(window(text).unwrap_err().contains("L,R"), "{text}");
        }
        assert_eq!(window("inf, 16"), Ok(Mask::window(None, Some(16))));
    }

    #[test]
    fn peers_are_those_of_the_python_package() {
        let python = include_str!("../../../bindings/python/python/flashcore_attn/peers.py");
        let (_, rest) = python.split_once("SDPA = {").unwrap();
        let (sdpa, rest) = rest.split_once('}').unwrap();
        let (names, _) = rest.split_once("# Those that have a backward pass").unwrap();
        let quoted = |text: &'static str| text.split('"').skip(1).step_by(2);
        let theirs: BTreeSet<&str> = quoted(sdpa).step_by(2).chain(quoted(names)).collect();
        let others = ["all", "none", "torch/sdpa", "torch/baddbmm"];
        let ours = PEERS.into_iter().filter(|name| !others.contains(name));
        assert_eq!(ours.collect::<BTreeSet<_>>(), theirs);
    }
}
