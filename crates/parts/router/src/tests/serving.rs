//! Several instances: queue, failures, drains, files, ports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use model::BuildId;
use model::InstanceState::{Draining, Ready};
use model::release::StaticMount;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;

use super::world::{Backend, Client, World, app, ok, release_id, wait};
use runtime::faults::Fault;

/// Starts a back end that takes one request at a time per connection; `/slow` waits for the gate.
async fn serial(name: &'static str, gate: Arc<Semaphore>) -> Backend {
    Backend::start(move |mut client: Client| {
        let gate = gate.clone();
        async move {
            if let Some(request) = client.request().await {
                assert!(request.contains("Connection: close\r\n"), "a serial server is let go");
                if request.starts_with("GET /slow") {
                    gate.acquire().await.unwrap().forget();
                }
                client.0.write_all(ok(name).as_bytes()).await.unwrap();
            }
        }
    })
    .await
}

#[tokio::test]
async fn nothing_waits_behind_a_slow_request_while_an_instance_is_free() {
    let gate = Arc::new(Semaphore::new(0));
    let (one, two) = (serial("one", gate.clone()).await, serial("two", gate.clone()).await);
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, Some(1), &[(1, Ready, one.port)]);
    world.claim(2, Some(1), &[(1, Ready, two.port)]);
    world.routed().await;
    let mut slow = world.connect().await;
    slow.send("GET /slow HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    wait(|| one.connections.load(Ordering::SeqCst) + two.connections.load(Ordering::SeqCst) == 1)
        .await;
    let busy_first = one.connections.load(Ordering::SeqCst) == 1;
    let mut quick = tokio::task::JoinSet::new();
    let world = Arc::new(world);
    for _ in 0..40 {
        let world = world.clone();
        quick.spawn(async move { world.get("/quick").await.text() });
    }
    let free = if busy_first { "two" } else { "one" };
    while let Some(text) = quick.join_next().await {
        assert_eq!(text.unwrap(), free);
    }
    gate.add_permits(1);
    assert_eq!(slow.reply().await.status, 200);
}

/// A release with a long recipe is stored as a file, and read all the same.
#[tokio::test]
async fn a_large_release_is_routed() {
    let world = World::new();
    let directory = world.layout.build(&app(), &BuildId::Of(release_id())).join("public/last");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("a.txt"), "from a file").unwrap();
    let mount = |name: String| StaticMount {
        prefix: format!("/{name}/"),
        directory: format!("public/{name}"),
        fallback: None,
    };
    let names = (0..200).map(|number| format!("{number}")).chain(["last".to_string()]);
    world.application(|_| (), names.map(mount).collect());
    world.routed().await;
    assert_eq!(world.get("/last/a.txt").await.text(), "from a file");
}

#[tokio::test]
async fn requests_wait_for_an_instance_and_a_refusal_goes_elsewhere() {
    let gone = Backend::named("gone").await;
    let port = gone.port;
    drop(gone);
    let world = Arc::new(World::new());
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, port)]);
    world.routed().await;
    let waiting = tokio::spawn({
        let world = world.clone();
        async move {
            let mut client = world.connect().await;
            client
                .send("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 2\r\n\r\nhi")
                .await;
            client.reply().await
        }
    });
    let suspect = model::key::BoardKey::Suspect(super::world::instance(1), 1);
    wait(|| world.records.has(&model::TypedKey::Board(suspect.clone()))).await;
    let back = Backend::named("back").await;
    world.claim(2, None, &[(1, Ready, back.port)]);
    assert_eq!(waiting.await.unwrap().text(), "back");
    for _ in 0..20 {
        assert_eq!(world.get("/").await.text(), "back");
    }
}

#[tokio::test]
async fn an_answer_that_never_came_is_asked_for_again_only_where_that_is_safe() {
    let hits = Arc::new(AtomicUsize::new(0));
    let count = hits.clone();
    let dying = Backend::start(move |mut client: Client| {
        let count = count.clone();
        async move {
            client.request().await;
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, dying.port)]);
    world.routed().await;
    let mut client = world.connect().await;
    client.send("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 0\r\n\r\n").await;
    let reply = client.reply().await;
    assert_eq!(reply.status, 502);
    assert!(reply.head.contains("X-Cortex-Error: bad-answer"));
    assert_eq!(hits.load(Ordering::SeqCst), 1);
    let fine = Backend::named("fine").await;
    world.claim(2, None, &[(1, Ready, fine.port)]);
    for _ in 0..10 {
        assert_eq!(world.get("/").await.text(), "fine");
    }
}

/// Endpoints come and go under load; a drained one gets nothing more and no request is lost.
#[tokio::test]
async fn no_request_is_lost_while_instances_are_replaced() {
    let world = Arc::new(World::new());
    world.application(|_| (), Vec::new());
    let mut current = Backend::named("x").await;
    world.claim(1, Some(4), &[(1, Ready, current.port)]);
    world.routed().await;
    let done = Arc::new(AtomicBool::new(false));
    let mut load = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (world, done) = (world.clone(), done.clone());
        load.spawn(async move {
            let (mut client, mut count) = (world.connect().await, 0);
            while !done.load(Ordering::SeqCst) {
                client
                    .send("POST / HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: 2\r\n\r\nhi")
                    .await;
                assert_eq!(client.reply().await.status, 200);
                count += 1;
            }
            count
        });
    }
    for generation in 1..12 {
        let next = Backend::named("x").await;
        let ready = (generation + 1, Ready, next.port);
        world.claim(1, Some(4), &[(generation, Draining, current.port), ready]);
        wait(|| world.is_drained(1, generation)).await;
        drop(current);
        world.claim(1, Some(4), &[ready]);
        wait(|| !world.is_drained(1, generation)).await;
        current = next;
    }
    done.store(true, Ordering::SeqCst);
    while let Some(count) = load.join_next().await {
        assert!(count.unwrap() > 0);
    }
    wait(|| world.metrics.prometheus().contains("cortex_instance_requests_total")).await;
}

#[tokio::test]
async fn a_drain_waits_for_the_request_in_flight() {
    let gate = Arc::new(Semaphore::new(0));
    let backend = serial("one", gate.clone()).await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, Some(1), &[(1, Ready, backend.port)]);
    world.claim(2, Some(1), &[(7, Draining, 1)]);
    world.routed().await;
    wait(|| world.is_drained(2, 7)).await;
    let mut slow = world.connect().await;
    slow.send("GET /slow HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    wait(|| backend.connections.load(Ordering::SeqCst) == 1).await;
    world.claim(1, Some(1), &[(1, Draining, backend.port)]);
    world.claim(2, Some(1), &[]);
    wait(|| !world.is_drained(2, 7)).await;
    assert!(!world.is_drained(1, 1));
    gate.add_permits(1);
    assert_eq!(slow.reply().await.status, 200);
    wait(|| world.is_drained(1, 1)).await;
}

#[tokio::test]
async fn serving_goes_on_while_the_control_task_faults() {
    let backend = Backend::named("one").await;
    let world = World::new();
    world.application(|_| (), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    assert_eq!(world.get("/").await.text(), "one");
    world.faults.arm(crate::FAIL_POINT, Fault::PanicOnce).unwrap();
    let next = Backend::named("two").await;
    world.claim(1, None, &[(1, Draining, backend.port), (2, Ready, next.port)]);
    assert_eq!(world.get("/").await.status, 200);
    wait(|| world.is_drained(1, 1)).await;
    assert_eq!(world.get("/").await.text(), "two");
}

#[tokio::test]
async fn an_application_has_its_own_port_and_a_taken_one_is_told() {
    let backend = Backend::named("one").await;
    let world = World::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    world.application(|spec| spec.port = Some(port), Vec::new());
    world.claim(1, None, &[(1, Ready, backend.port)]);
    let problem = || world.router.ports().iter().any(|port| port.error.is_some());
    wait(problem).await;
    drop(taken);
    wait(|| world.router.ports().len() == 2 && !problem()).await;
    let mut client = Client(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    client.send("GET / HTTP/1.1\r\nHost: anything\r\n\r\n").await;
    assert_eq!(client.reply().await.text(), "one");
}

#[tokio::test]
async fn files_are_served_and_the_rest_goes_to_the_application() {
    let backend = Backend::named("application").await;
    let world = World::new();
    let mount = StaticMount { prefix: "/".into(), directory: "public".into(), fallback: None };
    let public = world.layout.build(&app(), &BuildId::Of(release_id())).join("public");
    std::fs::create_dir_all(public.join("docs")).unwrap();
    std::fs::write(public.join("a.css"), "body{}").unwrap();
    std::fs::write(public.join("docs/index.html"), "docs").unwrap();
    std::fs::write(public.join("big.bin"), vec![7; 700_000]).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", public.join("out.txt")).unwrap();
    world.application(|_| (), vec![mount]);
    world.claim(1, None, &[(1, Ready, backend.port)]);
    world.routed().await;
    let css = world.get("/a.css?v=1").await;
    assert_eq!(css.text(), "body{}");
    assert!(css.head.contains("Content-Type: text/css; charset=utf-8"));
    let etag = css.head.split("ETag: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let mut client = world.connect().await;
    let get = |path: &str, header: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: shop.localhost\r\n{header}\r\n")
    };
    client.send(&get("/a.css", &format!("If-None-Match: {etag}\r\n"))).await;
    assert_eq!(client.reply().await.status, 304);
    client.send(&get("/a.css", "Range: bytes=1-3\r\n")).await;
    let part = client.reply().await;
    assert_eq!((part.status, part.text().as_str()), (206, "ody"));
    assert!(part.head.contains("Content-Range: bytes 1-3/6"));
    assert_eq!(world.get("/docs/").await.text(), "docs");
    let moved = world.get("/docs").await;
    assert!(moved.status == 308 && moved.head.contains("Location: /docs/\r\n"), "{moved:?}");
    assert_eq!(world.get("/big.bin").await.body, vec![7; 700_000]);
    for path in ["/", "/none", "/out.txt", "/../../a", "/%2e%2e/x"] {
        assert_eq!(world.get(path).await.text(), "application", "{path}");
    }
    let counted = "cortex_requests_total{application=\"shop\",method=\"GET\",status=\"3xx\"} 2";
    wait(|| world.metrics.prometheus().contains(counted)).await;
}

#[tokio::test]
async fn a_stopped_application_says_so_and_a_stop_ends_what_is_under_way() {
    let gate = Arc::new(Semaphore::new(0));
    let backend = serial("one", gate.clone()).await;
    let world = World::new();
    world.application(
        |spec| spec.processes.values_mut().for_each(|process| process.count = 0),
        Vec::new(),
    );
    world.routed().await;
    let reply = world.get("/").await;
    assert_eq!(reply.status, 503);
    assert!(reply.head.contains("Retry-After: ") && reply.head.contains("X-Cortex-Error: stopped"));
    world.application(|_| (), Vec::new());
    world.claim(1, Some(1), &[(1, Ready, backend.port)]);
    let mut slow = world.connect().await;
    slow.send("GET /slow HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    // They are sent before or after the change: either way they are answered or told.
    wait(|| backend.connections.load(Ordering::SeqCst) <= 1).await;
    gate.add_permits(1);
    let status = slow.reply().await.status;
    assert!(matches!(status, 200 | 503), "{status}");
    // The connection is still open, but nothing is under way on it.
    let limit = super::world::DEADLINE * 10;
    let stopping = tokio::task::spawn_blocking(move || world.router.stop(limit));
    tokio::time::timeout(super::world::DEADLINE, stopping).await.unwrap().unwrap();
    drop(slow);
}
