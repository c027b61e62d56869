//! `flashcore list levers`: what the parts of kernel ids mean, from the levers of each family.

use flashcore_kernels::ids::{id_parts, letters};
use flashcore_tune::space::{Family, LeverInfo};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::style::{self, CODE, DIM, HEAD};

/// Every family whose kernels have ids.
fn families() -> [Family; 5] {
    [
        Family::mma(),
        Family::wgmma(),
        Family::scalar(),
        Family::ladder(),
        Family::cpu(),
    ]
}

/// Levers of a config: name and value.
type Values = Vec<(&'static str, String)>;

/// The family of an id, and its levers with their values in it.
fn read(id: &str) -> Result<(Family, Values), Failure> {
    let family = families()
        .into_iter()
        .find(|family| id.split('/').next() == Some(family.name));
    let values = family.as_ref().map(|family| family.values(id)).unwrap_or_default();
    match family {
        Some(family) if !values.is_empty() => Ok((family, values)),
        _ => Err(Failure::usage(format!("no kernel is named `{id}`"))
            .help("`flashcore list levers` shows what ids are made of, `flashcore list kernels` shows some")),
    }
}

/// The parts of an id that a lever writes.
fn parts_of<'i>(id: &'i str, lever: &LeverInfo) -> Vec<&'i str> {
    let owned = |part: &&str| {
        lever
            .in_ids
            .iter()
            .flatten()
            .any(|known| letters(known) == letters(part))
    };
    id_parts(id).into_iter().filter(owned).collect()
}

/// The levers of all families, or what one id says.
pub(crate) fn list(kernel: Option<&str>) -> Result<String, Failure> {
    let Some(id) = kernel else {
        return Ok(families().iter().map(of_family).collect::<Vec<_>>().join("\n"));
    };
    let (family, values) = read(id)?;
    let mut text = format!("{HEAD}{id}{HEAD:#}\n");
    for (lever, (_, value)) in family.levers.iter().zip(values) {
        let parts = parts_of(id, lever).join(" ");
        let shown = if parts.is_empty() { "(none)" } else { parts.as_str() };
        text.push_str(&style::field(
            shown,
            &format!("{}: {value} {DIM}· {}{DIM:#}", lever.name, lever.meaning),
        ));
    }
    Ok(text)
}

/// The same as JSON.
pub(crate) fn list_json(kernel: Option<&str>) -> Result<Value, Failure> {
    let Some(id) = kernel else {
        let families = families();
        let all = families
            .iter()
            .map(|family| json!({ "family": family.name, "levers": family.levers }));
        return Ok(all.collect());
    };
    let (family, values) = read(id)?;
    let levers = family.levers.iter().zip(values);
    Ok(levers
        .map(|(lever, (name, value))| {
            json!({ "lever": name, "value": value, "parts": parts_of(id, lever), "meaning": lever.meaning })
        })
        .collect())
}

fn of_family(family: &Family) -> String {
    let mut text = format!(
        "{HEAD}{}{HEAD:#} {DIM}(ids begin with {}/){DIM:#}\n",
        family.name, family.name
    );
    let indent = family.levers.iter().map(|lever| lever.name.len()).max().unwrap_or(0) + 4;
    for lever in &family.levers {
        let name = format!("  {:<width$}", lever.name, width = indent - 2);
        text.push_str(&style::wrap(&format!("{name}{CODE}{}{CODE:#}", spelled(lever)), indent));
        let blank = " ".repeat(indent);
        text.push_str(&style::wrap(&format!("{blank}{DIM}{}{DIM:#}", lever.meaning), indent));
    }
    for constraint in family.constraints {
        text.push_str(&style::wrap(&format!("  {DIM}only: {constraint}{DIM:#}"), 6));
    }
    text
}

/// How a lever stands in ids: `m16 m32 m64`, or `qsh (false) qreg (true)` where the part is no number.
fn spelled(lever: &LeverInfo) -> String {
    let values = lever.values.iter().zip(&lever.in_ids);
    let shown = values.map(|(value, parts)| match parts.as_slice() {
        [] => format!("nothing ({value})"),
        [part] if part.ends_with(value.as_str()) => part.clone(),
        parts => match parts.concat().ends_with(value.as_str()) {
            true => parts.concat(),
            false => format!("{} ({value})", parts.join(" or ")),
        },
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_explained_part_by_part() {
        let text = list(Some("mma/m128n64-w4x1-s2-b1-qreg-xor-bold")).unwrap();
        let text = anstream::adapter::strip_str(&text).to_string();
        for part in [
            "m128      rows: 128",
            "x1        kv_warps: 1",
            "qreg      q_in_registers: true",
            "(none)    splits: 1",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let found = list_json(Some("mma/m16n64-w1x4-s3-b2-qreg-xor-lazy-gqa-k33")).unwrap();
        let splits = found
            .as_array()
            .unwrap()
            .iter()
            .find(|lever| lever["lever"] == "splits")
            .unwrap();
        assert_eq!(
            (splits["value"].as_str(), &splits["parts"]),
            (Some("33"), &json!(["k33"]))
        );
        assert!(list(Some("mma/m128")).is_err() && list(Some("none/m1")).is_err());
    }

    #[test]
    fn every_default_and_listed_kernel_is_explained_in_full() {
        for id in crate::kernels::all() {
            let (family, _) = read(&id).unwrap();
            let mut explained: Vec<&str> = family.levers.iter().flat_map(|lever| parts_of(&id, lever)).collect();
            explained.sort_unstable();
            let mut parts = id_parts(&id);
            parts.sort_unstable();
            assert_eq!(explained, parts, "{id}");
        }
    }
}
