//! An old disk: a machine's disk is put back as it was before another one joined. It does not know
//! that one, and cannot take its word. Both say so and what to do, and doing it is enough.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::fixtures::cluster::{await_acquaintance, first, id_of, invitation, join};
use crate::node::Node;
use crate::wait::{STATE_DEADLINE, wait_for};

fn copy(from: &Path, to: &Path) {
    let mut command = Command::new("cp");
    let copied = command.arg("-a").arg(from).arg(to).status();
    assert!(copied.expect("cp").success());
}

/// Returns what `cortex status` wants somebody to look into.
fn problems(node: &Node) -> String {
    let status: Value = serde_json::from_str(&node.cortex(&["status", "--json"])).expect("JSON");
    status["problems"].to_string()
}

fn await_problem(node: &Node, needles: &[&str]) {
    wait_for("the other one to be told of", STATE_DEADLINE, || {
        let said = problems(node);
        if needles.iter().all(|needle| said.contains(needle)) { Ok(()) } else { Err(said) }
    });
    node.run(&["status"]).succeeded().saying(needles);
    node.run(&["nodes"]).succeeded().saying(&["Look into this"]).saying(needles);
    let logged = node.log();
    let alarms = logged.lines().filter(|line| line.contains("store.alarm"));
    let alarms: Vec<&str> = alarms.filter(|line| line.contains(needles[0])).collect();
    assert_eq!(alarms.len(), 1, "said once: {alarms:#?}");
}

#[test]
fn a_member_that_an_old_disk_does_not_know_is_told_of_until_it_joins_again() {
    let mut one = first(&[]);
    one.cortex(&["store", "set", "of::one", "early"]);
    one.down();
    copy(&one.data(), &one.path("copy"));
    one.up();
    let two = join(&one, &[]);
    await_acquaintance(&[&one, &two]);
    assert_eq!([problems(&one), problems(&two)], ["[]", "[]"]);
    let [id, other] = [&one, &two].map(id_of);

    one.down();
    std::fs::remove_dir_all(one.data()).expect("its disk");
    copy(&one.path("copy"), &one.data());
    one.up();
    two.cortex(&["store", "set", "of::two", "late"]);
    let remedy = ["cortex nodes remove --force", "cortex nodes invite", "cortex up --join"];
    await_problem(&two, &[&[format!("no session with node {id}").as_str()], &remedy[..]].concat());
    await_problem(&one, &[&[format!("node {other} takes part").as_str()], &remedy[..]].concat());
    one.run(&["store", "get", "of::two"]).refused();

    two.cortex(&["nodes", "remove", "--force", &id]);
    let word = invitation(&two, &[]);
    one.down();
    let mut again = one.up_command();
    again.args(["--join", &word]);
    one.up_by(again);
    await_acquaintance(&[&one, &two]);
    wait_for("both to hold the same", STATE_DEADLINE, || {
        let got = [one.run(&["store", "get", "of::two"]), two.run(&["store", "get", "of::one"])];
        let good = got[0].stdout == "late" && got[1].stdout == "early";
        if good { Ok(()) } else { Err(format!("{got:?}")) }
    });
    for node in [&one, &two] {
        wait_for("all to be well", STATE_DEADLINE, || match problems(node) {
            none if none == "[]" => Ok(()),
            some => Err(some),
        });
    }
}
