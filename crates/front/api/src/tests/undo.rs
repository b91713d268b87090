//! Changes that are taken back, by those who may, and what is refused so that nothing is lost.

use std::sync::Arc;

use api_types::people::{AuditRow, UserRow};
use api_types::undo::{ChangesShown, Undone};
use api_types::{Configured, ReleaseRow};
use model::audit::AuditId;
use model::{RolloutPhase, Timestamp, TypedKey};
use serde_json::{Value, json};

use super::super::audit::NewestFirst;
use super::super::caller::{Caller, Passed};
use super::super::{records, undo as undoing};
use super::fixture::{Fixture, code};
use client::Client;

async fn undo(client: &Client) -> anyhow::Result<Undone> {
    client.post("/v1/apps/blog/undo", &json!({})).await
}

async fn changes(client: &Client) -> ChangesShown {
    client.get("/v1/apps/blog/changes").await.unwrap()
}

async fn scale(client: &Client, count: u32) {
    let _: Value = client.post("/v1/apps/blog/scale", &json!({ "web": count })).await.unwrap();
}

async fn scaled(api: &Fixture) -> u64 {
    let shown: Value = api.client.get("/v1/apps/blog/scale").await.unwrap();
    shown["processes"]["web"].as_u64().unwrap()
}

impl Fixture {
    async fn set(&self, name: &str, value: &str) {
        let change = json!({ (name): value });
        let _: Configured = self.client.post("/v1/apps/blog/config", &change).await.unwrap();
        self.conclude("blog", RolloutPhase::Done, None).await;
    }

    async fn variable(&self, name: &str) -> Option<String> {
        let config: Value = self.client.get("/v1/apps/blog/config").await.unwrap();
        config[name].as_str().map(String::from)
    }

    async fn developer(&self, name: &str) -> Client {
        let grant = json!({ "role": "developer", "application": "blog" });
        let user = json!({ "name": name, "grant": grant });
        let _: UserRow = self.client.post("/v1/users", &user).await.unwrap();
        self.with_token(json!({ "name": "ci", "user": name })).await
    }
}

#[tokio::test]
async fn scaling_is_taken_back_and_the_undo_too() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    scale(&api.client, 3).await;
    let would = changes(&api.client).await.would.unwrap();
    assert_eq!(would, ["web from 3 to what the release says"]);
    let undone = undo(&api.client).await.unwrap();
    assert_eq!(undone.taken_back.what, "web from what the release says to 3");
    assert_eq!((undone.did, undone.released.is_none()), (would, true));
    let app = records::require(&*api.store, "blog").await.unwrap();
    assert!(app.spec.processes.is_empty(), "it is as before, not only as many");
    undo(&api.client).await.unwrap();
    assert_eq!(scaled(&api).await, 3);
    undo(&api.client).await.unwrap();
    assert_ne!(scaled(&api).await, 3);
    let audit: Vec<AuditRow> = api.client.get("/v1/audit?app=blog").await.unwrap();
    assert!(audit[0].what.as_ref().unwrap().starts_with("undo: web from 3"), "{audit:?}");
    assert_eq!(audit[1].what.as_deref(), Some("undo: web from what the release says to 3"));
    let first = changes(&api.client).await.changes.into_iter().find(|one| one.undoes.is_none());
    assert!(audit[2].undoes == first.map(|one| one.change), "{audit:?}");
}

#[tokio::test]
async fn variables_and_code_go_back_together() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    api.set("GREETING", "secret-word").await;
    api.deploy("blog", "two").await;
    let undone = undo(&api.client).await.unwrap();
    assert_eq!(undone.released.unwrap().release, "v4");
    api.conclude("blog", RolloutPhase::Done, None).await;
    assert_eq!(api.variable("GREETING").await.as_deref(), Some("secret-word"));
    let rows: Vec<ReleaseRow> = api.client.get("/v1/apps/blog/releases").await.unwrap();
    assert_eq!((rows[0].note.as_str(), &rows[0].source), ("undo: return to v2", &rows[2].source));
    assert_ne!(rows[0].source, rows[1].source);
    // What was before that is reached by name, if nothing is in its way.
    let set = &changes(&api.client).await.changes[2];
    assert!(set.obstacle.is_some(), "v3 and v4 came after it: {set:?}");
    undo(&api.client).await.unwrap();
    api.conclude("blog", RolloutPhase::Done, None).await;
    let rows: Vec<ReleaseRow> = api.client.get("/v1/apps/blog/releases").await.unwrap();
    assert_eq!(rows[0].source, rows[2].source, "the push is there again");
    api.set("GREETING", "other").await;
    undo(&api.client).await.unwrap();
    assert_eq!(api.variable("GREETING").await.as_deref(), Some("secret-word"));
    for entry in api.store.prefix(&model::key::audit_prefix()).await.unwrap() {
        let value = entry.value.read(1 << 20).unwrap();
        let text = String::from_utf8_lossy(&value);
        assert!(!text.contains("secret-word"), "the audit holds a value: {text}");
    }
}

#[tokio::test]
async fn domains_and_the_port_are_as_they_were() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    let before = records::require(&*api.store, "blog").await.unwrap().spec;
    let add = json!({ "add": ["a.test", "b.test"] });
    let _: Value = api.client.post("/v1/apps/blog/domains", &add).await.unwrap();
    let undone = undo(&api.client).await.unwrap();
    assert_eq!(undone.did, ["domains removed: a.test, b.test; domains left to the project's file"]);
    let after = records::require(&*api.store, "blog").await.unwrap().spec;
    assert_eq!((after.domains, after.domains_chosen), (before.domains, before.domains_chosen));
    // A domain that somebody else has by now is not taken from them.
    api.deploy("shop", "one").await;
    let add = json!({ "add": ["a.test"] });
    let _: Value = api.client.post("/v1/apps/shop/domains", &add).await.unwrap();
    assert_eq!(code(undo(&api.client).await), "domain_taken");
    let port = super::ports::free_port();
    let _: Value = api.client.post("/v1/apps/blog/port", &json!({ "port": port })).await.unwrap();
    undo(&api.client).await.unwrap();
    let after = records::require(&*api.store, "blog").await.unwrap().spec;
    assert_eq!((after.port, after.port_chosen), (before.port, before.port_chosen));
}

#[tokio::test]
async fn what_somebody_else_did_is_left_alone() {
    let api = Fixture::start().await;
    api.build_walls().await;
    api.deploy("blog", "one").await;
    let (ana, bob) = (api.developer("ana").await, api.developer("bob").await);
    scale(&ana, 2).await;
    let anas = changes(&ana).await.changes[0].clone();
    scale(&bob, 5).await;
    let refused = undo(&ana).await.unwrap_err();
    for part in ["is not yours", "by bob at", "web from 2 to 5"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let asked = json!({ "change": anas.change });
    let overtaken: anyhow::Result<Undone> = ana.post("/v1/apps/blog/undo", &asked).await;
    assert_eq!(code(overtaken), "changed_meanwhile");
    assert_eq!(scaled(&api).await, 5);
    undo(&bob).await.unwrap();
    assert_eq!(scaled(&api).await, 2);
    // Now it stands again, and is named.
    let undone: Undone = ana.post("/v1/apps/blog/undo", &asked).await.unwrap();
    assert_eq!(undone.taken_back.who, "ana");
    let asked = json!({ "change": "999-1.n1" });
    assert_eq!(code(ana.post::<_, Undone>("/v1/apps/blog/undo", &asked).await), "no_change");
    let asked = json!({ "change": "yesterday" });
    assert_eq!(code(ana.post::<_, Undone>("/v1/apps/blog/undo", &asked).await), "invalid_change");
}

#[tokio::test]
async fn a_role_on_the_application_is_taken_back_by_who_may_give_it() {
    let api = Fixture::start().await;
    api.build_walls().await;
    api.deploy("blog", "one").await;
    let ana = api.developer("ana").await;
    scale(&ana, 2).await;
    let operator = json!({ "role": "operator", "application": "blog" });
    let _: UserRow = api.client.post("/v1/users/ana/grant", &operator).await.unwrap();
    // She does not see it, and takes back what is hers.
    assert!(changes(&ana).await.changes.iter().all(|one| !one.what.contains("ana")));
    undo(&ana).await.unwrap();
    scale(&ana, 2).await;
    let given = changes(&api.client).await.changes;
    let given = given.iter().find(|one| one.what.contains("operator")).unwrap();
    assert_eq!(given.what, "ana from developer to operator");
    let asked = json!({ "change": given.change });
    let undone: Undone = api.client.post("/v1/apps/blog/undo", &asked).await.unwrap();
    assert_eq!(undone.did, ["ana from operator to developer"]);
    let users: Vec<UserRow> = api.client.get("/v1/users").await.unwrap();
    assert_eq!(users[0].grants[0].role, "developer");
    let audit: Vec<AuditRow> = api.client.get("/v1/audit?app=blog").await.unwrap();
    assert_eq!(audit[0].undoes.as_ref(), Some(&given.change));
    let revoke = json!({ "role": "", "application": "blog" });
    let _: UserRow = api.client.post("/v1/users/ana/revoke", &revoke).await.unwrap();
    undo(&api.client).await.unwrap();
    let users: Vec<UserRow> = api.client.get("/v1/users").await.unwrap();
    assert_eq!(users[0].grants[0].role, "developer");
}

#[tokio::test]
async fn what_cannot_be_taken_back_says_so() {
    let api = Fixture::start().await;
    let _: Value = api.client.post("/v1/apps", &json!({ "name": "blog" })).await.unwrap();
    assert_eq!(code(undo(&api.client).await), "nothing_to_undo");
    let change = json!({ "A": "1" });
    let _: Configured = api.client.post("/v1/apps/blog/config", &change).await.unwrap();
    assert_eq!(code(undo(&api.client).await), "cannot_be_undone");
    api.deploy("blog", "one").await;
    assert_eq!(code(undo(&api.client).await), "cannot_be_undone");
    let refused = changes(&api.client).await.refused.unwrap();
    assert!(refused.contains("nothing served before v1"), "{refused}");
    api.push("blog", &[("app.py", "two")]).await.unwrap();
    api.conclude("blog", RolloutPhase::Failed, Some("it exited")).await;
    let refused = undo(&api.client).await.unwrap_err().to_string();
    assert!(refused.contains("v2 failed, and v1 serves on"), "{refused}");
    // An application of the same name that comes later is another one.
    scale(&api.client, 3).await;
    let _: Value = api.client.delete("/v1/apps/blog?now=true").await.unwrap();
    api.deploy("blog", "one").await;
    let known = changes(&api.client).await.changes;
    assert!(known.iter().all(|one| !one.what.contains("web")), "{known:?}");
}

#[tokio::test]
async fn a_write_behind_the_back_of_the_audit_is_not_overwritten() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    scale(&api.client, 3).await;
    let mut spec = records::require(&*api.store, "blog").await.unwrap().spec;
    spec.processes.values_mut().for_each(|process| process.count = 7);
    let key = TypedKey::Spec("blog".parse().unwrap());
    records::write(&*api.store, key, &spec).await.unwrap();
    let refused = undo(&api.client).await.unwrap_err().to_string();
    assert!(refused.contains("web is at 7 now"), "{refused}");
    assert_eq!(scaled(&api).await, 7);
}

#[tokio::test]
async fn a_note_is_shown_in_releases_and_in_the_audit() {
    let api = Fixture::start().await;
    let noted = Client::new(&api.layout).with_note("für Müller: größer").unwrap();
    api.deploy("blog", "one").await;
    scale(&noted, 2).await;
    let change = json!({ "A": "1" });
    let _: Configured = noted.post("/v1/apps/blog/config", &change).await.unwrap();
    let rows: Vec<ReleaseRow> = noted.get("/v1/apps/blog/releases").await.unwrap();
    let said = Some("für Müller: größer");
    assert_eq!((rows[0].remark.as_deref(), rows[1].remark.as_deref()), (said, None));
    let audit: Vec<AuditRow> = api.client.get("/v1/audit").await.unwrap();
    assert_eq!((audit[0].note.as_deref(), audit[1].note.as_deref()), (said, said));
    assert_eq!(audit[2].note, None);
    assert_eq!(changes(&api.client).await.changes[1].note.as_deref(), said);
    assert!(Client::new(&api.layout).with_note("two\nlines").is_err());
    for bad in ["x".repeat(201), "  ".into()] {
        let client = Client::new(&api.layout).with_note(&bad).unwrap();
        let refused = client.post::<_, Value>("/v1/apps/blog/scale", &json!({ "web": 9 })).await;
        assert_eq!(code(refused), "invalid_note", "{bad}");
    }
    assert_eq!(scaled(&api).await, 2);
}

#[tokio::test]
async fn maintenance_is_shown_and_taken_back() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    let path = "/v1/apps/blog/maintenance";
    let set =
        async |on: bool| -> Value { api.client.post(path, &json!({ "on": on })).await.unwrap() };
    let since = set(true).await["since"].clone();
    assert!(since.is_string());
    assert_eq!(set(true).await["since"], since, "it stays closed since then");
    let rows: Value = api.client.get("/v1/apps").await.unwrap();
    assert_eq!(rows[0]["maintenance_since"], since);
    let undone = undo(&api.client).await.unwrap();
    assert_eq!(undone.did, ["open again after maintenance"]);
    let shown: Value = api.client.get(path).await.unwrap();
    assert_eq!(shown["since"], Value::Null);
    undo(&api.client).await.unwrap();
    let shown: Value = api.client.get(path).await.unwrap();
    assert_eq!(shown["since"], since);
    set(false).await;
    let rows: Value = api.client.get("/v1/apps").await.unwrap();
    assert_eq!(rows[0].get("maintenance_since"), None);
}

#[tokio::test]
async fn no_more_of_the_audit_is_read_than_is_shown() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    scale(&api.client, 3).await;
    let mut audit = NewestFirst::open(&api.store).await.unwrap();
    let (id, entry, _) = audit.page().await.unwrap().unwrap().remove(0);
    let (at, day) = (id.entry.at.0, 24 * 3600 * 1000);
    let earlier = (1..=250).chain([2 * day, 3 * day]).map(|ms| Timestamp(at - ms));
    for at in earlier {
        let key = TypedKey::Audit(api.node.clone(), AuditId::new(at, 1));
        records::write(&*api.store, key, &entry).await.unwrap();
    }
    let mut audit = NewestFirst::open(&api.store).await.unwrap();
    let left = audit.left();
    let app = records::require(&*api.store, "blog").await.unwrap();
    let caller = Caller(Arc::new(Passed::Machine { uid: 0 }));
    let known = undoing::known_in(&mut audit, &caller, &app).await.unwrap();
    assert_eq!((known.len(), known[0].id.clone()), (undoing::CHANGES_MAX, id.clone()));
    assert!(audit.left() > left / 2, "{} of {left} are left", audit.left());
    let ids: Vec<_> = known.into_iter().map(|one| one.id).collect();
    assert!(ids.is_sorted_by(|a, b| a > b), "the newest come first: {ids:?}");
    // What came long before an application is not read for it, however few changes it has.
    let of_app = undoing::audit_of(&api.store, &app).await.unwrap();
    assert_eq!(of_app.left(), left - 2);
    let rows: Vec<AuditRow> = api.client.get("/v1/audit?limit=3").await.unwrap();
    assert_eq!((rows.len(), rows[0].what.as_ref()), (3, rows[1].what.as_ref()));
}
