//! Names the profile of this build, which `cortex --version` shows, and the benches with it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The path is `…/target/PROFILE/build/cli-HASH/out`; Cargo's own `PROFILE` knows only two
    // kinds.
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let profile = std::path::Path::new(&out).ancestors().nth(3).and_then(|place| place.file_name());
    let profile = profile.and_then(|name| name.to_str()).unwrap_or("unknown");
    println!("cargo:rustc-env=CORTEX_PROFILE={profile}");
}
