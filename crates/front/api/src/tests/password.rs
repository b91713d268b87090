//! The password that clients of an application are asked for.

use api_types::maintenance::PasswordShown;
use api_types::undo::Undone;
use api_types::{ApplicationRow, authority::DomainsStatus};
use model::Timestamp;
use serde_json::{Value, json};

use super::super::records;
use super::fixture::{Fixture, code};

const PATH: &str = "/v1/apps/blog/password";
const FIRST: &str = "correct horse";
const SECOND: &str = "battery staple";

impl Fixture {
    async fn set_password(&self, password: Value) -> anyhow::Result<PasswordShown> {
        self.client.post(PATH, &json!({ "password": password })).await
    }

    /// Returns when the password was set, which is shown everywhere.
    async fn password_since(&self) -> Option<Timestamp> {
        let shown: PasswordShown = self.client.get(PATH).await.unwrap();
        let row: ApplicationRow = self.client.get("/v1/apps/blog").await.unwrap();
        let domains: DomainsStatus = self.client.get("/v1/apps/blog/domains/status").await.unwrap();
        let spec = records::require(&*self.store, "blog").await.unwrap().spec;
        let since = spec.password.map(|password| password.since);
        let said = since.map(records::rfc3339);
        assert_eq!(
            [row.password_since, domains.password_since, shown.since],
            [(); 3].map(|()| said.clone())
        );
        since
    }

    async fn undo(&self) -> anyhow::Result<Undone> {
        self.client.post("/v1/apps/blog/undo", &json!({})).await
    }
}

#[tokio::test]
async fn a_password_is_shown_as_set_and_never_itself_and_is_taken_back() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    assert_eq!(api.password_since().await, None);
    assert!(api.set_password(json!(FIRST)).await.unwrap().since.is_some());
    let first = api.password_since().await;
    api.set_password(json!(SECOND)).await.unwrap();
    let second = api.password_since().await;
    assert!(first.is_some() && second > first);
    let undone = api.undo().await.unwrap();
    assert_eq!(
        (undone.did, api.password_since().await),
        (vec!["asks for another password".into()], first)
    );
    let undone = api.undo().await.unwrap();
    assert_eq!((undone.did.len(), api.password_since().await), (1, second));
    assert_eq!(api.set_password(Value::Null).await.unwrap().since, None);
    let undone = api.undo().await.unwrap();
    assert_eq!(
        (undone.did, api.password_since().await),
        (vec!["asks for a password".into()], second)
    );
    // Nobody finds them anywhere.
    let spec = records::require(&*api.store, "blog").await.unwrap().spec;
    let mut said = format!("{spec:?}");
    for path in ["/v1/audit", "/v1/apps/blog/changes", "/v1/apps", "/v1/apps/blog", PATH] {
        said.push_str(&api.client.get::<Value>(path).await.unwrap().to_string());
    }
    for password in [FIRST, SECOND] {
        assert!(!said.contains(password), "{said}");
        for prefix in ["app", "audit"] {
            let stored = api.store.prefix(&prefix.parse().unwrap()).await.unwrap();
            assert!(!stored.is_empty());
            let holds = |entry: &store::Entry| {
                let bytes = entry.value.inline().map(|bytes| bytes.to_vec()).unwrap_or_default();
                String::from_utf8_lossy(&bytes).contains(password)
            };
            assert!(!stored.iter().any(holds));
        }
    }
}

#[tokio::test]
async fn a_password_that_no_good_comes_of_is_refused() {
    let api = Fixture::start().await;
    api.deploy("blog", "one").await;
    for bad in ["", "short", &"x".repeat(129), "with\na line"] {
        assert_eq!(code(api.set_password(json!(bad)).await), "invalid_password", "{bad:?}");
    }
    api.set_password(json!(FIRST)).await.unwrap();
    api.set_password(Value::Null).await.unwrap();
    // A node of an older build would let everybody in.
    api.enter_node("n2", vec!["kept-applications".into()]).await;
    assert_eq!(code(api.set_password(json!(FIRST)).await), "older_nodes");
    assert_eq!(code(api.undo().await), "older_nodes");
    assert_eq!(api.password_since().await, None);
    assert_eq!(api.set_password(Value::Null).await.unwrap().since, None, "none is always possible");
}
