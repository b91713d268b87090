//! `cortex bench store` as a user runs it, short: that everybody is measured and nothing is left
//! behind. What it measures in so short a time is not looked at.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::machine::{kill, processes_below};
use crate::node::{binary, run};
use crate::wait::wait_until;

const TURNS: u64 = 50;

fn bench_store(place: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["bench", "store", "--quick", "--dir"]).arg(place).args(arguments);
    command
}

fn assert_nothing_left(place: &Path) {
    assert_eq!(processes_below(place), [], "every server was stopped");
    assert_eq!(fs::read_dir(place).unwrap().count(), 0, "every file was removed");
}

#[test]
fn stores_are_measured_beside_each_other_and_stopped() {
    let place = tempfile::tempdir().unwrap();
    let names = ["cortex", "redis", "sqlite", "sqlite-wal"];
    let against = names.join(",");
    let turns = TURNS.to_string();
    let arguments =
        ["--against", &against, "--turns", &turns, "--parts", "load,descriptors", "--json"];
    let outcome = run(bench_store(place.path(), &arguments), "cortex bench store").succeeded();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("it prints JSON");
    for row in report["rows"].as_array().unwrap() {
        let cells = row["cells"].as_array().unwrap();
        let measured: Vec<&str> = cells.iter().map(|cell| cell["kind"].as_str().unwrap()).collect();
        match row["mode"].as_str().unwrap() {
            "unawaited" => assert_eq!(measured, ["cortex", "redis"]),
            _ => assert_eq!(measured, names),
        }
        for cell in cells {
            assert_eq!(cell["operations"], TURNS * 3, "{cell:#}");
            assert!(cell["sum"]["p99_ms"].as_f64().unwrap() > 0.0, "{cell:#}");
        }
    }
    // Three ways, each with two numbers of workers.
    assert_eq!(report["rows"].as_array().unwrap().len(), 6);
    assert_eq!(report["thesis"].as_array().unwrap().len(), 4);
    let endured = report["descriptors"].as_array().unwrap();
    let own: Vec<_> = endured.iter().filter(|it| it["kind"] == "cortex").collect();
    assert_eq!(own.len(), 2);
    for it in own {
        assert!(it["served"].as_u64().unwrap() > 0, "{it:#}");
        assert_eq!((&it["refused"], &it["unanswered"]), (&0.into(), &0.into()), "{it:#}");
    }
    assert_nothing_left(place.path());
}

#[test]
fn an_interrupted_measurement_stops_everything() {
    let place = tempfile::tempdir().unwrap();
    let mut command = bench_store(place.path(), &["--against", "redis,sqlite", "--seconds", "600"]);
    let mut child = command.spawn().unwrap();
    wait_until("a server to be started", || !processes_below(place.path()).is_empty());
    kill(child.id(), Signal::TERM);
    let mut status = None;
    wait_until("the measurement to end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert!(!status.unwrap().success());
    assert_nothing_left(place.path());
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_reason() {
    let place = tempfile::tempdir().unwrap();
    run(bench_store(place.path(), &["--workers", "0"]), "no workers")
        .refused()
        .saying(&["workers"]);
    run(bench_store(place.path(), &["--against", "mongodb"]), "an unknown store")
        .refused()
        .saying(&["mongodb", "sqlite"]);
    let nowhere = place.path().join("nowhere");
    run(bench_store(&nowhere, &[]), "a missing directory").refused().saying(&["nowhere"]);
}
