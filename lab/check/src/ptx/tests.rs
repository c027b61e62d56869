//! Declarations and statements of bodies.

use super::PtxText;
use super::statement::{Guard, Statement};

#[test]
fn declarations_and_bodies_are_read() {
    let text = PtxText::read(
        r#"
.version 8.4
.target sm_89, debug
.address_size 64
.file 1 "x.cu", 123, 456
.shared .align 16 .b8 tile[16][64];
.extern .shared .align 128 .b8 dyn[];
.shared .f32 unused[9];
.global .align 4 .b8 table[4] = {1, 2, 3, 4};
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.func helper(.param .b32 a) { ret; }
.visible .entry k(
	.param .u64 .ptr .global .align 16 k_param_0,
	.param .align 8 .b8 k_param_1[40]
)
.maxntid 16, 16
.minnctapersm 2
.maxnreg 64
{
	.reg .pred %p<2>;
	.shared .align 4 .f32 scores[2][2][16][64];
	.loc 1 10 3
	ld.param.u64 %rd1, [k_param_0];
	{ .reg .pred q; setp.ne.b32 q, %r1, -1; @!q bra $L0; }
	mov.u32 %r1, tile;
	mov.u32 %r2, dyn+16;
$L0:
	elect.sync _|%p1, 0xffffffff;
	ret;
}
.section .debug_str { .b8 0 }
"#,
    )
    .unwrap();
    let module = &text.module;
    assert_eq!((module.version, module.target.as_str()), ((8, 4), "sm_89"));
    assert_eq!(module.files, [(1, "x.cu".to_string())]);
    let functions: Vec<(&str, bool)> = module
        .functions
        .iter()
        .map(|f| (f.name.as_str(), f.body.is_some()))
        .collect();
    assert_eq!(functions, [("vprintf", false), ("helper", true)]);
    let (entry, body) = text.entries().next().unwrap();
    assert_eq!(entry.params.iter().map(|p| p.bytes).collect::<Vec<_>>(), [8, 40]);
    assert_eq!(entry.threads_allowed(), Some(256));
    assert_eq!((entry.min_blocks_per_sm, entry.max_registers), (Some(2), Some(64)));
    let shared: Vec<(&str, u64, bool)> = text
        .shared_of(body)
        .map(|s| (s.name.as_str(), s.bytes, s.is_dynamic))
        .collect();
    assert_eq!(
        shared,
        [("tile", 1024, false), ("dyn", 0, true), ("scores", 16384, false)]
    );
    let guards: Vec<&Guard> = body
        .statements
        .iter()
        .filter_map(|s| match s {
            Statement::Inst(inst) => inst.guard.as_ref(),
            _ => None,
        })
        .collect();
    assert_eq!((guards[0].negated, guards[0].pred.as_str()), (true, "q@1"));
}

#[test]
fn bodies_that_are_not_ptx_are_refused() {
    let body = |body: &str| PtxText::read(&format!(".version 7.0 .target sm_80\n.entry k() {{ {body} }}"));
    for (text, part) in [
        ("not even PTX \"}\" {}", "line 2: expected"),
        ("ld.u32 %r1, [%r2;", "line 2: expected `]`"),
    ] {
        let error = body(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
