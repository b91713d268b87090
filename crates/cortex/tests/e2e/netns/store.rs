//! Two stores on two hosts, and a network that is cut between them.

use super::lab::{Host, Lab};
use crate::replication::member::{Member, await_equal};

type Cut = fn(&Host, &Host);

/// Asserts that nothing is lost when both write while the network is cut: keys of their own, and
/// one key that both write.
#[track_caller]
fn written_on_both_sides(name: &str, cut: Cut) {
    let Some(lab) = Lab::of(2) else { return };
    let (here, there) = (lab.host(0), lab.host(1));
    let one = Member::start_at("one", here, &[]);
    let two = Member::join_at("two", there, &one);
    one.set("before::key", "both");
    two.await_value("before::key", "both");
    cut(here, there);
    for n in 0..20 {
        one.set(&format!("{name}::one::{n}"), "of one");
        two.set(&format!("{name}::two::{n}"), "of two");
    }
    one.set(&format!("{name}::same"), "older");
    two.set(&format!("{name}::same"), "newer");
    // While `one` does not hear `two`, nothing of it has come.
    assert_eq!(one.get(&format!("{name}::two::0")), None);
    assert_eq!(one.get(&format!("{name}::same")).as_deref(), Some("older"));
    here.hear_all();
    there.hear_all();
    await_equal(&[&one, &two]);
    for member in [&one, &two] {
        for n in 0..20 {
            member.await_value(&format!("{name}::one::{n}"), "of one");
            member.await_value(&format!("{name}::two::{n}"), "of two");
        }
        assert_eq!(member.get(&format!("{name}::same")).as_deref(), Some("newer"));
    }
    assert_eq!(one.head(), two.head());
    // The stream between them is whole again.
    two.set("after::key", "both");
    one.await_value("after::key", "both");
}

#[test]
fn what_both_sides_of_a_cut_accept_all_have_afterwards() {
    written_on_both_sides("both", |here, there| here.cut_off(&[there]));
}

#[test]
fn a_network_that_is_cut_one_way_loses_nothing() {
    written_on_both_sides("oneway", |here, there| here.stop_hearing(&[there]));
}
