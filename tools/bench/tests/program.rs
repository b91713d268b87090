//! The program as its user starts it.

use std::path::Path;
use std::process::{Command, Output};

fn bench(program: &Path, arguments: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } =
        Command::new(program).args(arguments).output().expect("the program starts");
    let said = [stdout, stderr].concat();
    (status.success(), String::from_utf8(said).expect("text"))
}

#[test]
fn help_names_each_benchmark_and_hides_what_they_start_themselves() {
    let (succeeded, said) = bench(Path::new(env!("CARGO_BIN_EXE_cortex-bench")), &["--help"]);
    assert!(succeeded, "{said}");
    for name in [
        "concurrency",
        "fairness",
        "platform",
        "proxy",
        "reliability",
        "routes",
        "serial",
        "store",
        "websockets",
    ] {
        assert!(said.lines().any(|line| line.trim().starts_with(name)), "{name}: {said}");
    }
    assert!(!said.contains("proxy-router"), "{said}");
}

#[test]
fn a_program_without_a_cortex_beside_it_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("cortex-bench");
    std::fs::copy(env!("CARGO_BIN_EXE_cortex-bench"), &alone).unwrap();
    let (succeeded, said) = bench(&alone, &["platform"]);
    assert!(!succeeded, "{said}");
    assert!(said.contains("put them into one directory"), "{said}");
}
