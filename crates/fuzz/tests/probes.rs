//! Probes give what they are made to give.

use flashcore_fuzz::probe::{banks, races};

#[test]
fn every_mistake_is_found_and_nothing_else() {
    for race in races::all() {
        let (racy, clean) = (race.racy().unwrap(), race.clean().unwrap());
        for schedule in 0..5 {
            let found = racy.simulate(schedule).unwrap().findings;
            let kinds: Vec<_> = found.iter().map(|finding| finding.kind.name()).collect();
            assert!(
                kinds.contains(&race.kind),
                "{} under schedule {schedule}: {kinds:?}",
                race.name
            );
            let found = clean.simulate(schedule).unwrap().findings;
            assert!(
                found.is_empty(),
                "{} mended, schedule {schedule}: {found:#?}",
                race.name
            );
        }
    }
}

#[test]
fn probes_of_banks_are_clean() {
    let probes = banks::all().unwrap();
    for probe in &probes {
        let found = probe.simulate(0).unwrap().findings;
        assert!(found.is_empty(), "{}: {found:#?}", probe.name);
    }
}
