//! A task in robust-kbench's format.

use flashcore_check::render::between_words;
use flashcore_kernels::Plan;
use flashcore_problem::{CausalAlign, DType, Direction, Layout, Problem, ProblemBuilder};
use serde_json::{Value, json};

use super::source;
use crate::{BenchError, Result};

/// The standard deviation of outputs that a task should have at least. The benchmark's filter drops
/// tasks of less than 0.01.
const OUTPUT_STD: f64 = 0.02;

/// The smallest standard deviation of an output element along rows and seeds, estimated for normal
/// inputs: over `keys` keys whose scores have variance `s`, the squared probabilities sum to about
/// `exp(s) / keys`.
fn output_std(keys: usize, variance: f64) -> f64 {
    (variance.exp() / keys as f64).sqrt()
}

/// A problem as a task: what is computed, for one size or two.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The problem, and the same with other lengths for runs with several inputs.
    problems: Vec<Problem>,
    is_bhsd: bool,
    kernel: Option<String>,
}

impl Task {
    /// The task of a problem.
    ///
    /// ```
    /// use flashcore_bench::kbench::Task;
    /// use flashcore_problem::Problem;
    /// let task = Task::new(&Problem::named("small")?)?;
    /// let names: Vec<&str> = task.files().iter().map(|(name, _)| *name).collect();
    /// assert_eq!(names, ["func_forward.py", "config_forward.json"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BenchError::Given`] for a problem that the format cannot have: e4m3 (its inputs would need
    /// scales), lengths on the device, a second output, tensors with gaps.
    pub fn new(problem: &Problem) -> Result<Task> {
        let refuse = |what: &str, remedy: &str| {
            let why = format!("{problem}: a robust-kbench task cannot have {what}; {remedy}");
            Err(BenchError::Given(why))
        };
        if problem.dtype() == DType::E4M3 {
            return refuse("e4m3 tensors with scales", "use fp16, bf16 or f32");
        }
        if problem.has_lengths() {
            return refuse("lengths that differ between sequences", "use equal lengths");
        }
        // The backward pass reads the log-sum-exp that the forward pass saved.
        if problem.return_lse() && problem.direction() == Direction::Forward {
            return refuse("a second output", "leave out --lse");
        }
        if problem.sinks().is_some() || problem.alibi().is_some() {
            return refuse("sinks or ALiBi slopes", "leave out --sinks and --alibi");
        }
        let layouts = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ];
        let all = |dense: fn([usize; 4]) -> Layout| layouts.iter().all(|layout| dense(layout.shape) == **layout);
        // Of one sequence, one row or one head both may be true.
        let is_bhsd = match (all(Layout::bshd), all(Layout::bhsd)) {
            (true, _) => false,
            (false, true) => true,
            (false, false) => return refuse("tensors with gaps", "use --layout bshd or bhsd"),
        };
        let mut problems = vec![problem.clone()];
        let fewer = |len: usize| len - len / 3;
        let (rows, keys) = (fewer(problem.seq_len_q()), fewer(problem.seq_len_kv()));
        if (rows, keys) != (problem.seq_len_q(), problem.seq_len_kv()) {
            let builder = ProblemBuilder::from(problem).seq_len_q(rows).seq_len_kv(keys);
            let layout = if is_bhsd { Layout::bhsd } else { Layout::bshd };
            problems.push(builder.layout(layout).build()?);
        }
        Ok(Task {
            problems,
            is_bhsd,
            kernel: None,
        })
    }

    /// The problems that a kernel of the task is for: the one given, and the same with other
    /// lengths.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The task with a kernel: one plan for each of [`problems`](Self::problems).
    ///
    /// # Errors
    /// [`BenchError::Given`] for a plan of another problem, or one that needs what the loader does
    /// not give it.
    pub fn with_kernel(mut self, plans: &[Plan], version: &str) -> Result<Task> {
        let agree =
            plans.len() == self.problems.len() && plans.iter().zip(&self.problems).all(|(a, b)| a.problem == *b);
        if !agree {
            let why = "the plans are not those of the task's problems: one is needed for each, in order";
            return Err(BenchError::Given(why.to_string()));
        }
        self.kernel = Some(source::write(plans, self.is_bhsd, version)?);
        Ok(self)
    }

    /// The files of the task's folder, each with its name.
    pub fn files(&self) -> Vec<(&'static str, String)> {
        let [function, config, kernel] = match self.problem().direction() {
            Direction::Forward => ["func_forward.py", "config_forward.json", "forward.cu"],
            Direction::Backward => ["func_backward.py", "config_backward.json", "backward.cu"],
        };
        let mut files = vec![(function, self.function()), (config, format!("{:#}\n", self.config()))];
        files.extend(self.kernel.clone().map(|text| (kernel, text)));
        files
    }

    fn problem(&self) -> &Problem {
        &self.problems[0]
    }

    /// The factor on Q that keeps outputs from shrinking below what the benchmark's filter accepts:
    /// the mean of many values is near 0.
    fn q_std(&self) -> f64 {
        let problem = self.problem();
        let most = (0..problem.seq_len_q())
            .map(|row| problem.visible_keys(row).len())
            .max();
        let keys = most.unwrap_or(1).max(1);
        let scale = f64::from(problem.softmax_scale());
        // The variance of a score, from a sum over head_dim products of normal numbers.
        let variance = scale * scale * problem.head_dim() as f64;
        let missing = 2.0 * (OUTPUT_STD / output_std(keys, variance)).ln();
        if missing > 0.0 {
            (((variance + missing) / variance).sqrt() * 100.0).ceil() / 100.0
        } else {
            1.0
        }
    }

    /// The six keys that the harness reads, and no more. It takes the shared ones for the model and
    /// the inputs alike.
    fn config(&self) -> Value {
        let q_std = self.q_std();
        let inputs = |problem: &Problem| {
            json!({
                "batch": problem.batch(),
                "seq_q": problem.seq_len_q(),
                "seq_kv": problem.seq_len_kv(),
                "heads": problem.num_heads(),
                "kv_heads": problem.num_kv_heads(),
                "head_dim": problem.head_dim(),
                "head_dim_v": problem.head_dim_v(),
                "q_std": q_std,
            })
        };
        let all: Vec<Value> = self.problems.iter().map(inputs).collect();
        let scale = json!([{ "scale": shortest(self.problem().softmax_scale()) }]);
        json!({
            "single_input_configs": [all[0]],
            "single_init_configs": scale,
            "single_shared_configs": [{}],
            "multi_input_configs": all,
            "multi_init_configs": scale,
            "multi_shared_configs": [{}],
        })
    }

    fn function(&self) -> String {
        let problem = self.problem();
        let dtype = match problem.dtype() {
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            _ => "float16",
        };
        let axes = |seq: &str, heads: &str, columns: &str| {
            if self.is_bhsd {
                format!("(batch, {heads}, {seq}, {columns})")
            } else {
                format!("(batch, {seq}, {heads}, {columns})")
            }
        };
        let is_backward = problem.direction() == Direction::Backward;
        let is_masked = !problem.mask().is_full();
        let holds = [
            ("bshd", !self.is_bhsd),
            ("masked", is_masked),
            ("causal", is_plainly_causal(problem)),
            ("bottom-right", is_bottom_right(problem)),
            ("empty-rows", has_masked_rows(problem)),
            ("capped", problem.softcap().is_some()),
            ("grouped", problem.group_size() > 1),
        ];
        // What the benchmark calls a backward pass by: a function whose gradients a kernel computes, and the
        // log-sum-exp that it saves for it, a part of the rows at a time: all scores of long rows are more than memory.
        let autograd = if is_backward {
            lines_that_hold(include_str!("func_autograd.py.txt"), &holds)
        } else {
            String::new()
        };
        let pairs = if is_masked {
            "int(visible(seq_q, seq_kv, torch.device(\"cpu\")).sum())"
        } else {
            "seq_q * seq_kv"
        };
        let gqa = if problem.group_size() > 1 {
            ", enable_gqa=True"
        } else {
            ""
        };
        let replaced = [
            ("@AUTOGRAD@", autograd),
            ("@LEAF@", if is_backward { ".requires_grad_()" } else { "" }.to_string()),
            ("@PAIRS@", pairs.to_string()),
            // Backward: the scores again, the gradients of P and of V; those of Q and K have as many columns as Q.
            ("@PASSES@", if is_backward { "4" } else { "2" }.to_string()),
            ("@TITLE@", problem.to_string()),
            ("@SUMMARY@", summary(problem)),
            ("@DTYPE@", dtype.to_string()),
            ("@CAP@", shortest(problem.softcap().unwrap_or_default()).to_string()),
            ("@GQA@", gqa.to_string()),
            ("@DIAGONAL@", diagonal(problem)),
            ("@CONDITIONS@", conditions(problem)),
            ("@Q_SHAPE@", axes("seq_q", "heads", "head_dim")),
            ("@K_SHAPE@", axes("seq_kv", "kv_heads", "head_dim")),
            ("@V_SHAPE@", axes("seq_kv", "kv_heads", "head_dim_v")),
            ("@O_SHAPE@", axes("seq_q", "heads", "head_dim_v")),
            ("@SCALE@", shortest(problem.softmax_scale()).to_string()),
        ];
        let template = lines_that_hold(include_str!("func_forward.py.txt"), &holds);
        replaced
            .iter()
            .fold(template, |text, (name, value)| text.replace(name, value))
    }
}

/// The lines of a template. One that begins with `@if`, words and a colon is there only where all of the words hold,
/// and those with `!` before them do not.
fn lines_that_hold(template: &str, holds: &[(&str, bool)]) -> String {
    let is_so = |word: &str| match word.strip_prefix('!') {
        Some(word) => holds.contains(&(word, false)),
        None => holds.contains(&(word, true)),
    };
    let kept = template.lines().filter_map(|line| {
        let Some(rest) = line.strip_prefix("@if ") else {
            return Some(line);
        };
        let (words, line) = rest.split_once(':')?;
        let is_kept = words.split(' ').all(is_so);
        is_kept.then(|| line.strip_prefix(' ').unwrap_or(line))
    });
    kept.map(|line| format!("{line}\n")).collect()
}

/// Causal, and nothing else: what PyTorch has a faster path for, where there are as many rows as
/// keys.
fn is_plainly_causal(problem: &Problem) -> bool {
    let mask = problem.mask();
    let is_causal = mask.window_left.is_none() && mask.window_right == Some(0);
    is_causal && (problem.q_offset(), problem.kv_offset()) == (0, 0)
}

fn is_bottom_right(problem: &Problem) -> bool {
    problem.mask().align == CausalAlign::BottomRight
}

/// Whether a row of one of the sizes sees no key.
fn has_masked_rows(problem: &Problem) -> bool {
    (0..problem.seq_len_q()).any(|row| problem.visible_keys(row).is_empty())
}

/// A number as Python and JSON read it back to the same f32.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// What is computed, in sentences, wrapped for a docstring.
fn summary(problem: &Problem) -> String {
    let heads = match problem.group_size() {
        1 => "Each head has its own keys and values.".to_string(),
        group => format!("Each {group} heads in a row share a head of keys and values."),
    };
    let mask = problem.mask();
    let mask = match mask {
        _ if mask.is_full() => "Each row sees every key.".to_string(),
        _ => {
            let side = |keys: Option<u32>, word: &str| match keys {
                None => format!("every key {word} its own position"),
                Some(0) => format!("no key {word} its own position"),
                Some(keys) => format!("{keys} keys {word} its own position"),
            };
            let diagonal = match diagonal(problem).as_str() {
                "0" => "row i has the position of key i".to_string(),
                offset => format!("row i has the position of key i + {offset}"),
            };
            format!(
                "Each row sees the key at its own position, {} and {}; {diagonal}.",
                side(mask.window_left, "before"),
                side(mask.window_right, "after")
            )
        }
    };
    let cap = match problem.softcap() {
        None => String::new(),
        Some(cap) => format!(" Scores s become {cap} * tanh(s / {cap}) before softmax."),
    };
    textwrap::wrap(&format!("{heads} {mask}{cap}"), between_words(91, "")).join("\n    ")
}

/// The key at row 0's position, as an expression of the lengths.
fn diagonal(problem: &Problem) -> String {
    let offset = i64::from(problem.q_offset()) - i64::from(problem.kv_offset());
    match (is_bottom_right(problem), offset) {
        (true, 0) => "(seq_kv - seq_q)".to_string(),
        (true, offset) => format!("(seq_kv - seq_q + {offset})"),
        (false, offset) => offset.to_string(),
    }
}

/// Which keys a row sees, as an expression of `row` and `key`.
fn conditions(problem: &Problem) -> String {
    let mask = problem.mask();
    let mut conditions = Vec::new();
    conditions.extend(mask.window_left.map(|keys| format!("(key >= row - {keys})")));
    conditions.extend(mask.window_right.map(|keys| match keys {
        0 => "(key <= row)".to_string(),
        keys => format!("(key <= row + {keys})"),
    }));
    conditions.join(" & ")
}
