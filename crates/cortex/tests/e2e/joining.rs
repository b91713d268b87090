//! Joins that cannot work: each is refused with what to do, said at both ends where both know.

use crate::fixtures::cluster::{
    await_acquaintance, await_state, cluster, first, id_of, invitation, local_address,
};
use crate::machine::free_port;
use crate::node::{Node, binary, run};
use crate::outside::Site;
use crate::project::copy_of_example;
use crate::replication::member::Member;
use crate::wait::{STATE_DEADLINE, wait_for};

/// The option that sets a clock five hours off, as somebody notices who looks at it.
const HOURS_OFF: &str = "--clock-off=18000";

fn says(text: &str, needles: &[&str]) {
    for needle in needles {
        assert!(text.contains(needle), "'{needle}' is not in:\n{text}");
    }
}

/// Waits until a node's log says all of this: who is refused may hear of it before that is written.
#[track_caller]
fn await_log(log: impl Fn() -> String, needles: &[&str]) {
    wait_for("the log to say it", STATE_DEADLINE, || {
        let log = log();
        if needles.iter().all(|needle| log.contains(needle)) { Ok(()) } else { Err(log) }
    });
}

/// Stops a member and starts it again with this invitation and these options; returns what it says
/// as it fails.
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
    await_log(|| one.log(), &["peer.refused", "cannot reach the new one at", &closed]);
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

/// Asserts that two clusters on one machine work, each with a directory and ports of its own, and
/// that an error names what they cannot share.
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

/// A machine that is not in a cluster yet; each start of it ends when it is refused.
struct Newcomer(tempfile::TempDir);

impl Newcomer {
    fn new() -> Newcomer {
        Newcomer(tempfile::TempDir::with_prefix("cortex-e2e-").expect("a temporary directory"))
    }

    fn joins_in_vain(&self, word: &str, options: &[&str]) -> String {
        let mut command = std::process::Command::new(binary());
        command.args(["up", "--data-dir"]).arg(self.0.path().join("data"));
        let (http, listen) = (free_port(), free_port());
        command.args(["--http", &format!("127.0.0.1:{http}"), "--join", word]);
        command.args(["--listen", &format!("127.0.0.1:{listen}")]).args(options);
        run(command, "cortex up --join").refused().stderr
    }
}

#[test]
fn an_invitation_that_is_too_old_or_was_used_is_refused() {
    let one = first(&[]);
    let newcomer = Newcomer::new();
    one.run(&["nodes", "invite", "--seconds", "4000"]).refused().saying(&["3600"]);
    // No other invitation is open, so strangers are not even heard.
    let short = invitation(&one, &["--seconds", "1"]);
    let said = wait_for("it to be too old", STATE_DEADLINE, || {
        let expired = one.run(&["store", "peers"]).status.success();
        assert!(expired, "the node goes on");
        let said = newcomer.joins_in_vain(&short, &["--fail-points", HOURS_OFF]);
        // The clock is checked first, and a refusal for its sake uses up nothing.
        if said.contains("clock is") { Err(said) } else { Ok(said) }
    });
    says(&said, &["none of its invitations is open", "for an hour", "cortex nodes invite"]);
    // With another one open, it is told which of them is meant.
    let long = invitation(&one, &[]);
    says(&newcomer.joins_in_vain(&short, &[]), &["not known here", "older", "nodes invite"]);
    let two = Node::start_with(&["--join", &long, "--listen", &local_address()]);
    says(&newcomer.joins_in_vain(&long, &[]), &["it was used", "cortex nodes invite"]);
    await_log(|| one.log(), &["peer.refused", "it was used"]);
    await_acquaintance(&[&one, &two]);
}

#[test]
fn a_machine_whose_clock_is_wrong_is_told_at_both_ends() {
    let mut one = first(&[]);
    let newcomer = Newcomer::new();
    let word = invitation(&one, &[]);
    for (off, says_what) in [(HOURS_OFF, "ahead of"), ("--clock-off=-18000", "behind")] {
        let said = newcomer.joins_in_vain(&word, &["--fail-points", off]);
        says(&said, &["the new node's clock is", says_what, "timedatectl", "again"]);
        await_log(|| one.log(), &["peer.refused", "clock is", says_what]);
    }
    let mut two = Node::start_with(&["--join", &word, "--listen", &local_address(), "--load=20"]);
    await_acquaintance(&[&one, &two]);
    let project = one.path("hello");
    copy_of_example("hello", &project);
    one.push(&project, "hello");
    one.cortex(&["scale", "-a", "hello", "web=2"]);
    let ids = [&one, &two].map(id_of);
    wait_for("each of them to run one", STATE_DEADLINE, || {
        let rows = one.ready("hello", "web");
        let each = rows.len() == 2 && ids.iter().all(|id| rows.iter().any(|r| r.node == *id));
        if each { Ok(()) } else { Err(format!("{rows:#?}")) }
    });

    // Later its clock goes wrong: both say so, and both serve on with what they run.
    two.down();
    let mut wrong = two.up_command();
    wrong.args(["--fail-points", HOURS_OFF]);
    two.up_by(wrong);
    for node in [&one, &two] {
        wait_for("the clocks to be told of", STATE_DEADLINE, || {
            let said = node.run(&["nodes"]).stderr;
            let told = ["clock", "ms apart", "set both right", "restart the wrong one"];
            if told.iter().all(|needle| said.contains(needle)) { Ok(()) } else { Err(said) }
        });
        await_answer(node);
    }
    // Nothing comes from it and nothing reaches it: the others go on as if it were gone.
    for (node, other) in [(&one, &ids[1]), (&two, &ids[0])] {
        await_state(node, other, "apart");
        let said = node.run(&["nodes"]).stderr;
        says(&said, &[other, "exchange nothing", "each side runs everything", "(NTP)", "restart"]);
        await_ready_on(node, &id_of(node), 2);
    }
    // Its clock was set right; with nobody to compare it with, only a person can know that it is.
    two.down();
    one.down();
    two.up();
    two.run(&["store", "set", "while::in", "doubt"]).refused().saying(&["store clock trust"]);
    let said = two.run(&["nodes"]).stderr;
    says(&said, &["Look into this", "clock"]);
    two.run(&["store", "clock", "trust"]).succeeded();
    two.cortex(&["store", "set", "after::the", "cure"]);
    one.up();
    wait_for("both to know the same again", STATE_DEADLINE, || {
        let got = one.run(&["store", "get", "after::the"]);
        let said = one.run(&["nodes"]).stderr;
        let good = got.stdout == "cure" && !said.contains("ms apart");
        if good { Ok(()) } else { Err(format!("{got:?}\n{said}")) }
    });
    [&one, &two].into_iter().for_each(await_answer);
    await_acquaintance(&[&one, &two]);
    for node in [&one, &two] {
        wait_for("the duplicates to be gone", STATE_DEADLINE, || {
            let rows = node.ready("hello", "web");
            if rows.len() == 2 { Ok(()) } else { Err(format!("{rows:#?}")) }
        });
    }
}

/// Asserts that a node without a store works with those nodes that its store works with, although
/// it sees the others live.
#[test]
fn a_node_without_a_store_hears_from_its_store_who_is_apart() {
    let [one, mut two, guest] = cluster([&[], &[], &["--roles", "agent,router,checker"]]);
    let [first_id, second_id, guest_id] = [&one, &two, &guest].map(id_of);
    let project = one.path("hello");
    copy_of_example("hello", &project);
    one.push(&project, "hello");
    wait_for("each of them to run some", STATE_DEADLINE, || {
        let rows = one.ready("hello", "web");
        let ids = [&first_id, &second_id, &guest_id];
        let each = rows.len() == 4 && ids.iter().all(|id| rows.iter().any(|r| r.node == **id));
        if each { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
    // While it is away, the store of the other one is used, and from then on.
    two.down();
    let mut wrong = two.up_command();
    wrong.args(["--fail-points", HOURS_OFF]);
    two.up_by(wrong);
    await_state(&one, &second_id, "apart");
    await_state(&guest, &second_id, "apart");
    await_state(&guest, &first_id, "alive");
    for node in [&one, &guest] {
        wait_for("both to run all of it", STATE_DEADLINE, || {
            let rows = node.ready("hello", "web");
            let slots: Vec<u32> = (1..=4)
                .filter(|slot| rows.iter().any(|r| r.slot == *slot && r.node != second_id))
                .collect();
            if slots.len() == 4 { Ok(()) } else { Err(format!("{rows:#?}")) }
        });
    }
    // Its clock was set right, and that of the other member agrees with it.
    two.down();
    two.up();
    await_state(&guest, &second_id, "alive");
    one.await_ready("hello", "web", 4);
}

fn await_ready_on(node: &Node, id: &str, count: usize) {
    wait_for(&format!("node {id} to run {count}"), STATE_DEADLINE, || {
        let rows = node.ready("hello", "web");
        let here = rows.iter().filter(|row| row.node == id).count();
        if here == count { Ok(()) } else { Err(format!("{rows:#?}")) }
    });
}

fn await_answer(node: &Node) {
    wait_for("an answer", STATE_DEADLINE, || {
        let host = format!("hello.localhost:{}", node.http_port);
        let answer = Site { host, port: node.http_port }.try_get("/")?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}

/// Asserts that, during an upgrade of all nodes, those that have a version in common work together;
/// the others are told, lose nothing, and have everything as soon as they are up to date.
#[test]
fn nodes_of_different_versions_work_together_or_are_told() {
    let versions = |span| ["--fail-points".to_string(), format!("--wire-versions={span}")];
    let one = first(&[]);
    let newcomer = Newcomer::new();
    let word = invitation(&one, &[]);
    let newer = versions("2-3");
    let said = newcomer.joins_in_vain(&word, &[&newer[0], &newer[1]]);
    says(&said, &["versions 2 to 3", "this node 1 to 1", "bring the older", "cortex upgrade"]);
    await_log(|| one.log(), &["peer.refused", "versions 2 to 3"]);

    let mut two = Node::start_with(&["--join", &word, "--listen", &local_address(), "--load=20"]);
    await_acquaintance(&[&one, &two]);
    let restart = |two: &mut Node, span| {
        two.down();
        let mut command = two.up_command();
        command.args(versions(span));
        two.up_by(command);
    };
    // The next version will do so too: it speaks both.
    restart(&mut two, "1-2");
    two.cortex(&["store", "set", "of::two", "new"]);
    await_value(&one, "of::two", "new");

    restart(&mut two, "2-3");
    for (node, word) in [(&one, "versions 2 to 3"), (&two, "versions 1 to 1")] {
        wait_for("the versions to be told of", STATE_DEADLINE, || {
            let log = node.log();
            if log.contains(word) { Ok(()) } else { Err(log) }
        });
    }
    one.cortex(&["store", "set", "of::one", "meanwhile"]);
    two.cortex(&["store", "set", "of::two", "apart"]);
    two.run(&["store", "get", "of::one"]).refused();
    two.down();
    two.up();
    await_value(&two, "of::one", "meanwhile");
    await_value(&one, "of::two", "apart");
}

fn await_value(node: &Node, key: &str, value: &str) {
    wait_for("the value", STATE_DEADLINE, || {
        let got = node.run(&["store", "get", key]);
        if got.stdout == value { Ok(()) } else { Err(format!("{got:?}")) }
    });
}

/// Asserts that taken names and ports are refused whichever node is asked, as they are of the whole
/// cluster.
#[test]
fn names_and_ports_that_are_taken_are_refused_on_every_node() {
    let [one, two] = cluster([&[], &[]]);
    let port = free_port().to_string();
    one.cortex(&["apps", "create", "shop", "--port", &port]);
    wait_for("the other to know it", STATE_DEADLINE, || {
        let listed = two.cortex(&["apps", "--json"]);
        if listed.contains("shop") { Ok(()) } else { Err(listed) }
    });
    two.run(&["apps", "create", "shop"]).refused().saying(&["application 'shop' already"]);
    let taken = two.run(&["apps", "create", "other", "--port", &port]).refused();
    taken.saying(&["belongs to the application 'shop'"]);
    let known = id_of(&two);
    one.run(&["nodes", "drain", "nobody"]).refused().saying(&["no node 'nobody'", "cortex nodes"]);
    assert!(one.cortex(&["nodes"]).contains(&known));
}
