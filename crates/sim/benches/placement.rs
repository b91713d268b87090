//! `cargo bench -p sim --bench placement`: how long it takes to place instances, how evenly they
//! are spread, and the thesis's sum of hosts that may be lost. Times are milliseconds of the
//! simulated cluster.

use sim::placement::world::World;

const SEEDS: u64 = 20;
const PLACED_MS_MAX: u64 = 600_000;
const MINUTE: u64 = 60_000;
/// Capacities, in instances, of hosts of 2, 4 and 8 cores.
const UNEQUAL: [u32; 8] = [16, 16, 16, 32, 32, 32, 64, 64];

fn main() {
    println!("200 instances (20 applications of 10) on 8 hosts of {UNEQUAL:?}, seeds 1 to {SEEDS}");
    println!("  seconds until all are ready; points between the fullest host and the emptiest");
    println!("  (instances in percent of capacity) then, and after a ninth host of 32 has joined");
    let (mut cold, mut uneven, mut joined, mut after) = (vec![], vec![], vec![], vec![]);
    for seed in 1..=SEEDS {
        let mut world = World::of_sizes(seed, &UNEQUAL, 10, 1);
        world.push_many(20, 10);
        cold.push(world.run_until_placed(PLACED_MS_MAX).expect("all are placed") as f64 / 1e3);
        world.run(MINUTE);
        uneven.push(gap(&world.shares()));
        world.join(UNEQUAL.len());
        world.run(5_000);
        joined.push(gap(&world.shares()));
        world.run(15 * MINUTE);
        after.push(gap(&world.shares()));
    }
    row("cold start, s", cold);
    row("gap when placed, points", uneven);
    row("gap 5 s after the join", joined);
    row("gap 15 min after the join", after);
    println!();
    println!("20 applications of 20 instances on 84 hosts that hold 5 each; four hosts are lost");
    let (mut again, mut nodes, mut most) = (vec![], vec![], vec![]);
    for seed in 1..=SEEDS_OF_SUM {
        let mut world = World::of_sizes(seed, &[HOST; 84], 0, 0);
        world.push_many(20, 20);
        world.run_until_placed(PLACED_MS_MAX).expect("all are placed");
        world.run(MINUTE);
        for lost in 10..14 {
            world.down(lost, true, None);
        }
        world.run(1_000);
        let took = world.run_until_placed(PLACED_MS_MAX).expect("the others take over");
        again.push((took + 1_000) as f64 / 1e3);
        world.run(MINUTE);
        assert!(world.run_until_placed(0).is_some(), "{} instances run", world.instances());
        let fewest = world.spread().into_iter().min().expect("applications");
        nodes.push(fewest as f64);
        let fullest = world.shares().into_iter().fold(0.0, f64::max);
        most.push(fullest * f64::from(HOST) / 100.0);
    }
    row("all 400 again after, s", again);
    row("hosts of an application", nodes);
    row("most instances on a host", most);
}

/// The capacity of a host, in instances; five of them leave room for the platform itself.
const HOST: u32 = 6;
/// The number of seeds for the sum, each of which is a cluster of 84 hosts.
const SEEDS_OF_SUM: u64 = 2;

fn gap(shares: &[f64]) -> f64 {
    let most = shares.iter().copied().fold(f64::MIN, f64::max);
    most - shares.iter().copied().fold(f64::MAX, f64::min)
}

fn row(what: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let (least, most) = (values[0], values[values.len() - 1]);
    println!("{what:<28} median {:>6.1}  {least:.1} to {most:.1}", values[values.len() / 2]);
}
