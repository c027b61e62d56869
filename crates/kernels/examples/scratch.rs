use flashcore_ir::Target;
use flashcore_kernels::{Config, Plan};
use flashcore_problem::{DType, Mask, Problem};
use std::io::BufRead;
// usage: scratch FOLDER HEAD_DIM < ids
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = std::path::PathBuf::from(args.next().unwrap());
    std::fs::create_dir_all(&folder)?;
    let d: usize = args.next().unwrap().parse()?;
    let problem = Problem::builder().head_dim(d).dtype(DType::F16).build()?;
    let _ = Mask::default();
    for line in std::io::stdin().lock().lines() {
        let config: Config = line?.trim().parse()?;
        match Plan::new(&problem, &config, Target::Sm90a) {
            Ok(plan) => {
                let name = config.to_string().replace('/', "_");
                std::fs::write(folder.join(format!("d{d}_{name}.ptx")), plan.main.kernel.to_ptx())?;
                println!("{config} smem {}", plan.main.kernel.ledger().total_bytes());
            }
            Err(refusal) => println!("{config} REFUSED {refusal}"),
        }
    }
    Ok(())
}
