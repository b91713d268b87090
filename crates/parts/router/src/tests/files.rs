//! Static files over real sockets: which form, which part, how long, and none from elsewhere.

mod lane;
mod site;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use model::BuildId;
use model::InstanceState::Ready;
use model::application::Settings;
use model::release::{Recipe, StaticMount};
use model::request::RequestLimits;

use super::world::{Backend, Reply, World, app, release_id};

struct Site {
    world: World,
    public: PathBuf,
    /// The application behind the files; `None` where files are all there is.
    _application: Option<Backend>,
}

impl Site {
    async fn new(files: &[(&str, &[u8])]) -> Site {
        Site::on(World::new(), files, RequestLimits::default()).await
    }

    async fn on(world: World, files: &[(&str, &[u8])], requests: RequestLimits) -> Site {
        let application = Backend::named("application").await;
        let public = world.layout.build(&app(), &BuildId::Of(release_id())).join("public");
        for (name, content) in files {
            let path = public.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let mount = StaticMount { prefix: "/".into(), directory: "public".into(), fallback: None };
        let recipe = Recipe { statics: vec![mount], ..Recipe::default() };
        world.application_set(|_| (), recipe, Settings { requests, ..Settings::default() });
        world.claim(1, None, &[(1, Ready, application.port)]);
        world.routed().await;
        Site { world, public, _application: Some(application) }
    }

    async fn ask(&self, method: &str, path: &str, fields: &str) -> Reply {
        let mut client = self.world.connect().await;
        let text = format!("{method} {path} HTTP/1.1\r\nHost: shop.localhost\r\n{fields}\r\n");
        client.send(&text).await;
        client.try_reply(method == "HEAD").await.unwrap()
    }

    async fn get(&self, path: &str, fields: &str) -> Reply {
        self.ask("GET", path, fields).await
    }
}

fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let line = reply.head.lines().find(|line| line.starts_with(&format!("{name}: ")))?;
    line.split_once(": ").map(|(_, value)| value)
}

#[tokio::test]
async fn the_form_that_was_compressed_before_is_sent_to_whoever_takes_it() {
    let site = Site::new(&[
        ("app.js", b"plain plain plain"),
        ("app.js.br", b"brotli"),
        ("app.js.gz", b"gzip"),
        ("style.css", b"style"),
        ("style.css.gz", b"zipped"),
        ("alone.txt", b"alone"),
    ])
    .await;
    let mut tags = Vec::new();
    for (accepted, coding, body) in [
        ("Accept-Encoding: gzip, deflate, br\r\n", Some("br"), "brotli"),
        ("Accept-Encoding: gzip\r\n", Some("gzip"), "gzip"),
        ("Accept-Encoding: br;q=0.1\r\nAccept-Encoding: gzip\r\n", Some("gzip"), "gzip"),
        ("Accept-Encoding: identity\r\n", None, "plain plain plain"),
        ("", None, "plain plain plain"),
    ] {
        let reply = site.get("/app.js", accepted).await;
        assert_eq!((field(&reply, "Content-Encoding"), &*reply.text()), (coding, body));
        assert_eq!(field(&reply, "Content-Type"), Some("text/javascript; charset=utf-8"));
        assert_eq!(field(&reply, "Vary"), Some("Accept-Encoding"), "{}", reply.head);
        tags.push((coding, field(&reply, "ETag").unwrap().to_owned()));
    }
    // A client that takes another form gets it after one that does not.
    assert_eq!(site.get("/app.js", "Accept-Encoding: br\r\n").await.text(), "brotli");
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 3, "each form has its own tag: {tags:?}");
    let both = "Accept-Encoding: br, gzip\r\n";
    let style = site.get("/style.css", both).await;
    assert_eq!((field(&style, "Content-Encoding"), &*style.text()), (Some("gzip"), "zipped"));
    let alone = site.get("/alone.txt", both).await;
    assert_eq!((field(&alone, "Content-Encoding"), field(&alone, "Vary")), (None, None));
    // A part is a part of what is sent, and 304 is of the same form.
    let part = site.get("/app.js", "Accept-Encoding: br\r\nRange: bytes=0-2\r\n").await;
    assert_eq!((part.status, &*part.text()), (206, "bro"));
    assert_eq!(field(&part, "Content-Range"), Some("bytes 0-2/6"));
    let tag = field(&part, "ETag").unwrap();
    let same = format!("Accept-Encoding: br\r\nIf-None-Match: {tag}\r\n");
    let same = site.get("/app.js", &same).await;
    assert_eq!((same.status, field(&same, "Vary")), (304, Some("Accept-Encoding")));
    let other = format!("Accept-Encoding: gzip\r\nIf-None-Match: {tag}\r\n");
    assert_eq!(site.get("/app.js", &other).await.status, 200);
    // By its own name it is a file like others.
    let own = site.get("/app.js.gz", both).await;
    assert_eq!(field(&own, "Content-Type"), Some("application/gzip"));
    assert_eq!(field(&own, "Content-Encoding"), None);
}

#[tokio::test]
async fn names_with_a_hash_last_and_others_are_asked_for_again() {
    let site = Site::new(&[
        ("assets/app-3f2a9c1b.js", b"js"),
        ("assets/app-3f2a9c1b.js.br", b"br"),
        ("index.html", b"html"),
    ])
    .await;
    let lasting = site.get("/assets/app-3f2a9c1b.js", "Accept-Encoding: br\r\n").await;
    assert_eq!(field(&lasting, "Content-Encoding"), Some("br"));
    let ever = "max-age=31536000, immutable";
    assert_eq!(field(&lasting, "Cache-Control"), Some(ever));
    let page = site.get("/", "").await;
    assert_eq!((field(&page, "Cache-Control"), &*page.text()), (Some("no-cache"), "html"));
    let since = format!("If-Modified-Since: {}\r\n", field(&page, "Last-Modified").unwrap());
    let same = site.get("/", &since).await;
    assert_eq!((same.status, same.body.len()), (304, 0));
    assert_eq!(field(&same, "Cache-Control"), Some("no-cache"));
    assert_eq!(site.get("/", "If-Match: \"other\"\r\n").await.status, 412);
}

#[tokio::test]
async fn large_files_are_sent_whole_and_in_parts() {
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let site = Site::new(&[("big.bin", &content)]).await;
    for _ in 0..2 {
        let whole = site.get("/big.bin", "").await;
        assert!(whole.status == 200 && whole.body == content, "{}", whole.head);
    }
    let tag = field(&site.get("/big.bin", "").await, "ETag").unwrap().to_owned();
    for (range, start, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=1000-2999999", 1000, 3_000_000),
        ("bytes=262144-", 262_144, 3_000_000),
        ("bytes=-300000", 2_700_000, 3_000_000),
    ] {
        let fields = format!("Range: {range}\r\nIf-Range: {tag}\r\n");
        let part = site.get("/big.bin", &fields).await;
        assert!(part.status == 206 && part.body == content[start..end], "{range}: {}", part.head);
        let changed = site.get("/big.bin", &format!("Range: {range}\r\nIf-Range: \"x\"\r\n")).await;
        assert!(changed.status == 200 && changed.body == content);
    }
    let beyond = site.get("/big.bin", "Range: bytes=3000000-\r\n").await;
    assert_eq!((beyond.status, field(&beyond, "Content-Range")), (416, Some("bytes */3000000")));
    let head = site.ask("HEAD", "/big.bin", "").await;
    assert_eq!((head.status, field(&head, "Content-Length")), (200, Some("3000000")));
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_sent_is_cut_off() {
    let content = vec![7; 40_000_000];
    let site = Site::new(&[("big.bin", &content)]).await;
    let mut client = site.world.connect().await;
    client.send("GET /big.bin HTTP/1.1\r\nHost: shop.localhost\r\n\r\n").await;
    // The head is on its way; the rest fills the connection until somebody reads it.
    client.0.readable().await.unwrap();
    let file = std::fs::File::options().write(true).open(site.public.join("big.bin")).unwrap();
    file.set_len(1000).unwrap();
    assert!(client.try_reply(false).await.is_err(), "it looks whole");
}

#[tokio::test]
async fn nothing_outside_the_release_is_a_file() {
    let site = Site::new(&[("in.txt", b"inside"), ("deep/er/in.txt", b"deep")]).await;
    let link = std::os::unix::fs::symlink::<&str, PathBuf>;
    link("/etc/passwd", site.public.join("out.txt")).unwrap();
    link("/etc", site.public.join("etc")).unwrap();
    link("../../../../../../../../etc/passwd", site.public.join("up.txt")).unwrap();
    link("in.txt", site.public.join("same.txt")).unwrap();
    link("deep", site.public.join("also")).unwrap();
    link("/etc/passwd", site.public.join("in.txt.br")).unwrap();
    for (path, expected) in [
        ("/in.txt", "inside"),
        ("/same.txt", "inside"),
        ("/also/er/in.txt", "deep"),
        ("/out.txt", "application"),
        ("/etc/passwd", "application"),
        ("/up.txt", "application"),
        ("/deep/../in.txt", "application"),
        ("/deep/%2e%2e/in.txt", "application"),
        ("/deep/..%2fin.txt", "application"),
        ("/%2fetc/passwd", "application"),
        ("//etc/passwd", "application"),
        ("/in.txt%00.html", "application"),
        ("/in.txt.br", "application"),
    ] {
        assert_eq!(site.get(path, "").await.text(), expected, "{path}");
    }
    let coded = site.get("/in.txt", "Accept-Encoding: br\r\n").await;
    assert_eq!((&*coded.text(), field(&coded, "Content-Encoding")), ("inside", None));
}

#[tokio::test]
async fn remembered_targets_follow_changes_of_file_and_form() {
    let site = Site::new(&[("page.txt", b"old"), ("gone.txt", b"gone")]).await;
    for _ in 0..3 {
        assert_eq!(site.get("/page.txt", "").await.text(), "old");
        let any = site.get("/page.txt", "Accept-Encoding: gzip, br\r\n").await;
        assert_eq!((&*any.text(), field(&any, "Content-Encoding")), ("old", None));
        assert_eq!(site.get("/gone.txt", "").await.text(), "gone");
        assert_eq!(site.get("/none.txt", "").await.text(), "application");
        let whole = site.ask("HEAD", "/page.txt", "").await;
        assert_eq!(field(&whole, "Content-Length"), Some("3"));
        let part = site.get("/page.txt", "Range: bytes=1-1\r\n").await;
        assert_eq!((part.status, &*part.text()), (206, "l"));
        let tag = field(&part, "ETag").unwrap();
        let same = site.get("/page.txt", &format!("If-None-Match: {tag}\r\n")).await;
        assert_eq!(same.status, 304);
    }
    std::fs::write(site.public.join("page.txt"), "newer").unwrap();
    std::fs::write(site.public.join("none.txt"), "there").unwrap();
    std::fs::remove_file(site.public.join("gone.txt")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    for (path, expected) in
        [("/page.txt", "newer"), ("/none.txt", "there"), ("/gone.txt", "application")]
    {
        while site.get(path, "").await.text() != expected {
            assert!(Instant::now() < deadline, "{path} is what it was");
        }
    }
}
