//! The kernels under the simulator, at a small size, and what is found where they do something else.

use flashcore_check::registers;
use flashcore_sim::{SimOptions, simulate};

use super::*;

/// For the simulator: one or two blocks of each kernel.
const fn small() -> Scale {
    Scale {
        sms: 1,
        copy_bytes: 2 * CHUNK,
        full: false,
    }
}

/// Runs one under the simulator: the output's bytes, which may be none.
fn simulated(micro: &Micro) -> Vec<u8> {
    let content = |(content, spec): (&Content, &BufferSpec)| match content {
        Content::Bytes(held) => held.clone(),
        Content::Pattern => bytes((0..spec.bytes as usize / 4).map(pattern)),
        Content::Output => vec![0xa5; spec.bytes as usize],
    };
    let mut buffers: Vec<Vec<u8>> = micro.contents.iter().zip(&micro.launch.buffers).map(content).collect();
    let report = simulate(&micro.kernel, &micro.launch, &mut buffers, &SimOptions::default()).unwrap();
    assert!(report.is_clean(), "{}: {}", micro.name, report.findings[0]);
    buffers.swap_remove(micro.output())
}

#[test]
fn each_computes_what_it_must_and_is_clean() {
    for micro in all(Target::Sm90a, &small()).unwrap() {
        let out = simulated(&micro);
        micro.check(&out).unwrap();
    }
}

#[test]
fn a_round_too_few_or_a_word_that_is_off_is_found() {
    for mut micro in all(Target::Sm90a, &small()).unwrap() {
        let Some(rounds) = micro.launch.args.iter_mut().rev().find_map(|arg| match arg {
            Arg::U32(rounds) => Some(rounds),
            _ => None,
        }) else {
            continue;
        };
        *rounds -= 1;
        let out = simulated(&micro);
        assert!(micro.check(&out).is_err(), "{}", micro.name);
    }
    let copy = memory::copy(&small()).unwrap();
    let mut out = simulated(&copy);
    out[4097] ^= 1;
    let wrong = copy.check(&out).unwrap_err().to_string();
    assert!(wrong.contains("copy") && wrong.contains("word 1024"), "{wrong}");
}

#[test]
fn what_an_architecture_lacks_is_left_out() {
    let names = |target| -> Vec<&str> {
        let all = all(target, &small()).unwrap();
        all.iter().map(|micro| micro.name).collect()
    };
    assert!(names(Target::Sm90a).contains(&"wgmma-e4m3"));
    assert!(!names(Target::Sm89).contains(&"wgmma-f16") && names(Target::Sm89).contains(&"mma-f32"));
    let revision = |target| revision(target, &small()).unwrap();
    assert_eq!(revision(Target::Sm89).len(), 16);
    assert_ne!(revision(Target::Sm89), revision(Target::Sm90a));
}

/// What CI runs with an assembler, by the name of this module.
mod with_ptxas {
    use super::*;

    #[test]
    #[ignore = "needs a ptxas: FLASHCORE_PTXAS, or on PATH"]
    fn none_spills() {
        for target in [Target::Sm80, Target::Sm89, Target::Sm90a] {
            for micro in all(target, &small()).unwrap() {
                let registers = registers::offline(&micro.kernel, target)
                    .unwrap_or_else(|error| panic!("{} for {target}: {error}", micro.name));
                assert_eq!(registers.spilled_bytes, 0, "{} for {target}", micro.name);
            }
        }
    }
}
