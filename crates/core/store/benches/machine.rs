//! `cargo bench -p store-core`: measures the time that the machine takes for a write, without any
//! disk.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "it measures time")]

use std::hint::black_box;
use std::time::Instant;

use model::{Key, Machine, NodeId, Timestamp};
use store_core::event::{Change, Effect, Event, Ticket, Write};
use store_core::sync::message::ClusterId;
use store_core::{Location, Past, StoreMachine};

const WRITES: u64 = 600_000;
const KEYS: u64 = 10_000;
const BATCH: u64 = 50;

fn main() {
    let node: NodeId = "n1".parse().expect("a valid id");
    let now = Timestamp(1_800_000_000_000);
    let mut machine = StoreMachine::new(&node, now, Past::default(), ClusterId([1; 16]));
    let keys: Vec<Key> =
        (0..KEYS).map(|n| format!("test::{n}").parse().expect("a valid key")).collect();
    let mut random = 1_u64;
    let (mut writing, mut applying) = (0, 0);
    for first in (0..WRITES).step_by(BATCH as usize) {
        let write = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = keys[(random >> 33) as usize % keys.len()].clone();
            let change =
                Change::SetInline { hash: [n as u8; 32], sha1: [1; 20], size: 4, expires: None };
            Write { ticket: Ticket(n), key, change, only_over: None }
        };
        let writes: Vec<Write> = (first..first + BATCH).map(write).collect();
        let mut effects = Vec::new();
        let begun = Instant::now();
        machine.handle(now, Event::Write(writes), &mut effects);
        writing += begun.elapsed().as_nanos();
        // A squash follows now and then, in a batch of its own.
        while let Some(place) = effects.iter().position(|e| matches!(e, Effect::Persist { .. })) {
            let Effect::Persist { batch, entries } = effects.swap_remove(place) else { break };
            let located = |n| Location::Log { segment: 1, offset: n };
            let locations = (0..entries.len() as u32).map(located).collect();
            drop(entries);
            let begun = Instant::now();
            machine.handle(now, Event::Persisted { batch, locations }, &mut effects);
            applying += begun.elapsed().as_nanos();
        }
        black_box(effects);
    }
    let each = |nanoseconds: u128| nanoseconds / u128::from(WRITES);
    println!("{WRITES} writes of {KEYS} keys in batches of {BATCH}, nanoseconds for each write:");
    println!("  until it is on its way  {:>6}", each(writing));
    println!("  applied when durable    {:>6}", each(applying));
}
