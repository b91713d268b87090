//! Sites of files alone: their pages' addresses, what is not there, and what nobody gets.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use model::application::{ApplicationSpec, Settings};
use model::release::{Recipe, StaticMount, Step};
use model::request::RequestLimits;
use model::{BuildId, Rollout, Timestamp, TypedKey};

use super::{Site, field};
use crate::tests::world::{Reply, World, app, node, release_id, wait};

impl Site {
    /// Starts a site where nothing runs. `directory` is what is served of the release.
    async fn alone(
        directory: &str,
        fallback: Option<&str>,
        build: Vec<Step>,
        files: &[&str],
    ) -> Site {
        let world = World::new();
        let public = world.layout.build(&app(), &BuildId::Of(release_id())).join(directory);
        for name in files {
            let path = public.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        let mark = world.layout.build_mark(&app(), &BuildId::Of(release_id()));
        std::fs::create_dir_all(mark.parent().unwrap()).unwrap();
        std::fs::write(mark, "").unwrap();
        let mount = StaticMount {
            prefix: "/".into(),
            directory: directory.into(),
            fallback: fallback.map(str::to_owned),
        };
        let framework = "static".into();
        let recipe = Recipe { statics: vec![mount], build, framework, ..Recipe::default() };
        world.application_set(|_| (), recipe, Settings::default());
        world.routed().await;
        Site { world, public, _application: None }
    }

    /// Asks for each twice: what was asked for just now is known.
    async fn check(&self, cases: &[(&str, u16, &str)]) {
        for (path, status, text) in cases.iter().chain(cases) {
            let reply = self.get(path, "").await;
            let said = if reply.head.contains("Location: ") {
                field(&reply, "Location").unwrap().to_owned()
            } else if reply.head.contains("X-Cortex-Error: ") {
                field(&reply, "X-Cortex-Error").unwrap().to_owned()
            } else {
                reply.text()
            };
            assert_eq!((reply.status, said.as_str()), (*status, *text), "{path}");
        }
    }
}

#[tokio::test]
async fn a_site_that_is_not_built_here_yet_holds_nobody() {
    let world = World::new();
    let mut rollout = Rollout::new(node(), Timestamp(0));
    rollout.serving = Some(release_id());
    world.put(TypedKey::Rollout(app()), &rollout);
    world.put(TypedKey::Spec(app()), &ApplicationSpec::new(Timestamp(0)));
    world.routed().await;
    // What it is comes after that it is: until then an instance is waited for.
    let mut early = world.connect().await;
    early.send("GET / HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    let queue =
        || world.router.shared.table.load().by_host(b"shop.localhost").unwrap().queue.length();
    wait(|| queue() == 1).await;
    let mount = StaticMount { prefix: "/".into(), directory: String::new(), fallback: None };
    let framework = "static".into();
    let recipe = Recipe { statics: vec![mount], framework, ..Recipe::default() };
    world.application_set(|_| (), recipe, Settings::default());
    let is_being_built = |reply: Reply| {
        assert_eq!(reply.status, 503, "{}", reply.head);
        assert!(reply.head.contains("X-Cortex-Error: being-built\r\n"), "{}", reply.head);
        assert!(reply.head.contains("Retry-After: "), "{}", reply.head);
    };
    is_being_built(early.reply().await);

    let site = Site { world, public: PathBuf::new(), _application: None };
    is_being_built(site.get("/", "").await);
    assert_eq!(site.ask("POST", "/", "Content-Length: 0\r\n").await.status, 405);
    let build = site.world.layout.build(&app(), &BuildId::Of(release_id()));
    std::fs::create_dir_all(&build).unwrap();
    std::fs::write(build.join("index.html"), "built").unwrap();
    std::fs::write(site.world.layout.build_mark(&app(), &BuildId::Of(release_id())), "").unwrap();
    let mut status = site.get("/", "").await.status;
    let deadline = Instant::now() + Duration::from_secs(10);
    while status != 200 && Instant::now() < deadline {
        tokio::task::yield_now().await;
        status = site.get("/", "").await.status;
    }
    assert_eq!(status, 200);
}

#[tokio::test]
async fn pages_have_clean_addresses_and_there_is_one_for_what_is_missing() {
    let files = [
        "index.html",
        "404.html",
        "about.html",
        "both.html",
        "both/index.html",
        "docs/index.html",
        "docs/procfile.html",
        "empty/a.txt",
        "robots.txt",
        ".well-known/security.txt",
    ];
    let site = Site::alone("public", None, Vec::new(), &files).await;
    site.check(&[
        ("/", 200, "index.html"),
        ("/about", 200, "about.html"),
        ("/about.html", 200, "about.html"),
        ("/about/?a=b", 308, "/about?a=b"),
        ("/both", 200, "both.html"),
        ("/both/", 200, "both/index.html"),
        ("/docs?a=b", 308, "/docs/?a=b"),
        ("/docs/", 200, "docs/index.html"),
        ("/docs/procfile", 200, "docs/procfile.html"),
        ("/empty", 404, "404.html"),
        ("/gone", 404, "404.html"),
        ("/gone/x.js", 404, "404.html"),
        ("/robots.txt", 200, "robots.txt"),
        ("/.well-known/security.txt", 200, ".well-known/security.txt"),
        ("/404.html", 200, "404.html"),
    ])
    .await;
    // Whatever a browser has, it is no state of this address.
    let conditions = "Range: bytes=0-1\r\nIf-None-Match: *\r\n";
    let missing = site.get("/gone", conditions).await;
    assert_eq!((missing.status, &*missing.text()), (404, "404.html"));
    assert_eq!(field(&missing, "Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!((field(&missing, "ETag"), field(&missing, "Accept-Ranges")), (None, None));
    let head = site.ask("HEAD", "/gone", "").await;
    assert_eq!((head.status, field(&head, "Content-Length")), (404, Some("8")));
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let reply = site.ask(method, "/about", "Content-Length: 0\r\n").await;
        assert_eq!((reply.status, field(&reply, "Allow")), (405, Some("GET, HEAD")), "{method}");
    }
}

#[tokio::test]
async fn a_single_page_application_has_one_page_for_pages_alone() {
    let files = ["index.html", "assets/app.js"];
    let site = Site::alone("dist", Some("index.html"), Vec::new(), &files).await;
    site.check(&[
        ("/orders/7", 200, "index.html"),
        ("/orders/7/", 200, "index.html"),
        ("/assets/app.js", 200, "assets/app.js"),
        ("/assets/gone.js", 404, "no-file"),
        ("/assets", 200, "index.html"),
    ])
    .await;
    // What one client is told is not what another gets.
    let browser = "Accept: text/html,*/*;q=0.8\r\n";
    assert_eq!(site.get("/users/a.b", "").await.status, 404);
    assert_eq!(site.get("/users/a.b", browser).await.text(), "index.html");
    assert_eq!(site.get("/users/a.b", "").await.status, 404);
}

#[tokio::test]
async fn what_is_not_for_the_public_is_as_if_it_were_not_there() {
    let secrets = [
        "cortex.toml",
        "Procfile.dev",
        "app.json",
        ".env",
        "env.production",
        "id.pem",
        "config.py",
        "package.json",
        "node_modules/a/index.js",
        "sub/.git/config",
        "dump.sql",
    ];
    let public = ["index.html", "404.html", "robots.txt", "manifest.json", "app.js.map"];
    let all = [&secrets[..], &public[..]].concat();
    let site = Site::alone(".", None, Vec::new(), &all).await;
    for path in secrets {
        let reply = site.get(&format!("/{path}"), "").await;
        assert_eq!((reply.status, &*reply.text()), (404, "404.html"), "{path}");
    }
    site.check(&[
        ("/%2eenv", 404, "404.html"),
        ("//.env", 404, "404.html"),
        ("/sub/%2egit%2fconfig", 404, "404.html"),
        ("/./cortex.toml?x", 404, "404.html"),
        ("/sub/.git/", 404, "404.html"),
        ("/x/../.env", 404, "no-file"),
        ("/robots.txt", 200, "robots.txt"),
        ("/manifest.json", 200, "manifest.json"),
        ("/app.js.map", 200, "app.js.map"),
    ])
    .await;
    // Made to be served, it has what its author put there; what a build made has not.
    for (built, status) in [(false, 200), (true, 404)] {
        let step = Step { name: String::new(), command: String::new() };
        let build = if built { vec![step] } else { Vec::new() };
        let site = Site::alone("dist", None, build, &["package.json", "id.pem"]).await;
        assert_eq!(site.get("/package.json", "").await.status, status);
        assert_eq!(site.get("/id.pem", "").await.status, 404);
    }
}

#[tokio::test]
async fn an_application_is_asked_for_what_is_kept_back_and_for_directories_without_a_page() {
    let site = Site::on(
        World::new(),
        &[("id.pem", b"key"), ("orders/a.png", b"png"), ("about.html", b"about")],
        RequestLimits::default(),
    )
    .await;
    for path in ["/id.pem", "/orders", "/orders/", "/about"] {
        assert_eq!(site.get(path, "").await.text(), "application", "{path}");
    }
}
