//! How the binary is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").unwrap_or_default();
    // There Rust links with its own LLD, which keeps functions once that came out alike.
    if target == "x86_64-unknown-linux-gnu" {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}
