//! Compresses the API's description, which is for programs and hardly ever asked for: the binary
//! carries a tenth of it.

use std::path::Path;

/// The slowest level of the format, whose result is the smallest.
const LEVEL: u8 = 10;

fn main() {
    println!("cargo::rerun-if-changed=openapi.json");
    let document = std::fs::read("openapi.json").expect("the description of the API");
    let compressed = miniz_oxide::deflate::compress_to_vec(&document, LEVEL);
    let directory = std::env::var_os("OUT_DIR").expect("cargo says where to write");
    std::fs::write(Path::new(&directory).join("openapi.deflate"), compressed)
        .expect("the compressed description is written");
}
