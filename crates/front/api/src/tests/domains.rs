//! Tests of domains: they are claimed once, by files and by commands, and clashes are shown.

use super::*;
use api_types::{ApplicationShown, Check, DomainsShown};
use client::ClientError;

const APP: (&str, &str) = ("app.py", "x");

fn named(domain: &str) -> String {
    format!("domains = ['{domain}']\n")
}

impl Fixture {
    async fn push_named(&self, app: &str, domain: &str) -> anyhow::Result<Released> {
        self.push(app, &[APP, ("cortex.toml", &named(domain))]).await
    }

    async fn change(&self, app: &str, change: Value) -> anyhow::Result<DomainsShown> {
        self.client.post(&format!("/v1/apps/{app}/domains"), &change).await
    }

    async fn create(&self, app: &str) {
        let _: Value = self.client.post("/v1/apps", &json!({ "name": app })).await.unwrap();
    }

    async fn domains(&self, app: &str) -> Vec<String> {
        let shown: DomainsShown =
            self.client.get(&format!("/v1/apps/{app}/domains")).await.unwrap();
        shown.domains.into_iter().map(|row| row.domain).collect()
    }
}

fn said(error: anyhow::Error) -> String {
    let hint = error.downcast_ref::<ClientError>().and_then(ClientError::hint).unwrap_or_default();
    format!("{error:#} {hint}")
}

#[tokio::test]
async fn a_domain_is_claimed_once_whoever_asks() {
    let api = Fixture::start().await;
    api.push_named("first", "Shop.Example.").await.unwrap();
    // The domain is kept while the first release is on its way and when it serves.
    for _ in 0..2 {
        let error = said(api.push_named("second", "shop.example").await.unwrap_err());
        assert!(error.contains("belongs to the application 'first'"), "{error}");
        api.conclude("first", RolloutPhase::Done, None).await;
    }
    assert!(api.keys().await.iter().all(|key| !key.starts_with("app::second")));
    api.create("second").await;
    let add = json!({ "add": ["SHOP.example."] });
    assert_eq!(code(api.change("second", add.clone()).await), "domain_taken");
    // A wildcard below it and another name are different domains.
    let others = json!({ "add": ["*.shop.example", "www.shop.example"] });
    api.change("second", others).await.unwrap();
    // This is what the refusal advises.
    api.change("first", json!({ "remove": ["shop.example"] })).await.unwrap();
    api.change("second", add).await.unwrap();
    let expected = ["*.shop.example", "www.shop.example", "shop.example"];
    assert_eq!(api.domains("second").await, expected);
    assert_eq!(code(api.push_named("third", "shop.example").await), "domain_taken");
    for name in ["first.localhost", "nobody.localhost", "*.localhost"] {
        assert_eq!(code(api.push_named("third", name).await), "domain_taken", "{name}");
    }
    api.push_named("third", "third.localhost").await.unwrap();
    assert_eq!(code(api.change("third", json!({ "add": ["a b"] })).await), "invalid_domain");
    assert_eq!(code(api.change("third", json!({ "remove": ["a.b"] })).await), "no_domain");
}

#[tokio::test]
async fn an_application_that_never_served_keeps_no_domain_from_one_that_does() {
    let api = Fixture::start().await;
    api.push_named("first", "shop.example").await.unwrap();
    api.conclude("first", RolloutPhase::Failed, Some("broken")).await;
    let released = api.push_named("second", "shop.example").await.unwrap();
    assert!(released.notes.iter().any(|note| note.contains("'first' too")), "{released:?}");
    api.conclude("second", RolloutPhase::Done, None).await;
    let info: ApplicationShown = api.client.get("/v1/apps/first").await.unwrap();
    assert!(info.clashes[0].ends_with("it leads to 'second'"), "{info:?}");
    let checks: Vec<Check> = api.client.get("/v1/doctor").await.unwrap();
    let advice = checks.iter().find(|check| check.name == "claims").unwrap();
    let advice = advice.advice.as_deref().unwrap();
    assert!(advice.contains("`cortex domains remove shop.example -a first`"), "{advice}");
    assert_eq!(code(api.push_named("first", "shop.example").await), "domain_taken");
    // A domain that was claimed by a command and never pushed gives way only to an application that
    // serves.
    api.create("third").await;
    api.change("third", json!({ "add": ["other.example"] })).await.unwrap();
    assert_eq!(code(api.push_named("fourth", "other.example").await), "domain_taken");
    api.change("second", json!({ "add": ["other.example"] })).await.unwrap();
}

#[tokio::test]
async fn commands_win_over_the_file_until_they_leave_it_to_that() {
    let api = Fixture::start().await;
    api.push_named("shop", "file.example").await.unwrap();
    api.conclude("shop", RolloutPhase::Done, None).await;
    api.change("shop", json!({ "add": ["bücher.example"] })).await.unwrap();
    assert_eq!(api.domains("shop").await, ["file.example", "xn--bcher-kva.example"]);
    let released = api.push_named("shop", "other.example").await.unwrap();
    assert!(released.notes.iter().any(|note| note.contains("domains reset")), "{released:?}");
    assert_eq!(api.domains("shop").await, ["file.example", "xn--bcher-kva.example"]);
    api.change("shop", json!({ "reset": true })).await.unwrap();
    api.push_named("shop", "other.example").await.unwrap();
    assert_eq!(api.domains("shop").await, ["other.example"]);
    // A domain that the file names no more is free again.
    api.push("shop", &[APP]).await.unwrap();
    assert_eq!(api.domains("shop").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_release_is_asked_by_the_first_domain_that_is_a_name() {
    let api = Fixture::start().await;
    let toml = "domains = ['*.shop.example', 'www.shop.example']\n[health]\npath = '/up'\n";
    let released = api.push("shop", &[APP, ("cortex.toml", toml)]).await.unwrap();
    let name: ApplicationName = "shop".parse().unwrap();
    let host = async |id: &str| {
        let key = TypedKey::Release(name.clone(), id.parse().unwrap());
        let release: Option<model::Release> = records::read(&*api.store, key).await.unwrap();
        release.unwrap().settings.health.host(&name)
    };
    assert_eq!(host(&released.id).await, "www.shop.example");
    api.conclude("shop", RolloutPhase::Done, None).await;
    let path = "/v1/apps/shop/releases?if_changed=true";
    let files = [APP, ("cortex.toml", toml)];
    assert!(api.push_archive(path, archive(&files)).await.unwrap().unchanged);
    let toml = format!("{toml}host = 'internal.example'\n");
    let released = api.push("shop", &[APP, ("cortex.toml", &toml)]).await.unwrap();
    assert_eq!(host(&released.id).await, "internal.example");
    let released = api.push("shop", &[APP]).await.unwrap();
    assert_eq!(host(&released.id).await, "shop.localhost");
}
