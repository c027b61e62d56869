//! Tells the crate whether Cargo compiles it without optimisation. No `cfg` says so: `debug_assertions` stays on where
//! a profile raises the level of this crate alone.

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    println!("cargo::rustc-check-cfg=cfg(flashcore_unoptimised)");
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        println!("cargo::rustc-cfg=flashcore_unoptimised");
    }
}
