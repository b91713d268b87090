//! An application that is closed for maintenance: clients are told, those in the lane too, while
//! probes and instances notice nothing.

use model::InstanceState::Ready;
use model::application::Settings;
use model::release::{Recipe, StaticMount};
use model::{BuildId, Timestamp};

use super::world::{Backend, Client, World, app, release_id, wait};
use crate::connection::run::QUICK_IN_A_ROW;

/// Requests, more than it takes to be in the lane.
const ASKED: usize = QUICK_IN_A_ROW as usize + 2;

fn set(world: &World, since: Option<Timestamp>) {
    let mut settings = Settings::default();
    settings.health.path = Some("/up".into());
    let mount = StaticMount { prefix: "/".into(), directory: "public".into(), fallback: None };
    let recipe = Recipe { statics: vec![mount], ..Recipe::default() };
    world.application_set(|spec| spec.maintenance = since, recipe, settings);
}

/// Closes or opens it, and waits until that holds.
async fn put(world: &World, since: Option<Timestamp>) {
    set(world, since);
    let shared = world.router.shared.clone();
    let is_so = move || {
        let table = shared.table.load();
        let known = table.by_host(b"shop.localhost");
        known.is_some_and(|one| one.gate.is_open() == since.is_none())
    };
    wait(is_so).await;
}

async fn ask(client: &mut Client, method: &str, path: &str) -> (u16, String, String) {
    let body = if method == "POST" { "Content-Length: 3\r\n\r\nabc" } else { "\r\n" };
    client.send(&format!("{method} {path} HTTP/1.1\r\nHost: shop.localhost\r\n{body}")).await;
    let reply = client.try_reply(method == "HEAD").await.unwrap();
    (reply.status, reply.head.clone(), reply.text())
}

#[tokio::test]
async fn clients_are_told_and_probes_go_on() {
    let (world, backend) = (World::new(), Backend::named("application").await);
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
        assert_eq!(ask(asks, "GET", "/").await.2, "application");
        assert_eq!(ask(reads, "GET", "/logo.txt").await.2, "a logo");
    }
    put(&world, Some(Timestamp(5))).await;
    for client in &mut clients {
        for (method, path) in [("GET", "/"), ("GET", "/logo.txt"), ("POST", "/"), ("HEAD", "/")] {
            let (status, head, body) = ask(client, method, path).await;
            assert_eq!(status, 503, "{method} {path}");
            assert!(head.contains("\r\nX-Cortex-Error: maintenance\r\n"), "{head}");
            assert!(head.contains("\r\nRetry-After: 60\r\n"), "{head}");
            assert_eq!(body.contains("closed for maintenance"), method != "HEAD", "{body}");
        }
        assert_eq!(ask(client, "GET", "/up?x").await.2, "application");
        assert_eq!(ask(client, "POST", "/up").await.0, 503);
    }
    put(&world, None).await;
    for client in &mut clients {
        assert_eq!(ask(client, "GET", "/").await.2, "application");
    }
}

#[tokio::test]
async fn a_page_of_its_own_is_shown_in_full() {
    let (world, backend) = (World::new(), Backend::named("application").await);
    let public = world.layout.build(&app(), &BuildId::Of(release_id())).join("public");
    std::fs::create_dir_all(&public).unwrap();
    let page = "<h1>Wir sind gleich zurück</h1>";
    std::fs::write(public.join("maintenance.html"), page).unwrap();
    put(&world, Some(Timestamp(5))).await;
    world.claim(1, None, &[(1, Ready, backend.port)]);
    let mut client = world.connect().await;
    for _ in 0..2 {
        let (status, head, body) = ask(&mut client, "GET", "/any").await;
        assert_eq!((status, body.as_str()), (503, page));
        assert!(head.contains("\r\nRetry-After: 60\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"), "{head}");
    }
    let (status, head, body) = ask(&mut client, "HEAD", "/any").await;
    assert_eq!((status, body.as_str()), (503, ""));
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", page.len())), "{head}");
}
