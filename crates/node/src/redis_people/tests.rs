//! Tests of the people at a node's Redis listener, over a real store.

use std::time::{Duration, Instant};

use model::audit::AuditEntry;
use model::key::audit_prefix;
use model::people::{Grant, PersonRole, Scope};
use model::record::{self, RECORD_VERSION, Unknown};
use os::layout::DataDirectory;
use serde::Serialize;
use store::options::Options;
use tempfile::TempDir;

use super::*;

/// A time limit that is reached only if something is wrong.
const DEADLINE: Duration = Duration::from_secs(60);
const ADDRESS: &str = "127.0.0.1:4711";

struct World {
    store: SharedStore,
    people: Arc<dyn People>,
    clock: Clock,
    _directory: TempDir,
}

impl World {
    async fn begin() -> World {
        let directory = TempDir::new().unwrap();
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        let (node, clock): (NodeId, _) = ("n1".parse().unwrap(), Clock::start());
        let store = ::store::open::open_alone(&layout, node.clone(), clock, Options::default());
        let store = store.unwrap();
        let people = follow(store.clone(), node, clock).await.unwrap();
        World { store, people, clock, _directory: directory }
    }

    async fn write(&self, key: TypedKey, record: &impl Serialize) {
        self.store.set(key.key(), record::encode(record).into()).await.unwrap();
    }

    /// Adds a person with a token, and returns its text.
    async fn person(&self, name: &str, role: PersonRole, limit: Option<PersonRole>) -> TokenText {
        let now = self.clock.now();
        let on = |role| Grant { role, on: Scope::Platform };
        let user = User {
            v: RECORD_VERSION,
            created_at: now,
            created_by: "test".into(),
            grants: [on(role)].into(),
            unknown: Unknown::new(),
        };
        let random = std::array::from_fn(|at| name.as_bytes()[at % name.len()]);
        let text = TokenText::from_random(&random).expect("enough bytes count");
        let token = Token {
            v: RECORD_VERSION,
            name: "desk".parse().unwrap(),
            user: name.parse().unwrap(),
            user_created_at: now,
            created_at: now,
            expires_at: now.after(DEADLINE),
            limit: limit.map(on),
            revoked_at: None,
            invites: None,
            unknown: Unknown::new(),
        };
        self.write(TypedKey::Token(text.hash()), &token).await;
        self.write(TypedKey::User(name.parse().unwrap()), &user).await;
        text
    }

    async fn log_in(&self, name: &str, text: &TokenText) -> Result<ContentHash, LogInRefused> {
        self.people.log_in(name, text.as_str(), ADDRESS).await
    }

    async fn audited(&self) -> Vec<Entry> {
        self.store.prefix(&audit_prefix()).await.unwrap()
    }
}

async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < DEADLINE, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn an_owner_is_let_in_and_recorded_once_and_is_out_as_soon_as_the_user_is() {
    let world = World::begin().await;
    let ana = world.person("ana", PersonRole::Owner, None).await;
    eventually("ana is let in", async || world.log_in("ana", &ana).await.is_ok()).await;
    let hash = world.log_in("ana", &ana).await.unwrap();
    assert!(world.people.are_owners() && world.people.may_do_everything(&hash));
    let audited = world.audited().await;
    assert_eq!(audited.len(), 2, "an entry and its outcome, for two logins: {audited:?}");
    let entry: AuditEntry = readable(&audited[0].key, Some(&audited[0].value)).unwrap();
    let said = (entry.who.as_str(), entry.method.as_str(), entry.path.as_str());
    assert_eq!(said, ("ana", "AUTH", "redis"));
    assert_eq!((entry.token.unwrap().as_str(), entry.from.as_str()), ("desk", ADDRESS));

    let wrong = [("ben", ana.as_str()), ("ana", "cortex_"), ("ana", "")];
    for (name, text) in wrong {
        let refused = world.people.log_in(name, text, ADDRESS).await.unwrap_err();
        assert!(matches!(refused, LogInRefused::WrongPassword), "{name} {text}: {refused:?}");
    }
    world.store.delete(TypedKey::User("ana".parse().unwrap()).key()).await.unwrap();
    eventually("she is out", async || !world.people.may_do_everything(&hash)).await;
    let refused = world.log_in("ana", &ana).await.unwrap_err();
    assert!(matches!(refused, LogInRefused::WrongPassword), "{refused:?}");
}

#[tokio::test]
async fn whoever_is_or_asks_for_less_than_an_owner_is_refused_by_name() {
    let world = World::begin().await;
    let ben = world.person("ben", PersonRole::Operator, None).await;
    let eve = world.person("eve", PersonRole::Owner, Some(PersonRole::Viewer)).await;
    for (name, text) in [("ben", &ben), ("eve", &eve)] {
        eventually("they are known", async || {
            let refused = world.log_in(name, text).await.unwrap_err();
            matches!(refused, LogInRefused::BelowOwner(of) if of == name)
        })
        .await;
    }
    assert!(!world.people.are_owners() && world.audited().await.is_empty());
}

#[tokio::test]
async fn somebody_of_whom_nothing_can_be_read_may_be_less_than_an_owner() {
    let world = World::begin().await;
    assert!(world.people.are_owners());
    let key = TypedKey::User("new".parse().unwrap()).key();
    world.store.set(key, b"{\"v\": 99}".to_vec().into()).await.unwrap();
    eventually("the door is closed", async || !world.people.are_owners()).await;
}
