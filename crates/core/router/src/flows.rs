//! Flows of datagrams: which clients have one, and when each has been quiet for too long. Bounded
//! in number. Knows no socket and no clock; driven by the router and by `cortex proxy`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Milliseconds between two datagrams of one answer; a network that loses none is quicker.
pub const ANSWER_GAP_MS: u64 = 100;

/// The flows of clients. `T` is what a flow has: a socket, in the shell.
#[derive(Debug)]
pub struct Flows<K, T> {
    flows: BTreeMap<K, Flow<T>>,
    /// The time at which each flow is looked at next, no later than it expires; one entry per flow.
    /// Entries of flows that are gone are dropped when their time comes.
    looks: BinaryHeap<Reverse<(u64, K, u64)>>,
    idle_ms: u64,
    max: usize,
    born: u64,
}

#[derive(Debug)]
struct Flow<T> {
    value: T,
    last_ms: u64,
    /// Whether the client sent the last datagram.
    asked: bool,
    /// A number unlike that of any flow before it under the same key.
    birth: u64,
}

impl<K: Ord + Clone, T> Flows<K, T> {
    pub fn new(idle_ms: u64, max: usize) -> Flows<K, T> {
        Flows { flows: BTreeMap::new(), looks: BinaryHeap::new(), idle_ms, max, born: 0 }
    }

    /// Sets the idle time from now on, also for flows that are there.
    pub fn set_idle(&mut self, idle_ms: u64) {
        if std::mem::replace(&mut self.idle_ms, idle_ms) != idle_ms {
            self.rebuild();
        }
    }

    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub fn get(&self, key: &K) -> Option<&T> {
        self.flows.get(key).map(|flow| &flow.value)
    }

    /// Returns the flow of a client that has just sent something.
    pub fn asked(&mut self, key: &K, now_ms: u64) -> Option<&T> {
        self.touch(key, now_ms, true)
    }

    /// Returns the flow of a client that has just been sent something.
    pub fn answered(&mut self, key: &K, now_ms: u64) -> Option<&T> {
        self.touch(key, now_ms, false)
    }

    fn touch(&mut self, key: &K, now_ms: u64, asked: bool) -> Option<&T> {
        let flow = self.flows.get_mut(key)?;
        flow.last_ms = flow.last_ms.max(now_ms);
        flow.asked = asked;
        Some(&flow.value)
    }

    /// Returns whether a client has no answer yet, or perhaps not all of it. One that wants none
    /// looks the same.
    pub fn is_answer_awaited(&self, now_ms: u64) -> bool {
        let awaits = |flow: &Flow<T>| flow.asked || flow.last_ms + ANSWER_GAP_MS > now_ms;
        self.flows.values().any(awaits)
    }

    /// Adds a flow, or gives the value back if there are too many. A known key gets a new flow.
    pub fn insert(&mut self, key: K, value: T, now_ms: u64) -> Result<(), T> {
        // A heap of those that were removed before their time must not grow without end.
        let heap_max = self.max.saturating_mul(2);
        if !self.flows.contains_key(&key) && self.flows.len() >= self.max {
            return Err(value);
        }
        if self.looks.len() >= heap_max {
            self.rebuild();
        }
        self.born += 1;
        let flow = Flow { value, last_ms: now_ms, asked: true, birth: self.born };
        self.looks.push(Reverse((now_ms.saturating_add(self.idle_ms), key.clone(), self.born)));
        self.flows.insert(key, flow);
        Ok(())
    }

    pub fn remove(&mut self, key: &K) -> Option<T> {
        self.flows.remove(key).map(|flow| flow.value)
    }

    /// Removes and returns those that were quiet for too long.
    pub fn expire(&mut self, now_ms: u64) -> Vec<(K, T)> {
        let mut expired = Vec::new();
        while let Some(Reverse((at, _, _))) = self.looks.peek()
            && *at <= now_ms
        {
            let Some(Reverse((_, key, birth))) = self.looks.pop() else { break };
            let Some(flow) = self.flows.get(&key).filter(|flow| flow.birth == birth) else {
                continue;
            };
            let end = flow.last_ms.saturating_add(self.idle_ms);
            if end > now_ms {
                self.looks.push(Reverse((end, key, birth)));
            } else if let Some(flow) = self.flows.remove(&key) {
                expired.push((key, flow.value));
            }
        }
        expired
    }

    /// Removes and returns all that are left.
    pub fn drain(&mut self) -> Vec<(K, T)> {
        self.looks.clear();
        let all = std::mem::take(&mut self.flows);
        all.into_iter().map(|(key, flow)| (key, flow.value)).collect()
    }

    fn rebuild(&mut self) {
        let look = |(key, flow): (&K, &Flow<T>)| {
            Reverse((flow.last_ms.saturating_add(self.idle_ms), key.clone(), flow.birth))
        };
        self.looks = self.flows.iter().map(look).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_flow_lives_for_as_long_as_it_is_used() {
        let mut flows = Flows::new(100, 2);
        flows.insert('a', 1, 0).unwrap();
        flows.insert('b', 2, 10).unwrap();
        assert_eq!(flows.insert('c', 3, 20), Err(3));
        assert_eq!(flows.asked(&'a', 90), Some(&1));
        assert_eq!(flows.expire(110), [('b', 2)]);
        assert_eq!(flows.asked(&'b', 111), None);
        flows.insert('c', 3, 120).unwrap();
        assert_eq!(flows.expire(190), [('a', 1)]);
        assert_eq!(flows.remove(&'c'), Some(3));
        flows.insert('c', 4, 215).unwrap();
        assert_eq!(flows.expire(230), [], "the look of the one before is no look of this one");
        assert_eq!(flows.expire(315), [('c', 4)]);
        assert!(flows.is_empty());
        flows.insert('d', 5, 400).unwrap();
        flows.set_idle(20);
        assert_eq!(flows.expire(419), []);
        assert_eq!(flows.expire(420), [('d', 5)]);
    }

    #[test]
    fn an_answer_is_awaited_until_it_has_come_and_nothing_more_does() {
        let mut flows = Flows::new(60_000, 4);
        assert!(!flows.is_answer_awaited(0));
        flows.insert('a', 1, 0).unwrap();
        assert!(flows.is_answer_awaited(50_000), "nobody has answered");
        assert_eq!(flows.answered(&'a', 50_000), Some(&1));
        assert!(flows.is_answer_awaited(50_000 + ANSWER_GAP_MS - 1), "there may be more of it");
        assert!(!flows.is_answer_awaited(50_000 + ANSWER_GAP_MS));
        flows.insert('b', 2, 51_000).unwrap();
        assert!(flows.is_answer_awaited(52_000), "of another client");
        flows.answered(&'b', 53_000);
        assert_eq!(flows.asked(&'a', 53_000), Some(&1));
        assert!(flows.is_answer_awaited(54_000), "it has asked again");
        flows.remove(&'a');
        assert!(!flows.is_answer_awaited(54_000));
        assert_eq!((flows.get(&'a'), flows.get(&'b')), (None, Some(&2)));
    }

    proptest! {
        /// Compares with a list that is searched.
        #[test]
        fn exactly_the_quiet_flows_expire(
            steps in vec((0u8..4, 0u8..12, 0u64..60), 0..200),
        ) {
            const IDLE: u64 = 100;
            const MAX: usize = 6;
            let mut flows = Flows::new(IDLE, MAX);
            let mut model: BTreeMap<u8, u64> = BTreeMap::new();
            let mut now = 0;
            for (what, key, later) in steps {
                now += later;
                match what {
                    0 => {
                        let full = model.len() >= MAX && !model.contains_key(&key);
                        prop_assert_eq!(flows.insert(key, (), now).is_err(), full);
                        if !full {
                            model.insert(key, now);
                        }
                    }
                    1 => {
                        prop_assert_eq!(flows.asked(&key, now).is_some(), model.contains_key(&key));
                        model.entry(key).and_modify(|last| *last = now);
                    }
                    2 => {
                        let known = model.remove(&key).is_some();
                        prop_assert_eq!(flows.remove(&key).is_some(), known);
                    }
                    _ => {
                        let mut expired: Vec<u8> =
                            flows.expire(now).into_iter().map(|(key, ())| key).collect();
                        expired.sort_unstable();
                        let quiet: Vec<u8> = model
                            .extract_if(.., |_, last| *last + IDLE <= now)
                            .map(|(key, _)| key)
                            .collect();
                        prop_assert_eq!(expired, quiet);
                    }
                }
                prop_assert_eq!(flows.len(), model.len());
                prop_assert!(flows.looks.len() <= 2 * MAX);
            }
        }
    }
}
