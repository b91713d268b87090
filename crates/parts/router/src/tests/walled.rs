//! An application that asks its clients for a password: they pass who know it, those in the lane
//! too, and its instances hear nothing of it.

use std::sync::Arc;

use model::Timestamp;
use model::application::Settings;
use model::release::{Recipe, StaticMount};
use model::{BuildId, InstanceState::Ready};
use router_core::wall;

use super::world::{Backend, Client, World, app, ok, release_id, wait};
use crate::connection::run::QUICK_IN_A_ROW;

/// Requests, more than it takes to be in the lane.
const ASKED: usize = QUICK_IN_A_ROW as usize + 2;
const PASSWORD: &str = "open sesame";
/// `ana:open sesame` and `ana:open barley` in base64.
const RIGHT: &str = "Basic YW5hOm9wZW4gc2VzYW1l";
const WRONG: &str = "Basic YW5hOm9wZW4gYmFybGV5";

/// Sets the password, or none, and waits until that holds.
async fn put(world: &World, password: Option<&str>) {
    let mount = StaticMount { prefix: "/".into(), directory: "public".into(), fallback: None };
    let recipe = Recipe { statics: vec![mount], ..Recipe::default() };
    let kept = password.map(|text| wall::protect(text, &[7; wall::SALT_BYTES], Timestamp(5)));
    world.application_set(|spec| spec.password = kept.clone(), recipe, Settings::default());
    let (shared, kept) = (world.router.shared.clone(), kept.map(Arc::new));
    let is_so = move || {
        let table = shared.table.load();
        table.by_host(b"shop.localhost").is_some_and(|one| one.gate.password == kept)
    };
    wait(is_so).await;
}

async fn ask(client: &mut Client, path: &str, fields: &[(&str, &str)]) -> (u16, String, String) {
    let fields: String =
        fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    client.send(&format!("GET {path} HTTP/1.1\r\nHost: shop.localhost\r\n{fields}\r\n")).await;
    let reply = client.try_reply(false).await.unwrap();
    (reply.status, reply.head.clone(), reply.text())
}

#[tokio::test]
async fn who_knows_the_password_passes_and_nobody_else() {
    let (world, backend) = (World::new(), Backend::answering(ok).await);
    let public = world.layout.build(&app(), &BuildId::Of(release_id())).join("public");
    std::fs::create_dir_all(&public).unwrap();
    std::fs::write(public.join("logo.txt"), "a logo").unwrap();
    put(&world, None).await;
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let mut clients = [world.connect().await, world.connect().await];
    for _ in 0..ASKED {
        // One of an instance, one of a file: both are in the lane by then.
        let [asks, reads] = &mut clients;
        assert!(ask(asks, "/", &[("Authorization", RIGHT)]).await.2.contains(RIGHT));
        assert_eq!(ask(reads, "/logo.txt", &[]).await.2, "a logo");
    }
    put(&world, Some(PASSWORD)).await;
    for client in &mut clients {
        for path in ["/", "/logo.txt", "/none"] {
            for fields in [&[][..], &[("Authorization", WRONG)], &[("Authorization", "Bearer x")]] {
                let (status, head, body) = ask(client, path, fields).await;
                assert_eq!(status, 401, "{path} {fields:?}");
                assert!(head.contains("\r\nWWW-Authenticate: Basic realm="), "{head}");
                assert!(head.contains("\r\nX-Cortex-Error: password\r\n"), "{head}");
                assert!(body.contains("asks for a password"), "{body}");
            }
        }
        assert_eq!(ask(client, "/logo.txt", &[("Authorization", RIGHT)]).await.2, "a logo");
        // The instance is told nothing of the password, and what is its own.
        let told = ask(client, "/", &[("authorization", RIGHT), ("A", "b")]).await.2;
        assert!(told.contains("\r\nA: b\r\n") && !told.contains("Basic"), "{told}");
        let both = [("Proxy-Authorization", RIGHT), ("Authorization", "Bearer x")];
        let told = ask(client, "/", &both).await.2;
        assert!(told.contains("\r\nAuthorization: Bearer x\r\n"), "{told}");
        assert!(!told.contains("Proxy-") && !told.contains("Basic"), "{told}");
        let both = [("Proxy-Authorization", WRONG), ("Authorization", RIGHT)];
        assert_eq!(ask(client, "/", &both).await.0, 401);
    }
    put(&world, None).await;
    for client in &mut clients {
        assert!(ask(client, "/", &[("Authorization", RIGHT)]).await.2.contains(RIGHT));
    }
}

#[tokio::test]
async fn many_requests_with_a_new_password_have_it_looked_at_once() {
    let (world, backend) = (World::new(), Backend::named("application").await);
    put(&world, Some(PASSWORD)).await;
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let mut asking = Vec::new();
    for _ in 0..30 {
        let mut client = world.connect().await;
        asking.push(tokio::spawn(async move {
            ask(&mut client, "/", &[("Authorization", RIGHT)]).await.0
        }));
    }
    for one in asking {
        assert_eq!(one.await.unwrap(), 200, "each of them was a guess");
    }
}
