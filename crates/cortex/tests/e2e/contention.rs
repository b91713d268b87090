//! `cortex bench fairness`, `serial` and `routes` as a user runs them, but short: each measures
//! what it says, and ends. The figures of so short a time are not looked at.

use std::process::Command;

use serde_json::Value;

use crate::node::{binary, run};

fn bench(arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.arg("bench").args(arguments);
    run(command, "cortex bench").succeeded().stdout
}

fn json(arguments: &[&str]) -> Value {
    let text = bench(&[arguments, &["--json"]].concat());
    serde_json::from_str(&text).expect("it prints JSON")
}

#[test]
fn a_flood_and_a_quiet_client_are_measured() {
    let arguments = ["fairness", "--seconds", "1", "--connections", "20", "--service-ms", "1"];
    let report = json(&arguments);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows[0]["contender"], "cortex");
    for row in rows {
        for phase in ["alone", "flooded"] {
            assert!(row[phase]["answered"].as_u64().unwrap() > 0, "{row:#}");
            assert_eq!(row[phase]["failed"], 0, "{row:#}");
        }
        assert!(row["flood_answered"].as_u64().unwrap() > 0, "{row:#}");
    }
    let table = bench(&arguments);
    assert!(
        table.contains("the quiet client") && table.contains("20 connections flood"),
        "{table}"
    );
}

#[test]
fn a_serial_mix_and_computing_are_measured() {
    let short = ["serial", "--seconds", "2", "--instances", "3", "--slow-ms", "20"];
    let report = json(&[&short[..], &["--compute-seconds", "1"]].concat());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows[0]["contender"], "cortex");
    for row in rows {
        assert!(row["quick"].as_u64().unwrap() > 0, "{row:#}");
        assert_eq!(row["failed"], 0, "{row:#}");
    }
    let computing = report["computing"].as_array().unwrap();
    let instances: Vec<_> = computing.iter().map(|one| one["instances"].as_u64()).collect();
    assert_eq!(instances, [Some(1), Some(2), Some(4)]);
    assert!(computing.iter().all(|one| one["requests_per_second"].as_f64().unwrap() > 0.0));
    let table = bench(&[&short[..], &["--compute-seconds", "0", "--alike"]].concat());
    assert!(table.contains("quick requests") && !table.contains("computing"), "{table}");
    assert!(table.contains("nothing tells which"), "{table}");
}

#[test]
fn a_table_of_routes_is_measured_and_loses_no_request() {
    let arguments =
        ["routes", "--applications", "20", "--endpoints", "3", "--changes", "6", "--seconds", "1"];
    let report = json(&arguments);
    assert_eq!((&report["applications"], &report["endpoints"]), (&20.into(), &60.into()));
    assert_eq!(report["failed"], 0, "{report:#}");
    assert!(report["changes_meanwhile"].as_u64().unwrap() > 0, "{report:#}");
    assert!(report["requests_per_second_meanwhile"].as_f64().unwrap() > 0.0, "{report:#}");
    let spread = &report["stored_to_used_ms"];
    assert!(spread["median"].as_f64() <= spread["max"].as_f64(), "{report:#}");
    assert!(bench(&arguments).contains("a stored change is used in"));
}
