//! What a declaration may name of a problem, and what it must name to serve it.

use flashcore_problem::{CausalAlign, DType, Direction, Layout, Mask, Problem};

use super::declaration::Declaration;
use super::value::Chosen;

/// What a name stands for.
type Value = fn(&Problem) -> f64;

/// Names in expressions, but for strides.
const NAMES: [(&str, Value); 16] = [
    ("batch", |problem| problem.batch() as f64),
    ("heads", |problem| problem.num_heads() as f64),
    ("kv_heads", |problem| problem.num_kv_heads() as f64),
    ("group", |problem| problem.group_size() as f64),
    ("seq_q", |problem| problem.seq_len_q() as f64),
    ("seq_kv", |problem| problem.seq_len_kv() as f64),
    ("head_dim", |problem| problem.head_dim() as f64),
    ("head_dim_v", |problem| problem.head_dim_v() as f64),
    ("scale", |problem| f64::from(problem.softmax_scale())),
    ("softcap", |problem| problem.softcap().map_or(0.0, f64::from)),
    ("causal", |problem| f64::from(is_causal(&problem.mask()))),
    ("window_left", |problem| {
        problem.mask().window_left.map_or(-1.0, f64::from)
    }),
    ("window_right", |problem| {
        problem.mask().window_right.map_or(-1.0, f64::from)
    }),
    ("top_left", |problem| {
        f64::from(problem.mask().align == CausalAlign::TopLeft)
    }),
    ("q_offset", |problem| f64::from(problem.q_offset())),
    ("kv_offset", |problem| f64::from(problem.kv_offset())),
];

fn named(name: &str) -> Option<Value> {
    let (_, value) = NAMES.into_iter().find(|(known, _)| *known == name)?;
    Some(value)
}

/// Strides are in elements: `q_seq_stride`.
const STRIDED: [&str; 4] = ["q", "k", "v", "out"];
const AXES: [&str; 3] = ["batch", "seq", "head"];

pub(super) fn layout<'p>(problem: &'p Problem, tensor: &str) -> Option<&'p Layout> {
    Some(match tensor {
        "q" => problem.q_layout(),
        "k" => problem.k_layout(),
        "v" => problem.v_layout(),
        "out" => problem.o_layout(),
        _ => return None,
    })
}

/// The tensor and the axis of a stride's name.
fn stride(name: &str) -> Option<(&'static str, usize)> {
    let (tensor, axis) = name.strip_suffix("_stride")?.split_once('_')?;
    let axis = AXES.iter().position(|known| *known == axis)?;
    Some((STRIDED.into_iter().find(|known| *known == tensor)?, axis))
}

/// Whether this is a stride's name.
pub(super) fn is_stride(name: &str) -> bool {
    stride(name).is_some()
}

/// The value of a name.
pub(super) fn value(problem: &Problem, name: &str) -> Option<f64> {
    if let Some(value) = named(name) {
        return Some(value(problem));
    }
    let (tensor, axis) = stride(name)?;
    Some(layout(problem, tensor)?.strides[axis] as f64)
}

fn is_causal(mask: &Mask) -> bool {
    (mask.window_left, mask.window_right) == (None, Some(0))
}

/// Whether expressions may have a name.
pub(super) fn is_name(name: &str) -> bool {
    named(name).is_some() || stride(name).is_some()
}

/// For messages.
pub(super) fn names() -> String {
    let strided = "and strides in elements as q_seq_stride (q, k, v, out; batch, seq, head)";
    format!("{}, {strided}", NAMES.map(|(name, _)| name).join(", "))
}

impl Declaration {
    /// Why the declaration does not serve a problem, if so: what of it is unusual and not named, or the first condition
    /// that does not hold.
    pub(super) fn serves(&self, chosen: &Chosen, problem: &Problem) -> Result<(), String> {
        let dtypes = &self.dtype;
        if !dtypes
            .iter()
            .any(|name| DType::from_name(name) == Some(problem.dtype()))
        {
            return Err(format!(
                "its dtype is {}, that of the problem {}",
                dtypes.join(", "),
                problem.dtype()
            ));
        }
        if problem.direction() == Direction::Backward {
            return Err("declared kernels compute the forward pass".to_string());
        }
        if problem.has_lengths() {
            return Err("packed sequences and caches with lengths are not passed to declared kernels".to_string());
        }
        if problem.sinks().is_some() || problem.alibi().is_some() {
            return Err("sinks and ALiBi slopes are not passed to declared kernels".to_string());
        }
        let mask = problem.mask();
        let is_windowed = mask.window_left.is_some() || mask.window_right.is_some_and(|right| right > 0);
        let is_unequal = problem.seq_len_q() != problem.seq_len_kv();
        let is_scaled = problem.softmax_scale() != Problem::default_scale(problem.head_dim());
        let unusual: [(bool, &[&str], &str); 14] = [
            (problem.batch() > 1, &["batch"], "more than one sequence"),
            (problem.num_heads() > 1, &["heads"], "more than one head"),
            (
                problem.group_size() > 1,
                &["kv_heads", "group"],
                "fewer K/V heads than heads",
            ),
            (is_unequal, &["seq_q"], "another number of query rows than keys"),
            (is_unequal, &["seq_kv"], "another number of keys than query rows"),
            (
                problem.head_dim_v() != problem.head_dim(),
                &["head_dim_v"],
                "another head_dim of V",
            ),
            (is_scaled, &["scale"], "a scale that is not 1/√head_dim"),
            (problem.softcap().is_some(), &["softcap"], "a soft cap"),
            (is_causal(&mask), &["causal", "window_right"], "a causal mask"),
            (is_windowed, &["window_left"], "a window"),
            (is_windowed, &["window_right"], "a window"),
            (
                mask.align == CausalAlign::TopLeft && is_unequal,
                &["top_left"],
                "a mask aligned at the top left",
            ),
            (problem.q_offset() != 0, &["q_offset"], "an offset of the query rows"),
            (problem.kv_offset() != 0, &["kv_offset"], "an offset of the keys"),
        ];
        for (is_so, names, what) in unusual {
            if is_so && !names.iter().any(|name| self.names(name)) {
                return Err(format!(
                    "the problem has {what}, and the declaration does not name {}",
                    names.join(" or ")
                ));
            }
        }
        if problem.return_lse() && !self.names("lse") {
            return Err("the problem asks for the log-sum-exp, and no argument is `lse`".to_string());
        }
        if !problem.return_lse() && self.names("lse") {
            return Err("an argument is `lse`, and the problem asks for none (--lse)".to_string());
        }
        for scale in ["q_scale", "k_scale", "v_scale"] {
            let (is_needed, is_there) = (problem.num_scales() > 0, self.names(scale));
            if is_needed != is_there {
                let what = if is_needed {
                    "no argument is"
                } else {
                    "the problem has no scales, and an argument is"
                };
                return Err(format!("{what} `{scale}`"));
            }
        }
        for tensor in STRIDED {
            let Some(layout) = layout(problem, tensor).filter(|layout| **layout != Layout::bshd(layout.shape)) else {
                continue;
            };
            let mut needed = AXES.map(|axis| format!("{tensor}_{axis}_stride")).into_iter();
            if let Some(name) = needed.find(|name| !self.names(name)) {
                let strides = layout.strides;
                return Err(format!(
                    "{tensor} has strides {strides:?}, not those of a dense [batch, seq, heads, head_dim], and the \
                     declaration does not name {name}"
                ));
            }
        }
        for condition in &self.requires {
            let holds = condition.value(&|name| self.value(chosen, problem, name));
            if holds.map_err(|error| error.to_string())? == 0.0 {
                return Err(format!("it requires `{condition}`"));
            }
        }
        Ok(())
    }
}
