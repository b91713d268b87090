//! Tests of turns, shares and order, by example and by chance.

use std::collections::{BTreeMap, BTreeSet};

use model::hash::draw;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

type Item = (u64, u32);

const NOW: Moment = Moment { now_ms: 0, free: usize::MAX };

fn all(fair: &mut Fair<Item>) -> Vec<Item> {
    std::iter::from_fn(|| fair.take(NOW, |_| true)).collect()
}

fn classes(items: &[Item]) -> Vec<u64> {
    items.iter().map(|(class, _)| *class).collect()
}

/// Returns a queue filled with requests that are numbered in each class.
fn filled(length_max: usize, counts: &[(u64, u32)]) -> Fair<Item> {
    let mut fair = Fair::new(length_max);
    for (class, count) in counts {
        for number in 0..*count {
            fair.push(*class, 1, 0, (*class, number));
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
    fair.push(2, 3, 0, (2, 0));
    fair.push(2, 1, 0, (2, 1));
    assert_eq!(classes(&all(&mut fair)), [1, 1, 1, 2, 1, 2, 1, 1]);
    fair.push(3, COST_MAX, 0, (3, 0));
    assert_eq!(fair.take(NOW, |_| true), Some((3, 0)), "whatever may be served is served");
    assert_eq!(cost(None), 1);
    assert_eq!(cost(Some(0)), 1);
    assert_eq!(cost(Some(BODY_BYTES_PER_UNIT)), 2);
    assert_eq!(cost(Some(u64::MAX)), COST_MAX);
}

#[test]
fn one_client_may_fill_the_queue_until_another_comes() {
    let mut fair = filled(10, &[(1, 10)]);
    assert_eq!(fair.push(1, 1, 0, (1, 10)), Pushed::Refused((1, 10)));
    assert_eq!(fair.push(2, 1, 0, (2, 0)), Pushed::InsteadOf((1, 9)));
    assert_eq!(fair.take(NOW, |_| true), Some((1, 0)));
    // The client holds more than half while another waits: no more of it until it has less.
    assert_eq!(fair.push(1, 1, 0, (1, 11)), Pushed::Refused((1, 11)));
    assert_eq!(fair.take(NOW, |_| true), Some((2, 0)));
    assert_eq!(fair.push(1, 1, 0, (1, 12)), Pushed::Waits);
}

#[test]
fn a_request_that_does_not_fit_keeps_its_turn() {
    let mut fair = filled(10, &[(1, 1), (2, 2), (3, 1)]);
    let not_one = |item: &Item| item.0 != 1;
    assert_eq!(fair.take(NOW, not_one), Some((2, 0)));
    assert_eq!(fair.take(NOW, not_one), Some((3, 0)));
    assert_eq!(fair.take(NOW, |_| false), None);
    assert_eq!(classes(&all(&mut fair)), [1, 2]);
}

#[test]
fn more_clients_than_lines_share_some_in_order() {
    let clients = 3 * OWN_LINES_MAX as u64;
    let mut fair = Fair::new(10_000);
    for number in 0..3 {
        for class in 0..clients {
            assert_eq!(fair.push(class, 1, 0, (class, number)), Pushed::Waits);
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
fn clients_that_left_are_forgotten() {
    let mut fair = filled(10, &[(1, 3), (2, 1)]);
    fair.retain(|(class, number)| *class == 1 && *number != 1);
    assert_eq!(fair.len(), 2);
    assert_eq!(all(&mut fair), [(1, 0), (1, 2)]);
    assert!(fair.is_empty());
}

#[test]
fn a_newcomer_is_next_once_in_a_round() {
    let mut fair = filled(100, &[(1, 9), (2, 5)]);
    assert_eq!(fair.take(NOW, |_| true), Some((1, 0)));
    assert_eq!(fair.take(NOW, |_| true), Some((2, 0)));
    fair.push(3, 1, 0, (3, 0));
    fair.push(4, 1, 0, (4, 0));
    assert_eq!(fair.take(NOW, |_| true), Some((3, 0)));
    // It comes back before the others had their turn, and waits for it.
    fair.push(3, 1, 0, (3, 1));
    let rest: Vec<Item> = (0..5).map_while(|_| fair.take(NOW, |_| true)).collect();
    assert_eq!(rest, [(1, 1), (2, 1), (4, 0), (3, 1), (1, 2)]);
    // A client that leaves unserved leaves the place at the front to another.
    fair.push(5, 1, 0, (5, 0));
    fair.retain(|(class, _)| *class != 5);
    fair.push(6, 1, 0, (6, 0));
    assert_eq!(fair.take(NOW, |_| true), Some((6, 0)));
}

/// Serves by serial instances in simulated time: a client keeps slow requests waiting, and another
/// has a few quick ones under way at a time. Returns how many of each were served.
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
        fair.push(SLOW, 1, 0, (SLOW, 0));
    }
    for _ in 0..quick_at_once {
        fair.push(QUICK, 1, 0, (QUICK, 0));
    }
    let mut number = places;
    while let Some((now_ms, _, client)) = busy.pop_first() {
        if now_ms > 60_000 {
            break;
        }
        served[client as usize] += 1;
        fair.let_go(client);
        // A client that has an answer asks again.
        fair.push(client, 1, 0, (client, 0));
        while busy.len() < places as usize {
            let waits = fair.may_take(NOW, |(client, _)| *client == QUICK);
            let Some((next, _)) = fair.take(NOW, |_| true) else { break };
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
    assert_eq!(fair.take(NOW, |_| true), Some((2, 0)), "the other has less");
    assert_eq!(fair.take(NOW, |_| true), Some((1, 0)), "nobody else is there");
    fair.hold(2);
    fair.push(2, 1, 0, (2, 1));
    // Both have their share: they are served in turn.
    assert_eq!(fair.take(NOW, |_| true), Some((2, 1)));
    assert_eq!(fair.take(NOW, |_| true), Some((1, 1)));
    fair.let_go(2);
    fair.let_go(1);
    assert_eq!(fair.take(NOW, |_| true), Some((1, 2)));
    assert!(fair.held.is_empty(), "also where nobody waits: {:?}", fair.held);
}

#[test]
fn a_request_that_is_not_due_lets_due_ones_of_any_client_go_first() {
    let mut fair = Fair::new(100);
    fair.push(1, 1, 2_000, (1, 0));
    fair.push(1, 1, 0, (1, 1));
    fair.push(2, 1, 2_000, (2, 0));
    fair.push(3, 1, 0, (3, 0));
    fair.push(2, 1, 0, (2, 1));
    let at = |now_ms| Moment { now_ms, ..NOW };
    assert_eq!(fair.take(at(100), |_| true), Some((1, 1)));
    assert_eq!(fair.take(at(100), |_| true), Some((2, 1)));
    assert_eq!(fair.take(at(100), |_| true), Some((3, 0)));
    assert_eq!(fair.take(at(100), |_| true), Some((1, 0)), "nobody is due, and there is room");
    fair.push(2, 1, 0, (2, 2));
    assert_eq!(fair.take(at(2_000), |_| true), Some((2, 0)), "it has waited for long enough");
    assert_eq!(fair.take(at(2_000), |_| true), Some((2, 2)));
    assert!(fair.is_empty());
}

#[test]
fn an_eighth_of_the_places_is_kept_for_due_requests() {
    for (places, kept) in [(1, 0), (7, 0), (8, 1), (15, 1), (16, 2), (usize::MAX, usize::MAX / 8)] {
        let mut fair = Fair::new(100);
        fair.share_out(places);
        fair.push(1, 1, 50, (1, 0));
        let with = |free, now_ms| Moment { now_ms, free };
        if kept > 0 {
            assert!(!fair.has_room_for_slow(kept));
            assert!(!fair.may_take(with(kept, 49), |_| true));
            assert_eq!(fair.take(with(kept, 49), |_| true), None);
            assert!(fair.may_take(with(kept, 50), |_| true), "it is due");
        }
        assert!(fair.has_room_for_slow(kept + 1));
        assert!(fair.may_take(with(kept + 1, 0), |_| true));
        assert!(!fair.may_take(with(kept + 1, 0), |_| false));
        fair.push(1, 1, 0, (1, 1));
        assert_eq!(fair.take(with(1, 0), |_| true), Some((1, 1)));
        assert_eq!(fair.take(with(kept + 1, 0), |_| true), Some((1, 0)));
    }
}

/// Returns what the quick ones and the slow ones waited on average, and the quick ones at most, in
/// milliseconds: ten serial instances at 70 % load by simulated time, where one in twenty takes a
/// second instead of 5 ms. Each comes from one of this many clients.
fn waited(seed: u64, slow_patience_ms: u64, clients: u64) -> [u64; 3] {
    const PLACES: usize = 10;
    const TIMES_US: [u64; 2] = [5_000, 1_000_000];
    const BETWEEN_US: u64 = 7_821;
    let mut state = seed;
    let mut chance = move || draw(&mut state) as f64 / u64::MAX as f64;
    let mut fair: Fair<(u64, u64, usize)> = Fair::new(1_000);
    fair.share_out(PLACES);
    let mut busy: BTreeSet<(u64, u64, u64)> = BTreeSet::new();
    let (mut sums, mut counts, mut worst) = ([0; 2], [0; 2], 0);
    let (mut next_us, mut number, mut served) = (0, 0, 0);
    while number < 10_000 {
        let ends_us = busy.first().map_or(u64::MAX, |(ends_us, ..)| *ends_us);
        let now_us = next_us.min(ends_us);
        if ends_us <= next_us {
            let (.., client) = busy.pop_first().unwrap();
            fair.let_go(client);
        } else {
            next_us += (-(1.0 - chance()).ln() * BETWEEN_US as f64) as u64;
            let (client, slow) = (number % clients, usize::from(chance() < 0.05));
            let due_ms = now_us / 1_000 + slow_patience_ms * slow as u64;
            let pushed = fair.push(client, 1, due_ms, (client, now_us, slow));
            assert_eq!(pushed, Pushed::Waits);
            number += 1;
        }
        while busy.len() < PLACES {
            let moment = Moment { now_ms: now_us / 1_000, free: PLACES - busy.len() };
            let Some((client, came_us, slow)) = fair.take(moment, |_| true) else {
                assert!(!fair.may_take(moment, |_| true));
                break;
            };
            fair.hold(client);
            served += 1;
            sums[slow] += now_us - came_us;
            counts[slow] += 1;
            if slow == 0 {
                worst = worst.max(now_us - came_us);
            }
            busy.insert((now_us + TIMES_US[slow], served, client));
        }
    }
    [sums[0] / counts[0] / 1_000, sums[1] / counts[1] / 1_000, worst / 1_000]
}

#[test]
fn quick_requests_hardly_wait_for_slow_ones_whose_time_is_known() {
    for clients in [1, 3, 50] {
        let seeds = 1..=8;
        let of = |patience_ms| {
            let all = seeds.clone().map(|seed| waited(seed, patience_ms, clients));
            all.fold([0; 3], |sums, one| [0, 1, 2].map(|at| sums[at] + one[at]))
        };
        let (unknown, known) = (of(0), of(2_000));
        assert!(known[0] * 5 < unknown[0], "quick: {known:?} of {unknown:?}, {clients} clients");
        assert!(known[2] * 3 < unknown[2], "worst: {known:?} of {unknown:?}, {clients} clients");
        println!("{clients}: {known:?} {unknown:?}");
        let (known, unknown) = (known[1] + 8 * 1_000, unknown[1] + 8 * 1_000);
        assert!(known * 10 < unknown * 11, "slow: {known} of {unknown}, {clients} clients");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push {
        class: u64,
        cost: u32,
        due_ms: u64,
    },
    /// A request is taken that only those of the given class may take, or anybody.
    Take {
        only: Option<u64>,
        moment: Moment,
    },
    /// One of the places of this class is let go.
    LetGo {
        class: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (0u64..6, 1u32..5, prop_oneof![Just(0), 0u64..10])
        .prop_map(|(class, cost, due_ms)| Step::Push { class, cost, due_ms });
    let moment = (0u64..10, 1usize..4).prop_map(|(now_ms, free)| Moment { now_ms, free });
    let take = (proptest::option::weighted(0.2, 0u64..6), moment)
        .prop_map(|(only, moment)| Step::Take { only, moment });
    let let_go = (0u64..6).prop_map(|class| Step::LetGo { class });
    vec(prop_oneof![3 => push, 2 => take, 1 => let_go], 0..300)
}

proptest! {
    #[test]
    fn nothing_is_lost_and_each_client_is_served_in_order(steps in steps(), places in 1u32..24) {
        /// The client, the number, and when it is due.
        type Item = (u64, u32, u64);
        let (mut fair, mut number) = (Fair::new(20), 0);
        fair.share_out(places as usize);
        let kept = places as usize / 8;
        let mut held: BTreeMap<u64, u32> = BTreeMap::new();
        let has_its_share = |held: &BTreeMap<u64, u32>, class| {
            held.get(&class).is_some_and(|count| *count >= places.div_ceil(2))
        };
        let mut waiting: BTreeMap<u64, Vec<Item>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Push { class, cost, due_ms } => {
                    number += 1;
                    let own = waiting.get(&class).map_or(0, Vec::len);
                    let longest = waiting.values().map(Vec::len).max().unwrap_or(0);
                    match fair.push(class, cost, due_ms, (class, number, due_ms)) {
                        Pushed::Refused(item) => {
                            prop_assert_eq!(item, (class, number, due_ms));
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
                    waiting.entry(class).or_default().push((class, number, due_ms));
                }
                Step::LetGo { class } => {
                    if let Some(count) = held.get_mut(&class) {
                        *count -= 1;
                        fair.let_go(class);
                    }
                }
                Step::Take { only, moment } => {
                    let fits = |item: &Item| only.is_none_or(|only| item.0 == only);
                    let is_due = |item: &Item| item.2 <= moment.now_ms;
                    let may_go = |item: &&Item| {
                        fits(item) && (is_due(item) || moment.free > kept)
                    };
                    // The smaller it is, the sooner the request goes.
                    let group = |item: &Item| (has_its_share(&held, item.0), !is_due(item));
                    let first = waiting.values().flatten().filter(may_go).map(group).min();
                    prop_assert_eq!(fair.may_take(moment, fits), first.is_some());
                    let took = fair.take(moment, fits);
                    prop_assert_eq!(took.as_ref().map(group), first);
                    if let Some(item) = took {
                        prop_assert!(fits(&item));
                        let line = waiting.get_mut(&item.0).unwrap();
                        let place = line.iter().position(|one| Some(group(one)) == first);
                        prop_assert_eq!(line.remove(place.unwrap()), item);
                        fair.hold(item.0);
                        *held.entry(item.0).or_default() += 1;
                    }
                }
            }
            waiting.retain(|_, line| !line.is_empty());
            held.retain(|_, count| *count > 0);
            prop_assert_eq!(&fair.held, &held);
            prop_assert_eq!(fair.length, waiting.values().map(Vec::len).sum::<usize>());
        }
    }

    /// However the others ask, and whichever leave: between two turns of a client, each other one
    /// has one at most.
    #[test]
    fn a_client_with_few_requests_waits_one_round_at_most(
        before in vec((0u64..8, 1u32..5), 0..60),
        after in vec(vec((0u64..8, 1u32..5), 0..4), 0..20),
    ) {
        let (mut fair, quiet) = (Fair::new(200), 99);
        for (class, cost) in before {
            fair.push(class, cost, 0, (class, 0));
        }
        fair.push(quiet, 1, 0, (quiet, 0));
        let mut seen = BTreeSet::new();
        for more in after.into_iter().chain(std::iter::repeat_with(Vec::new)) {
            for (class, cost) in more {
                fair.push(class, cost, 0, (class, 0));
            }
            let Some((class, _)) = fair.take(NOW, |_| true) else { break };
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
            fair.push(1, *one, 0, (1, *one));
            fair.push(2, *other, 0, (2, *other));
        }
        let (mut got, mut left) = ([0_i64; 3], [0, costs.len(), costs.len()]);
        while left[1] > 1 && left[2] > 1 {
            let (class, cost) = fair.take(NOW, |_| true).unwrap();
            got[class as usize] += i64::from(cost);
            left[class as usize] -= 1;
            prop_assert!((got[1] - got[2]).abs() <= 2 * i64::from(COST_MAX), "{:?}", got);
        }
    }
}
