//! Turns, shares and order, by example and by chance.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

type Item = (u64, u32);

fn all(fair: &mut Fair<Item>) -> Vec<Item> {
    std::iter::from_fn(|| fair.take(|_| true)).collect()
}

fn classes(items: &[Item]) -> Vec<u64> {
    items.iter().map(|(class, _)| *class).collect()
}

/// Numbered in each class.
fn filled(length_max: usize, counts: &[(u64, u32)]) -> Fair<Item> {
    let mut fair = Fair::new(length_max);
    for (class, count) in counts {
        for number in 0..*count {
            fair.push(*class, 1, (*class, number));
        }
    }
    fair
}

#[test]
fn clients_take_turns_however_much_one_asks() {
    let mut fair = filled(100, &[(1, 6), (2, 2), (3, 1)]);
    assert_eq!(classes(&all(&mut fair)), [1, 2, 3, 1, 2, 1, 1, 1, 1]);
}

#[test]
fn a_large_upload_waits_for_as_many_rounds_as_it_costs_unless_it_is_alone() {
    let mut fair = filled(100, &[(1, 6)]);
    fair.push(2, 3, (2, 0));
    fair.push(2, 1, (2, 1));
    assert_eq!(classes(&all(&mut fair)), [1, 1, 1, 2, 1, 2, 1, 1]);
    fair.push(3, COST_MAX, (3, 0));
    assert_eq!(fair.take(|_| true), Some((3, 0)), "whatever may be served is served");
    assert_eq!(cost(None), 1);
    assert_eq!(cost(Some(0)), 1);
    assert_eq!(cost(Some(BODY_BYTES_PER_UNIT)), 2);
    assert_eq!(cost(Some(u64::MAX)), COST_MAX);
}

#[test]
fn one_client_may_fill_the_queue_until_another_comes() {
    let mut fair = filled(10, &[(1, 10)]);
    assert_eq!(fair.push(1, 1, (1, 10)), Pushed::Refused((1, 10)));
    assert_eq!(fair.push(2, 1, (2, 0)), Pushed::InsteadOf((1, 9)));
    assert_eq!(fair.take(|_| true), Some((1, 0)));
    // It holds more than half while another waits: no more of it until it has less.
    assert_eq!(fair.push(1, 1, (1, 11)), Pushed::Refused((1, 11)));
    assert_eq!(fair.take(|_| true), Some((2, 0)));
    assert_eq!(fair.push(1, 1, (1, 12)), Pushed::Waits);
}

#[test]
fn who_does_not_fit_keeps_the_place() {
    let mut fair = filled(10, &[(1, 1), (2, 2), (3, 1)]);
    let not_one = |item: &Item| item.0 != 1;
    assert_eq!(fair.take(not_one), Some((2, 0)));
    assert_eq!(fair.take(not_one), Some((3, 0)));
    assert_eq!(fair.take(|_| false), None);
    assert_eq!(classes(&all(&mut fair)), [1, 2]);
}

#[test]
fn more_clients_than_lines_share_some_in_order() {
    let clients = 3 * OWN_LINES_MAX as u64;
    let mut fair = Fair::new(10_000);
    for number in 0..3 {
        for class in 0..clients {
            assert_eq!(fair.push(class, 1, (class, number)), Pushed::Waits);
        }
    }
    assert!(fair.lines.len() <= OWN_LINES_MAX + SHARED_LINES as usize);
    let mut next = BTreeMap::new();
    for (class, number) in all(&mut fair) {
        let expected = next.entry(class).or_insert(0);
        assert_eq!(number, *expected, "of client {class}");
        *expected += 1;
    }
    assert_eq!(next.len() as u64, clients);
}

#[test]
fn those_who_left_are_forgotten() {
    let mut fair = filled(10, &[(1, 3), (2, 1)]);
    fair.retain(|(class, number)| *class == 1 && *number != 1);
    assert_eq!(fair.len(), 2);
    assert_eq!(all(&mut fair), [(1, 0), (1, 2)]);
    assert!(fair.is_empty());
}

#[test]
fn a_newcomer_is_next_once_in_a_round() {
    let mut fair = filled(100, &[(1, 9), (2, 5)]);
    assert_eq!(fair.take(|_| true), Some((1, 0)));
    assert_eq!(fair.take(|_| true), Some((2, 0)));
    fair.push(3, 1, (3, 0));
    fair.push(4, 1, (4, 0));
    assert_eq!(fair.take(|_| true), Some((3, 0)));
    // It comes back before the others had their turn, and waits for it.
    fair.push(3, 1, (3, 1));
    let rest: Vec<Item> = (0..5).map_while(|_| fair.take(|_| true)).collect();
    assert_eq!(rest, [(1, 1), (2, 1), (4, 0), (3, 1), (1, 2)]);
    // Whoever leaves unserved leaves the place at the front to another.
    fair.push(5, 1, (5, 0));
    fair.retain(|(class, _)| *class != 5);
    fair.push(6, 1, (6, 0));
    assert_eq!(fair.take(|_| true), Some((6, 0)));
}

/// Serial instances by simulated time: a client keeps slow requests waiting, and another has a few
/// quick ones under way at a time. How many of each were served.
fn served(places: u32, quick_at_once: u32, shared_out: bool) -> [u32; 2] {
    const TIMES_MS: [u64; 2] = [1_000, 5];
    const SLOW: u64 = 0;
    const QUICK: u64 = 1;
    let (mut fair, mut served) = (Fair::new(1_000), [0; 2]);
    if shared_out {
        fair.share_out(places as usize);
    }
    // The slow ones have come first, and have all places.
    let mut busy: BTreeSet<(u64, u32, u64)> = (0..places).map(|n| (1_000, n, SLOW)).collect();
    (0..places).for_each(|_| fair.hold(SLOW));
    for _ in 0..400 {
        fair.push(SLOW, 1, (SLOW, 0));
    }
    for _ in 0..quick_at_once {
        fair.push(QUICK, 1, (QUICK, 0));
    }
    let mut number = places;
    while let Some((now_ms, _, client)) = busy.pop_first() {
        if now_ms > 60_000 {
            break;
        }
        served[client as usize] += 1;
        fair.let_go(client);
        // Whoever has an answer asks again.
        fair.push(client, 1, (client, 0));
        while busy.len() < places as usize {
            let waits = fair.iter().any(|(client, _)| *client == QUICK);
            let Some((next, _)) = fair.take(|_| true) else { break };
            fair.hold(next);
            number += 1;
            busy.insert((now_ms + TIMES_MS[next as usize], number, next));
            let slow = busy.iter().filter(|(.., client)| *client == SLOW).count();
            let has_more = next == SLOW && waits && slow > places.div_ceil(2) as usize;
            assert!(!shared_out || !has_more, "{slow} of {places} while another waits");
        }
    }
    served
}

#[test]
fn slow_requests_of_one_client_leave_half_of_the_places_to_another() {
    for places in [2, 4, 5, 10] {
        let [slow, quick] = served(places, 4, false);
        assert!(quick < 4 * slow, "turns alone are shared: {quick} beside {slow}");
        let [slow, quick] = served(places, 4, true);
        assert!(quick > 4_000, "{quick} at {places} places");
        assert!(slow >= 60 * (places / 2), "and the slow ones have theirs: {slow}");
    }
    // Nothing stays free that somebody could use.
    let [slow, quick] = served(4, 0, true);
    assert_eq!((slow, quick), (4 * 60, 0));
}

#[test]
fn a_place_that_is_let_go_is_forgotten_and_nobody_is_shut_out_by_it() {
    let mut fair = filled(100, &[(1, 3), (2, 1)]);
    fair.share_out(2);
    fair.hold(1);
    assert_eq!(fair.take(|_| true), Some((2, 0)), "the other has less");
    assert_eq!(fair.take(|_| true), Some((1, 0)), "nobody else is there");
    fair.hold(2);
    fair.push(2, 1, (2, 1));
    // Both have their share: in turn.
    assert_eq!(fair.take(|_| true), Some((2, 1)));
    assert_eq!(fair.take(|_| true), Some((1, 1)));
    fair.let_go(2);
    fair.let_go(1);
    assert_eq!(fair.take(|_| true), Some((1, 2)));
    assert!(fair.held.is_empty(), "also where nobody waits: {:?}", fair.held);
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        class: u64,
        cost: u32,
    },
    /// One that only those of the given class may take, or anybody.
    Take {
        only: Option<u64>,
    },
    /// One of those that this class has.
    LetGo {
        class: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (0u64..6, 1u32..5).prop_map(|(class, cost)| Step::Push { class, cost });
    let take = proptest::option::weighted(0.2, 0u64..6).prop_map(|only| Step::Take { only });
    let let_go = (0u64..6).prop_map(|class| Step::LetGo { class });
    vec(prop_oneof![3 => push, 2 => take, 1 => let_go], 0..300)
}

proptest! {
    #[test]
    fn nothing_is_lost_and_each_client_is_served_in_order(steps in steps(), places in 1u32..12) {
        let (mut fair, mut number) = (Fair::new(20), 0);
        fair.share_out(places as usize);
        let mut held: BTreeMap<u64, u32> = BTreeMap::new();
        let has_its_share = |held: &BTreeMap<u64, u32>, class| {
            held.get(&class).is_some_and(|count| *count >= places.div_ceil(2))
        };
        let mut waiting: BTreeMap<u64, Vec<Item>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Push { class, cost } => {
                    number += 1;
                    let own = waiting.get(&class).map_or(0, Vec::len);
                    let longest = waiting.values().map(Vec::len).max().unwrap_or(0);
                    match fair.push(class, cost, (class, number)) {
                        Pushed::Refused(item) => {
                            prop_assert_eq!(item, (class, number));
                            prop_assert!(own + 1 >= longest.min(10), "{} of {}", own, longest);
                            continue;
                        }
                        Pushed::InsteadOf(item) => {
                            let line = waiting.get_mut(&item.0).unwrap();
                            prop_assert_eq!(line.len(), longest);
                            prop_assert_eq!(line.pop(), Some(item));
                        }
                        Pushed::Waits => {}
                    }
                    waiting.entry(class).or_default().push((class, number));
                }
                Step::LetGo { class } => {
                    if let Some(count) = held.get_mut(&class) {
                        *count -= 1;
                        fair.let_go(class);
                    }
                }
                Step::Take { only } => {
                    let took = fair.take(|item| only.is_none_or(|only| item.0 == only));
                    match took {
                        Some(item) => {
                            prop_assert!(only.is_none_or(|only| item.0 == only));
                            let mut fit = waiting.keys().filter(|class| {
                                only.is_none_or(|only| **class == only)
                            });
                            prop_assert!(
                                !has_its_share(&held, item.0)
                                    || fit.all(|class| has_its_share(&held, *class)),
                                "{} had its share of {}", item.0, places
                            );
                            fair.hold(item.0);
                            *held.entry(item.0).or_default() += 1;
                            prop_assert_eq!(waiting.get_mut(&item.0).unwrap().remove(0), item);
                        }
                        None => {
                            let mut fit = waiting.iter().filter(|(class, _)| {
                                only.is_none_or(|only| **class == only)
                            });
                            prop_assert!(fit.all(|(_, line)| line.is_empty()), "one might go");
                        }
                    }
                }
            }
            waiting.retain(|_, line| !line.is_empty());
            held.retain(|_, count| *count > 0);
            prop_assert_eq!(&fair.held, &held);
            prop_assert_eq!(fair.len(), waiting.values().map(Vec::len).sum::<usize>());
        }
    }

    /// However the others ask, and whoever leaves: between two turns of a client, each other one
    /// has one at most.
    #[test]
    fn who_asks_a_little_waits_one_round_at_most(
        before in vec((0u64..8, 1u32..5), 0..60),
        after in vec(vec((0u64..8, 1u32..5), 0..4), 0..20),
    ) {
        let (mut fair, quiet) = (Fair::new(200), 99);
        for (class, cost) in before {
            fair.push(class, cost, (class, 0));
        }
        fair.push(quiet, 1, (quiet, 0));
        let mut seen = BTreeSet::new();
        for more in after.into_iter().chain(std::iter::repeat_with(Vec::new)) {
            for (class, cost) in more {
                fair.push(class, cost, (class, 0));
            }
            let Some((class, _)) = fair.take(|_| true) else { break };
            if class == quiet {
                return Ok(());
            }
            prop_assert!(seen.insert(class), "{} had two turns meanwhile", class);
        }
        prop_assert!(false, "it was never served");
    }

    /// Over any stretch in which both always wait, two clients get equally much.
    #[test]
    fn what_clients_get_differs_by_less_than_the_dearest_request(
        costs in vec((1u32..=COST_MAX, 1u32..=COST_MAX), 40..80),
    ) {
        let mut fair = Fair::new(1_000);
        for (one, other) in &costs {
            fair.push(1, *one, (1, *one));
            fair.push(2, *other, (2, *other));
        }
        let (mut got, mut left) = ([0_i64; 3], [0, costs.len(), costs.len()]);
        while left[1] > 1 && left[2] > 1 {
            let (class, cost) = fair.take(|_| true).unwrap();
            got[class as usize] += i64::from(cost);
            left[class as usize] -= 1;
            prop_assert!((got[1] - got[2]).abs() <= 2 * i64::from(COST_MAX), "{:?}", got);
        }
    }
}
