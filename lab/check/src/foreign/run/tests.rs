//! Launches of PTX texts.

use super::*;

fn run_with(args: &[&str]) -> Result<Vec<Found>, RunError> {
    let text = ".version 7.0 .target sm_80 .entry fill(.param .u64 out, .param .u32 n) .maxntid 32, 1, 1 {
        .reg .b32 %r<2>; .reg .b64 %rd<3>;
        ld.param.u64 %rd0, [out]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %rd0, %rd0;
        mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %rd0, %rd1;
        st.global.u32 [%rd2], %r1; ret; }";
    let launch = ForeignLaunch {
        grid: [1, 1, 1],
        args: args.iter().map(|arg| arg.parse().unwrap()).collect(),
        ..ForeignLaunch::default()
    };
    run(text, "fill", "fill.ptx", &launch).map(|ran| ran.found)
}

#[test]
fn arguments_are_numbers_and_buffers() {
    let fill = Fill::Zero;
    assert_eq!("buf:400:zero".parse(), Ok(Given::Buffer { bytes: 400, fill }));
    assert_eq!("-3".parse(), Ok(Given::Integer(-3)));
    assert_eq!("0.5".parse(), Ok(Given::Float(0.5)));
    assert!("buf:many".parse::<Given>().is_err());
    assert!("buf:99999999999999".parse::<Given>().is_err());
}

#[test]
fn a_store_past_the_end_is_found_at_its_line() {
    let found = run_with(&["buf:124", "7"]).unwrap();
    let finding = &found[0].finding;
    assert_eq!((finding.kind.name(), finding.lines[0].line), ("out-of-bounds", 5));
}

#[test]
fn numbers_and_buffers_are_held_to_what_fits() {
    for number in ["4294967295", "-2147483648", "0"] {
        assert!(run_with(&["buf:128", number]).unwrap().is_empty(), "{number}");
    }
    for number in ["4294967296", "-2147483649"] {
        let error = run_with(&["buf:128", number]).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("argument 2 is {number}; `n` has 32 bits, for -2147483648 to 4294967295")
        );
    }
    let error = run_with(&["buf:1073741824", "buf:1"]).unwrap_err();
    assert!(matches!(error, RunError::Buffers { given: 1_073_741_825 }), "{error}");
}

#[test]
fn a_pointer_may_be_null() {
    let text = ".version 7.0 .target sm_80 .entry k(.param .u64 out, .param .u64 bias) .maxntid 1, 1, 1 {
        .reg .b32 %r<2>; .reg .b64 %rd<2>; .reg .pred %p<1>;
        ld.param.u64 %rd0, [out]; ld.param.u64 %rd1, [bias]; mov.u32 %r0, 7;
        setp.eq.s64 %p0, %rd1, 0; @%p0 bra DONE;
        cvta.to.global.u64 %rd1, %rd1; ld.global.u32 %r0, [%rd1];
        DONE: cvta.to.global.u64 %rd0, %rd0; st.global.u32 [%rd0], %r0; ret; }";
    for (bias, stored) in [("0", 7), ("buf:4:zero", 0)] {
        let ran = run_text(text, &["buf:4:unwritten", bias]);
        assert!(ran.found.is_empty(), "{bias}");
        assert_eq!(ran.outputs[0], [stored, 0, 0, 0], "{bias}");
    }
    let error = run_with(&["7", "7"]).unwrap_err();
    assert!(matches!(error, RunError::Kind(1, ..)), "{error}");
}

fn run_text(text: &str, args: &[&str]) -> Ran {
    let launch = ForeignLaunch {
        grid: [1, 1, 1],
        args: args.iter().map(|arg| arg.parse().unwrap()).collect(),
        ..ForeignLaunch::default()
    };
    run(text, "k", "k.ptx", &launch).unwrap()
}

#[test]
fn each_element_of_a_vector_is_added() {
    let ran = run_text(
        ".version 8.1 .target sm_90 .entry k(.param .u64 out) .maxntid 32, 1, 1 {
            .reg .b64 %rd<1>; .reg .f32 %f<4>;
            ld.param.u64 %rd0, [out]; mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f40000000;
            atom.global.add.v2.f32 {%f2, %f3}, [%rd0+8], {%f0, %f1}; ret; }",
        &["buf:16:zero"],
    );
    assert!(ran.found.is_empty());
    let floats = ran.outputs[0]
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes));
    assert_eq!(floats.collect::<Vec<_>>(), [0.0, 0.0, 32.0, 64.0]);
}

/// Lanes 0 and 16 store a register: `%f3` is a² + b², of which each has rounded the other's square; `%f0` is a, or b.
fn store_of_two_lanes(stored: &str) -> Vec<Found> {
    let text = format!(
        ".version 7.0 .target sm_80 .entry k() .maxntid 32, 1, 1 {{
            .reg .pred %p<2>; .reg .b32 %r<3>; .reg .f32 %f<5>; .shared .f32 s[1];
            mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 16; selp.f32 %f0, 0f3DCCCCCD, 0f3FAF5C29, %p0;
            mul.rn.f32 %f1, %f0, %f0; mov.b32 %r1, %f1;
            shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1; mov.b32 %f2, %r2; fma.rn.f32 %f3, %f0, %f0, %f2;
            and.b32 %r0, %r0, 15; setp.eq.u32 %p1, %r0, 0;
            @%p1 st.shared.f32 [s], {stored}; ret; }}"
    );
    run_text(&text, &[]).found
}

#[test]
fn copies_of_a_sum_that_differ_by_rounding_are_no_race_and_other_numbers_are() {
    assert!(store_of_two_lanes("%f3").is_empty());
    assert_eq!(store_of_two_lanes("%f0")[0].finding.kind.name(), "race");
}
