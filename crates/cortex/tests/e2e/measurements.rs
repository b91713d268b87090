//! `cortex bench store` as a user runs it, but short: every store is measured and nothing is left
//! behind. The figures of so short a time are not looked at.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use rustix::process::Signal;
use serde_json::Value;

use crate::machine::{kill, processes_below};
use crate::node::{Running, binary, run};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

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
    // There are three modes, each with two numbers of workers.
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

/// Starts a measurement of many short runs, which nobody waits for to end.
fn long_measurement(place: &Path) -> (Running, PathBuf) {
    let arguments = ["--against", "redis,sqlite", "--turns", "3", "--workers", "2", "--runs", "50"];
    let mut command = bench_store(place, &arguments);
    let out = place.with_extension("out");
    command.args(["--parts", "load", "--json"]);
    command.stdout(File::create(&out).unwrap()).stderr(File::create(progress(&out)).unwrap());
    let running = Running(command.spawn().unwrap());
    wait_for("the second run", STATE_DEADLINE, || {
        let said = fs::read_to_string(progress(&out)).unwrap();
        if said.contains("run 2 of 50") { Ok(()) } else { Err(said) }
    });
    (running, out)
}

fn progress(out: &Path) -> PathBuf {
    out.with_extension("progress")
}

fn ended(running: &mut Running) -> ExitStatus {
    wait_for("the measurement to end", STATE_DEADLINE, || {
        running.0.try_wait().unwrap().ok_or_else(|| "it goes on".to_string())
    })
}

fn report(out: &Path) -> Value {
    let text = fs::read_to_string(out).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: '{text}'"))
}

fn runs_of(report: &Value, kind: &str) -> Vec<usize> {
    let rows = report["rows"].as_array().unwrap().iter();
    let cells = rows.flat_map(|row| row["cells"].as_array().unwrap());
    let cells = cells.filter(|cell| cell["kind"] == kind);
    cells.map(|cell| cell["runs"].as_array().unwrap().len()).collect()
}

#[test]
fn an_interrupted_measurement_shows_what_it_has() {
    let outer = tempfile::tempdir().unwrap();
    let place = outer.path().join("place");
    fs::create_dir(&place).unwrap();
    let (mut running, out) = long_measurement(&place);
    kill(running.0.id(), Signal::INT);
    assert!(!ended(&mut running).success());
    let report = report(&out);
    assert!(report["incomplete"].as_str().unwrap().contains("interrupted"), "{report:#}");
    let runs = runs_of(&report, "redis");
    assert!(!runs.is_empty() && runs.iter().all(|runs| (1..50).contains(runs)), "{report:#}");
    assert_nothing_left(&place);
}

#[test]
fn a_server_that_fails_is_left_out_and_the_others_go_on() {
    let outer = tempfile::tempdir().unwrap();
    let place = outer.path().join("place");
    fs::create_dir(&place).unwrap();
    let (mut running, out) = long_measurement(&place);
    let servers = processes_below(&place);
    let redis = servers.iter().filter(|(_, command)| command.contains("redis-server"));
    redis.for_each(|(pid, _)| kill(*pid, Signal::KILL));
    wait_for("the others to go on", STATE_DEADLINE, || {
        let said = fs::read_to_string(progress(&out)).unwrap();
        let failed = said.find("redis").filter(|_| said.contains("left out from here on"));
        if failed.is_some() && said.contains("run 5 of 50") { Ok(()) } else { Err(said) }
    });
    kill(running.0.id(), Signal::TERM);
    ended(&mut running);
    let report = report(&out);
    let left_out = report["not_run"].as_array().unwrap().iter();
    let names: Vec<&Value> = left_out.map(|left| &left["name"]).collect();
    assert!(names.contains(&&"redis".into()), "{report:#}");
    let most = |kind| runs_of(&report, kind).into_iter().max();
    assert!(most("sqlite") > most("redis"), "{report:#}");
    assert_nothing_left(&place);
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

#[test]
fn proxies_are_measured_inside_tls_and_over_http_2() {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.args(["bench", "proxy", "--rounds", "1", "--seconds", "1", "--json"]);
    command.args(["--only", "handshakes", "--only", "HTTP/2"]).env("TMPDIR", place.path());
    let outcome = run(command, "cortex bench proxy").succeeded();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("it prints JSON");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| &row["over"]).collect::<Vec<_>>(), ["tls", "http2"]);
    assert!(rows.iter().all(|row| row["rate"].as_f64().is_some_and(|rate| rate > 0.0)));
    for cell in rows.iter().flat_map(|row| row["cells"].as_array().unwrap()) {
        assert_eq!(cell["valid"], true, "{cell:#}");
        assert!(cell["median"]["p99_ms"].as_f64().unwrap() > 0.0, "{cell:#}");
        assert!(cell["paced_median"]["p99_ms"].as_f64().unwrap() > 0.0, "{cell:#}");
        let alone = cell["requests_per_second_alone"].as_f64();
        assert_eq!(alone.is_some(), cell["contender"] != "cortex", "{cell:#}");
    }
    assert_nothing_left(place.path());
}

#[test]
fn serving_a_file_is_measured_beside_its_least_cost() {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.args(["bench", "proxy", "--rounds", "1", "--seconds", "1", "--only", "file"]);
    command.env("TMPDIR", place.path());
    let text = run(command, "cortex bench proxy").succeeded().stdout;
    for part in ["cortex / best peer (nginx)", "least / best peer (nginx)"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("INVALID") && !text.contains("haproxy"), "{text}");
    assert_nothing_left(place.path());
}

#[test]
fn idle_websockets_are_measured_beside_other_proxies() {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.args(["bench", "websockets", "--connections", "200", "--seconds", "1", "--turns", "2"]);
    command.arg("--json").env("TMPDIR", place.path());
    let outcome = run(command, "cortex bench websockets").succeeded();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("it prints JSON");
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["contender"].as_str().unwrap()).collect();
    assert_eq!(names, ["cortex", "nginx", "haproxy"]);
    for row in rows {
        let turns = row["turns"].as_array().unwrap();
        assert_eq!(turns.len(), 2, "{row:#}");
        assert!(turns.iter().all(|turn| turn["all_heard_ms"].as_f64().unwrap() > 0.0), "{row:#}");
    }
    assert_nothing_left(place.path());
}

#[test]
fn the_same_work_is_measured_on_fibers_and_on_events() {
    let place = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command.args(["bench", "concurrency", "--servers", "neverblock,node", "--only", "query"]);
    command.args(["--seconds", "2", "--scale", "0.1", "--json"]).env("TMPDIR", place.path());
    let outcome = run(command, "cortex bench concurrency").succeeded();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("it prints JSON");
    let rows = report["works"][0]["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["server"].as_str().unwrap()).collect();
    assert_eq!(names, ["neverblock", "node"]);
    for row in rows {
        let slices = row["slices"].as_array().unwrap();
        assert!(slices.iter().all(|slice| slice["failed"] == 0), "{row:#}");
        let last = slices.last().unwrap();
        // Queries sleep for a tenth of a second.
        assert!(last["p50_ms"].as_f64().unwrap() >= 100.0, "{row:#}");
    }
    assert_nothing_left(place.path());
}

#[test]
fn a_neighbour_is_measured_alone_and_beside_a_flood() {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(binary());
    command.args(["bench", "neighbour", "--rounds", "1", "--seconds", "1", "--rate", "20"]);
    command.args(["--processes", "4", "--mebibytes", "16", "--json"]);
    command.env("TMPDIR", place.path());
    let outcome = run(command, "cortex bench neighbour").succeeded();
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    for part in ["alone", "beside"] {
        let round = &report[part][0];
        assert_eq!((&round["requests"], &round["failed"]), (&20.into(), &0.into()), "{report}");
    }
    assert!(report["times"].as_f64().is_some_and(|times| times > 0.0), "{report}");
    assert_nothing_left(place.path());
}
