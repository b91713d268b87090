//! Several nodes, as somebody operates them: listed, invited, drained, used again, removed.

use serde_json::Value;

use crate::fixtures::cluster::{
    await_acquaintance, await_state, cluster, first, id_of, join, row, rows,
};
use crate::node::Node;
use crate::outside::Site;
use crate::project::copy_of_example;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "hello";
const COUNT: usize = 4;
fn there(node: &Node, id: &str) -> usize {
    node.ready(NAME, "web").iter().filter(|row| row.node == id).count()
}

fn await_spread(node: &Node, what: &str, good: impl Fn(&[usize]) -> bool, ids: &[&str]) {
    wait_for(what, STATE_DEADLINE, || {
        let counts: Vec<usize> = ids.iter().map(|id| there(node, id)).collect();
        if good(&counts) { Ok(()) } else { Err(format!("{counts:?}")) }
    });
}

#[test]
fn nodes_are_listed_drained_and_used_again() {
    let one = first(&[]);
    let id = id_of(&one);
    let alone = rows(&one);
    assert!(alone.len() == 1 && alone[0]["here"] == true, "{alone:?}");
    one.run(&["nodes", "drain", &id]).refused().saying(&["only node", "nodes invite"]);
    one.run(&["nodes", "remove", &id]).refused().saying(&["this node itself", "cortex down"]);
    one.run(&["nodes", "invite"]).succeeded().saying(&["once", "(in ~ ", "127.0.0.1"]);
    let two = join(&one, &[]);
    let other = id_of(&two);
    await_acquaintance(&[&one, &two]);
    let table = one.cortex(&["nodes"]);
    for needle in [&id, &other, "alive", "INSTANCES", "all", env!("CARGO_PKG_VERSION")] {
        assert!(table.contains(needle), "{table}");
    }
    let project = one.path(NAME);
    copy_of_example(NAME, &project);
    one.push(&project, NAME);
    let both = [id.as_str(), other.as_str()];
    let shared =
        |counts: &[usize]| counts.iter().all(|n| *n > 0) && counts.iter().sum::<usize>() == COUNT;
    await_spread(&one, "both to run a part", shared, &both);

    let name = row(&one, &id).expect("a row")["name"].as_str().expect("a name").to_string();
    one.run(&["nodes", "drain", &name]).refused().saying(&["several nodes", &id, &other]);
    one.run(&["nodes", "drain", "nobody"]).refused().saying(&["no node 'nobody'", "cortex nodes"]);
    let drained = one.run(&["nodes", "drain", &other[..6]]).succeeded();
    drained.saying(&["takes no new instances", "runs nothing"]);
    await_spread(&two, "all to be elsewhere", |counts| counts == [COUNT, 0], &both);
    let row = await_state(&one, &other, "drained");
    assert!(row["instances"] == 0 && row["drained_since"].is_string(), "{row}");
    one.run(&["nodes", "drain", &id]).refused().saying(&["no other node", "nodes activate"]);
    one.cortex(&["scale", "-a", NAME, "web=6"]);
    await_spread(&two, "a drained node to get nothing", |counts| counts == [6, 0], &both);

    one.run(&["nodes", "activate", &other]).succeeded().saying(&["takes instances again"]);
    two.cortex(&["scale", "-a", NAME, "web=12"]);
    let again = |counts: &[usize]| counts[1] > 0 && counts.iter().sum::<usize>() == 12;
    await_spread(&one, "it to be used again", again, &both);
}

/// Asks through the router of a node other than the one that runs it.
fn answers(site: &Site) -> Result<(), String> {
    let answer = site.try_get("/")?;
    if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
}

#[test]
fn a_removed_node_speaks_to_nobody() {
    let [one, two, mut three] = cluster([&[], &[], &[]]);
    let (second, third) = (id_of(&two), id_of(&three));
    let project = one.path(NAME);
    copy_of_example(NAME, &project);
    one.push(&project, NAME);
    one.cortex(&["nodes", "drain", &second]);
    let through_two =
        Site { host: format!("{NAME}.localhost:{}", two.http_port), port: two.http_port };
    wait_for("an answer through it", STATE_DEADLINE, || answers(&through_two));

    one.run(&["nodes", "remove", &second]).refused().saying(&["alive", "cortex down", "--force"]);
    one.run(&["nodes", "remove", &second, "--force"]).succeeded().saying(&["is removed"]);
    assert!(row(&one, &second).is_none());
    wait_for("the others to hear of it", STATE_DEADLINE, || match row(&three, &second) {
        None => Ok(()),
        Some(row) => Err(row.to_string()),
    });
    await_state(&two, &second, "removed");
    wait_for("its requests to be refused", STATE_DEADLINE, || match answers(&through_two) {
        Ok(()) => Err("it is answered".into()),
        Err(_) => Ok(()),
    });
    two.cortex(&["store", "set", "while::removed", "unheard"]);
    one.cortex(&["store", "set", "among::members", "unheard"]);
    wait_for("the members to hear of each other", STATE_DEADLINE, || {
        let got = three.run(&["store", "get", "among::members"]);
        if got.status.success() { Ok(()) } else { Err(got.stderr) }
    });
    two.run(&["store", "get", "among::members"]).refused();
    one.run(&["store", "get", "while::removed"]).refused();
    let peers: Value = serde_json::from_str(&one.cortex(&["store", "peers", "--json"])).unwrap();
    let linked = peers["peers"].as_array().expect("rows").iter();
    let strangers: Vec<&Value> =
        linked.filter(|row| row["node"] == second && row["reachable"] == true).collect();
    assert!(strangers.is_empty(), "{peers}");

    // A node that is gone for good needs no force, also before the others say that it is down.
    three.kill_nine();
    one.run(&["nodes", "remove", &third]).succeeded().saying(&["invitation alone"]);
    wait_for("the last one to run everything", STATE_DEADLINE, || {
        let rows = one.rows(NAME);
        let own = rows.iter().all(|row| row.node == id_of(&one) && row.is_ready());
        if own && rows.len() == COUNT { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
}

/// Asserts that what runs on a node that is removed without draining runs on the others instead,
/// and not there.
#[test]
fn what_a_removed_node_ran_is_run_by_others() {
    let one = first(&[]);
    let two = join(&one, &[]);
    // The push comes before anything is known of the other one, which shares it all the same.
    let (first, second) = (id_of(&one), id_of(&two));
    let project = one.path(NAME);
    copy_of_example(NAME, &project);
    one.push(&project, NAME);
    await_spread(
        &one,
        "both to run a part",
        |counts| counts.iter().all(|n| *n > 0),
        &[&first, &second],
    );
    one.run(&["nodes", "remove", &second]).refused().saying(&["runs", "nodes drain"]);
    one.cortex(&["nodes", "remove", &second, "--force"]);
    await_spread(&one, "the other one to run all", |counts| counts == [COUNT], &[&first]);
    assert!(one.rows(NAME).iter().all(|row| row.node == first));
    wait_for("it to run nothing", STATE_DEADLINE, || {
        let left: Vec<_> = two.rows(NAME).into_iter().filter(|row| row.node == second).collect();
        if left.iter().any(|row| row.is_ready()) { Err(format!("{left:?}")) } else { Ok(()) }
    });
}

#[test]
fn stopping_a_node_that_stands_still_ends_with_advice() {
    let node = Node::start();
    node.freeze();
    node.run(&["down"]).refused().saying(&["does not answer", "it is stopped", "kill -CONT"]);
    node.thaw();
}
