//! The kernels of the tables that come with the library, under the simulator on small problems.

use flashcore::unstable::plans::shipped_tables;
use flashcore::{KernelId, Problem};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::Plan;

#[test]
fn every_kernel_of_a_shipped_table_is_clean() {
    let mut looked = Vec::new();
    for named in shipped_tables().unwrap() {
        let target = Target::from_name(&named.table.device.target).unwrap();
        for (number, row) in named.table.rows() {
            let of = &row.problem;
            let KernelId::Gpu(config) = row.kernel else {
                panic!("{}, row {number}", named.name)
            };
            if looked.contains(&(config, of.direction, of.head_dim, of.mask)) {
                continue;
            }
            looked.push((config, of.direction, of.head_dim, of.mask));
            // Odd, more than a tile of keys, and less than two of rows.
            let problem = Problem::builder()
                .heads(2, if of.heads == of.kv_heads { 2 } else { 1 })
                .seq_len(210)
                .head_dim(of.head_dim)
                .head_dim_v(of.head_dim_v)
                .dtype(of.dtype)
                .mask(of.mask)
                .direction(of.direction)
                .deterministic(of.deterministic)
                .build()
                .unwrap();
            let plan = Plan::new(&problem, &config, target).unwrap();
            let report = check_plan(&plan, &CheckOptions::default()).unwrap();
            assert_eq!(report.verdict, Verdict::Clean, "{}, row {number}: {config}", named.name);
        }
    }
}
