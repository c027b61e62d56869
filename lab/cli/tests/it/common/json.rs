//! What the command prints as JSON.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::flashcore;

/// Names of an object's members.
pub(crate) fn keys(value: &Value) -> BTreeSet<&str> {
    value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect()
}

/// What a command prints as JSON.
pub(crate) fn json(arguments: &str) -> Value {
    let ran = flashcore(arguments);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}
