//! Every instruction of the language, with every operation and type it has, written through the
//! builder: spelled as the snapshots show, and taken by ptxas for every target.

mod forms;
mod kernels;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;

use forms::{all_forms, form};
use kernels::kernels;
use support::assemble_everywhere;

#[test]
fn spelling() {
    for kernel in &kernels() {
        insta::assert_snapshot!(kernel.name(), kernel.to_ptx());
    }
}

#[test]
fn ptxas_takes_them_all() {
    for kernel in &kernels() {
        assemble_everywhere(kernel);
    }
}

#[test]
fn each_needs_the_least_that_has_it() {
    for kernel in &kernels() {
        let required = kernel.requires();
        let expected = if kernel.name() == "packed_bf16_sm90" {
            ((7, 8), 90)
        } else {
            ((7, 0), 80)
        };
        assert_eq!((required.ptx, required.sm), expected, "{kernel}");
    }
}

#[test]
fn nothing_is_missing() {
    let mut seen = BTreeSet::new();
    for kernel in &kernels() {
        kernel.for_each_inst(&mut |inst, _| {
            seen.insert(form(inst));
        });
    }
    let all = all_forms();
    let unlisted: Vec<_> = seen.difference(&all).collect();
    let unwritten: Vec<_> = all.difference(&seen).collect();
    assert!(
        unlisted.is_empty() && unwritten.is_empty(),
        "unlisted {unlisted:?}\nnot written {unwritten:?}"
    );
}

#[test]
fn each_carries_the_line_that_wrote_it() {
    for kernel in &kernels() {
        kernel.for_each_inst(&mut |inst, site| {
            let line = kernel.kernel_line(site);
            assert!(line.file.ends_with("kernels.rs"), "{kernel}: {inst:?} at {line}");
        });
    }
}
