//! Cards that were calibrated: their files take the place of a card.

use std::path::Path;

use flashcore_check::cost::{CARD_SCHEMA, CardFile};
use flashcore_ir::{Calibration, MeasuredCard, Profile, Seen};
use serde_json::Value;

use crate::common::{flashcore, words};

const SMALL: &str = "[[problems]]\nname = \"small\"\nheads = 2\nseq = 96\n";

/// A file of an L4 with these exponentials per clock.
fn write(path: &Path, mufu: f64) {
    let seen = |kernels, low, high| Seen { kernels, low, high };
    let card = CardFile {
        schema: CARD_SCHEMA,
        profile: *Profile::named("l4").expect("an L4"),
        calibration: Calibration {
            rates: MeasuredCard {
                source: "an L4 of a test".to_string(),
                mufu: Some(mufu),
                ..MeasuredCard::default()
            },
            tensor: seen(33, 0.9, 1.25),
            scalar: seen(13, 0.9, 1.25),
        },
    };
    std::fs::write(path, serde_json::to_string(&card).expect("JSON")).expect("a file");
}

#[test]
fn a_file_is_a_card_of_every_command_that_predicts() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let [mine, slow, problems] = ["mine.json", "slow.json", "problems.toml"].map(at);
    write(mine.as_ref(), 16.0);
    write(slow.as_ref(), 0.16);
    std::fs::write(&problems, SMALL).expect("a file");
    let ran = |arguments: &str| {
        let ran = flashcore(arguments);
        assert_eq!(ran.code, 0, "{arguments}\n{}{}", ran.stdout, ran.stderr);
        ran
    };

    let json = |file: &str| -> Value {
        let said = ran(&format!("explain {problems} --profile {file} --json")).stdout;
        serde_json::from_str::<Value>(&said).expect("JSON")["cost"].take()
    };
    let (usual, slower) = (json(&mine), json(&slow));
    let micros = |cost: &Value, key: &str| cost[key].as_f64().expect("a time");
    assert!(micros(&slower, "micros") > 2.0 * micros(&usual, "micros"), "{slower}");
    let ratio = micros(&usual, "high_micros") / micros(&usual, "micros");
    assert!((ratio - 1.25).abs() < 1e-9, "{ratio}");
    assert_eq!(usual["measured"], "an L4 of a test");

    let bench = ran(&format!("bench {problems} --device predict:{mine} --store none"));
    assert!(
        bench.words().contains("NVIDIA L4, calibrated (PREDICTED)"),
        "{}",
        bench.stdout
    );
    let tune = ran(&format!(
        "tune {problems} --device predict:{mine} --strategy elite --trials 2 --folder {}",
        at("run")
    ));
    assert!(
        words(&tune.stdout).contains("33 tensor-core kernels on this card"),
        "{}",
        tune.stdout
    );
    // A worker with a kernel of the user is confined, and reads the card's file, too.
    if flashcore_check::sandbox::available().is_ok() {
        let own = format!("{}/../../docs/own-kernel/attention.toml", env!("CARGO_MANIFEST_DIR"));
        let tune = ran(&format!(
            "tune tiny --kernel {own} --device predict:{mine} --strategy elite --trials 2 --folder {}",
            at("own")
        ));
        assert!(words(&tune.stdout).contains("own/attention"), "{}", tune.stdout);
    }
    ran(&format!(
        "gate {problems} --device predict:{mine} --write {}",
        at("base.json")
    ));
    let gate = flashcore(&format!(
        "gate {problems} --device predict:{mine} --against {}",
        at("base.json")
    ));
    assert_eq!(gate.code, 0, "{}{}", gate.stdout, gate.stderr);
}

#[test]
fn files_that_are_no_cards_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("old.json").display().to_string();
    std::fs::write(&file, "{\"schema\": 0}").expect("a file");
    let old = "schema 0; this build reads 1; `flashcore device calibrate` writes such a file";
    for (arguments, said) in [
        (format!("explain --profile {file}"), old),
        (format!("bench --device predict:{file}"), old),
        (format!("tune --device predict:{file}"), old),
        (format!("gate --write x --device predict:{file}"), old),
        (
            "explain --profile no/such.json".to_string(),
            "no/such.json: No such file",
        ),
        (
            "device calibrate --measure".to_string(),
            "--measure is not for `device calibrate`",
        ),
        (
            "device calibrated".to_string(),
            "`calibrated` is neither `calibrate` nor FILE.json",
        ),
    ] {
        let ran = flashcore(&arguments);
        assert!(
            ran.code == 2 && ran.words().contains(said),
            "{arguments}\n{}",
            ran.stderr
        );
    }
}
