//! [`CardFile`]: a card that was calibrated, as a file. It stands for the card wherever predictions take one.

use std::path::Path;

use flashcore_ir::{Calibration, Profile, files};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the file's form.
pub const CARD_SCHEMA: u32 = 1;

/// What else than the name of a profile is a card, for messages.
pub const CARD_FILE: &str = "or FILE.json of `flashcore device calibrate`";

/// Most multiprocessors that a card is taken to have: predictions have a place for each.
const MOST_SMS: u32 = 4096;

/// What predictions need of a file that `flashcore device calibrate` wrote. There is more in it, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardFile {
    /// [`CARD_SCHEMA`].
    pub schema: u32,
    /// The card.
    pub profile: Profile,
    /// What was measured on it.
    pub calibration: Calibration,
}

/// The card of a name: a profile that is built in, or a file, whose name ends in `.json`. `None` of other names.
pub fn card(name: &str) -> Option<Result<&'static Profile, String>> {
    let is_file = Path::new(name)
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("json"));
    match Profile::named(name) {
        Some(profile) => Some(Ok(profile)),
        None => is_file.then(|| CardFile::read(Path::new(name)).map(|file| file.profile(name))),
    }
}

impl CardFile {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, that is of another version or damaged: which, and why.
    pub fn read(path: &Path) -> Result<CardFile, String> {
        let wrong = |why: &dyn std::fmt::Display| {
            format!(
                "{}: {why}; `flashcore device calibrate` writes such a file",
                path.display()
            )
        };
        let text = files::read_text_capped(path, files::SMALL).map_err(|error| wrong(&error))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| wrong(&format!("its JSON is wrong: {error}")))?;
        if value["schema"] != CARD_SCHEMA {
            let found = &value["schema"];
            return Err(wrong(&format!("schema {found}; this build reads {CARD_SCHEMA}")));
        }
        let not_this = |error| wrong(&format!("it is no calibrated card: {error}"));
        let file: CardFile = serde_json::from_value(value).map_err(not_this)?;
        if !file.is_sound() {
            return Err(wrong(&"a value of the card that makes no sense"));
        }
        Ok(file)
    }

    /// The card by the name of its file, kept until the process ends, as those that are built in.
    fn profile(self, name: &str) -> &'static Profile {
        Box::leak(Box::new(Profile {
            name: name.to_string().leak(),
            calibration: Some(Box::leak(Box::new(self.calibration))),
            ..self.profile
        }))
    }

    /// Whether it can be a card. Rates that are no positive numbers are not taken ([`super::rates`]).
    fn is_sound(&self) -> bool {
        let Profile { clocks, .. } = &self.profile;
        let Calibration { tensor, scalar, .. } = &self.calibration;
        let positive = [
            clocks.highest,
            clocks.sustained,
            self.profile.dram_gbps,
            self.profile.tensor_f16_f32acc_tflops,
            self.profile.tensor_f16_f16acc_tflops,
            self.profile.f32_tflops,
            tensor.low,
            scalar.low,
        ];
        let is_rate = |value: f64| value.is_finite() && value > 0.0;
        (1..=MOST_SMS).contains(&self.profile.sms)
            && self.profile.boost_mhz > 0
            && positive.into_iter().all(is_rate)
            && [tensor, scalar]
                .into_iter()
                .all(|seen| seen.high.is_finite() && seen.low <= seen.high)
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::{Chip, MeasuredCard, Seen};
    use flashcore_kernels::{KernelCache, Plan};
    use flashcore_problem::Problem;

    use super::*;
    use crate::cost::{Forecast, PREDICT, predicted_card};

    fn file(rates: MeasuredCard) -> CardFile {
        let seen = |kernels, low, high| Seen { kernels, low, high };
        CardFile {
            schema: CARD_SCHEMA,
            profile: *Profile::named("h200").unwrap(),
            calibration: Calibration {
                rates,
                tensor: seen(30, 0.9, 1.3),
                scalar: seen(20, 0.8, 1.1),
            },
        }
    }

    #[test]
    fn what_is_written_is_read_and_predicts_by_its_rates_and_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.json");
        let name = path.display().to_string();
        let of = |rates: MeasuredCard| {
            let file = file(rates);
            std::fs::write(&path, serde_json::to_string(&file).unwrap()).unwrap();
            assert_eq!(CardFile::read(&path).unwrap(), file);
            let card = predicted_card(&format!("{PREDICT}{name}")).unwrap().unwrap();
            assert_eq!((card.name, card.title), (name.as_str(), file.profile.title));
            let problem = Problem::builder().heads(16, 16).seq_len(8192).head_dim(128);
            let problem = problem.build().unwrap();
            let plan = |id: &str| {
                let plan = Plan::new(&problem, &id.parse().unwrap(), Chip::from(card)).unwrap();
                Forecast::of(&plan, &KernelCache::default(), card).unwrap().prediction
            };
            (
                plan("mma/m128n64-w8x1-s2-b1-qreg-xor-cond"),
                plan("scalar/tiled-m32n32-w4-v16"),
            )
        };
        let rates = |flops: f64| MeasuredCard {
            source: "a test".to_string(),
            tensor_f32: Some(flops),
            tensor_f16: Some(flops),
            ..MeasuredCard::default()
        };
        let ((whole, scalar), (half, same)) = (of(rates(600.0)), of(rates(300.0)));
        let ratio = half.micros / whole.micros;
        assert!((1.9..2.001).contains(&ratio), "{ratio}");
        assert_eq!(same.micros, scalar.micros);
        assert_eq!(half.measured.as_deref(), Some("a test"));
        assert_eq!(half.low_micros, 0.9 * half.micros);
        assert_eq!(scalar.high_micros, 1.1 * scalar.micros);
        let said = half.trust.words();
        assert!(
            said.contains("30 tensor-core kernels on this card") && said.contains("-10 and +30 %"),
            "{said}"
        );
    }

    #[test]
    fn files_that_are_damaged_or_of_another_version_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.json");
        let good = serde_json::to_value(file(MeasuredCard::default())).unwrap();
        let refused = |change: &dyn Fn(&mut Value)| {
            let mut value = good.clone();
            change(&mut value);
            std::fs::write(&path, value.to_string()).unwrap();
            let error = card(path.to_str().unwrap()).unwrap().unwrap_err();
            assert!(
                error.contains("mine.json: ") && error.contains("`flashcore device calibrate`"),
                "{error}"
            );
            error
        };
        for (said, change) in [
            ("schema 2; this build reads 1", &|of: &mut Value| {
                of["schema"] = 2.into()
            }),
            ("schema null", &|of: &mut Value| *of = Value::Null),
            ("missing field `profile`", &|of: &mut Value| {
                of.as_object_mut().unwrap().remove("profile");
            }),
            ("makes no sense", &|of: &mut Value| {
                of["profile"]["sms"] = u32::MAX.into()
            }),
            ("makes no sense", &|of: &mut Value| {
                of["calibration"]["tensor"]["low"] = (-1.0).into();
            }),
        ] as [(&str, &dyn Fn(&mut Value)); 5]
        {
            let error = refused(change);
            assert!(error.contains(said), "{error}");
        }
        let text = good.to_string();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        let error = card(path.to_str().unwrap()).unwrap().unwrap_err();
        assert!(error.contains("its JSON is wrong"), "{error}");
        assert!(card("l5").is_none());
        assert_eq!(card("L4").unwrap().unwrap().name, "l4");
    }
}
