//! `cortex bench reliability` as a user runs it, with a short form of each part: machines are lost,
//! no request fails, everything is replaced, and nothing is left behind. Its times are not looked
//! at.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::machine::{kill, processes_below};
use crate::node::{Running, binary, run};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

fn bench(place: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["bench", "reliability", "--quick", "--dir"]).arg(place).args(arguments);
    command
}

fn measured(arguments: &[&str]) -> Value {
    let place = tempfile::tempdir().unwrap();
    let outcome = run(bench(place.path(), &[&["--json"], arguments].concat()), "cortex bench");
    eprintln!("{}", outcome.stderr);
    let outcome = outcome.succeeded();
    assert_nothing_left(place.path());
    let report: Value = serde_json::from_str(&outcome.stdout).expect("it prints JSON");
    assert!(report["seed"].is_u64() && report["incomplete"].is_null(), "{report:#}");
    report
}

fn assert_nothing_left(place: &Path) {
    assert_eq!(processes_below(place), [], "every node was stopped");
    assert_eq!(fs::read_dir(place).unwrap().count(), 0, "every file was removed");
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("'{value}' is no count"))
}

/// Asserts that each number was answered once, except those that failed as their machine was lost.
#[track_caller]
fn assert_answered(window: &Value, on_the_wire_max: u64) {
    let failed = count(&window["failed"]);
    assert!(count(&window["answered"]) > 0, "{window:#}");
    assert_eq!(count(&window["answered"]) + failed, count(&window["requests"]), "{window:#}");
    assert_eq!(failed, count(&window["failed_on_the_wire"]), "{window:#}");
    assert!(failed <= on_the_wire_max, "{window:#}");
}

#[track_caller]
fn assert_replaced(kills: &Value, what: &str) {
    let kills = kills.as_array().unwrap();
    assert!(!kills.is_empty(), "something was killed");
    for kill in kills {
        assert!(count(&kill["instances"]) > 0, "{kill:#}");
        assert!(kill["ready_s"].as_f64().is_some_and(|time| time > 0.0), "{kill:#}");
        // A node dies with its shims and its instances.
        let least = if what == "node" { 3 } else { 1 };
        assert!(count(&kill["processes"]) >= least, "{kill:#}");
    }
}

#[test]
fn reliability_is_measured_as_in_the_thesis() {
    let report = measured(&["--parts", "thesis"]);
    let levels = report["thesis"].as_array().unwrap();
    assert_eq!(levels.len(), 1);
    for level in levels {
        for served in [&level["calm"], &level["killed"]] {
            assert_eq!(served["failed"], 0, "{served:#}");
            let answers = served["answers"].as_object().unwrap().values().map(count);
            assert_eq!(answers.sum::<u64>(), count(&served["requests"]), "{served:#}");
        }
        assert_replaced(&level["kills"], "node");
    }
}

#[test]
fn reliability_is_measured_by_numbered_requests() {
    let report = measured(&["--parts", "numbered"]);
    let figures = &report["numbered"];
    for phase in ["calm", "nodes_killed", "instances_killed"] {
        assert_answered(&figures[phase]["entry"], 0);
        assert_answered(&figures[phase]["agents"], 0);
    }
    assert_replaced(&figures["nodes_killed"]["kills"], "node");
    assert_replaced(&figures["instances_killed"]["kills"], "instance");
}

#[test]
fn reliability_of_a_pair_of_nodes_is_measured() {
    let report = measured(&["--parts", "pair"]);
    let rounds = report["pair"].as_array().unwrap();
    assert_eq!(rounds.len(), 3);
    for round in rounds {
        // Each of its four callers has one request under way at most.
        assert_answered(&round["survivor"], 4);
        assert_answered(&round["both"], 4);
        if round["during"] != "load" {
            assert_eq!(round["push"]["right"], true, "{round:#}");
        }
    }
}

#[test]
fn an_interrupted_measurement_of_reliability_stops_everything() {
    let place = tempfile::tempdir().unwrap();
    let mut command = bench(place.path(), &["--parts", "pair", "--rounds", "100"]);
    let mut running = Running(command.spawn().unwrap());
    wait_until("an instance to be started", || {
        processes_below(place.path()).iter().any(|(_, command)| command.contains("page.py"))
    });
    kill(running.0.id(), Signal::TERM);
    let status = wait_for("the measurement to end", STATE_DEADLINE, || {
        running.0.try_wait().unwrap().ok_or_else(|| "it goes on".to_string())
    });
    assert!(!status.success());
    assert_nothing_left(place.path());
}
