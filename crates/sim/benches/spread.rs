//! `cargo bench -p sim`: how long news takes among 10, 100 and 1,000 stores, what each sends for
//! it, and what it costs to find differences in 1,000,000 commits.

use std::time::Instant;

use model::Timestamp;
use sim::spread::{Fleet, commit};
use store_core::{Commit, Stamp};

const FLEETS: [usize; 3] = [10, 100, 1000];
const SETTLE_MS: u64 = 3000;
const QUIET_MS: u64 = 5000;
const SPREAD_MS_MAX: u64 = 60_000;
const COMMITS: u64 = 1_000_000;

type Lacks = fn(u64) -> bool;

fn main() {
    println!("one write among nodes that agree; wires of 1 to 10 ms, disks of 1 ms, seed 1");
    println!(" nodes   half ms    all ms   bytes/node  messages/node   quiet bytes/node/s");
    for count in FLEETS {
        let mut fleet = Fleet::new(1, count, &[], &[]);
        fleet.run_until(SETTLE_MS, |_| false);
        let before = fleet.bytes;
        fleet.run_until(QUIET_MS, |_| false);
        let quiet = (fleet.bytes - before) / count as u64 / (QUIET_MS / 1000);
        let (bytes, messages) = (fleet.bytes, fleet.messages);
        fleet.write("k::new");
        let holds = |fleet: &Fleet, wanted| fleet.holders("k::new") >= wanted;
        let half = fleet.run_until(SPREAD_MS_MAX, |fleet| holds(fleet, count / 2)).expect("half");
        let rest = fleet.run_until(SPREAD_MS_MAX, |fleet| holds(fleet, count)).expect("all");
        let nodes = count as u64;
        println!(
            "{count:>6} {half:>9} {:>9} {:>12} {:>14} {quiet:>20}",
            half + rest,
            (fleet.bytes - bytes) / nodes,
            (fleet.messages - messages) / nodes,
        );
    }
    println!();
    println!("two nodes of {COMMITS} commits; one lacks some (both hellos counted, commits not)");
    println!("  lacking             messages      bytes   seconds here");
    let stamp = |i: u64| Stamp::start_of(Timestamp(1_690_000_000_000 + i * 1000));
    let all: Vec<Commit> =
        (0..COMMITS).map(|i| commit(0, stamp(i), &format!("key::{i:07}"))).collect();
    let missing: [(&str, Lacks); 4] = [
        ("the newest 100", |i| i >= COMMITS - 100),
        ("the newest 10,000", |i| i >= COMMITS - 10_000),
        ("1 in the middle", |i| i == COMMITS / 2 + 7),
        ("100 scattered", |i| i % 10_000 == 4711),
    ];
    for (name, lacks) in missing {
        let part = |lacking| {
            let own = all.iter().enumerate().filter(move |(i, _)| lacks(*i as u64) == lacking);
            own.map(|(_, commit)| commit.clone()).collect::<Vec<_>>()
        };
        let begin = Instant::now();
        let mut fleet = Fleet::new(1, 2, &part(false), &part(true));
        fleet.run_until(SPREAD_MS_MAX, Fleet::agrees).expect("both agree");
        println!(
            "  {name:<18} {:>9} {:>10} {:>13.1}",
            fleet.messages,
            fleet.bytes - fleet.bytes_of_commits,
            begin.elapsed().as_secs_f64()
        );
    }
}
