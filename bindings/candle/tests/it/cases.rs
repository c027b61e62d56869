//! Random calls of the crate's functions, and their comparison with float64.

use candle::{DType, Device, IndexOp, Result, Tensor, Var};
use flashcore::unstable::testing::{
    Comparison, InputKind, Inputs, Tolerance, compare, compare_gradient, reference_gradients, reference_rows,
};
use flashcore::{KvLengths, Lengths, Mask, Problem, QLengths, TensorView};
use flashcore_candle::*;

/// The CPU, and the first GPU where `FLASHCORE_CANDLE_GPU` is set: link stubs of the libraries would end the process.
pub(crate) fn devices() -> impl Iterator<Item = Device> {
    let asked = std::env::var_os("FLASHCORE_CANDLE_GPU").is_some();
    let gpu = asked.then(|| Device::new_cuda(0).expect("a GPU"));
    [Some(Device::Cpu), gpu].into_iter().flatten()
}

/// A call: what is asked, and how its tensors are laid out.
#[derive(Debug)]
pub(crate) struct Case {
    /// As float64 sees it, written from the arguments independently of the crate.
    pub(crate) problem: Problem,
    lengths: Lengths<Vec<i32>>,
    window: [Option<usize>; 2],
    softcap: Option<f32>,
    strides: Strides,
    seed: u64,
}

/// How the tensors of a call lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Strides {
    Dense,
    /// Heads before rows, as in most models.
    Transposed,
    /// A part of a longer tensor, whose other rows are NaN.
    Narrowed,
}

/// A generator of small numbers, the same on every machine (SplitMix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

impl Case {
    /// Sequences of equal lengths, up to `longest`.
    pub(crate) fn dense(seed: u64, longest: usize) -> Case {
        let draw = &mut Draw(seed);
        let (rows, keys) = (1 + draw.below(longest), 1 + draw.below(longest));
        let builder = Problem::builder()
            .batch(1 + draw.below(3))
            .seq_len_q(rows)
            .seq_len_kv(keys);
        Case::finish(draw, seed, builder, keys)
    }

    /// Packed sequences, of which some are empty, and rows after the last.
    pub(crate) fn packed(seed: u64, longest: usize) -> Case {
        let draw = &mut Draw(seed);
        let batch = 1 + draw.below(5);
        let [(q, total_q, max_q), (k, total_k, max_k)] = [0, 1].map(|_| {
            let mut ends = vec![0i32];
            for _ in 0..batch {
                let len = if draw.below(4) == 0 { 0 } else { draw.below(longest) };
                ends.push(ends[ends.len() - 1] + len as i32);
            }
            let longest = ends.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
            let total = ends[batch] as usize + 1 + draw.below(3);
            (ends, total, (longest as usize).max(1) + draw.below(3))
        });
        let q_lengths = QLengths::Packed {
            total: total_q,
            used: false,
        };
        let kv_lengths = KvLengths::Packed {
            total: total_k,
            used: false,
        };
        let builder = Problem::builder().batch(batch).seq_len_q(max_q).seq_len_kv(max_k);
        let mut case = Case::finish(draw, seed, builder.q_lengths(q_lengths).kv_lengths(kv_lengths), max_k);
        case.lengths.cu_seqlens_q = Some(q);
        case.lengths.cu_seqlens_k = Some(k);
        case
    }

    /// Packed rows of q over pages of k and v, in any order.
    pub(crate) fn paged(seed: u64, longest: usize) -> Case {
        let packed = Case::packed(seed, longest);
        let draw = &mut Draw(seed ^ 0x7061_6765);
        let ends = packed.lengths.cu_seqlens_k.clone().unwrap_or_default();
        let used: Vec<i32> = ends.windows(2).map(|ends| ends[1] - ends[0]).collect();
        let (page_size, bound) = (draw.of(&[16, 32, 64]), packed.problem.seq_len_kv());
        let max_pages = bound.div_ceil(page_size);
        let mut free: Vec<i32> = (0..(used.len() * max_pages + 2) as i32).collect();
        let pages = free.len();
        let table = (0..used.len() * max_pages)
            .map(|_| free.swap_remove(draw.below(free.len())))
            .collect();
        let problem = flashcore::ProblemBuilder::like(&packed.problem)
            .q_lengths(packed.problem.q_lengths())
            .kv_lengths(KvLengths::Paged {
                page_size,
                pages,
                max_pages,
            });
        let lengths = Lengths {
            cu_seqlens_q: packed.lengths.cu_seqlens_q.clone(),
            seqused_k: Some(used),
            block_table: Some(table),
            ..Lengths::default()
        };
        let problem = problem.build().expect("the case is valid");
        Case {
            problem,
            lengths,
            ..packed
        }
    }

    fn finish(draw: &mut Draw, seed: u64, builder: flashcore::ProblemBuilder, keys: usize) -> Case {
        let kv_heads = 1 + draw.below(3);
        let head_dim = draw.of(&[8, 40, 64, 96, 128, 256]);
        let dtype = draw.of(&[flashcore::DType::F32, flashcore::DType::F16, flashcore::DType::BF16]);
        let mut side = || match draw.below(3) {
            0 => None,
            1 => Some(0),
            _ => Some(draw.below(2 * keys)),
        };
        let sides = [side(), side()];
        let window = draw.of(&[[None, None], [None, Some(0)], sides, sides]);
        // A side that reaches past all keys is none.
        let [left, right] = window.map(|side| side.filter(|size| *size <= keys).map(|size| size as u32));
        let softcap = draw.of(&[None, Some(0.0), Some(3.0)]);
        let builder = builder
            .heads(kv_heads * (1 + draw.below(4)), kv_heads)
            .head_dim(head_dim)
            .dtype(dtype);
        let builder = builder
            .mask(Mask::window(left, right))
            .softmax_scale(draw.of(&[0.05, 0.2]));
        let builder = match softcap {
            Some(3.0) => builder.softcap(3.0),
            _ => builder,
        };
        Case {
            problem: builder.build().expect("the case is valid"),
            lengths: Lengths::default(),
            window,
            softcap,
            strides: draw.of(&[Strides::Dense, Strides::Transposed, Strides::Narrowed]),
            seed,
        }
    }

    /// The same case with ALiBi.
    pub(crate) fn with_alibi(mut self) -> Case {
        let builder = flashcore::ProblemBuilder::from(&self.problem).alibi(flashcore::Alibi::Heads);
        self.problem = builder.build().expect("the case is valid");
        self
    }

    /// Makes the call on a device, and compares it with float64. Rows of no sequence must be 0.
    pub(crate) fn run(&self, device: &Device) -> Result<Comparison> {
        let problem = &self.problem;
        let lengths = self.lengths.as_slices();
        let inputs = Inputs::with_lengths(problem, self.lengths.clone(), InputKind::Normal, self.seed);
        let inputs = inputs.expect("the case is valid");
        let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|tensor| self.upload(tensor, device, &inputs));
        let slopes = inputs.q.view().alibi_slopes();
        let out = self.call([&q?, &k?, &v?], slopes, device)?;
        assert!(out.is_contiguous());

        let out = out.to_device(&Device::Cpu)?;
        let bytes = bytes(&out)?;
        let view = TensorView::new("out", problem.dtype(), *problem.o_layout(), &bytes).expect("the shape of q");
        let rows = problem.query_rows(&lengths).expect("the case is valid");
        let [batch, seq, heads, head_dim] = problem.o_layout().shape;
        for [b, h, s] in all([batch, heads, seq]).filter(|row| !rows.contains(row)) {
            assert!(
                (0..head_dim).all(|d| view.get(b, s, h, d) == 0.0),
                "row {s} of no sequence is written"
            );
        }
        let views = [inputs.q.view(), inputs.k.view(), inputs.v.view()];
        let want = reference_rows(problem, &views[0], &views[1], &views[2], &lengths, &rows);
        let tolerance = Tolerance::of(problem.dtype());
        let compared = compare(problem, &view, &want.expect("the case is valid"), tolerance);
        let mut compared = compared.expect("the shape of q");
        // Empty sequences only: there is nothing to compare.
        compared.passed |= rows.is_empty();
        Ok(compared)
    }

    /// Computes gradients of the call on a device, and compares each with float64; none where all
    /// sequences are empty. Rows of no sequence must have 0.
    pub(crate) fn run_backward(&self, device: &Device) -> Result<Vec<Comparison>> {
        let problem = self.problem.backward().expect("the case has gradients");
        let inputs = Inputs::with_lengths(&problem, self.lengths.clone(), InputKind::Normal, self.seed);
        let inputs = inputs.expect("the case is valid");
        let saved = inputs.saved.as_ref().expect("of a backward problem");
        let variables = [&inputs.q, &inputs.k, &inputs.v].map(|tensor| Var::from_tensor(&dense(tensor, device)?));
        let [q, k, v] = variables;
        let variables = [q?, k?, v?];
        let [q, k, v] = variables.each_ref().map(|variable| self.laid_out(variable, &inputs));
        let out = self.call([&q?, &k?, &v?], None, device)?;
        let dout = dense(&saved.dout, device)?.reshape(out.shape())?;
        let gradients = (out * dout)?.sum_all()?.backward()?;

        let want = reference_gradients(&problem, &inputs).expect("the case is valid");
        let mut compared = Vec::new();
        for ((name, variable), want) in ["dq", "dk", "dv"].into_iter().zip(&variables).zip(want.each()) {
            let gradient = gradients.get(variable).expect("it is a variable");
            let bytes = bytes(&gradient.to_device(&Device::Cpu)?)?;
            let shape = <[usize; 4]>::try_from(variable.dims()).expect("it has four dimensions");
            let view = TensorView::new(name, problem.dtype(), shape.into(), &bytes).expect("the shape of its tensor");
            let rows = want
                .iter()
                .map(|row| row.index)
                .collect::<std::collections::HashSet<_>>();
            let [batch, seq, heads, head_dim] = shape;
            for [b, h, s] in all([batch, heads, seq]).filter(|row| !rows.contains(row)) {
                let zeros = (0..head_dim).all(|d| view.get(b, s, h, d) == 0.0);
                assert!(zeros, "{name} of row {s}, which is of no sequence, is not 0");
            }
            if !want.is_empty() {
                let found = compare_gradient(name, &view, want, Tolerance::of_gradient(problem.dtype()));
                compared.push(found.expect("the shape of its tensor"));
            }
        }
        Ok(compared)
    }

    fn call(&self, [q, k, v]: [&Tensor; 3], slopes: Option<&[f32]>, device: &Device) -> Result<Tensor> {
        let slopes = slopes.map(|slopes| Tensor::new(slopes, device)).transpose()?;
        let slopes = slopes.as_ref();
        let (problem, [left, right]) = (&self.problem, self.window);
        let scale = problem.softmax_scale();
        let sums = |lengths: &[i32]| -> Result<Tensor> {
            let sums = lengths.iter().map(|sum| *sum as u32).collect::<Vec<_>>();
            Tensor::new(sums, device)
        };
        let (max_q, max_k) = (problem.seq_len_q(), problem.seq_len_kv());
        let causal = self.window == [None, Some(0)];
        let plain = causal || self.window == [None, None];
        let Some(seqlens_q) = &self.lengths.cu_seqlens_q else {
            return match (self.softcap, slopes) {
                (Some(cap), _) => flash_attn_alibi_windowed_softcap(q, k, v, slopes, scale, left, right, cap),
                (None, Some(slopes)) if plain => flash_attn_alibi(q, k, v, slopes, scale, causal),
                (None, Some(slopes)) => flash_attn_alibi_windowed(q, k, v, slopes, scale, left, right),
                (None, None) if plain => flash_attn(q, k, v, scale, causal),
                (None, None) => flash_attn_windowed(q, k, v, scale, left, right),
            };
        };
        let seqlens_q = &sums(seqlens_q)?;
        if let (Some(used), Some(table)) = (&self.lengths.seqused_k, &self.lengths.block_table) {
            let mut ends = vec![0];
            ends.extend(used.iter().scan(0, |end, used| {
                *end += used;
                Some(*end)
            }));
            let table = Tensor::new(table.as_slice(), device)?.reshape((used.len(), ()))?;
            let KvLengths::Paged { page_size, .. } = problem.kv_lengths() else {
                candle::bail!("the case has pages");
            };
            let seqlens_k = &sums(&ends)?;
            return flash_attn_varlen_paged_windowed(
                q,
                k,
                v,
                seqlens_q,
                seqlens_k,
                &table,
                None,
                max_q,
                max_k,
                scale,
                left,
                right,
                page_size,
                self.softcap,
            );
        }
        let seqlens_k = &sums(self.lengths.cu_seqlens_k.as_deref().unwrap_or_default())?;
        match (self.softcap, slopes) {
            (None, Some(slopes)) if plain => {
                flash_attn_varlen_alibi(q, k, v, slopes, seqlens_q, seqlens_k, max_q, max_k, scale, causal)
            }
            (None, Some(slopes)) => flash_attn_varlen_alibi_windowed(
                q, k, v, slopes, seqlens_q, seqlens_k, max_q, max_k, scale, left, right,
            ),
            (Some(cap), _) => flash_attn_varlen_alibi_windowed_softcap(
                q, k, v, slopes, seqlens_q, seqlens_k, max_q, max_k, scale, left, right, cap,
            ),
            (None, None) if plain => flash_attn_varlen(q, k, v, seqlens_q, seqlens_k, max_q, max_k, scale, causal),
            (None, None) => flash_attn_varlen_windowed(q, k, v, seqlens_q, seqlens_k, max_q, max_k, scale, left, right),
        }
    }

    /// A tensor of candle, with the strides of the case.
    fn upload(&self, tensor: &flashcore::Tensor, device: &Device, inputs: &Inputs) -> Result<Tensor> {
        self.laid_out(&dense(tensor, device)?, inputs)
    }

    /// A dense tensor with the strides of the case, by operations that have gradients; packed ones have
    /// three dimensions.
    fn laid_out(&self, four: &Tensor, inputs: &Inputs) -> Result<Tensor> {
        let dims = four.dims();
        let of_pages = self.lengths.block_table.is_some() && dims != inputs.q.layout().shape;
        let four = match self.strides {
            Strides::Dense => four.clone(),
            Strides::Transposed => four.transpose(1, 2)?.contiguous()?.transpose(1, 2)?,
            Strides::Narrowed => {
                let poison = (four.narrow(1, 0, 1)?.detach() * f64::NAN)?;
                Tensor::cat(&[&poison, four, &poison], 1)?.narrow(1, 1, dims[1])?
            }
        };
        let packed = self.lengths.cu_seqlens_q.is_some() && four.dim(0)? == 1;
        if packed && !of_pages { four.i(0) } else { Ok(four) }
    }
}

/// A tensor of candle with the same elements, dense, `[batch, seq, heads, head_dim]`.
fn dense(tensor: &flashcore::Tensor, device: &Device) -> Result<Tensor> {
    let dtype = match tensor.dtype() {
        flashcore::DType::F16 => DType::F16,
        flashcore::DType::BF16 => DType::BF16,
        _ => DType::F32,
    };
    Tensor::from_raw_buffer(tensor.bytes(), dtype, &tensor.layout().shape, &Device::Cpu)?.to_device(device)
}

/// All indices below three ends.
fn all([a, b, c]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| [i, j, k])))
}

/// The elements of a contiguous tensor on the CPU.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let flat = tensor.flatten_all()?;
    Ok(match tensor.dtype() {
        DType::F16 => flat
            .to_vec1::<flashcore::f16>()?
            .iter()
            .flat_map(|x| x.to_ne_bytes())
            .collect(),
        DType::BF16 => flat
            .to_vec1::<flashcore::bf16>()?
            .iter()
            .flat_map(|x| x.to_ne_bytes())
            .collect(),
        _ => flat.to_vec1::<f32>()?.iter().flat_map(|x| x.to_ne_bytes()).collect(),
    })
}
