//! Several stores on loopback: what one accepts all have, whatever happens to them meanwhile.

mod liars;
pub mod member;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use self::member::{Member, await_equal};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};

#[test]
fn what_one_node_accepts_all_nodes_have() {
    let mut one = Member::start("one", &[]);
    one.set("greeting::one", "hello");
    let mut two = Member::join("two", &one);
    let three = Member::join("three", &two);
    two.set("greeting::two", "salut");
    three.set("greeting::three", "hej");
    for member in [&one, &two, &three] {
        member.await_value("greeting::one", "hello");
        member.await_value("greeting::two", "salut");
        member.await_value("greeting::three", "hej");
    }
    one.cortex(&["store", "del", "greeting::two"]);
    wait_until("the delete to reach all", || three.get("greeting::two").is_none());
    await_equal(&[&one, &two, &three]);
    let peers = one.peers();
    assert_eq!(peers["state"], "member", "{peers}");
    assert_eq!(peers["peers"].as_array().map(Vec::len), Some(2), "{peers}");
    // A restart needs no options, and nobody's help.
    one.stop();
    two.stop();
    two.set_options(&[]);
    two.up();
    two.set("greeting::late", "again");
    three.await_value("greeting::late", "again");
    one.up();
    one.await_value("greeting::late", "again");
    await_equal(&[&one, &two, &three]);
}

#[test]
fn messages_are_heard_on_every_node() {
    let one = Member::start("one", &[]);
    let two = Member::join("two", &one);
    two.await_reachable(1);
    one.await_reachable(1);
    let mut listener = two.client();
    assert!(listener.command(&["SUBSCRIBE", "news"]).contains("news"));
    let mut speaker = one.client();
    // A message is not repeated by itself, and the stream may just be renewed: it is said until it
    // is heard.
    let heard = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let seen = heard.clone();
        scope.spawn(move || {
            let message = listener.read_until("extra");
            assert!(message.contains("news"), "{message}");
            seen.store(true, Ordering::Release);
        });
        wait_until("the message to be heard", || {
            speaker.command(&["PUBLISH", "news", "extra"]);
            heard.load(Ordering::Acquire)
        });
    });
}

#[test]
fn nothing_acknowledged_is_lost_when_a_node_is_killed() {
    let one = Member::start("one", &[]);
    let mut two = Member::join("two", &one);
    let acknowledged = Arc::new(AtomicUsize::new(0));
    for round in 0..3 {
        let begin = acknowledged.load(Ordering::Acquire);
        let mut client = two.client();
        std::thread::scope(|scope| {
            let counted = acknowledged.clone();
            scope.spawn(move || {
                // The writer goes on until the connection breaks.
                loop {
                    let n = counted.load(Ordering::Acquire);
                    let key = format!("stream::{n}");
                    if client.try_command(&["SET", &key, &n.to_string()]).as_deref() != Some("+OK")
                    {
                        return;
                    }
                    counted.fetch_add(1, Ordering::AcqRel);
                }
            });
            wait_until("some writes", || acknowledged.load(Ordering::Acquire) > begin + 200);
            two.kill_nine();
        });
        two.up();
        one.set(&format!("round::{round}"), "over");
        two.await_value(&format!("round::{round}"), "over");
    }
    await_equal(&[&one, &two]);
    let count = acknowledged.load(Ordering::Acquire);
    for member in [&one, &two] {
        let listed = member.cortex(&["store", "ls", "stream"]);
        let keys: std::collections::BTreeSet<&str> = listed.lines().collect();
        let lost: Vec<usize> =
            (0..count).filter(|n| !keys.contains(format!("stream::{n}").as_str())).collect();
        assert!(lost.is_empty(), "of {count} acknowledged writes these are gone: {lost:?}");
    }
}

#[test]
fn a_node_that_is_cut_off_catches_up() {
    let one = Member::start("one", &[]);
    let two = Member::join("two", &one);
    one.await_reachable(1);
    two.freeze();
    wait_for("the silence to be noticed", STATE_DEADLINE, || {
        let peers = one.peers();
        if peers["peers"][0]["reachable"] == false { Ok(()) } else { Err(peers.to_string()) }
    });
    for n in 0..50 {
        one.set(&format!("while::away::{n}"), "news");
    }
    two.thaw();
    two.await_value("while::away::49", "news");
    two.set("back::again", "yes");
    one.await_value("back::again", "yes");
    await_equal(&[&one, &two]);
}

#[test]
fn a_node_joins_with_data_of_its_own() {
    let one = Member::start("one", &[]);
    one.set("shared::key", "of the cluster");
    let mut two = Member::start("two", &[]);
    two.set("own::key", "brought along");
    let invitation = one.invitation();
    two.stop();
    two.set_options(&["--join", &invitation]);
    two.up();
    two.await_value("shared::key", "of the cluster");
    one.await_value("own::key", "brought along");
    await_equal(&[&one, &two]);
    // The invitation was used once, and serves nobody else.
    let mut three = Member::start("three", &[]);
    three.stop();
    three.set_options(&["--join", &invitation]);
    let said = three.fails_to_start();
    assert!(said.contains("was used"), "{said}");
}

#[test]
fn a_removed_node_comes_back_by_invitation_alone() {
    let one = Member::start("one", &[]);
    let mut two = Member::join("two", &one);
    two.set("before::removal", "kept");
    one.await_value("before::removal", "kept");
    one.cortex(&["store", "del", &format!("cluster::nodes::{}", two.id())]);
    wait_for("the removed node to be told", STATE_DEADLINE, || {
        two.set("while::removed", "its own");
        let peers = two.peers();
        let told = peers["alarms"].to_string().contains("removed") || peers["state"] == "removed";
        if told { Ok(()) } else { Err(peers.to_string()) }
    });
    assert_eq!(one.get("while::removed"), None);
    two.stop();
    two.up();
    assert_eq!(one.get("while::removed"), None);
    two.stop();
    two.set_options(&["--join", &one.invitation()]);
    two.up();
    one.await_value("while::removed", "its own");
    two.set("after::return", "here");
    one.await_value("after::return", "here");
    await_equal(&[&one, &two]);
}

#[test]
fn an_old_copy_of_a_node_is_brought_up_to_date() {
    let one = Member::start("one", &[]);
    let mut two = Member::join("two", &one);
    two.set("early::key", "old");
    one.await_value("early::key", "old");
    two.stop();
    let copy = two.copy_data();
    two.up();
    two.set("early::key", "new");
    two.set("late::key", "lost with the disk");
    one.await_value("early::key", "new");
    one.await_value("late::key", "lost with the disk");
    two.stop();
    two.restore(copy);
    two.up();
    two.await_value("late::key", "lost with the disk");
    two.await_value("early::key", "new");
    two.set("last::key", "on time");
    one.await_value("last::key", "on time");
    await_equal(&[&one, &two]);
}
