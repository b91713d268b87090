//! An application is closed to its clients on all nodes, and its instances run on.

use crate::fixtures::cluster::{await_loads, cluster};
use crate::node::Node;
use crate::outside::{Answer, Site};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "blog";
const SERVER: &str = "web: python3 -m http.server $PORT --bind $HOST\n";
const PAGE: &str = "<h1>We are back at noon</h1>";

fn await_answer(site: &Site, path: &str, status: u16, text: &str) -> Answer {
    wait_for(&format!("{status} '{text}' at {}{path}", site.host), STATE_DEADLINE, || {
        match site.try_get(path) {
            Ok(answer) if answer.status == status && answer.body.contains(text) => Ok(answer),
            other => Err(format!("{other:?}")),
        }
    })
}

/// Returns the place where a node answers for the application by its name.
fn by_host(node: &Node) -> Site {
    Site { host: format!("{NAME}.localhost:{}", node.http_port), port: node.http_port }
}

#[test]
fn all_nodes_answer_that_it_is_closed_and_instances_run_on() {
    let [one, two] = cluster([&[], &[]]);
    await_loads(&[&one, &two]);
    let project = one.path("blog");
    let cortex_toml = "[health]\npath = \"/up.txt\"\n";
    let files = [
        ("Procfile", SERVER),
        ("index.html", "the blog"),
        ("up.txt", "I am well"),
        ("cortex.toml", cortex_toml),
    ];
    of_files(&project, &files);
    one.push(&project, NAME);
    let sites = [by_host(&one), by_host(&two)];
    for site in &sites {
        await_answer(site, "/", 200, "the blog");
    }
    let before = one.await_ready(NAME, "web", 1);
    one.run(&["maintenance", "on", "-a", NAME]).succeeded().saying(&["503", "instances run on"]);
    for site in &sites {
        let closed = await_answer(site, "/", 503, "closed for maintenance");
        assert_eq!(closed.headers["retry-after"], "60", "{closed:?}");
        assert_eq!(closed.headers["x-cortex-error"], "maintenance", "{closed:?}");
        await_answer(site, "/up.txt", 200, "I am well");
    }
    for node in [&one, &two] {
        wait_for("the other node to show it", STATE_DEADLINE, || {
            let shown = node.cortex(&["apps"]);
            if shown.contains("running, in maintenance") { Ok(()) } else { Err(shown) }
        });
        assert!(node.cortex(&["maintenance", "-a", NAME]).starts_with("on, for"));
    }
    let after = one.await_ready(NAME, "web", 1);
    assert_eq!((&before[0].pid, before[0].restarts), (&after[0].pid, after[0].restarts));

    // A release that brings a page of its own, made while it is closed.
    of_files(&project, &[("maintenance.html", PAGE), ("index.html", "the new blog")]);
    one.push(&project, NAME);
    let with_page = wait_for("a node to show its own page", STATE_DEADLINE, || {
        let answers: Vec<Answer> = sites.iter().filter_map(|site| site.try_get("/").ok()).collect();
        assert!(answers.iter().all(|answer| answer.status == 503), "{answers:?}");
        let own = answers.iter().find(|answer| answer.body == PAGE).cloned();
        own.ok_or_else(|| format!("{answers:?}"))
    });
    assert_eq!(with_page.headers["retry-after"], "60", "{with_page:?}");
    two.cortex(&["maintenance", "off", "-a", NAME]);
    for site in &sites {
        await_answer(site, "/", 200, "the new blog");
    }
    assert_eq!(two.cortex(&["maintenance", "-a", NAME]).trim(), "off");
}
