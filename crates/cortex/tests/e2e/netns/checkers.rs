//! A checker that hears nothing removes nothing that others can reach.

use std::time::{Duration, Instant};

use super::application::Client;
use super::lab::Lab;
use crate::fixtures::cluster::{Location, await_state, cluster_at, id_of};
use crate::wait::{STATE_DEADLINE, wait_for, wait_until};
use crate::witnesses::{COUNT, HOST, KEEPER, NAME, lines, project};

/// The length of the cut: several rounds of probes by a checker whose calls are not answered.
const CUT: Duration = Duration::from_secs(20);

#[test]
fn a_checker_that_is_cut_off_one_way_takes_nothing_from_the_others() {
    let Some(lab) = Lab::of(4) else { return };
    let on = |n| Location::Host(lab.host(n));
    let [one, two, _host] = cluster_at([(on(0), &KEEPER), (on(1), &KEEPER), (on(2), &HOST)]);
    let cut = id_of(&two);
    let directory = one.path(NAME);
    project(&directory);
    one.push(&directory, NAME);
    let before = one.await_ready(NAME, "web", COUNT);
    let client = Client::start_for(lab.host(3), NAME, &[&one]);
    lab.host(1).stop_hearing(&[lab.host(0), lab.host(2)]);
    let since = Instant::now();
    wait_until("probes that are not answered", || since.elapsed() > CUT);
    assert_eq!(one.await_ready(NAME, "web", COUNT), before, "nothing was replaced");
    lab.host(1).hear_all();
    await_state(&one, &cut, "alive");
    // What it wrote meanwhile is known by now, and says nothing of what it could not reach.
    two.cortex(&["store", "set", "after::the", "cut"]);
    wait_for("both to know the same", STATE_DEADLINE, || {
        let got = one.run(&["store", "get", "after::the"]);
        if got.stdout == "cut" { Ok(()) } else { Err(got.stderr) }
    });
    let said = lines(&two, &format!("probe::{cut}"));
    assert!(said.is_empty(), "{said:?}");
    let (answered, failed) = client.finish();
    println!("{answered} answered, {} failed", failed.len());
    assert!(answered > 100 && failed.is_empty(), "{answered} answered, {failed:#?}");
}
