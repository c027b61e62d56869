//! A program of somebody who uses the crate: attention in each dtype, compared with float64. `try.sh` compiles it.

use flashcore::unstable::testing::{InputKind, Inputs, Tolerance, compare, reference};
use flashcore::{Attention, DType, Device, Error, Mask, Problem};

fn main() -> Result<(), Error> {
    let attention = Attention::new(Device::cpu())?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let problem = Problem::builder().batch(2).heads(4, 2).seq_len(65).head_dim(64);
        let problem = problem.dtype(dtype).mask(Mask::CAUSAL).build()?;
        let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
        let output = attention.forward(&problem, &q, &k, &v)?;
        let want = reference(&problem, &q.view(), &k.view(), &v.view())?;
        let found = compare(&problem, &output.out.view(), &want, Tolerance::of(dtype))?;
        assert!(found.passed, "{problem}: {found:?}");
        println!("{problem}: as float64 says");
    }
    Ok(())
}
