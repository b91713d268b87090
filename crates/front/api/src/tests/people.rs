//! People as they meet the API: users, teams, tokens, and what the audit says of them.

use access_core::TokenText;
use api_types::people::{AuditRow, TeamRow, TokenCreated, TokenRow, UserRow};
use api_types::{ApplicationRow, ReleaseRow, Released};
use hyper::Method;
use model::TypedKey;
use model::node::NodeDisk;
use runtime::faults::Fault;
use serde_json::{Value, json};

use super::super::records;
use super::fixture::{Fixture, PYTHON, archive, code};
use client::{Client, ClientError};

impl Fixture {
    pub async fn user(&self, name: &str, grant: Value) -> anyhow::Result<UserRow> {
        self.client.post("/v1/users", &json!({ "name": name, "grant": grant })).await
    }

    /// Has the node say that it can build walls, as one does that has tried.
    pub async fn build_walls(&self) {
        let key = TypedKey::NodeInfo(self.node.clone());
        let info = json!({
            "v": 1, "hostname": "n1", "version": "1", "cores": 1, "memory_bytes": 1, "started_at": 1,
            "http": "", "walls": ["standard"],
        });
        records::write(&*self.store, key, &info).await.unwrap();
    }

    async fn change_user(&self, name: &str, what: &str, grant: Value) -> anyhow::Result<UserRow> {
        self.client.post(&format!("/v1/users/{name}/{what}"), &grant).await
    }

    /// Returns a client with a new token of that user.
    pub async fn with_token(&self, asked: Value) -> Client {
        let made: TokenCreated = self.client.post("/v1/tokens", &asked).await.unwrap();
        self.client_of(&made)
    }

    fn client_of(&self, made: &TokenCreated) -> Client {
        Client::new(&self.layout).with_token(&TokenText::parse(&made.token).unwrap())
    }

    async fn audit(&self) -> Vec<AuditRow> {
        self.client.get("/v1/audit").await.unwrap()
    }

    async fn names_seen_by(&self, client: &Client) -> Vec<String> {
        let rows: Vec<ApplicationRow> = client.get("/v1/apps").await.unwrap();
        rows.into_iter().map(|row| row.name).collect()
    }
}

async fn push(client: &Client, app: &str) -> anyhow::Result<Released> {
    push_files(client, app, PYTHON).await
}

async fn push_files(
    client: &Client,
    app: &str,
    files: &[(&str, &str)],
) -> anyhow::Result<Released> {
    let archive = futures_util::stream::iter([Ok(bytes::Bytes::from(archive(files)))]);
    client.upload(Method::POST, &format!("/v1/apps/{app}/releases"), archive).await
}

#[tokio::test]
async fn roles_are_granted_and_taken_away() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    assert_eq!(code(api.user("Ana", Value::Null).await), "invalid_name");
    assert_eq!(code(api.user("ana", json!({ "role": "admin" })).await), "no_role");
    let gone = json!({ "role": "viewer", "application": "gone" });
    assert_eq!(code(api.user("ana", gone.clone()).await), "no_application");
    api.user("ana", Value::Null).await.unwrap();
    assert_eq!(code(api.user("ana", Value::Null).await), "user_exists");
    assert_eq!(code(api.change_user("ana", "grant", gone).await), "no_application");
    assert_eq!(code(api.change_user("eve", "grant", json!({ "role": "viewer" })).await), "no_user");
    let blog = |role: &str| json!({ "role": role, "application": "blog" });
    api.change_user("ana", "grant", blog("viewer")).await.unwrap();
    let ana = api.change_user("ana", "grant", blog("developer")).await.unwrap();
    let [grant] = &ana.grants[..] else { panic!("{ana:?}") };
    assert_eq!((grant.role.as_str(), grant.on.as_str()), ("developer", "application blog"));
    let _: Value = api.client.delete("/v1/apps/blog").await.unwrap();
    let users: Vec<UserRow> = api.client.get("/v1/users").await.unwrap();
    assert!(users[0].grants[0].gone, "{users:?}");
    let ana = api.change_user("ana", "revoke", blog("")).await.unwrap();
    assert!(ana.grants.is_empty());
    assert_eq!(code(api.change_user("ana", "revoke", blog("")).await), "no_grant");
}

#[tokio::test]
async fn the_last_owner_stays() {
    let api = Fixture::start().await;
    let owner = || json!({ "role": "owner" });
    api.user("ana", owner()).await.unwrap();
    api.user("eve", Value::Null).await.unwrap();
    let removed: anyhow::Result<UserRow> = api.client.delete("/v1/users/ana").await;
    assert_eq!(code(removed), "last_owner");
    assert_eq!(code(api.change_user("ana", "revoke", json!({ "role": "" })).await), "last_owner");
    let less = json!({ "role": "viewer" });
    assert_eq!(code(api.change_user("ana", "grant", less).await), "last_owner");
    api.change_user("eve", "grant", owner()).await.unwrap();
    let _: UserRow = api.client.delete("/v1/users/ana").await.unwrap();
}

#[tokio::test]
async fn a_token_is_shown_once_and_kept_as_a_hash() {
    let api = Fixture::start().await;
    let create = |asked: Value| {
        let client = &api.client;
        async move { client.post::<_, TokenCreated>("/v1/tokens", &asked).await }
    };
    assert_eq!(code(create(json!({ "name": "ci", "user": "ana" })).await), "no_user");
    api.user("ana", json!({ "role": "viewer" })).await.unwrap();
    assert_eq!(code(create(json!({ "name": "ci" })).await), "no_user_named");
    let days = |days: u32| json!({ "name": "ci", "user": "ana", "days": days });
    assert_eq!(code(create(days(0)).await), "invalid_expiry");
    assert_eq!(code(create(days(4000)).await), "invalid_expiry");
    let made = create(days(1)).await.unwrap();
    assert_eq!(code(create(days(1)).await), "token_exists");
    let (ana, socket) = (api.client_of(&made), "/v1/tokens");
    assert!(api.names_seen_by(&ana).await.is_empty());
    let listed: Vec<TokenRow> = ana.get(socket).await.unwrap();
    assert_eq!((listed.len(), listed[0].state.as_str()), (1, "valid"));
    assert!(listed[0].last_used_at.is_some());
    for entry in api.store.prefix(&model::Prefix::all()).await.unwrap() {
        let value = entry.value.read(1 << 20).unwrap();
        let text = format!("{} {}", entry.key, String::from_utf8_lossy(&value));
        assert!(!text.contains(&made.token), "{} tells the token", entry.key);
    }
    let revoked: TokenRow = ana.delete("/v1/tokens/ana/ci").await.unwrap();
    assert_eq!(revoked.state, "revoked");
    assert_eq!(code(ana.get::<Value>(socket).await), "token_revoked");
    let again: anyhow::Result<TokenRow> = api.client.delete("/v1/tokens/ana/ci").await;
    assert_eq!(code(again), "no_token");
}

#[tokio::test]
async fn a_token_makes_none_that_does_more_or_lasts_longer() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    api.user("ana", json!({ "role": "operator" })).await.unwrap();
    api.user("eve", Value::Null).await.unwrap();
    let limit = json!({ "role": "developer", "application": "blog" });
    let asked = json!({ "name": "ci", "user": "ana", "limit": limit, "days": 2 });
    let ci = api.with_token(asked).await;
    let make = |asked: Value| {
        let ci = &ci;
        async move { ci.post::<_, TokenCreated>("/v1/tokens", &asked).await }
    };
    let wider = json!({ "name": "more", "limit": { "role": "operator", "application": "blog" } });
    assert_eq!(code(make(wider).await), "token_limited");
    let wider = json!({ "name": "more", "limit": { "role": "viewer" } });
    assert_eq!(code(make(wider).await), "token_limited");
    assert_eq!(code(make(json!({ "name": "more", "user": "eve" })).await), "no_user");
    let made = make(json!({ "name": "more", "days": 300 })).await.unwrap();
    assert_eq!(made.row.limit.unwrap().on, "application blog");
    let rows: Vec<TokenRow> = ci.get("/v1/tokens").await.unwrap();
    assert!(rows.iter().all(|row| row.expires_at == rows[0].expires_at), "{rows:?}");
}

#[tokio::test]
async fn what_is_not_yours_looks_as_if_it_were_not_there() {
    let api = Fixture::start().await;
    api.build_walls().await;
    api.deploy("blog", "one").await;
    api.deploy("shop", "one").await;
    api.user("ana", json!({ "role": "developer", "application": "blog" })).await.unwrap();
    let ana = api.with_token(json!({ "name": "ci", "user": "ana" })).await;
    assert_eq!(api.names_seen_by(&ana).await, ["blog"]);
    let problem = |result: anyhow::Result<Value>| match result.unwrap_err().downcast() {
        Ok(ClientError::Problem(problem)) => serde_json::to_string(&problem).unwrap(),
        other => panic!("{other:?}"),
    };
    for end in ["", "/logs", "/config", "/releases/v1.n1/progress"] {
        let hidden = problem(ana.get(&format!("/v1/apps/shop{end}")).await);
        let missing = problem(ana.get(&format!("/v1/apps/shap{end}")).await);
        assert_eq!(hidden.replace("shop", "shap"), missing);
    }
    assert_eq!(code(push(&ana, "shop").await), "no_application");
    assert_eq!(code(push(&ana, "anew").await), "no_application");
    // Who takes over the name of an application takes over no rights.
    let _: Value = api.client.delete("/v1/apps/blog?now=true").await.unwrap();
    api.deploy("blog", "another").await;
    assert!(api.names_seen_by(&ana).await.is_empty());
}

#[tokio::test]
async fn a_team_has_what_its_people_make() {
    let api = Fixture::start().await;
    api.build_walls().await;
    api.deploy("shop", "one").await;
    let _: TeamRow = api.client.post("/v1/teams", &json!({ "name": "red" })).await.unwrap();
    for (name, role) in [("ana", "developer"), ("eve", "viewer")] {
        api.user(name, json!({ "role": role, "team": "red" })).await.unwrap();
    }
    let ana = api.with_token(json!({ "name": "ci", "user": "ana" })).await;
    let eve = api.with_token(json!({ "name": "ci", "user": "eve" })).await;
    push(&ana, "blog").await.unwrap();
    let _: Value = ana.post("/v1/apps", &json!({ "name": "wiki" })).await.unwrap();
    assert_eq!(api.names_seen_by(&eve).await, ["blog", "wiki"]);
    assert_eq!(code(push(&eve, "blog").await), "no_right");
    let change = json!({ "add": ["shop"], "remove": ["wiki"] });
    let red: TeamRow = api.client.post("/v1/teams/red", &change).await.unwrap();
    assert_eq!(red.applications, ["blog", "shop"]);
    assert_eq!(red.people, ["developer ana", "viewer eve"]);
    assert_eq!(api.names_seen_by(&ana).await, ["blog", "shop"]);
    let gone = api.client.post::<_, TeamRow>("/v1/teams/red", &json!({ "add": ["gone"] })).await;
    assert_eq!(code(gone), "no_application");
    let _: TeamRow = api.client.delete("/v1/teams/red").await.unwrap();
    let _: TeamRow = api.client.post("/v1/teams", &json!({ "name": "red" })).await.unwrap();
    assert!(api.names_seen_by(&ana).await.is_empty());
}

#[tokio::test]
async fn what_would_be_more_than_a_team_may_is_refused_and_changes_nothing() {
    let api = Fixture::start().await;
    api.build_walls().await;
    let _: TeamRow = api.client.post("/v1/teams", &json!({ "name": "red" })).await.unwrap();
    let limits = json!({ "applications": 2, "instances": 3, "memory_bytes": 1_610_612_736_u64 });
    let red: TeamRow =
        api.client.post("/v1/teams/red", &json!({ "limits": limits })).await.unwrap();
    assert_eq!(red.limits.instances, Some(3));
    api.user("ana", json!({ "role": "developer", "team": "red" })).await.unwrap();
    let ana = api.with_token(json!({ "name": "ci", "user": "ana" })).await;
    push(&ana, "blog").await.unwrap();
    let scale = async |app: &str, web: u32| {
        ana.post::<_, Value>(&format!("/v1/apps/{app}/scale"), &json!({ "web": web })).await
    };
    scale("blog", 3).await.unwrap();
    let refused = scale("blog", 4).await.unwrap_err().to_string();
    assert!(refused.contains("4 instances in all (in use: 3, allowed: 3)"), "{refused}");
    assert_eq!(code(push(&ana, "wiki").await), "team_limit");
    assert_eq!(api.names_seen_by(&ana).await, ["blog"], "nothing is left of it");
    scale("blog", 2).await.unwrap();
    push(&ana, "wiki").await.unwrap();
    assert_eq!(
        code(ana.post::<_, Value>("/v1/apps", &json!({ "name": "more" })).await),
        "team_limit"
    );
    // A limit that was lowered lets what runs run on, and be released anew.
    let lower = json!({ "limits": { "applications": 1, "instances": 1 } });
    let red: TeamRow = api.client.post("/v1/teams/red", &lower).await.unwrap();
    assert_eq!((red.used.applications, red.used.instances), (2, 3));
    push(&ana, "blog").await.unwrap();
    assert_eq!(code(scale("wiki", 2).await), "team_limit");
    // An application of somebody else counts once it is given.
    api.deploy("shop", "one").await;
    let given = api.client.post::<_, TeamRow>("/v1/teams/red", &json!({ "add": ["shop"] })).await;
    assert_eq!(code(given), "team_limit");
}

#[tokio::test]
async fn an_instance_of_a_team_with_limited_memory_is_limited() {
    let api = Fixture::start().await;
    api.build_walls().await;
    let _: TeamRow = api.client.post("/v1/teams", &json!({ "name": "red" })).await.unwrap();
    let limits = json!({ "limits": { "memory_bytes": 1 << 30 } });
    let _: TeamRow = api.client.post("/v1/teams/red", &limits).await.unwrap();
    api.user("ana", json!({ "role": "developer", "team": "red" })).await.unwrap();
    let ana = api.with_token(json!({ "name": "ci", "user": "ana" })).await;
    let released = push(&ana, "blog").await.unwrap();
    let notes = released.notes.join("; ");
    assert!(notes.contains("an instance may take 512 MB"), "{notes}");
    let app = records::require(&*api.store, "blog").await.unwrap();
    assert_eq!(app.releases[0].settings.limits.memory_bytes, Some(512 << 20));
    let scaled = ana.post::<_, Value>("/v1/apps/blog/scale", &json!({ "web": 3 })).await;
    assert!(scaled.unwrap_err().to_string().contains("1536 MB of memory in all"));
}

#[tokio::test]
async fn a_push_that_a_teams_disk_has_no_room_for_is_refused() {
    let api = Fixture::start().await;
    api.build_walls().await;
    let _: TeamRow = api.client.post("/v1/teams", &json!({ "name": "red" })).await.unwrap();
    let limits = json!({ "limits": { "disk_bytes": 100 << 20 } });
    let _: TeamRow = api.client.post("/v1/teams/red", &limits).await.unwrap();
    api.user("ana", json!({ "role": "developer", "team": "red" })).await.unwrap();
    let ana = api.with_token(json!({ "name": "ci", "user": "ana" })).await;
    push(&ana, "blog").await.unwrap();
    for (node, blog, foreign) in [("n1", 60 << 20, 0_u64), ("n2", 39 << 20, 900 << 20)] {
        let bytes = [("blog", blog), ("shop", foreign)];
        let bytes = bytes.map(|(name, bytes)| (name.parse().unwrap(), bytes)).into();
        let disk = NodeDisk { v: 1, bytes, ..NodeDisk::default() };
        let key = TypedKey::NodeDisk(node.parse().unwrap());
        records::write(&*api.store, key, &disk).await.unwrap();
    }
    push(&ana, "blog").await.unwrap();
    let full = NodeDisk {
        v: 1,
        bytes: [("blog".parse().unwrap(), 61 << 20)].into(),
        ..NodeDisk::default()
    };
    records::write(&*api.store, TypedKey::NodeDisk("n1".parse().unwrap()), &full).await.unwrap();
    // A source that the nodes have already takes no more of it.
    push(&ana, "blog").await.unwrap();
    let other = [PYTHON, &[("more.txt", "more")]].concat();
    let refused = push_files(&ana, "blog", &other).await.unwrap_err().to_string();
    assert!(
        refused.contains("101 MB of disk in all (in use: 100 MB, allowed: 100 MB)"),
        "{refused}"
    );
    let _: Value = ana.post("/v1/apps/blog/scale", &json!({ "web": 2 })).await.unwrap();
    let red: Vec<TeamRow> = api.client.get("/v1/teams").await.unwrap();
    assert_eq!(red[0].used.disk_bytes, 100 << 20);
}

#[tokio::test]
async fn releases_and_the_audit_say_by_whom() {
    let api = Fixture::start().await;
    api.build_walls().await;
    api.deploy("blog", "one").await;
    api.user("ana", json!({ "role": "developer", "application": "blog" })).await.unwrap();
    let ana = api.with_token(json!({ "name": "ci", "user": "ana" })).await;
    push(&ana, "blog").await.unwrap();
    let rows: Vec<ReleaseRow> = ana.get("/v1/apps/blog/releases").await.unwrap();
    let account = crate::user_name(rustix::process::getuid().as_raw());
    assert_eq!((rows[0].author.as_str(), rows[1].author.as_str()), ("ana", account.as_str()));
    assert_eq!(
        code(ana.post::<_, Value>("/v1/apps/blog/scale", &json!({ "x": 1 })).await),
        "unknown_process"
    );
    let audit = api.audit().await;
    let [refused, pushed, ..] = &audit[..] else { panic!("{audit:?}") };
    assert_eq!((refused.outcome.as_str(), refused.status), ("refused", Some(422)));
    assert_eq!(refused.before, refused.after);
    assert_eq!((pushed.who.as_str(), pushed.token.as_deref()), ("ana", Some("ci")));
    assert_eq!((pushed.outcome.as_str(), pushed.application.as_deref()), ("done", Some("blog")));
    assert!(pushed.before.is_some() && pushed.before != pushed.after, "{pushed:?}");
    assert_eq!(audit.last().unwrap().who, account);
    assert_eq!(code(ana.get::<Value>("/v1/audit").await), "no_right");
    let of_blog: Vec<AuditRow> = api.client.get("/v1/audit?app=blog&limit=2").await.unwrap();
    assert_eq!(of_blog, audit[..2]);
}

#[tokio::test]
async fn a_change_that_a_crash_cuts_off_is_an_attempt() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    let path = "/v1/apps/blog/config";
    api.control.faults.arm("api.audit", Fault::PanicOnce).unwrap();
    let cut: anyhow::Result<Value> = api.client.post(path, &json!({ "A": "1" })).await;
    assert!(cut.is_err());
    let audit = api.audit().await;
    assert_eq!((audit[0].path.as_str(), audit[0].outcome.as_str()), (path, "attempted"));
    assert_eq!((audit[0].status, audit[0].after.as_deref()), (None, None));
    let variables: Value = api.client.get(path).await.unwrap();
    assert_eq!(variables, json!({}));
    let _: Value = api.client.post(path, &json!({ "A": "1" })).await.unwrap();
    assert_eq!(api.audit().await[0].outcome, "done");
}

#[tokio::test]
async fn who_is_no_owner_runs_nothing_without_a_wall() {
    let api = Fixture::start().await;
    let settings = |isolation: &str| format!("isolation = \"{isolation}\"\n");
    let [none, standard] = ["none", "standard"].map(settings);
    let of = |settings: &str| archive(&[PYTHON, &[("cortex.toml", settings)]].concat());
    let push = async |client: &Client, archive: Vec<u8>| {
        let archive = futures_util::stream::iter([Ok(bytes::Bytes::from(archive))]);
        let path = "/v1/apps/blog/releases";
        client.upload::<Released>(Method::POST, path, archive).await
    };
    let isolation = async || {
        let shown: Value = api.client.get("/v1/apps/blog").await.unwrap();
        shown["isolation"].as_str().unwrap().to_owned()
    };
    api.deploy("blog", "one").await;
    assert_eq!(isolation().await, "none");
    let added = api.user("ana", json!({ "role": "operator" })).await.unwrap();
    assert!(added.notes.iter().any(|note| note.contains("pushed again: blog")), "{added:?}");
    let again = api.user("ben", json!({ "role": "viewer" })).await.unwrap();
    assert!(again.notes.is_empty(), "it is said once: {again:?}");
    // No node says that it can build one.
    assert_eq!(code(push(&api.client, archive(PYTHON)).await), "no_wall");
    api.build_walls().await;
    let ana = api.with_token(json!({ "name": "ci", "user": "ana" })).await;
    assert_eq!(code(push(&ana, of(&none)).await), "isolation_needed");
    let config = json!({ "LD_PRELOAD": "./own.so" });
    let changed: anyhow::Result<Value> = ana.post("/v1/apps/blog/config", &config).await;
    assert_eq!(code(changed), "isolation_needed");
    push(&ana, of(&standard)).await.unwrap();
    assert_eq!(isolation().await, "none", "until it serves");
    let rolled: anyhow::Result<Value> =
        ana.post("/v1/apps/blog/rollback", &json!({ "to": "v1" })).await;
    assert_eq!(code(rolled), "isolation_needed");
    push(&api.client, of(&none)).await.unwrap();
    let set = async |client: &Client, default: &str| -> anyhow::Result<Value> {
        client.post("/v1/isolation", &json!({ "default": default })).await
    };
    assert_eq!(code(set(&ana, "none").await), "no_right");
    assert_eq!(code(set(&api.client, "some").await), "no_isolation");
    assert_eq!(set(&api.client, "none").await.unwrap()["set"], "none");
    push(&ana, of(&none)).await.unwrap();
    // More may be the default, and then less is an owner's; no node can build it here.
    assert_eq!(set(&api.client, "full").await.unwrap()["default"], "full");
    assert_eq!(code(push(&ana, of(&standard)).await), "isolation_needed");
    assert_eq!(code(push(&ana, archive(PYTHON)).await), "no_wall");
    push(&api.client, of(&standard)).await.unwrap();
    assert_eq!(set(&api.client, "none").await.unwrap()["set"], "none");
    let auto = set(&api.client, "auto").await.unwrap();
    assert_eq!((&auto["default"], &auto["set"]), (&json!("standard"), &json!("auto")));
}
