//! Tests of what is removed from a store, and what stays.

use model::Key;
use model::application::Settings;
use model::record::Unknown;
use model::value::ContentHash;

use super::*;
use os::layout::DataDirectory;
use runtime::driver::Clock;
use store::SharedStore;
use store::options::Options;

const FIRST: Timestamp = Timestamp(1);
const SECOND: Timestamp = Timestamp(2);

fn name() -> ApplicationName {
    "shop".parse().unwrap()
}

fn id(number: u64) -> ReleaseId {
    ReleaseId { number, node: "n1".parse().unwrap() }
}

/// A store in which the first application of a name is on record as destroyed.
struct Fixture {
    _directory: tempfile::TempDir,
    store: SharedStore,
}

impl Fixture {
    async fn start() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        os::directory::private_directory(layout.root()).unwrap();
        let (node, clock) = ("n1".parse().unwrap(), Clock::start());
        let store = store::open::open_alone(&layout, node, clock, Options::default()).unwrap();
        let fixture = Fixture { _directory: directory, store };
        fixture.set(TypedKey::Destroyed(name(), FIRST), b"{}".to_vec()).await;
        fixture
    }

    async fn set(&self, key: TypedKey, value: Vec<u8>) {
        self.store.set(key.key(), value.into()).await.unwrap();
    }

    async fn set_spec(&self, created_at: Timestamp) {
        let spec = record::encode(&ApplicationSpec::new(created_at));
        self.set(TypedKey::Spec(name()), spec).await;
    }

    async fn set_release(&self, number: u64, application_created_at: Timestamp, variable: &str) {
        let settings = Settings {
            application_created_at: Some(application_created_at),
            ..Settings::default()
        };
        let release = Release {
            v: record::RECORD_VERSION,
            id: id(number),
            source: ContentHash([0; 32]),
            source_bytes: 1,
            build: None,
            recipe: Default::default(),
            settings,
            created_at: application_created_at,
            author: "ann".into(),
            note: String::new(),
            revision: None,
            replaces: None,
            remark: None,
            takes_back: None,
            unknown: Unknown::new(),
        };
        self.set(TypedKey::ConfigAt(name(), id(number)), variables(variable)).await;
        self.set(TypedKey::Release(name(), id(number)), record::encode(&release)).await;
    }

    async fn keys(&self) -> Vec<String> {
        let keys: Vec<Key> = self.store.keys(&application_prefix(&name())).await.unwrap();
        keys.into_iter().map(String::from).collect()
    }
}

fn variables(value: &str) -> Vec<u8> {
    record::encode(&Variables::from([("A".into(), value.into())]))
}

#[tokio::test]
async fn nothing_stays_of_what_came_late_of_a_destroyed_application() {
    let fixture = Fixture::start().await;
    fixture.set_spec(FIRST).await;
    fixture.set_release(4, FIRST, "late").await;
    fixture.set(TypedKey::Config(name()), variables("late")).await;
    fixture.store.set("app::shop::later".parse().unwrap(), "x".into()).await.unwrap();
    try_clear(&*fixture.store, &name()).await.unwrap();
    assert_eq!(fixture.keys().await, [""; 0]);
    assert_eq!(destroyed(&*fixture.store, &name()).await.unwrap(), [FIRST].into());
}

#[tokio::test]
async fn an_application_that_was_made_anew_keeps_what_is_its_own() {
    let fixture = Fixture::start().await;
    fixture.set_spec(SECOND).await;
    fixture.set_release(3, SECOND, "own").await;
    fixture.set_release(4, FIRST, "late").await;
    fixture.set(TypedKey::Config(name()), variables("late")).await;
    try_clear(&*fixture.store, &name()).await.unwrap();
    let own = ["config", "config::3::n1", "release::3::n1", "spec"];
    assert_eq!(fixture.keys().await, own.map(|key| format!("app::shop::{key}")));
    let config = lookup_record(&*fixture.store, TypedKey::Config(name()).key()).await.unwrap();
    assert_eq!(config, Some(Variables::from([("A".into(), "own".into())])));
}

#[tokio::test]
async fn what_is_stored_of_a_name_stays_where_no_end_is_on_record() {
    let fixture = Fixture::start().await;
    fixture.store.delete(TypedKey::Destroyed(name(), FIRST).key()).await.unwrap();
    fixture.set_release(4, FIRST, "own").await;
    try_clear(&*fixture.store, &name()).await.unwrap();
    assert_eq!(fixture.keys().await.len(), 2);
}
