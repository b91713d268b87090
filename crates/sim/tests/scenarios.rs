//! The scenarios: each file in `scenarios` has commands and the history expected of them.
//! `UPDATE_EXPECT=1` writes the histories anew; a human reads the difference.

use std::fs;
use std::path::Path;

use sim::scenario::{SEPARATOR, run};

#[test]
fn scenarios_go_as_written() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut seen = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let (commands, expected) =
            text.split_once(&format!("{SEPARATOR}\n")).unwrap_or((&text, ""));
        let happened = run(commands).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if update {
            fs::write(&path, format!("{}\n{SEPARATOR}\n{happened}", commands.trim_end())).unwrap();
        } else {
            assert_eq!(happened, expected, "{} went otherwise", path.display());
        }
        seen += 1;
    }
    assert!(seen >= 6, "scenarios are missing");
}
