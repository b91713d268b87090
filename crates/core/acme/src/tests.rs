//! Simulated clusters and authorities: nodes that are lost at each step, networks that are cut, and
//! months that pass.

mod authority;
mod world;

use std::time::Duration;

use model::{CertificateName, NodeId, Timestamp};

use self::authority::Conduct;
use self::world::{Crash, World};
use crate::budget::{FAILED_PER_HOUR, HOUR, ORDERS_PER_HOUR, ORDERS_PER_WEEK, WEEK};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn name() -> CertificateName {
    "shop.example.org".parse().unwrap()
}

#[test]
fn one_node_gets_one_certificate_for_one_order() {
    let mut world = World::new(1, 1, 90);
    world.want(&[name()]);
    world.run_for(MINUTE);
    assert_eq!(world.orders(&name()), 1);
    assert!(world.holds_everywhere(&name()), "{}", world.story());
}

#[test]
fn of_three_nodes_one_orders() {
    for seed in 0..200 {
        let mut world = World::new(seed, 3, 90);
        world.want(&[name()]);
        world.run_for(MINUTE);
        assert_eq!(world.orders(&name()), 1, "seed {seed}: {}", world.story());
        assert_eq!(world.claims(), 1, "seed {seed}: {}", world.story());
        assert!(world.holds_everywhere(&name()), "seed {seed}: {}", world.story());
    }
}

#[test]
fn nothing_is_ordered_that_nobody_declared() {
    let mut world = World::new(1, 2, 90);
    let other: CertificateName = "other.example.org".parse().unwrap();
    world.want(&[name()]);
    world.run_for(MINUTE);
    world.want(&[]);
    world.run_for(70 * DAY);
    assert_eq!((world.orders(&name()), world.orders(&other)), (1, 0), "it is not renewed");
}

#[test]
fn without_an_account_nothing_is_ordered() {
    let mut world = World::new(1, 2, 90);
    world.agree(false);
    world.want(&[name()]);
    world.run_for(DAY);
    assert_eq!(world.orders(&name()), 0);
    world.agree(true);
    world.run_for(MINUTE);
    assert_eq!(world.orders(&name()), 1);
}

/// Loses the node that orders at its step number `at`; returns how many orders were made, or `None`
/// if it has not so many steps.
fn lose_at(
    (seed, sync): (u64, Duration),
    at: u32,
    crash: Crash,
    down: Option<Duration>,
) -> Option<usize> {
    let mut world = World::new(seed, 2, 90);
    world.sync_takes(sync);
    world.want(&[name()]);
    world.crash_at(at, crash, down);
    world.run_for(2 * MINUTE + down.unwrap_or_default());
    let orders = world.orders(&name());
    let most = if world.was_known_elsewhere() { 1 } else { 2 };
    assert!((1..=most).contains(&orders), "{crash:?} at {at}, {orders}: {}", world.story());
    assert!(world.holds_everywhere(&name()), "{crash:?} at {at}, seed {seed}: {}", world.story());
    world.has_crashed().then_some(orders)
}

#[test]
fn an_orderer_that_is_lost_at_any_step_costs_one_more_order_at_most() {
    for crash in [Crash::BeforeActing, Crash::BeforeTheAnswer] {
        for down in [None, Some(Duration::from_secs(2)), Some(Duration::from_secs(120))] {
            for seed in 0..6 {
                // A store that is behind for longer than a node is quiet, too.
                let sync = Duration::from_millis(if seed % 2 == 0 { 1500 } else { 5500 });
                let lose = |at| lose_at((seed, sync), at, crash, down);
                let orders: Vec<usize> = (0..).map_while(lose).collect();
                assert!(orders.len() >= 12, "an order has more steps than these: {orders:?}");
                // Only until its record says where the order is.
                let twice = orders.iter().filter(|orders| **orders > 1).count();
                assert!(twice <= 4, "{crash:?}: {orders:?}");
            }
        }
    }
}

#[test]
fn two_nodes_that_do_not_hear_of_each_other_make_one_order_each() {
    for seed in 0..50 {
        let mut world = World::new(seed, 2, 90);
        world.cut(true);
        world.want(&[name()]);
        world.run_for(5 * MINUTE);
        assert_eq!(world.orders(&name()), 2, "seed {seed}: {}", world.story());
        world.cut(false);
        world.run_for(DAY);
        assert_eq!(world.orders(&name()), 2, "seed {seed}: {}", world.story());
        assert!(world.holds_everywhere(&name()));
    }
}

#[test]
fn a_node_that_is_out_of_sight_for_a_moment_is_not_replaced() {
    for seed in 0..100 {
        let mut world = World::new(seed, 2, 90);
        world.run_for(MINUTE);
        world.blink(Duration::from_secs(4));
        world.want(&[name()]);
        world.run_for(MINUTE);
        assert_eq!(world.orders(&name()), 1, "seed {seed}: {}", world.story());
    }
}

#[test]
fn nodes_that_are_cut_off_amid_an_order_make_two_at_most() {
    for seed in 0..200 {
        let mut world = World::new(seed, 2, 90);
        world.want(&[name()]);
        world.run_for(Duration::from_millis(seed * 67));
        world.cut(true);
        world.run_for(5 * MINUTE);
        world.cut(false);
        world.run_for(30 * MINUTE);
        let orders = world.orders(&name());
        assert!((1..=2).contains(&orders), "seed {seed}, {orders}: {}", world.story());
        assert!(world.holds_everywhere(&name()));
    }
}

/// Lets a cluster live for so many days, with losses and failures of all kinds.
fn live(seed: u64, lifetime: u64, days: u32) {
    let mut world = World::new(seed, 2, lifetime);
    let names: Vec<CertificateName> =
        (0..3).map(|n| format!("{n}.example.org").parse().unwrap()).collect();
    world.want(&names);
    world.conduct(Conduct { trouble: 10, ..Conduct::default() });
    world.run_for(DAY / 2);
    for _ in 0..days * 2 {
        world.weather();
        world.run_for(DAY / 2);
        for name in &names {
            let left = world.left(name);
            assert!(left.is_some(), "seed {seed}: {name} has expired: {}", world.story());
            // Two halves of a cluster that do not hear of each other have a budget each.
            let hour = world.most_orders_within(name, HOUR);
            assert!(hour <= 2 * ORDERS_PER_HOUR, "seed {seed}: {hour}: {}", world.story());
            let week = world.most_orders_within(name, WEEK);
            assert!(week <= 12, "seed {seed}: {week}: {}", world.story());
        }
    }
    let renewals = u64::from(days) * 3 / (lifetime * 2);
    for name in &names {
        let issued = world.issued(name) as u64;
        assert!(issued > renewals, "seed {seed}: {issued} of more than {renewals}");
        assert!(issued <= 2 * renewals + 6, "seed {seed}: {issued} of {renewals}");
    }
}

#[test]
fn no_certificate_expires_in_months_of_trouble() {
    for seed in 0..12 {
        live(seed, 6, 30);
        live(seed, 45, 100);
        live(seed, 90, 200);
    }
}

#[test]
fn a_clock_that_leaps_by_a_month_finds_what_is_due() {
    for lifetime in [6, 45, 90] {
        let mut world = World::new(lifetime, 2, lifetime);
        world.want(&[name()]);
        world.run_for(MINUTE);
        world.leap(30 * DAY);
        world.run_for(5 * MINUTE);
        let left = world.left(&name()).expect("it is good");
        let third = Duration::from_secs(lifetime * 24 * 3600) / 3;
        assert!(left >= third, "{lifetime}: {left:?} left: {}", world.story());
        assert!(world.orders(&name()) <= 2);
    }
}

#[test]
fn the_authority_says_when_to_renew_and_is_not_outrun() {
    let mut world = World::new(5, 2, 90);
    world.want(&[name()]);
    world.run_for(DAY);
    let (from, to) = (world.now().after(2 * DAY), world.now().after(3 * DAY));
    world.suggest(&name(), from, to);
    world.run_for(2 * DAY);
    assert_eq!(world.orders(&name()), 1, "not before the window: {}", world.story());
    world.run_for(2 * DAY);
    assert_eq!(world.orders(&name()), 2, "within the window: {}", world.story());
    assert!(world.replaced(&name()), "the order says which certificate it follows");
}

#[test]
fn an_order_that_gave_its_certificate_is_not_taken_for_the_next_one() {
    for at in 0..25 {
        let mut world = World::new(7, 1, 90);
        // As soon as there is a certificate its authority wants another one.
        world.suggest(&name(), START, START.after(Duration::from_secs(1)));
        world.want(&[name()]);
        world.crash_at(at, Crash::BeforeTheAnswer, Some(Duration::from_secs(2)));
        world.run_for(20 * MINUTE);
        assert_eq!(world.issued(&name()), 2, "lost at {at}: {}", world.story());
        assert!(!world.holds_first(&name()), "lost at {at}: {}", world.story());
    }
}

#[test]
fn a_name_that_fails_is_tried_less_and_less() {
    let mut world = World::new(3, 2, 90);
    world.want(&[name()]);
    world.conduct(Conduct { refuses: Some("connection"), ..Conduct::default() });
    world.run_for(HOUR);
    let hour = world.orders(&name());
    assert!((2..=FAILED_PER_HOUR).contains(&hour), "{hour}: {}", world.story());
    world.run_for(WEEK);
    let week = world.orders(&name());
    assert!((6..=ORDERS_PER_WEEK).contains(&week), "{week}: {}", world.story());
    let record = world.record(&name()).expect("it was tried");
    assert_eq!(record.error.expect("it failed").kind, "connection");
    // The cause is mended: it comes by itself, at the latest after a day.
    world.conduct(Conduct::default());
    world.run_for(DAY + HOUR);
    assert!(world.holds_everywhere(&name()), "{}", world.story());
    assert_eq!(world.record(&name()).expect("it is there").error, None);
}

#[test]
fn an_authority_that_has_had_enough_is_left_alone() {
    let mut world = World::new(3, 1, 90);
    world.want(&[name()]);
    let limited = Conduct { refuses_orders: Some(3 * HOUR), ..Conduct::default() };
    world.conduct(limited);
    world.run_for(MINUTE);
    world.conduct(Conduct::default());
    world.run_for(3 * HOUR - 3 * MINUTE);
    assert_eq!(world.orders(&name()), 0, "{}", world.story());
    world.run_for(5 * MINUTE);
    assert_eq!(world.orders(&name()), 1, "{}", world.story());
}

#[test]
fn what_does_not_arrive_here_is_not_ordered() {
    let mut world = World::new(3, 2, 90);
    world.want(&[name()]);
    world.lead_elsewhere(true);
    world.run_for(3 * DAY);
    assert_eq!(world.orders(&name()), 0, "{}", world.story());
    world.lead_elsewhere(false);
    world.run_for(10 * MINUTE);
    assert_eq!(world.orders(&name()), 1, "{}", world.story());
}

#[test]
fn an_authority_that_is_away_costs_no_orders() {
    let mut world = World::new(8, 2, 6);
    world.want(&[name()]);
    world.run_for(MINUTE);
    world.conduct(Conduct { away: true, ..Conduct::default() });
    // It was due after four days, and is away for a day and a half more.
    world.run_for(4 * DAY + 36 * HOUR);
    assert_eq!(world.orders(&name()), 1);
    world.conduct(Conduct::default());
    world.run_for(2 * HOUR);
    assert_eq!(world.orders(&name()), 2, "{}", world.story());
    assert!(world.left(&name()).expect("it is good") > 5 * DAY);
}

#[test]
fn an_authority_that_goes_away_amid_an_order_finds_the_same_one_again() {
    for seed in 0..40 {
        let mut world = World::new(seed, 2, 90);
        world.want(&[name()]);
        while world.orders(&name()) == 0 {
            world.run_for(Duration::from_millis(50));
        }
        world.run_for(Duration::from_millis(seed * 70));
        world.conduct(Conduct { away: true, ..Conduct::default() });
        world.run_for(5 * MINUTE);
        world.conduct(Conduct::default());
        world.run_for(10 * MINUTE);
        assert_eq!(world.orders(&name()), 1, "seed {seed}: {}", world.story());
        assert!(world.holds_everywhere(&name()), "seed {seed}: {}", world.story());
    }
}

#[test]
fn a_thousand_names_stay_within_the_budget_of_the_cluster() {
    let mut world = World::new(2, 2, 90);
    let names: Vec<CertificateName> =
        (0..600).map(|n| format!("{n}.example.org").parse().unwrap()).collect();
    world.want(&names);
    world.run_for(HOUR);
    let all: usize = names.iter().map(|name| world.orders(name)).sum();
    // Both nodes may see the last free place.
    assert!((150..=166).contains(&all), "{all}");
    world.run_for(15 * HOUR);
    assert!(names.iter().all(|name| world.orders(name) == 1));
}

/// A node for tests.
fn node(n: usize) -> NodeId {
    format!("n{n}").parse().unwrap()
}

const START: Timestamp = Timestamp(1_800_000_000_000);
