//! Copies of one sum that several lanes store, and other numbers that are no such copies.

use flashcore_sim::FindingKind;

use crate::forms::kinds;

/// What a warp finds that shuffles a number, given as its bits, and then executes `store`.
fn after_a_shuffle_of(bits: u32, store: &str) -> Vec<FindingKind> {
    let body = format!(
        ".reg .f32 %f<5>; mov.b32 %r2, {bits}; shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; cvt.rn.f32.u32 %f0, %r1; {store}"
    );
    kinds(32, &body, &[0])
}

#[test]
fn whole_numbers_are_no_copies_of_a_sum() {
    let one = 1.0f32.to_bits();
    assert_eq!(after_a_shuffle_of(one, "st.shared.u32 [s], %r1;"), [FindingKind::Race]);
    assert_eq!(after_a_shuffle_of(one, "st.shared.u32 [s], %r3;"), []);
}

#[test]
fn numbers_far_smaller_than_those_shuffled_are_no_copies_of_a_sum() {
    let million = 1e6f32.to_bits();
    // Each is another one: they differ by less than 2^-18 of a million.
    let thousandths = "mul.f32 %f0, %f0, 0f3A83126F; add.f32 %f0, %f0, 0f3A83126F; st.shared.f32 [s], %f0;";
    assert_eq!(after_a_shuffle_of(million, thousandths), [FindingKind::Race]);
    // They differ in their last bits, but are no floats.
    let near = "add.u32 %r4, %r1, 0x358637bd; st.shared.b32 [s], %r4;";
    assert_eq!(after_a_shuffle_of(1e-6f32.to_bits(), near), [FindingKind::Race]);
}

/// Lanes store what they have of a product, which nearly cancels with that of a lane at a distance of 16.
fn sum_that_cancels(with: &str, lanes: u32) -> Vec<FindingKind> {
    let body = format!(
        ".reg .f32 %f<5>; setp.lt.u32 %p0, %r1, 16; selp.f32 %f0, 0f3DCCCCCD, 0fBDCCCCCE, %p0; mov.f32 %f4, 0f3DCCCCCD;
        mul.f32 %f1, %f0, %f4; mov.b32 %r2, %f1; shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; mov.b32 %f2, %r3; {with}
        and.b32 %r4, %r1, {lanes}; setp.eq.u32 %p1, %r4, 0; @%p1 st.shared.f32 [s], %f3;"
    );
    kinds(32, &body, &[0])
}

#[test]
fn copies_of_a_sum_may_cancel_in_lanes_that_its_shuffles_join() {
    let fused = "fma.rn.f32 %f3, %f0, %f4, %f2;";
    assert_eq!(sum_that_cancels(fused, 15), []);
    assert_eq!(sum_that_cancels(fused, 7), [FindingKind::Race]); // lanes 0, 8, 16, 24
    assert_eq!(
        sum_that_cancels("fma.rn.f32 %f3, %f0, %f0, %f2;", 15),
        [FindingKind::Race]
    ); // another product
}

/// Lanes 0 and 16 store a half of a² + b², of which each has rounded the other's square.
fn sum_stored_after(barriers: &str) -> Vec<FindingKind> {
    let body = format!(
        ".reg .f32 %f<5>; setp.lt.u32 %p0, %r1, 16; selp.f32 %f0, 0f3DCCCCCD, 0f3FAF5C29, %p0;
        mul.rn.f32 %f1, %f0, %f0; mov.b32 %r2, %f1;
        shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; mov.b32 %f2, %r3; fma.rn.f32 %f3, %f0, %f0, %f2;
        and.b32 %r4, %r1, 15; setp.eq.u32 %p1, %r4, 0; {barriers}
        mul.f32 %f4, %f3, 0f3F000000; @%p1 st.shared.f32 [s], %f4;"
    );
    kinds(32, &body, &[0])
}

#[test]
fn what_was_shuffled_counts_until_the_second_barrier() {
    assert_eq!(sum_stored_after(""), []);
    assert_eq!(sum_stored_after("bar.sync 0;"), []);
    assert_eq!(sum_stored_after("bar.sync 0; bar.sync 0;"), [FindingKind::Race]);
}

/// Lanes `stored` store a sum of what lanes at a distance have, where all numbers differ.
fn sum_of(computed: &str, stored: u32) -> Vec<FindingKind> {
    let body = format!(
        ".reg .f32 %f<6>; cvt.rn.f32.u32 %f0, %r1; mul.f32 %f1, %f0, %f0; {computed}
        mov.u32 %r4, {stored}; shr.u32 %r4, %r4, %r1; and.b32 %r4, %r4, 1; setp.eq.u32 %p1, %r4, 1; @%p1 st.shared.f32 [s], %f3;"
    );
    kinds(32, &body, &[0])
}

#[test]
fn lanes_that_a_shuffle_does_not_join_have_no_copies() {
    let by = |by: u32| {
        format!("mov.b32 %r2, %f1; shfl.sync.bfly.b32 %r3, %r2, {by}, 31, -1; mov.b32 %f2, %r3; add.f32 %f3, %f1, %f2;")
    };
    assert_eq!(sum_of(&by(1), 0b11), []);
    // Lane 0 has its number and that of lane 3, lane 1 those of 1 and 2.
    assert_eq!(sum_of(&by(3), 0b11), [FindingKind::Race]);
}

#[test]
fn a_number_that_changed_since_the_shuffle_makes_no_sum() {
    let changed = "mov.f32 %f4, %f1; mov.b32 %r2, %f4; shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; mov.b32 %f2, %r3;
        add.f32 %f4, %f4, %f0; add.f32 %f3, %f4, %f2;";
    assert_eq!(sum_of(changed, 1 | 1 << 16), [FindingKind::Race]);
    // In a loop each lane may have the sum of another round.
    let later = "mov.u32 %r5, 0;
        AGAIN: cvt.rn.f32.u32 %f5, %r5; add.f32 %f4, %f1, %f5; mov.b32 %r2, %f4;
        shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; mov.b32 %f2, %r3;
        shr.u32 %r6, %r1, 4; setp.eq.u32 %p0, %r6, %r5; @%p0 bra SKIP; add.f32 %f3, %f4, %f2;
        SKIP: add.u32 %r5, %r5, 1; setp.lt.u32 %p0, %r5, 2; @%p0 bra AGAIN;";
    assert_eq!(sum_of(later, 1 | 1 << 16), [FindingKind::Race]);
}
