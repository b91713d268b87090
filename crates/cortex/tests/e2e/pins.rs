//! Applications that keep files: they run where these are, wait while that node is away, and go to
//! another one with all of them.

use std::fs;

use serde_json::Value;

use crate::fixtures::cluster::{await_state, cluster, id_of};
use crate::node::Node;
use crate::outside::{Connection, Site};
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "notes";

/// A server that keeps what is posted to it.
const SERVER: &str = include_str!("fixtures/notes.py");

fn push(node: &Node, settings: &str) {
    let project = node.path(NAME);
    let procfile = ("Procfile", "web: python3 server.py\n");
    of_files(&project, &[procfile, ("server.py", SERVER), ("cortex.toml", settings)]);
    node.try_push(&project, NAME).succeeded();
}

fn through(node: &Node) -> Site {
    Site { host: format!("{NAME}.localhost:{}", node.http_port), port: node.http_port }
}

fn note(node: &Node, text: &str) {
    wait_for("a note to be taken", STATE_DEADLINE, || {
        let mut connection = Connection::open(&through(node)).map_err(|e| e.to_string())?;
        let answer = connection.request("POST", "/", &[], text.as_bytes());
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}

fn await_notes(node: &Node, text: &str) {
    wait_for(&format!("the notes '{text}'"), STATE_DEADLINE, || {
        let answer = through(node).try_get("/")?;
        let good = answer.status == 200 && answer.body == format!("0 {text}");
        if good { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}

fn await_only_on(node: &Node, id: &str) {
    wait_for("it to run there alone", STATE_DEADLINE, || {
        let ready = node.ready(NAME, "web");
        let good = !ready.is_empty() && ready.iter().all(|row| row.node == id);
        if good { Ok(()) } else { Err(format!("{ready:?}")) }
    });
}

/// Waits until a node has the source, and so can start the application without the others.
fn await_source(node: &Node) {
    let values = node.data().join("values");
    let files_in = |path| fs::read_dir(path).into_iter().flatten().flatten();
    let is_shelf = |entry: &fs::DirEntry| entry.file_name().len() == 2;
    wait_for("the source to have come", STATE_DEADLINE, || {
        let count = files_in(values.clone())
            .filter(is_shelf)
            .flat_map(|shelf| files_in(shelf.path()))
            .count();
        if count > 0 { Ok(()) } else { Err("no large value yet".into()) }
    });
}

fn info(node: &Node) -> Value {
    serde_json::from_str(&node.cortex(&["info", "-a", NAME, "--json"])).expect("JSON")
}

#[test]
fn an_application_moves_with_its_files() {
    let [one, two] = cluster([&[], &[]]);
    let (here, there) = (id_of(&one), id_of(&two));
    push(&one, "persist = [\"kept/\", \"made\"]\n");
    note(&one, "first ");
    assert_eq!(one.cortex(&["pin", NAME]).trim(), here);
    assert_eq!(info(&one)["holder"], here.as_str());
    one.run(&["nodes", "drain", &here]).refused().saying(&["cannot leave", "cortex pin"]);
    one.cortex(&["nodes", "activate", &here]);
    await_only_on(&one, &here);

    // It stays where it is, and goes on, when the copy fails.
    let kept = one.data().join("apps").join(NAME).join("persist/kept");
    let deep = (0..110).fold(kept.join("deep"), |path, _| path.join("d"));
    fs::create_dir_all(&deep).expect("a deep directory");
    two.run(&["pin", NAME, &there]).refused().saying(&["could not be moved", "nested deeper"]);
    await_only_on(&two, &here);
    await_notes(&two, "first ");
    fs::remove_dir_all(kept.join("deep")).expect("it can be removed");
    one.run(&["pin", NAME, "nowhere"]).refused().saying(&["no node 'nowhere'"]);

    two.run(&["pin", NAME, &there[..6]]).succeeded().saying(&["on node", "running there"]);
    await_only_on(&one, &there);
    await_notes(&one, "first ");
    // The program decided whether this path is a file or a directory, and made a file of it.
    let made = fs::read_to_string(two.data().join("apps").join(NAME).join("persist/made"));
    assert_eq!(made.expect("it came along"), here);
    note(&one, "second ");
    await_notes(&two, "first second ");
    assert!(!kept.exists(), "what is left there is no longer its own");
    // It goes back again, over what an earlier stay left.
    one.cortex(&["pin", NAME, &here]);
    await_only_on(&two, &here);
    await_notes(&two, "first second ");
}

#[test]
fn an_application_waits_for_the_node_that_holds_its_data() {
    let [one, mut two] = cluster([&[], &[]]);
    let (here, there) = (id_of(&one), id_of(&two));
    push(&two, "persist = [\"kept/\"]\n");
    await_source(&one);
    note(&one, "kept ");
    two.kill_nine();
    await_state(&one, &there, "down");
    let waiting = format!("waiting: {there} holds its data");
    wait_for("it to wait", STATE_DEADLINE, || {
        let state = info(&one)["state"].to_string();
        if state.contains(&waiting) { Ok(()) } else { Err(state) }
    });
    one.run(&["ps", "-a", NAME]).succeeded().saying(&[&waiting]);
    assert!(one.cortex(&["apps"]).contains(&waiting));
    one.run(&["pin", NAME, &here]).refused().saying(&["is not there", "--without-files"]);
    two.up();
    await_only_on(&one, &there);
    await_notes(&one, "kept ");
    one.run(&["pin", NAME, &here, "--without-files"]).refused().saying(&["alive"]);
    // The node is gone for good: the application begins anew only when somebody says so.
    two.kill_nine();
    let down = await_state(&one, &there, "down");
    assert!(down["last_seen"].is_string(), "{down}");
    one.run(&["nodes", "remove", &there]).refused().saying(&["only files of", NAME]);
    one.run(&["nodes", "remove", &there, "--force"]).succeeded().saying(&["without-files"]);
    one.run(&["pin", NAME, &here, "--without-files"]).succeeded().saying(&["running there"]);
    await_only_on(&one, &here);
    await_notes(&one, "");
}

#[test]
fn shared_files_tie_an_application_to_no_node() {
    let [one, two] = cluster([&[], &[]]);
    push(&one, "persist = [\"kept/\"]\npersist_shared = true\n");
    one.cortex(&["scale", "-a", NAME, "web=4"]);
    wait_for("both to run a part", STATE_DEADLINE, || {
        let rows = one.ready(NAME, "web");
        let on = |node: &Node| rows.iter().filter(|row| row.node == id_of(node)).count();
        if on(&one) > 0 && on(&two) > 0 { Ok(()) } else { Err(format!("{rows:?}")) }
    });
    one.run(&["pin", NAME, &id_of(&two)]).refused().saying(&["keeps no files on one node"]);
    let table = one.cortex(&["ps", "-a", NAME]);
    assert!(table.contains(&format!("on {}", id_of(&two))), "{table}");
}
