//! `examples/static`: no process at all, the router answers.

use std::fs;
use std::process::Command;

use crate::fixtures::cluster::{await_loads, cluster, id_of};
use crate::node::{Node, run};
use crate::outside::{Callers, Connection, Site};
use crate::project::{copy_of_example, edit, of_files};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

#[test]
fn a_static_site_goes_through_the_journey() {
    let mut node = Node::start();
    let project = node.path("site");
    copy_of_example("static", &project);
    let site = node.push(&project, "site");
    let page = site.get("/");
    page.assert_ok("<h1>A static site</h1>");
    assert!(page.headers["content-type"].starts_with("text/html"), "{page:?}");
    assert!(site.get("/style.css").headers["content-type"].starts_with("text/css"));
    assert_eq!(site.get("/nothing-here").status, 404);
    assert!(node.rows("site").is_empty(), "nothing runs for a static site");

    let callers = Callers::start(&site, "/", &["A static site", "The second edition"]);
    callers.answered_more(50);
    edit(&project.join("index.html"), "<h1>A static site</h1>", "<h1>The second edition</h1>");
    node.push(&project, "site");
    callers.answered_more(50);
    site.get("/").assert_ok("The second edition");

    let aside = node.path("aside");
    fs::rename(project.join("index.html"), &aside).unwrap();
    fs::rename(project.join("style.css"), node.path("aside.css")).unwrap();
    of_files(&project, &[("odd.xyz", "nothing that anybody knows")]);
    node.try_push(&project, "site").refused().saying(&["odd.xyz", "index.html"]);
    callers.answered_more(50);
    callers.finish_without_failure();

    node.kill_nine();
    node.up();
    wait_until("the site to be served again", || {
        site.try_get("/").is_ok_and(|answer| answer.body.contains("The second edition"))
    });
    node.cortex(&["rollback", "-a", "site"]);
    site.get("/").assert_ok("<h1>A static site</h1>");
    node.down();
}

#[test]
fn unchanged_files_are_not_sent_again_and_nothing_outside_is() {
    let node = Node::start();
    let project = node.path("site");
    copy_of_example("static", &project);
    let site = node.push(&project, "site");
    let tag = site.get("/style.css").headers["etag"].clone();
    let mut connection = Connection::open(&site).unwrap();
    let again = connection.request("GET", "/style.css", &[("if-none-match", &tag)], b"").unwrap();
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    for path in ["/../../../../../etc/passwd", "/%2e%2e/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fx"] {
        let answer = site.get(path);
        assert!(answer.status == 400 || answer.status == 404, "{path}: {answer:?}");
    }
}

/// Asserts, with the client that everybody has, that parts, what is known already, and compressed
/// files are served right.
#[test]
fn curl_gets_parts_and_compressed_files_and_nothing_twice() {
    let node = Node::start();
    let project = node.path("site");
    copy_of_example("static", &project);
    let text: String = (0..2_000).map(|number| format!("{number}\n")).collect();
    of_files(&project, &[("numbers.txt", &text)]);
    let mut gzip = Command::new("gzip");
    gzip.args(["--keep", "--no-name"]).arg(project.join("numbers.txt"));
    run(gzip, "gzip").succeeded();
    let site = node.push(&project, "site");
    let url = format!("http://{}/numbers.txt", site.host);
    let resolve = format!("{}:127.0.0.1", site.host);
    let curl = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--resolve", &resolve]);
        command.args(arguments).arg(&url);
        run(command, &format!("curl {arguments:?}")).succeeded().stdout
    };
    assert_eq!(curl(&[]), text);
    for (range, part) in
        [("0-99", &text[..100]), ("500-", &text[500..]), ("-7", &text[text.len() - 7..])]
    {
        assert_eq!(curl(&["--range", range]), part);
    }
    let (code, size) = ("%{http_code}", "%{http_code} %{size_download}");
    let status = |arguments: &[&str], show: &str| {
        let tail = ["--output", "/dev/null", "--write-out", show];
        curl(&[arguments, &tail].concat())
    };
    assert_eq!(status(&["--range", "0-9"], code), "206");
    assert_eq!(status(&["--range", "99999-"], code), "416");
    let head = curl(&["--head"]);
    let tag = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().starts_with("etag:").then(|| line[5..].trim()));
    let known = format!("If-None-Match: {}", tag.expect("an ETag"));
    assert_eq!(status(&["--header", &known], size), "304 0");
    // Its own file is sent as it lies there, and curl makes the text of it again.
    assert_eq!(curl(&["--compressed"]), text);
    let compressed = fs::metadata(project.join("numbers.txt.gz")).unwrap().len();
    let said = status(&["--header", "Accept-Encoding: gzip"], size);
    assert_eq!(said, format!("200 {compressed}"));
}

#[test]
fn a_static_site_is_served_by_every_node_and_outlives_the_one_that_built_it() {
    let [mut one, two] = cluster([&[], &[]]);
    await_loads(&[&one, &two]);
    let project = one.path("site");
    copy_of_example("static", &project);
    one.push(&project, "site");
    let at = |node: &Node| Site { host: "site.localhost".into(), port: node.http_port };
    let shows = |node: &Node, text: &str| {
        wait_for(&format!("'{text}' on {}", id_of(node)), STATE_DEADLINE, || {
            let answer = at(node).try_get("/").map_err(|error| format!("{error:?}"))?;
            if answer.body.contains(text) { Ok(()) } else { Err(format!("{answer:?}")) }
        });
    };
    shows(&one, "A static site");
    shows(&two, "A static site");
    // Nobody is told that there is nothing while the other node builds the next release.
    let callers = Callers::start(&at(&two), "/", &["A static site", "The second edition"]);
    callers.answered_more(50);
    edit(&project.join("index.html"), "<h1>A static site</h1>", "<h1>The second edition</h1>");
    one.push_as_it_is(&project, "site").succeeded();
    shows(&two, "The second edition");
    one.kill_nine();
    callers.answered_more(50);
    callers.finish_without_failure();
    shows(&two, "The second edition");
}
