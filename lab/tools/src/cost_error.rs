//! Holds the cost model against measured times: `cargo run -p flashcore-tools -- cost-error FILE...`.
//!
//! A file is either the CSV of `flashcore bench` (columns `problem`, `mode`, `subject`, `p50_us`, `shape`;
//! hot rows of our own kernels are taken) or lines of `problem kernel microseconds`, where the kernel is an
//! id, or one without its family and access width as in `lab/check/data/scalar-times.txt`. Times are those
//! of `--profile` (h200 where it is not given). Registers come from `FLASHCORE_PTXAS`.
//!
//! With `--kernels`, a line for each kernel; `--json` gives one object. `--measured FILE` predicts once more with rates
//! that were measured on the card (what `flashcore device --json` prints), with all of them and with each alone.

use std::error::Error;

use flashcore_bench::Agreement;
use flashcore_check::cost::{MeasuredCard, Observation, Prediction, Resource};
use flashcore_check::registers;
use flashcore_ir::Profile;
use flashcore_kernels::{Config, KernelCache, Plan, Step};
use flashcore_problem::{DType, Mask, NAMED_PROBLEMS, Problem};

/// A measured time.
struct Measured {
    problem: String,
    shape: Problem,
    config: Config,
    micros: f64,
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = crate::arguments();
    let (mut files, mut profile, mut kernels, mut json) = (Vec::new(), "h200".to_string(), false, false);
    let mut card = None;
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--kernels" => kernels = true,
            "--json" => json = true,
            "--profile" => profile = arguments.next().ok_or("--profile needs a card")?,
            "--measured" => card = Some(read_card(&arguments.next().ok_or("--measured needs a file")?)?),
            file => files.push(file.to_string()),
        }
    }
    if files.is_empty() {
        return Err("give a file of measured times, such as lab/check/data/scalar-times.txt".into());
    }
    let profile = Profile::named(&profile)
        .ok_or_else(|| format!("no card is named `{profile}`; there are {}", Profile::names()))?;
    let mut measured = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        measured.extend(read(&text));
    }
    let (mut rows, mut observations) = (Vec::new(), Vec::new());
    let cache = KernelCache::default();
    for case in &measured {
        let plan = Plan::with_cache(&case.shape, &case.config, profile.target, &cache)?;
        let offline = |step: &Step| registers::offline(&step.kernel, profile.target).ok();
        let known: Vec<Option<u32>> = plan.steps().map(|step| Some(offline(step)?.per_thread)).collect();
        let observed = Observation::with_cache(&plan, &cache)?;
        let prediction = observed.predict(profile, &known);
        rows.push((case, prediction));
        observations.push((observed, known));
    }
    let of = |problem: Option<&str>| {
        let chosen = rows
            .iter()
            .filter(|(case, _)| problem.is_none_or(|name| case.problem == name));
        Agreement::of(&chosen.map(|(case, p)| (p.micros, case.micros)).collect::<Vec<_>>())
    };
    let mut names: Vec<&str> = Vec::new();
    for case in &measured {
        if !names.contains(&case.problem.as_str()) {
            names.push(&case.problem);
        }
    }
    let all = of(None).ok_or("the files hold no time of a kernel of ours")?;
    if json {
        let within = |name: &&str| serde_json::json!({ "problem": name, "agreement": of(Some(name)) });
        let problems: Vec<serde_json::Value> = names.iter().map(within).collect();
        println!(
            "{}",
            serde_json::json!({ "profile": profile.name, "all": all, "problems": problems })
        );
        return Ok(());
    }
    if kernels {
        for (case, prediction) in &rows {
            println!("{}", line(case, prediction));
        }
        println!();
    }
    println!(
        "{:<24} kernels  Spearman  measured/predicted: median   10 %   90 %  regret",
        profile.name
    );
    let row = |name: &str, a: &Agreement| {
        format!(
            "{name:<24} {:>7}  {:>8.3}  {:>26.3}  {:>5.2}  {:>5.2}",
            a.count, a.spearman, a.median_ratio, a.p10_ratio, a.p90_ratio
        )
    };
    for name in &names {
        if let Some(a) = of(Some(name)).filter(|a| a.count > 1) {
            println!("{}  {:>5.1}%", row(name, &a), 100.0 * a.regret);
        }
    }
    println!("{}", row("all", &all));
    for (what, card) in card.iter().flat_map(variants) {
        let predict = |(observed, known): &(Observation, Vec<Option<u32>>)| {
            observed.predict_measured(profile, Some(&card), known).micros
        };
        let pairs: Vec<(f64, f64)> = observations
            .iter()
            .zip(&rows)
            .map(|(observed, (case, _))| (predict(observed), case.micros))
            .collect();
        let within = names.iter().filter_map(|name| {
            let chosen = pairs.iter().zip(&rows).filter(|(_, (case, _))| case.problem == *name);
            Agreement::of(&chosen.map(|(pair, _)| *pair).collect::<Vec<_>>()).filter(|a| a.count > 2)
        });
        if let Some(a) = Agreement::of(&pairs) {
            println!(
                "{}  within problems {:.3}",
                row(&what, &a),
                median(within.map(|a| a.spearman))
            );
        }
    }
    Ok(())
}

/// The middle of some numbers; NaN where there are none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A card's measured rates, as `flashcore device --json` prints them.
fn read_card(file: &str) -> Result<MeasuredCard, Box<dyn Error>> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let value: serde_json::Value = serde_json::from_str(&text)?;
    let card = value
        .get("card")
        .ok_or_else(|| format!("{file}: there is no `card` in it"))?;
    Ok(serde_json::from_value(card.clone())?)
}

/// None of a card's rates, all of them, all but the clock, and each alone.
fn variants(card: &MeasuredCard) -> Vec<(String, MeasuredCard)> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(card) else {
        return Vec::new();
    };
    let mut variants = vec![
        ("none measured".to_string(), MeasuredCard::default()),
        ("all measured".to_string(), card.clone()),
        (
            "all but mhz".to_string(),
            MeasuredCard {
                mhz: None,
                ..card.clone()
            },
        ),
    ];
    for (name, value) in fields.iter().filter(|(_, value)| value.is_number()) {
        let alone = serde_json::json!({ "source": card.source, name: value });
        if let Ok(alone) = serde_json::from_value(alone) {
            variants.push((format!("  {name}"), alone));
        }
    }
    variants
}

/// One kernel: measured, predicted, ratio, and what each resource alone would take.
fn line(case: &Measured, prediction: &Prediction) -> String {
    let mut line = format!(
        "{} {} {:.1} {:.1} {:.3} latency {:.1}",
        case.problem,
        case.config,
        case.micros,
        prediction.micros,
        case.micros / prediction.micros,
        prediction.latency_micros
    );
    for resource in Resource::ALL {
        let used = prediction.uses.iter().find(|used| used.resource == resource);
        line.push_str(&format!(" {resource:?} {:.1}", used.map_or(0.0, |used| used.micros)));
    }
    line
}

/// The measured times in a file; lines that hold none are passed over.
fn read(text: &str) -> Vec<Measured> {
    let header: Vec<&str> = text.lines().next().unwrap_or_default().split(',').collect();
    let column = |name: &str| header.iter().position(|field| *field == name);
    match (
        column("problem"),
        column("mode"),
        column("subject"),
        column("p50_us"),
        column("shape"),
    ) {
        (Some(problem), Some(mode), Some(subject), Some(p50), Some(shape)) => text
            .lines()
            .skip(1)
            .map(|line| line.split(',').collect::<Vec<_>>())
            .filter(|fields| fields.get(mode) == Some(&"hot"))
            .filter_map(|fields| {
                Some(Measured {
                    problem: fields.get(problem)?.to_string(),
                    shape: shape_of(fields.get(shape)?)?,
                    config: fields.get(subject)?.parse().ok()?,
                    micros: fields.get(p50)?.parse().ok()?,
                })
            })
            .collect(),
        _ => text.lines().filter_map(from_words).collect(),
    }
}

fn from_words(line: &str) -> Option<Measured> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (problem, id) = (*words.first()?, *words.get(1)?);
    let id = match id {
        "naive" => "scalar/naive-t128-v16".to_string(),
        id if id.contains('/') => id.to_string(),
        tile => format!("scalar/tiled-{tile}-v16"),
    };
    Some(Measured {
        problem: problem.to_string(),
        shape: NAMED_PROBLEMS
            .iter()
            .find(|named| named.name == problem)?
            .builder()
            .build()
            .ok()?,
        config: id.parse().ok()?,
        micros: words.get(2)?.parse().ok()?,
    })
}

/// A problem as evidence prints it: `B32 H32/32 Sq512 Skv512 D64 fp16 full`.
fn shape_of(shape: &str) -> Option<Problem> {
    let words: Vec<&str> = shape.split_whitespace().collect();
    let number = |prefix: &str| {
        let digits = |word: &&str| word.strip_prefix(prefix)?.parse::<usize>().ok();
        words.iter().find_map(digits)
    };
    let heads = words.iter().find_map(|word| word.strip_prefix('H')?.split_once('/'))?;
    let dtype = match *words.get(5)? {
        "fp16" => DType::F16,
        "bf16" => DType::BF16,
        "e4m3" => DType::E4M3,
        "f32" => DType::F32,
        _ => return None,
    };
    let mask = match *words.get(6)? {
        "full" => Mask::FULL,
        "causal" => Mask::CAUSAL,
        _ => return None,
    };
    let builder = Problem::builder()
        .batch(number("B")?)
        .heads(heads.0.parse().ok()?, heads.1.parse().ok()?)
        .seq_len_q(number("Sq")?)
        .seq_len_kv(number("Skv")?)
        .head_dim(number("D")?)
        .dtype(dtype)
        .mask(mask);
    builder.build().ok()
}
