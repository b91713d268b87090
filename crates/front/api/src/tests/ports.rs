//! The port of HTTP, from one release to the next.

use model::RolloutPhase;
use serde_json::{Value, json};

use super::{Fixture, code, port};
use api_types::Released;

const APP: &str = "shop";

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn manifest(http: u16, services: &[u16]) -> String {
    let service = |port| format!("[[ports]]\nport = {port}\nenv = 'LINES_PORT'\n");
    let services: String = services.iter().map(service).collect();
    format!("port = {http}\n{services}")
}

async fn push(api: &Fixture, manifest: &str) -> anyhow::Result<Released> {
    api.push(APP, &[("app.py", "x"), ("cortex.toml", manifest)]).await
}

#[tokio::test]
async fn port_is_that_of_the_serving_release_and_is_kept_for_it() {
    let api = Fixture::start().await;
    let (one, two) = (free_port(), free_port());
    push(&api, &manifest(one, &[])).await.unwrap();
    api.conclude(APP, RolloutPhase::Done, None).await;
    assert_eq!(port(&api, APP).await, one);

    push(&api, &manifest(two, &[one])).await.unwrap();
    assert_eq!(port(&api, APP).await, one, "it does not serve yet");
    let other = json!({"name": "other", "port": one});
    assert_eq!(code(api.client.post::<_, Value>("/v1/apps", &other).await), "port_taken");
    api.conclude(APP, RolloutPhase::Failed, Some("it does not start")).await;
    assert_eq!(port(&api, APP).await, one, "it never served");

    push(&api, &manifest(two, &[one])).await.unwrap();
    api.conclude(APP, RolloutPhase::Done, None).await;
    assert_eq!(port(&api, APP).await, two);

    let to = json!({"to": "v1"});
    let _: Released = api.client.post("/v1/apps/shop/rollback", &to).await.unwrap();
    api.conclude(APP, RolloutPhase::Done, None).await;
    assert_eq!(port(&api, APP).await, one);
}

#[tokio::test]
async fn clash_of_a_release_with_itself_is_explained() {
    let api = Fixture::start().await;
    let (one, two) = (free_port(), free_port());
    let refused = push(&api, &manifest(one, &[one])).await.unwrap_err().to_string();
    assert!(refused.contains("'port' has it for HTTP"), "{refused}");
    push(&api, &manifest(one, &[two])).await.unwrap();
    // The release that is on its way needs it.
    let asked = json!({"port": two});
    assert_eq!(code(api.client.post::<_, Value>("/v1/apps/shop/port", &asked).await), "port_taken");
    let _: Value = api.client.post("/v1/apps/shop/port", &json!({"port": one})).await.unwrap();
    let error = push(&api, &manifest(two, &[one])).await.unwrap_err();
    let error = error.downcast_ref::<client::ClientError>().expect("a problem of the API");
    assert!(error.hint().unwrap().contains("a command chose it"), "{:?}", error.hint());
}

#[tokio::test]
async fn rollback_to_a_port_that_is_taken_meanwhile_is_refused() {
    let api = Fixture::start().await;
    let (one, two) = (free_port(), free_port());
    for http in [one, two] {
        push(&api, &manifest(http, &[])).await.unwrap();
        api.conclude(APP, RolloutPhase::Done, None).await;
    }
    let other = json!({"name": "other", "port": one});
    let _: Value = api.client.post("/v1/apps", &other).await.unwrap();
    api.deploy("other", "x").await;
    let back: anyhow::Result<Released> =
        api.client.post("/v1/apps/shop/rollback", &json!({})).await;
    assert_eq!(code(back), "port_taken");
    assert_eq!(port(&api, APP).await, two);
}
