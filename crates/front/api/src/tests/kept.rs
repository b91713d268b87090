//! Applications that were destroyed: kept, brought back, and removed in the end.

use std::time::Duration;

use api_types::maintenance::{KeptRow, Restored};
use api_types::people::UserRow;
use api_types::{ApplicationRow, Configured, Destroyed, ReleaseRow};
use client::ClientError;
use model::node::{Feature, Member, NodeInfo};
use model::record::{RECORD_VERSION, Unknown};
use model::{NodeId, RolloutPhase, Timestamp, TypedKey};
use serde_json::{Value, json};

use super::super::{kept, records, shared};
use super::fixture::{Fixture, PYTHON, code};

impl Fixture {
    async fn destroy(&self, app: &str) -> Destroyed {
        self.client.delete(&format!("/v1/apps/{app}")).await.unwrap()
    }

    async fn restore(&self, app: &str) -> anyhow::Result<Restored> {
        self.client.post(&format!("/v1/apps/{app}/restore"), &json!({})).await
    }

    async fn kept(&self) -> Vec<KeptRow> {
        self.client.get("/v1/destroyed").await.unwrap()
    }

    /// Puts another node on the roster whose build knows this much.
    pub async fn enter_node(&self, name: &str, features: Vec<String>) {
        let (v, id): (u32, NodeId) = (RECORD_VERSION, name.parse().unwrap());
        let unknown = Unknown::new();
        let (joined_at, addresses) = (Timestamp(1), Vec::new());
        let member =
            Member { v, id: id.clone(), joined_at, addresses, pin: None, unknown: unknown.clone() };
        let key = TypedKey::Member(id.clone());
        if self.store.lookup(&key.key()).await.unwrap().is_none() {
            records::write(&*self.store, key, &member).await.unwrap();
        }
        let info = NodeInfo {
            v,
            hostname: name.into(),
            version: "1".into(),
            cores: 1,
            memory_bytes: 1,
            platform: String::new(),
            started_at: Timestamp(1),
            http: String::new(),
            roles: Default::default(),
            walls: Vec::new(),
            features,
            unknown,
        };
        records::write(&*self.store, TypedKey::NodeInfo(id), &info).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_destroyed_is_gone_and_comes_back_whole() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    let change = json!({ "A": "1" });
    let _: Configured = api.client.post("/v1/apps/blog/config", &change).await.unwrap();
    api.conclude("blog", RolloutPhase::Done, None).await;
    let add = json!({ "add": ["a.test", "b.test"] });
    let _: Value = api.client.post("/v1/apps/blog/domains", &add).await.unwrap();
    let user = json!({ "name": "ana", "grant": { "role": "owner" } });
    let _: UserRow = api.client.post("/v1/users", &user).await.unwrap();
    let row: ApplicationRow = api.client.get("/v1/apps/blog").await.unwrap();
    let (port, before) = (row.port.unwrap(), api.keys().await);
    let gone = api.destroy("blog").await;
    assert!(gone.stopped && gone.until.is_some());
    assert_eq!(api.keys().await, before, "all of it is kept");
    let rows: Vec<ApplicationRow> = api.client.get("/v1/apps").await.unwrap();
    assert!(rows.is_empty());
    let missing = api.client.get::<Value>("/v1/apps/blog").await.unwrap_err().to_string();
    assert!(missing.contains("destroyed 'blog' at"), "{missing}");
    let again: anyhow::Result<Value> = api.client.delete("/v1/apps/blog").await;
    assert_eq!(code(again), "application_kept");
    let [row] = &api.kept().await[..] else { panic!() };
    assert_eq!((row.name.as_str(), row.domains.len()), ("blog", 2));

    // The name is not given away, and its domains are.
    assert_eq!(code(api.push("blog", PYTHON).await), "name_kept");
    let create = json!({ "name": "blog" });
    assert_eq!(code(api.client.post::<_, Value>("/v1/apps", &create).await), "name_kept");
    api.deploy("shop", "one").await;
    let add = json!({ "add": ["a.test"] });
    let _: Value = api.client.post("/v1/apps/shop/domains", &add).await.unwrap();
    let take = json!({ "port": port });
    let _: Value = api.client.post("/v1/apps/shop/port", &take).await.unwrap();

    let restored = api.restore("blog").await.unwrap();
    let notes = restored.notes.join("; ");
    assert!(notes.contains("without a.test"), "{notes}");
    assert!(notes.contains(&format!("{port}/tcp belongs to the application 'shop'")), "{notes}");
    assert!(restored.row.port.is_some_and(|now| now != port));
    assert_eq!(restored.row.release.as_deref(), Some("v2"));
    let variables: Value = api.client.get("/v1/apps/blog/config").await.unwrap();
    assert_eq!(variables, json!({ "A": "1" }));
    let releases: Vec<ReleaseRow> = api.client.get("/v1/apps/blog/releases").await.unwrap();
    assert_eq!(releases.len(), 2);
    let spec = records::require(&*api.store, "blog").await.unwrap().spec;
    assert_eq!((&spec.domains[..], spec.end), (&["b.test".to_string()][..], None));
    assert!(api.kept().await.is_empty());
    assert_eq!(code(api.restore("blog").await), "not_destroyed");
    assert_eq!(code(api.restore("never").await), "no_application");
}

#[tokio::test]
async fn somebody_else_neither_sees_it_nor_brings_it_back() {
    let api = Fixture::start().await;
    api.build_walls().await;
    api.deploy("blog", "one").await;
    api.deploy("shop", "one").await;
    let mut clients = Vec::new();
    for (name, role, app) in
        [("ana", "operator", "blog"), ("bob", "operator", "shop"), ("eve", "developer", "blog")]
    {
        let grant = json!({ "role": role, "application": app });
        let user = json!({ "name": name, "grant": grant });
        let _: UserRow = api.client.post("/v1/users", &user).await.unwrap();
        clients.push(api.with_token(json!({ "name": "ci", "user": name })).await);
    }
    let [ana, bob, eve] = &clients[..] else { panic!() };
    let _: Destroyed = ana.delete("/v1/apps/blog").await.unwrap();
    let restore = async |client: &client::Client| {
        client.post::<_, Restored>("/v1/apps/blog/restore", &json!({})).await
    };
    assert_eq!(code(restore(bob).await), "no_application");
    assert_eq!(code(restore(eve).await), "no_right");
    assert!(bob.get::<Vec<KeptRow>>("/v1/destroyed").await.unwrap().is_empty());
    assert_eq!(ana.get::<Vec<KeptRow>>("/v1/destroyed").await.unwrap().len(), 1);
    restore(ana).await.unwrap();
    let rows: Vec<ApplicationRow> = eve.get("/v1/apps").await.unwrap();
    assert_eq!(rows.len(), 1, "roles on it are those that there were");
}

#[tokio::test]
async fn after_its_time_nothing_is_left() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    api.destroy("blog").await;
    let context = shared(api.context.clone());
    kept::sweep(&context).await.unwrap();
    assert_eq!(api.kept().await.len(), 1, "a week has not gone by");
    let name: model::ApplicationName = "blog".parse().unwrap();
    let (mut spec, end) = records::kept(&*api.store, &name).await.unwrap().unwrap();
    let week = Duration::from_millis(end.until.0 - end.at.0);
    assert_eq!(week, Duration::from_secs(7 * 24 * 3600));
    spec.end.as_mut().unwrap().until = end.at;
    records::write(&*api.store, TypedKey::Spec(name.clone()), &spec).await.unwrap();
    kept::sweep(&context).await.unwrap();
    assert_eq!(api.keys().await, Vec::<String>::new());
    assert_eq!(code(api.restore("blog").await), "no_application");
    assert!(agent::remains::are_files_gone(&*api.store, &name).await.unwrap());
    let released = api.push("blog", PYTHON).await.unwrap();
    assert!(released.created && released.release == "v2", "{released:?}");
    assert!(!agent::remains::are_files_gone(&*api.store, &name).await.unwrap());
}

#[tokio::test]
async fn nothing_is_kept_while_a_node_would_go_on_running_it() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    api.enter_node("n2", Vec::new()).await;
    let refused = api.client.delete::<Value>("/v1/apps/blog").await.unwrap_err();
    let said = format!("{refused:#}");
    assert!(said.contains("node n2 (n2) is of an older build"), "{said}");
    let hint = refused.downcast_ref::<ClientError>().and_then(ClientError::hint);
    assert!(hint.as_ref().is_some_and(|hint| hint.contains("--now")), "{hint:?}");
    assert_eq!(code(Err::<Value, _>(refused)), "older_nodes");
    let _: ApplicationRow = api.client.get("/v1/apps/blog").await.unwrap();
    api.enter_node("n2", Feature::words()).await;
    assert!(api.destroy("blog").await.until.is_some());
}
