//! Lists the files of `cards`, so that a card is added without Rust.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("cards");
    println!("cargo::rerun-if-changed={}", folder.display());
    let names: io::Result<Vec<_>> = fs::read_dir(&folder)?.map(|file| Ok(file?.file_name())).collect();
    let mut names = names?;
    names.sort();
    let listed = names
        .iter()
        .map(|name| format!("({name:?}, include_str!({:?})),\n", folder.join(name)));
    let text = format!("&[{}]", listed.collect::<String>());
    fs::write(
        Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?).join("cards.rs"),
        text,
    )
}
