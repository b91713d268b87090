//! A laptop on a network of its own kind: the node that it speaks to is there and cannot be
//! reached.

use serde_json::{Value, json};

use super::lab::Lab;
use crate::fixtures::cluster::{Location, await_loads, cluster_at, id_of};
use crate::node::run;
use crate::reach::{Laptop, NAME, await_number, check_whole, follow, invite};
use crate::wait::{STATE_DEADLINE, wait_for};

#[test]
fn a_laptop_goes_on_with_the_node_that_it_reaches() {
    let Some(lab) = Lab::of(3) else { return };
    let on = |n| Location::Host(lab.host(n));
    let [one, two] = cluster_at([(on(0), &[][..]), (on(1), &[])]);
    await_loads(&[&one, &two]);
    let laptop = Laptop::on(lab.host(2));
    let line = invite(&one, &["ana", "--role", "developer"]);
    laptop.log_in(&line).succeeded();
    let (_, pin) = line.split_once('#').expect("a fingerprint");
    let (pin, _) = pin.split_once('.').expect("a code");
    assert!(laptop.cortex(&["whoami"]).contains(&format!("answered by {}", id_of(&one))));
    let project = laptop.project();
    laptop.run(&["push", project.to_str().expect("UTF-8"), "-a", NAME]).succeeded();
    laptop.cortex(&["scale", "-a", NAME, "web=1", "count=1"]);
    two.await_ready(NAME, "count", 1);

    let log = laptop.home().join("log");
    let _following = follow(&laptop, &["logs", "-f", "-n", "5", "-p", "count", "-a", NAME], &log);
    let seen = await_number(&log, 20);
    // The first node is alive for the second one, and says nothing to the laptop, nor the end.
    lab.host(2).cut_off(&[lab.host(0)]);
    let before = *seen.last().expect("there were some");
    check_whole(&log, &await_number(&log, before + 40));
    assert!(laptop.cortex(&["whoami"]).contains(&format!("answered by {}", id_of(&two))));
    laptop.run(&["push", project.to_str().expect("UTF-8"), "-a", NAME]).succeeded();
    lab.host(2).hear_all();
    lab.host(0).hear_all();

    // A node that was removed answers nobody, and the laptop looks for it no more.
    two.cortex(&["nodes", "remove", "--force", &id_of(&one)]);
    wait_for("the laptop to forget the node", STATE_DEADLINE, || {
        laptop.cortex(&["ps", "-a", NAME]);
        let shown = laptop.cortex(&["contexts", "--json"]);
        let contexts: Value = serde_json::from_str(&shown).expect("JSON");
        let address = format!("{}:8205", lab.host(1).address);
        if contexts[0]["addresses"] == json!([address]) { Ok(()) } else { Err(shown) }
    });
    let straight = format!("{}:8205", lab.host(0).address);
    let token = two.cortex(&["tokens", "create", "second", "--user", "ana"]);
    let mut command = laptop.command(&["whoami"]);
    command
        .env("CORTEX_URL", format!("https://{straight}#{pin}"))
        .env("CORTEX_TOKEN", token.trim());
    run(command, "cortex whoami").refused().saying(&["can be reached"]);
}
