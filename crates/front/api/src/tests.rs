//! Tests of the API as a client meets it, over its socket and with a real store. Nothing runs
//! applications here: the tests write what an agent would.

mod builds;
mod certificates;
mod domains;
pub mod fixture;
mod isolation;
mod kept;
mod own_names;
mod password;
mod people;
mod ports;
mod refused;
mod sources;
mod undo;
mod walk;

use std::net::TcpListener;
use std::sync::atomic::Ordering;

use hyper::Method;
use model::instance::ProcessIdentity;
use model::key::BoardKey;
use model::{
    ApplicationName, Claim, Incarnation, InstanceId, InstanceState, ProcessType, ReleaseId,
    RolloutPhase, TypedKey,
};
use serde_json::{Value, json};

use self::fixture::{Fixture, PYTHON, archive, code};
use super::records;
use api_types::{ApplicationRow, Configured, InstanceRow, Progress, ReleaseRow, Released};

#[tokio::test]
async fn a_push_makes_an_application_and_asks_for_its_rollout() {
    let api = Fixture::start().await;
    let released = api.push("hello", PYTHON).await.unwrap();
    assert!(released.created && !released.unchanged);
    assert_eq!((released.release.as_str(), released.framework.as_str()), ("v1", "python"));
    let rollout = api.rollout("hello").await;
    assert_eq!((rollout.phase, rollout.coordinator), (RolloutPhase::Requested, api.node.clone()));
    assert_eq!(rollout.target.unwrap().to_string(), released.id);
    let again = api.push("hello", PYTHON).await.unwrap();
    assert_eq!((again.release.as_str(), again.created), ("v2", false));
    let rows: Vec<ReleaseRow> = api.client.get("/v1/apps/hello/releases").await.unwrap();
    assert_eq!(rows.iter().map(|row| row.release.as_str()).collect::<Vec<_>>(), ["v2", "v1"]);
    let source = format!("app::hello::source::{}", rows[0].source);
    let entry = api.store.lookup(&source.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(entry.value.read(1 << 20).unwrap(), archive(PYTHON));
}

#[tokio::test]
async fn what_is_not_recognised_changes_nothing() {
    let api = Fixture::start().await;
    assert_eq!(code(api.push("odd", &[("x.unknown", "")]).await), "not_recognised");
    assert_eq!(code(api.push("odd", &[]).await), "not_recognised");
    assert_eq!(code(api.push("Bad_Name", PYTHON).await), "invalid_name");
    let torn = archive(PYTHON)[..600].to_vec();
    assert_eq!(code(api.push_archive("/v1/apps/odd/releases", torn).await), "damaged_archive");
    assert_eq!(api.keys().await, Vec::<String>::new());
    assert_eq!(files_below(&api.layout.values()), 0, "an upload was left behind");
}

fn files_below(directory: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    entries.map(|one| if one.path().is_dir() { files_below(&one.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn a_cut_push_leaves_the_old_release() {
    let api = Fixture::start().await;
    api.deploy("hello", "one").await;
    let before = api.keys().await;
    let whole = bytes::Bytes::from(archive(PYTHON));
    let pieces = [Ok(whole.slice(..700)), Err(std::io::Error::other("cut"))];
    let stream = futures_util::stream::iter(pieces);
    let pushed: anyhow::Result<Released> =
        api.client.upload(Method::POST, "/v1/apps/hello/releases", stream).await;
    assert!(pushed.is_err());
    assert_eq!(api.keys().await, before);
}

#[tokio::test]
async fn progress_shows_phases_output_and_the_end() {
    let api = Fixture::start().await;
    let released = api.push("hello", PYTHON).await.unwrap();
    let mut progress = api.progress(&released).await;
    let phase = |phase: &str| Some(Progress::Phase { phase: phase.into() });
    assert_eq!(progress.next().await.unwrap(), phase("requested"));
    let id: ReleaseId = released.id.parse().unwrap();
    let log = api.layout.build_log(&"hello".parse().unwrap(), &id);
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    std::fs::write(&log, "2026-08-01T12:00:00.000Z Installing\n").unwrap();
    // The line is there before the store says what printed it.
    api.conclude("hello", RolloutPhase::Building, None).await;
    assert_eq!(progress.next().await.unwrap(), phase("building"));
    let line = progress.next().await.unwrap();
    assert_eq!(line, Some(Progress::Line { text: "Installing".into() }));
    api.conclude("hello", RolloutPhase::Starting, None).await;
    assert_eq!(progress.next().await.unwrap(), phase("starting"));
    api.conclude("hello", RolloutPhase::Done, None).await;
    assert_eq!(progress.next().await.unwrap(), phase("done"));
    let url = Some(format!("http://127.0.0.1:{}", port(&api, "hello").await));
    assert_eq!(progress.next().await.unwrap(), Some(Progress::Done { url, warning: None }));
    assert_eq!(progress.next::<Progress>().await.unwrap(), None);
}

#[tokio::test]
async fn a_failed_release_tells_why_and_what_keeps_serving() {
    let api = Fixture::start().await;
    api.deploy("hello", "one").await;
    let broken = api.push("hello", PYTHON).await.unwrap();
    api.conclude("hello", RolloutPhase::Failed, Some("it exited")).await;
    let mut progress = api.progress(&broken).await;
    assert!(matches!(progress.next().await.unwrap(), Some(Progress::Phase { .. })));
    let failed = Progress::Failed { message: "it exited".into(), serving: Some("v1".into()) };
    assert_eq!(progress.next().await.unwrap(), Some(failed));
    let newer = api.push("hello", PYTHON).await.unwrap();
    let mut progress = api.progress(&broken).await;
    let overtaken = Progress::Overtaken { by: newer.release };
    assert_eq!(progress.next().await.unwrap(), Some(overtaken));
}

async fn port(api: &Fixture, app: &str) -> u16 {
    let shown: Value = api.client.get(&format!("/v1/apps/{app}")).await.unwrap();
    shown["port"].as_u64().unwrap().try_into().unwrap()
}

/// A rollback takes back the release that is on its way and goes to the one that still serves.
#[tokio::test]
async fn rollback_during_a_rollout_goes_to_what_serves() {
    let api = Fixture::start().await;
    api.deploy("hello", "one").await;
    api.deploy("hello", "two").await;
    api.push("hello", &[("app.py", "three")]).await.unwrap();
    let back = api.client.post::<_, Released>("/v1/apps/hello/rollback", &json!({})).await;
    assert_eq!(back.unwrap().release, "v4");
    let rows: Vec<ReleaseRow> = api.client.get("/v1/apps/hello/releases").await.unwrap();
    assert_eq!(rows[0].note, "rollback to v2");
}

#[tokio::test]
async fn rollback_goes_to_what_served_before_with_its_variables() {
    let api = Fixture::start().await;
    let path = "/v1/apps/hello/rollback";
    api.deploy("hello", "one").await;
    assert_eq!(code(api.client.post::<_, Released>(path, &json!({})).await), "nothing_before");
    let set = json!({"A": "1"});
    let set: Configured = api.client.post("/v1/apps/hello/config", &set).await.unwrap();
    assert_eq!((set.changed, set.released.unwrap().release), (vec!["set A".into()], "v2".into()));
    api.conclude("hello", RolloutPhase::Done, None).await;
    api.push("hello", PYTHON).await.unwrap();
    api.conclude("hello", RolloutPhase::Failed, Some("broken")).await;
    let back: Released = api.client.post(path, &json!({})).await.unwrap();
    assert_eq!(back.release, "v4");
    let rows: Vec<ReleaseRow> = api.client.get("/v1/apps/hello/releases").await.unwrap();
    assert_eq!(rows[0].note, "rollback to v1");
    assert_eq!(rows[0].source, rows[3].source);
    let variables: Value = api.client.get("/v1/apps/hello/config").await.unwrap();
    assert_eq!(variables, json!({}));
    for to in ["v2", "2", "v2.n1"] {
        let back: Released = api.client.post(path, &json!({"to": to})).await.unwrap();
        assert!(back.release.as_str() > "v4");
    }
    let variables: Value = api.client.get("/v1/apps/hello/config").await.unwrap();
    assert_eq!(variables, json!({"A": "1"}));
    let missing = api.client.post::<_, Released>(path, &json!({"to": "v99"})).await;
    assert_eq!(code(missing), "no_release");
}

#[tokio::test]
async fn the_same_source_is_not_released_twice_where_that_is_asked() {
    let api = Fixture::start().await;
    let path = "/v1/apps/hello/releases?if_changed=true";
    let first = api.push_archive(path, archive(PYTHON)).await.unwrap();
    let unfinished = api.push_archive(path, archive(PYTHON)).await.unwrap();
    assert!(!first.unchanged && !unfinished.unchanged);
    api.conclude("hello", RolloutPhase::Done, None).await;
    let same = api.push_archive(path, archive(PYTHON)).await.unwrap();
    assert_eq!((same.unchanged, same.release.as_str()), (true, "v2"));
    let changed = api.push_archive(path, archive(&[("app.py", "two")])).await.unwrap();
    assert_eq!((changed.unchanged, changed.release.as_str()), (false, "v3"));
}

#[tokio::test]
async fn ports_are_given_out_once() {
    let api = Fixture::start().await;
    let create = |name: &str, port: Option<u16>| {
        let asked = json!({"name": name, "port": port});
        let client = &api.client;
        async move { client.post::<_, ApplicationRow>("/v1/apps", &asked).await }
    };
    let first = create("one", None).await.unwrap().port.unwrap();
    let second = create("two", None).await.unwrap().port.unwrap();
    assert!(first != second && first >= 8000 && second >= 8000);
    assert_eq!(code(create("three", Some(first)).await), "port_taken");
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    assert_eq!(code(create("three", Some(port)).await), "port_taken");
    drop(held);
    let chosen = create("three", Some(port)).await.unwrap();
    assert_eq!(chosen.port, Some(port));
    assert_eq!(code(create("three", None).await), "application_exists");
    let toml = [("app.py", "x"), ("cortex.toml", "port = 7999\n")];
    api.push("three", &toml).await.unwrap();
    assert_eq!(self::port(&api, "three").await, port, "a command's choice wins");
}

#[tokio::test]
async fn processes_are_scaled_and_shown() {
    let api = Fixture::start().await;
    api.deploy("hello", "one").await;
    let path = "/v1/apps/hello/scale";
    let unknown: anyhow::Result<Value> = api.client.post(path, &json!({"wub": 2})).await;
    assert_eq!(code(unknown), "unknown_process");
    let many: anyhow::Result<Value> = api.client.post(path, &json!({"web": 4_000_000})).await;
    assert_eq!(code(many), "too_many_instances");
    let scaled: Value = api.client.post(path, &json!({"web": 2})).await.unwrap();
    assert_eq!(scaled["processes"], json!({"web": 2}));
    let application: ApplicationName = "hello".parse().unwrap();
    let id = InstanceId { application, process: ProcessType::web(), slot: 1 };
    let mut claim = Claim::new(model::Timestamp(0));
    let release = api.rollout("hello").await.serving.unwrap();
    claim.incarnations = vec![
        incarnation(3, release.clone(), InstanceState::Crashed),
        incarnation(4, release, InstanceState::Ready),
    ];
    let key = TypedKey::Claim(id.clone(), api.node.clone());
    records::write(&*api.store, key, &claim).await.unwrap();
    let memory = TypedKey::Board(BoardKey::Memory(id, 4)).key();
    api.store.set(memory, "1234".into()).await.unwrap();
    let rows: Vec<InstanceRow> = api.client.get("/v1/apps/hello/ps").await.unwrap();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.slot, row.pid, row.memory_bytes), (1, Some(77), Some(1234)));
    assert_eq!((row.state.as_str(), row.release.as_str()), ("ready", "v1"));
    assert_eq!(row.started_at.as_deref(), Some("1970-01-01T00:00:01Z"));
    let apps: Vec<ApplicationRow> = api.client.get("/v1/apps").await.unwrap();
    assert_eq!((apps[0].state.as_str(), apps[0].ready, apps[0].wanted), ("degraded", 1, 2));
    let before: Value = api.client.get(path).await.unwrap();
    let after: Value = api.client.post("/v1/apps/hello/restart", &()).await.unwrap();
    assert_eq!(before, after);
}

fn incarnation(generation: u64, release: ReleaseId, state: InstanceState) -> Incarnation {
    Incarnation {
        generation,
        release,
        restart: 0,
        state,
        port: Some(20_000),
        ports: Default::default(),
        process: Some(ProcessIdentity { pid: 77, start_ticks: 1, boot_id: "b".into() }),
        started_at: Some(model::Timestamp(1_000)),
        concurrency: None,
        restarts: 0,
        reason: None,
        remark: None,
    }
}

#[tokio::test]
async fn a_destroyed_application_is_gone_and_its_numbers_are_not_reused() {
    let api = Fixture::start().await;
    api.deploy("hello", "one").await;
    let persist = api.layout.persist(&"hello".parse().unwrap());
    std::fs::create_dir_all(&persist).unwrap();
    std::fs::write(persist.join("db"), "rows").unwrap();
    let gone: Value = api.client.delete("/v1/apps/hello?now=true").await.unwrap();
    assert_eq!((gone["stopped"].as_bool(), api.keys().await), (Some(true), vec![]));
    assert!(!persist.exists(), "nothing of it is kept, as was asked for");
    let missing: anyhow::Result<Value> = api.client.get("/v1/apps/hello").await;
    assert_eq!(code(missing), "no_application");
    assert_eq!(api.push("hello", PYTHON).await.unwrap().release, "v2");
}

#[tokio::test]
async fn what_comes_late_of_a_destroyed_application_is_no_application() {
    let api = Fixture::start().await;
    let name: ApplicationName = "hello".parse().unwrap();
    // Ends are on record from the first one on that somebody had to be told of.
    let earlier = TypedKey::Destroyed(name.clone(), model::Timestamp(5));
    records::write(&*api.store, earlier, &json!({"v": 1, "at": 6})).await.unwrap();
    api.deploy("hello", "one").await;
    let _: Configured =
        api.client.post("/v1/apps/hello/config", &json!({"A": "late"})).await.unwrap();
    let late: Vec<_> = api.store.prefix(&"app".parse().unwrap()).await.unwrap();
    let _: Value = api.client.delete("/v1/apps/hello?now=true").await.unwrap();
    let ends = api.store.keys(&model::key::destroyed_prefix(&name)).await.unwrap();
    assert_eq!(ends.len(), 2);
    for entry in late {
        let value = entry.value.read(1 << 20).unwrap();
        api.store.set(entry.key, value).await.unwrap();
    }
    let missing: anyhow::Result<Value> = api.client.get("/v1/apps/hello").await;
    assert_eq!(code(missing), "no_application");
    let rows: Vec<ApplicationRow> = api.client.get("/v1/apps").await.unwrap();
    assert!(rows.is_empty(), "{} applications", rows.len());
    let anew = api.push("hello", PYTHON).await.unwrap();
    assert!(anew.created);
    let variables: Value = api.client.get("/v1/apps/hello/config").await.unwrap();
    assert_eq!(variables, json!({}));
    let releases: Vec<ReleaseRow> = api.client.get("/v1/apps/hello/releases").await.unwrap();
    assert_eq!(releases.len(), 1);
}

#[tokio::test]
async fn old_releases_are_removed_and_what_serves_stays() {
    let api = Fixture::start().await;
    api.deploy("hello", "the first").await;
    for number in 0..35 {
        api.push("hello", &[("app.py", &format!("print({number})"))]).await.unwrap();
    }
    let rows: Vec<ReleaseRow> = api.client.get("/v1/apps/hello/releases").await.unwrap();
    let oldest = rows.last().unwrap();
    assert_eq!((oldest.release.as_str(), oldest.state.as_str()), ("v1", "serving"));
    assert!(rows.len() <= 31, "{}", rows.len());
    let sources = api.store.keys(&"app::hello::source".parse().unwrap()).await.unwrap();
    assert_eq!(sources.len(), rows.len());
}

#[tokio::test]
async fn variables_are_checked() {
    let api = Fixture::start().await;
    api.deploy("hello", "one").await;
    let path = "/v1/apps/hello/config";
    for (name, expected) in [("1A", "invalid_variable"), ("PORT", "reserved_variable")] {
        let set: anyhow::Result<Configured> = api.client.post(path, &json!({name: "x"})).await;
        assert_eq!(code(set), expected);
    }
    let large = "x".repeat(300_000);
    let set: anyhow::Result<Configured> = api.client.post(path, &json!({"A": large})).await;
    assert_eq!(code(set), "config_too_large");
    // This value is larger than what travels in a commit.
    let long = "x".repeat(10_000);
    let set: Configured = api.client.post(path, &json!({"A": long})).await.unwrap();
    assert_eq!(set.released.unwrap().release, "v2");
    let same: Configured = api.client.post(path, &json!({"A": long, "B": null})).await.unwrap();
    assert!(same.changed.is_empty() && same.released.is_none());
    let variables: Value = api.client.get(path).await.unwrap();
    assert_eq!(variables["A"].as_str(), Some(long.as_str()));
}

#[tokio::test]
async fn required_variables_are_insisted_on_and_secrets_made() {
    let api = Fixture::start().await;
    let app_json = r#"{"env": {"KEY": {"generator": "secret"}, "API": {"required": true}}}"#;
    let files = [("app.py", "x"), ("app.json", app_json)];
    assert_eq!(code(api.push("hello", &files).await), "config_required");
    let _: Value = api.client.post("/v1/apps", &json!({"name": "hello"})).await.unwrap();
    let _: Value = api.client.post("/v1/apps/hello/config", &json!({"API": "1"})).await.unwrap();
    api.push("hello", &files).await.unwrap();
    let first: Value = api.client.get("/v1/apps/hello/config").await.unwrap();
    assert_eq!(first["KEY"].as_str().unwrap().len(), 64);
    api.push("hello", &files).await.unwrap();
    let second: Value = api.client.get("/v1/apps/hello/config").await.unwrap();
    assert_eq!(first, second);
}

#[tokio::test]
async fn values_of_any_size_travel_both_ways() {
    let api = Fixture::start().await;
    for size in [0, 1, 4096, 4097, 300_000] {
        let value = bytes::Bytes::from(vec![b'v'; size]);
        let piece = value.clone();
        let stream = futures_util::stream::iter([Ok(piece)]);
        let path = "/v1/store/value?key=test%3A%3Ax";
        let _: Value = api.client.upload(Method::PUT, path, stream).await.unwrap();
        let body = api.client.download(path).await.unwrap();
        let read = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
        assert!(read == value, "{size}");
    }
    let missing: anyhow::Result<Value> = api.client.delete("/v1/store/value?key=none").await;
    assert_eq!(code(missing), "no_value");
    let invalid: anyhow::Result<Value> = api.client.get("/v1/store/hash?key=%3A%3A").await;
    assert_eq!(code(invalid), "invalid_key");
    let history: Vec<Value> = api.client.get("/v1/store/history?prefix=test").await.unwrap();
    assert_eq!(history.len(), 5);
}

/// The answer may come before, during or after what is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_still_sends_hears_why_it_was_refused() {
    let api = Fixture::start().await;
    for round in 0..500 {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        std::thread::spawn(move || {
            for _ in 0..round % 20 {
                let piece = bytes::Bytes::from(vec![b'v'; 1 << 16]);
                if sender.blocking_send(Ok(piece)).is_err() {
                    return;
                }
            }
        });
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
            Some((receiver.recv().await?, receiver))
        });
        let path = "/v1/store/value?key=a%3A%3A%3A%3Ab";
        let refused: anyhow::Result<Value> = api.client.upload(Method::PUT, path, stream).await;
        assert_eq!(code(refused), "invalid_key");
    }
}

#[tokio::test]
async fn a_watch_sees_changes() {
    let api = Fixture::start().await;
    let mut watch = api.client.lines("/v1/store/watch?prefix=w").await.unwrap();
    api.store.set("w::a".parse().unwrap(), "1".into()).await.unwrap();
    api.store.delete("w::a".parse().unwrap()).await.unwrap();
    let set: Value = watch.next().await.unwrap().unwrap();
    assert_eq!(set, json!({"event": "set", "key": "w::a", "size": 1, "value": "1"}));
    let deleted: Value = watch.next().await.unwrap().unwrap();
    assert_eq!(deleted, json!({"event": "deleted", "key": "w::a"}));
}

#[tokio::test]
async fn the_node_is_described_and_stopped() {
    let api = Fixture::start().await;
    let status: Value = api.client.get("/v1/status").await.unwrap();
    assert_eq!(status["node"], "n1");
    assert!(status["memory_bytes"].as_u64().unwrap() > 0);
    assert_eq!(status["problems"], json!(["127.0.0.1:1: address in use"]));
    let checks: Vec<Value> = api.client.get("/v1/doctor").await.unwrap();
    assert!(checks.iter().any(|check| check["name"] == "port" && check["result"] == "fail"));
    assert!(
        checks.iter().any(|check| check["name"] == "data directory" && check["result"] == "ok")
    );
    let odd: anyhow::Result<Value> = api.client.get("/v1/nothing").await;
    assert_eq!(code(odd), "no_such_path");
    let odd: anyhow::Result<Value> = api.client.delete("/v1/status").await;
    assert_eq!(code(odd), "wrong_method");
    let fail: anyhow::Result<Value> = api.client.post("/v1/fail-points/x", &json!({})).await;
    assert_eq!(code(fail), "no_fail_point");
    let _: Value = api.client.post("/v1/shutdown", &()).await.unwrap();
    assert!(api.control.stopping.load(Ordering::SeqCst));
}

#[tokio::test]
async fn logs_are_read_and_followed() {
    let api = Fixture::start().await;
    let _: Value = api.client.post("/v1/apps", &json!({"name": "hello"})).await.unwrap();
    let directory = api.layout.logs(&"hello".parse().unwrap());
    std::fs::create_dir_all(&directory).unwrap();
    let web = directory.join("web.1.log");
    std::fs::write(&web, "2026-08-01T12:00:00.000Z one\n2026-08-01T12:00:01.000Z two\n").unwrap();
    let path = "/v1/apps/hello/logs?lines=1&follow=true&process=web";
    let mut lines = api.client.lines(path).await.unwrap();
    let two: Value = lines.next().await.unwrap().unwrap();
    assert_eq!((two["source"].as_str(), two["text"].as_str()), (Some("web.1"), Some("two")));
    std::fs::write(directory.join("web.2.log"), "2026-08-01T12:00:02.000Z three\n").unwrap();
    let three: Value = lines.next().await.unwrap().unwrap();
    assert_eq!((three["source"].as_str(), three["text"].as_str()), (Some("web.2"), Some("three")));
}
