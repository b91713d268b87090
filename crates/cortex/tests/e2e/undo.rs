//! What was changed by mistake is taken back, on any node, and by one command.

use serde_json::Value;

use crate::fixtures::cluster::{await_loads, cluster};
use crate::node::Node;
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

pub const NAME: &str = "blog";
const SERVER: &str = "web: python3 -m http.server $PORT --bind $HOST\n";

/// Pushes a site that says this.
pub fn push(node: &Node, text: &str) -> Site {
    let project = node.path("blog");
    of_files(&project, &[("Procfile", SERVER), ("index.html", text)]);
    node.push(&project, NAME)
}

pub fn await_text(site: &Site, text: &str) {
    wait_for(&format!("'{text}' to be answered"), STATE_DEADLINE, || match site.try_get("/") {
        Ok(answer) if answer.status == 200 && answer.body.contains(text) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("'{text}': {error}"))
}

#[test]
fn the_last_change_is_taken_back_on_any_node_and_brought_again() {
    let [one, two] = cluster([&[], &[]]);
    await_loads(&[&one, &two]);
    let site = push(&one, "the first text");
    push(&one, "the second text");
    await_text(&site, "the second text");
    one.cortex(&["scale", "web=2", "-a", NAME, "--note", "for the fair"]);
    one.await_ready(NAME, "web", 2);
    // The other node has heard of it, says what it would do, and does it.
    wait_for("the other node to know of it", STATE_DEADLINE, || {
        let shown = two.cortex(&["undo", "--dry-run", "-a", NAME]);
        let known = shown.contains("to 2") && shown.contains("\"for the fair\"");
        if known { Ok(()) } else { Err(shown) }
    });
    let undone = two.run(&["undo", "-a", NAME]).succeeded();
    undone.saying(&["Taken back: web from", "for the fair", "Now: web from 2 to", "cortex undo"]);
    two.await_ready(NAME, "web", 1);
    two.cortex(&["undo", "-a", NAME]);
    two.await_ready(NAME, "web", 2);
    two.cortex(&["undo", "-a", NAME]);

    // The push before it is named, as what came since was about something else.
    let list = json(&two.cortex(&["undo", "--list", "--json", "-a", NAME]));
    let is_push = |row: &&Value| {
        row["what"].as_str().is_some_and(|what| what.ends_with("(v2 in place of v1)"))
    };
    let rows = list.as_array().expect("a list");
    let push = rows.iter().find(is_push).expect("the push is there");
    let id = push["change"].as_str().expect("a name");
    let undone = two.run(&["undo", "--change", id, "-a", NAME]).succeeded();
    undone.saying(&["return to v1 (v3 in place of v2)", "databases and stored files stay"]);
    await_text(&site, "the first text");
    two.run(&["undo", "--change", id, "-a", NAME]).refused().saying(&["v3", "came after v2"]);
    two.cortex(&["undo", "-a", NAME]);
    await_text(&site, "the second text");
    let audit = two.cortex(&["audit", "-a", NAME]);
    assert!(audit.contains("undo: return to v1 (v3 in place of v2)"), "{audit}");
    assert!(audit.contains("\"for the fair\""), "{audit}");
}
