//! PHP: a page, a database in a file, and what must not be served.

use super::walled_node;
use crate::project::{edit, of_files};
use crate::tour::Tour;

const INDEX: &str = "<?php
$greeting = 'Hello from PHP';
require 'lib/count.php';
$place = $_SERVER['SERVER_NAME'] . ':' . $_SERVER['SERVER_PORT'];
echo \"$greeting, page {$_SERVER['REQUEST_URI']}, at $place, visitor \", count_visitor();
";
const COUNT: &str = "<?php
function count_visitor() {
    $file = fopen('visitors.db', 'c+');
    flock($file, LOCK_EX);
    $count = 1 + (int) stream_get_contents($file);
    rewind($file);
    fwrite($file, (string) $count);
    return $count;
}
";

#[test]
fn a_page_with_a_database_is_toured() {
    let node = walled_node();
    let project = node.path("my pages");
    let files =
        [("index.php", INDEX), ("lib/count.php", COUNT), (".env", "secret"), ("a.txt", "A")];
    of_files(&project, &files);
    let site = Tour {
        name: "pages",
        project: &project,
        found: "Php app detected (index.php is in the root)",
        first: "Hello from PHP",
        second: "Hello again",
        file: "index.php",
        scale: 3,
    }
    .run(&node);
    site.get("/deep/page?x=1").assert_ok("page /deep/page?x=1");
    // The page names the site, not the address on which the instance listens.
    site.get("/").assert_ok(&format!("at {}, ", site.host));
    site.get("/a.txt").assert_ok("A");
    for hidden in ["/.env", "/visitors.db", "/%2eenv"] {
        assert_eq!(site.get(hidden).status, 404, "{hidden}");
    }
    // What was counted outlived two changes of the release.
    let body = site.get("/").body;
    let visitors = body.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
    assert!(visitors.is_some_and(|visitors| visitors > 40), "{body}");
    edit(&project.join("lib/count.php"), "function", "funktion");
    node.try_push(&project, "pages").refused().saying(&["lib/count.php, line 2"]);
    site.get("/").assert_ok("Hello from PHP");
}
