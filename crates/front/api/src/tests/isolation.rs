//! The mark of an owner on an application, as people meet it in the API.

use api_types::Released;
use api_types::people::{ApplicationIsolation, AuditRow};
use hyper::Method;
use model::node::Feature;
use model::{ApplicationSpec, Isolation, NodeId, Release, RolloutPhase, TypedKey};
use serde_json::{Value, json};

use super::super::records;
use super::fixture::{Fixture, PYTHON, archive, code};
use client::Client;

const PATH: &str = "/v1/apps/blog/isolation";

impl Fixture {
    /// Has a node say which walls it can build, and what its build knows.
    async fn node_with(&self, node: &str, walls: &[&str], features: &[String]) {
        let key = TypedKey::NodeInfo(node.parse().unwrap());
        let info = json!({
            "v": 1, "hostname": node, "version": "1", "cores": 1, "memory_bytes": 1,
            "started_at": 1, "http": "", "walls": walls, "features": features,
        });
        records::write(&*self.store, key, &info).await.unwrap();
    }

    async fn mark(&self, asked: Value) -> anyhow::Result<ApplicationIsolation> {
        self.client.post(PATH, &asked).await
    }

    async fn newest(&self) -> Release {
        let app = records::find(&*self.store, &"blog".parse().unwrap()).await.unwrap().unwrap();
        app.releases.last().unwrap().clone()
    }

    async fn spec(&self) -> ApplicationSpec {
        let key = TypedKey::Spec("blog".parse().unwrap());
        records::read(&*self.store, key).await.unwrap().unwrap()
    }
}

async fn push(client: &Client, settings: &str) -> anyhow::Result<Released> {
    let archive = archive(&[PYTHON, &[("cortex.toml", settings)]].concat());
    let archive = futures_util::stream::iter([Ok(bytes::Bytes::from(archive))]);
    client.upload(Method::POST, "/v1/apps/blog/releases", archive).await
}

fn words(release: &Release) -> (&'static str, &'static str) {
    (release.recipe.isolation.word(), release.recipe.egress.word())
}

#[tokio::test]
async fn what_a_developer_pushes_stays_behind_the_mark() {
    let api = Fixture::start().await;
    api.node_with("n1", &["standard", "full", "full-egress"], &Feature::words()).await;
    api.deploy("blog", "one").await;
    let built_outside = api.newest().await.build_id();
    api.user("ana", json!({ "role": "operator" })).await.unwrap();
    let ana = api.with_token(json!({ "name": "ci", "user": "ana" })).await;
    let refused: anyhow::Result<Value> = ana.post(PATH, &json!({ "isolation": "full" })).await;
    assert_eq!(code(refused), "no_right");
    let marked = api.mark(json!({ "isolation": "full" })).await.unwrap();
    assert_eq!(marked.asked.as_deref(), Some("none"));
    assert_eq!(marked.isolation.as_deref(), Some("full"), "it is restarted behind it");
    assert_eq!(marked.egress.as_deref(), Some("none"));
    assert_eq!(marked.released.unwrap().release, "v2");
    assert_eq!(api.spec().await.restart, 1);
    assert_ne!(api.newest().await.build_id(), built_outside, "it is built behind the wall");
    // The same once more changes nothing.
    assert_eq!(api.mark(json!({ "isolation": "full" })).await.unwrap().released, None);
    api.conclude("blog", RolloutPhase::Done, None).await;
    for settings in ["isolation = \"none\"\n", "isolation = \"full\"\negress = \"all\"\n"] {
        let pushed = push(&ana, settings).await.unwrap();
        let notes = pushed.notes.join("\n");
        assert!(notes.contains("it runs behind full, whatever its files ask for"), "{notes}");
        assert_eq!(words(&api.newest().await), ("full", "none"));
        assert!(api.newest().await.recipe.asked().isolation >= Isolation::Standard);
        api.conclude("blog", RolloutPhase::Done, None).await;
    }
    // Variables of what asks for enough are hers to change; that is not so of what does not, since
    // the mark may go.
    let variables = "/v1/apps/blog/config";
    let _: Value = ana.post(variables, &json!({ "A": "1" })).await.unwrap();
    assert_eq!(words(&api.newest().await), ("full", "none"));
    api.conclude("blog", RolloutPhase::Done, None).await;
    let to = json!({ "to": "v1" });
    let rolled: anyhow::Result<Value> = ana.post("/v1/apps/blog/rollback", &to).await;
    assert_eq!(code(rolled), "isolation_needed");
    // No return to what was made before gets around it.
    let _: Released = api.client.post("/v1/apps/blog/rollback", &to).await.unwrap();
    assert_eq!(words(&api.newest().await), ("full", "none"));
    assert_ne!(api.newest().await.build_id(), built_outside);
    api.conclude("blog", RolloutPhase::Done, None).await;
    let changed: anyhow::Result<Value> = ana.post(variables, &json!({ "A": "2" })).await;
    assert_eq!(code(changed), "isolation_needed");
    push(&ana, "isolation = \"full\"\negress = \"all\"\n").await.unwrap();
    api.conclude("blog", RolloutPhase::Done, None).await;
    let all = api.mark(json!({ "isolation": "full", "egress": "all" })).await.unwrap();
    assert_eq!(all.egress.as_deref(), Some("all"));
    api.conclude("blog", RolloutPhase::Done, None).await;
    // Without the mark it gets what it asked for.
    push(&api.client, "isolation = \"none\"\n").await.unwrap();
    assert_eq!(words(&api.newest().await), ("full", "all"));
    api.conclude("blog", RolloutPhase::Done, None).await;
    let restart = api.spec().await.restart;
    let without = api.mark(json!({ "isolation": "default" })).await.unwrap();
    assert_eq!((without.isolation.as_deref(), without.mark), (Some("none"), None));
    let newest = api.newest().await;
    assert_eq!((words(&newest), newest.recipe.isolation_asked), (("none", "none"), None));
    assert_eq!(api.spec().await.restart, restart, "the release takes over");
    let audit: Vec<AuditRow> = api.client.get("/v1/audit?app=blog&limit=1").await.unwrap();
    assert_eq!((audit[0].path.as_str(), audit[0].outcome.as_str()), (PATH, "done"));
}

#[tokio::test]
async fn a_mark_that_cannot_be_kept_is_refused_and_nothing_is_changed() {
    let api = Fixture::start().await;
    api.node_with("n1", &["standard"], &Feature::words()).await;
    let nowhere: anyhow::Result<Value> = api.client.get(PATH).await;
    assert_eq!(code(nowhere), "no_application");
    api.deploy("blog", "one").await;
    for (asked, expected) in [
        (json!({ "isolation": "none" }), "no_isolation"),
        (json!({ "isolation": "landlock" }), "no_isolation"),
        (json!({ "isolation": "full", "egress": "some" }), "no_egress"),
        (json!({ "isolation": "standard", "egress": "none" }), "no_egress"),
        (json!({ "isolation": "full" }), "no_wall"),
    ] {
        assert_eq!(code(api.mark(asked.clone()).await), expected, "{asked}");
    }
    assert_eq!((api.spec().await.isolation, api.spec().await.restart), (None, 0));
    // A member of an older build would start it without.
    let older: NodeId = "n2".parse().unwrap();
    let member = json!({ "v": 1, "id": "n2", "joined_at": 1 });
    records::write(&*api.store, TypedKey::Member(older), &member).await.unwrap();
    api.node_with("n2", &["standard", "full"], &["password".into()]).await;
    assert_eq!(code(api.mark(json!({ "isolation": "standard" })).await), "older_nodes");
    api.node_with("n2", &["standard", "full"], &Feature::words()).await;
    api.mark(json!({ "isolation": "standard" })).await.unwrap();
    // Before the first release there is nothing to be restarted.
    let _: Value = api.client.post("/v1/apps", &json!({ "name": "new" })).await.unwrap();
    let path = "/v1/apps/new/isolation";
    let new: ApplicationIsolation =
        api.client.post(path, &json!({ "isolation": "full" })).await.unwrap();
    assert_eq!((new.isolation, new.released), (None, None));
    assert!(new.mark.is_some());
}
