//! The registers that instructions access.

use flashcore_ir::Reg;
use flashcore_ir::inst::Inst;

/// The registers that an instruction reads, and those that it writes.
pub(crate) fn accessed(inst: &Inst) -> [Vec<Reg>; 2] {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let run = |first: Reg, count: u32| (0..count).map(move |i| first.plus(i));
    inst.visit_regs(
        |first, n| reads.extend(run(first, n)),
        |first, n| writes.extend(run(first, n)),
    );
    [reads, writes]
}
