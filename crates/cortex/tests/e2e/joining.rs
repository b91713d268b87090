//! Joins that cannot be: each is refused with what to do, said at both ends where both know.

use crate::machine::free_port;
use crate::node::Node;
use crate::replication::member::Member;
use crate::wait::{STATE_DEADLINE, wait_for};

fn says(text: &str, needles: &[&str]) {
    for needle in needles {
        assert!(text.contains(needle), "'{needle}' is not in:\n{text}");
    }
}

/// It is stopped, and started again with this invitation and these options.
fn joins_in_vain(member: &mut Member, invitation: &str, options: &[&str]) -> String {
    member.stop();
    member.set_options(&[options, &["--join", invitation]].concat());
    member.fails_to_start()
}

#[test]
fn an_address_that_nobody_can_reach_is_told_at_both_ends() {
    let one = Member::start("one", &[]);
    let mut two = Member::start("two", &[]);
    let closed = format!("127.0.0.1:{}", free_port());
    let invitation = one.invitation();
    let said = joins_in_vain(&mut two, &invitation, &["--advertise", &closed]);
    says(&said, &["cannot reach the new one at", &closed, "firewall", "--advertise"]);
    says(&one.log(), &["peer.refused", "cannot reach the new one at", &closed]);
    assert!(one.peers()["peers"].as_array().is_some_and(Vec::is_empty), "{}", one.peers());
    // Nothing was used up.
    two.set_options(&["--join", &invitation]);
    two.up();
    one.await_reachable(1);

    let mut three = Member::start("three", &[]);
    let nowhere = format!("127.0.0.1:{}", free_port());
    let invitation = one.cortex(&["store", "invite", "--address", &nowhere]);
    let said = joins_in_vain(&mut three, invitation.trim(), &[]);
    says(&said, &[&nowhere, "cannot be reached", "firewall"]);
}

#[test]
fn invitations_of_another_cluster_are_told_apart() {
    let one = Member::start("one", &[]);
    let other = Member::start("other", &[]);
    // The word is of one cluster and the address of another.
    let open = other.invitation();
    let crossed = one.cortex(&["store", "invite", "--address", &other.address()]);
    let mut two = Member::start("two", &[]);
    let said = joins_in_vain(&mut two, crossed.trim(), &[]);
    says(&said, &["not the node that issued it"]);
    two.set_options(&["--join", &open]);
    two.up();
    let said = joins_in_vain(&mut two, &one.invitation(), &[]);
    says(&said, &["another cluster", "--data-dir"]);
    two.set_options(&["--join", "cortex1.nonsense"]);
    says(&two.fails_to_start(), &["no invitation", "cortex nodes invite"]);
    two.set_options(&[]);
    two.up();
    other.await_reachable(1);
}

/// Each with a directory and ports of its own; what they cannot share is named.
#[test]
fn two_clusters_on_one_machine_keep_apart() {
    let listen = format!("127.0.0.1:{}", free_port());
    let one = Node::start_with(&["--listen", &listen]);
    let two = Node::start_with(&[]);
    let row = |node: &Node| {
        let rows: serde_json::Value =
            serde_json::from_str(&node.cortex(&["nodes", "--json"])).expect("JSON");
        assert_eq!(rows.as_array().map(Vec::len), Some(1), "{rows}");
    };
    row(&one);
    row(&two);
    let third = tempfile::TempDir::with_prefix("cortex-e2e-").expect("a temporary directory");
    let data = third.path().join("data");
    let data = data.to_str().expect("text");
    let http = format!("127.0.0.1:{}", free_port());
    let taken = one.run(&["up", "--data-dir", data, "--http", &http, "--listen", &listen]);
    taken.refused().saying(&["the node port", &listen, "--listen"]);
    let http = format!("127.0.0.1:{}", one.http_port);
    one.run(&["up", "--data-dir", data, "--http", &http]).refused().saying(&["cannot be used"]);
    let own = one.data();
    let free = format!("127.0.0.1:{}", free_port());
    let again = ["up", "--data-dir", own.to_str().expect("text"), "--http", &free];
    two.run(&again).refused().saying(&["already runs", "--data-dir"]);
    wait_for("both to go on", STATE_DEADLINE, || {
        let both = [&one, &two].iter().all(|node| node.run(&["status"]).status.success());
        if both { Ok(()) } else { Err("one does not answer".into()) }
    });
}
