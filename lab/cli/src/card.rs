//! Cards that kernels are planned for, by name; they need not be here.

use flashcore::unstable::cuda::DeviceInfo;
use flashcore_check::cost::{self, CARD_FILE, PREDICT};
use flashcore_ir::{Chip, PROFILES, Profile, Target};

use crate::machine;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Card {
    pub(crate) chip: Chip,
    pub(crate) profile: Option<&'static Profile>,
    /// Whether it was neither named nor is it in this machine.
    pub(crate) is_assumed: bool,
}

impl Card {
    /// The card used by default: the first supported GPU of the machine, or an L4.
    pub(crate) fn default() -> Card {
        let gpus = machine::gpus_or_none();
        let assumed = || Card {
            is_assumed: true,
            ..Card::of(&PROFILES[0])
        };
        let gpu = gpus.iter().find(|info| machine::is_supported(info));
        gpu.map_or_else(assumed, Card::of_device)
    }

    pub(crate) fn of_device(info: &DeviceInfo) -> Card {
        Card {
            chip: info.chip(),
            profile: Profile::of_device(&info.name, info.multiprocessors),
            is_assumed: false,
        }
    }

    /// The card of a name, which may be written as a device (`predict:l4`).
    pub(crate) fn parse(name: &str) -> Result<Card, String> {
        let name = name.strip_prefix(PREDICT).unwrap_or(name);
        if let Some(card) = cost::card(name) {
            return card.map(Card::of);
        }
        let architecture = |target: Target| Card {
            chip: target.into(),
            profile: None,
            is_assumed: false,
        };
        let unknown = || {
            let names = Profile::names();
            format!("known are {names}, and architectures such as sm_89 (`flashcore list profiles`), {CARD_FILE}")
        };
        Target::from_name(&name.to_ascii_lowercase())
            .map(architecture)
            .ok_or_else(unknown)
    }

    pub(crate) fn of(profile: &'static Profile) -> Card {
        Card {
            chip: profile.into(),
            profile: Some(profile),
            is_assumed: false,
        }
    }

    /// Why it is this card, where the user did not choose it.
    pub(crate) fn why(&self) -> Option<String> {
        let why = "is assumed: no GPU that is served is here, and no --profile was given";
        self.is_assumed.then(|| format!("{} {why}", self.name()))
    }

    /// `l4` or `sm_120`.
    pub(crate) fn name(&self) -> &'static str {
        self.profile.map_or(self.chip.target.name(), |profile| profile.name)
    }

    /// `NVIDIA L4 (sm_89)` or `sm_120`.
    pub(crate) fn title(&self) -> String {
        match self.profile {
            Some(profile) => format!("{} ({})", profile.title, profile.target),
            None => self.chip.target.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_as_cards_and_as_devices() {
        for name in ["h100", "H100", "predict:h100"] {
            assert_eq!(Card::parse(name).unwrap().name(), "h100");
        }
        assert_eq!(Card::parse("SM_120").unwrap().name(), "sm_120");
    }
}
