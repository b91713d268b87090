//! The sharing of what a back end may have at a time, while a proxy and the one that took over from
//! it both serve: each place is with one of the two, and goes to the other where clients wait for
//! it. Driven by the socket over which the listeners were handed over; its end gives all places
//! back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::back_ends::{BackEndName, BackEnds, Lendable};

/// The interval at which places are checked for being free or waited for, as long as there are two
/// processes.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// The maximum wait until the process that leaves has said what it holds; it has nothing else to
/// do.
const HOLD_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandoverSide {
    /// The side that leaves keeps nothing that nobody waits for.
    Leaves,
    Comes,
}

/// A message of either side, as one line.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SharingMessage {
    /// The places that the leaving process does not give away; it sends them first of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold: Option<Vec<Places>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    give: Vec<Places>,
    /// The back ends at any of which one place is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ask: Vec<BackEndName>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Places {
    #[serde(flatten)]
    at: BackEndName,
    count: u32,
}

/// Shares places on the side of the process that was taken over from, as soon as the next one
/// serves.
pub async fn leave(back_ends: Arc<BackEnds>, stream: BufReader<UnixStream>) {
    if back_ends.has_limit() {
        let (link, hold) = SharingLink::leaving(&back_ends);
        follow(
            link,
            &back_ends,
            stream,
            SharingMessage { hold: Some(hold), ..SharingMessage::default() },
        )
        .await;
    }
}

/// Shares places on the side of the process that serves from now on. It has none at `elsewhere`
/// until it is told which.
pub async fn come(
    back_ends: Arc<BackEnds>,
    stream: BufReader<UnixStream>,
    elsewhere: Vec<BackEndName>,
) {
    if back_ends.has_limit() {
        let link = SharingLink::coming(&back_ends, elsewhere);
        follow(link, &back_ends, stream, SharingMessage::default()).await;
    }
}

async fn follow(
    mut link: SharingLink,
    back_ends: &BackEnds,
    stream: BufReader<UnixStream>,
    mut first: SharingMessage,
) {
    let (reading, mut writing) = tokio::io::split(stream);
    // The other side is a proxy of the same user: its lines are as short as these.
    let mut lines = BufReader::new(reading).lines();
    let mut look = interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = link.side == HandoverSide::Leaves;
    loop {
        let told = std::mem::take(&mut first);
        if !told.is_empty() && write(&mut writing, &told).await.is_err() {
            break;
        }
        let line = if heard {
            tokio::select! {
                line = lines.next_line() => Some(line),
                _ = look.tick() => None,
            }
        } else {
            match timeout(HOLD_TIME_MAX, lines.next_line()).await {
                Ok(line) => Some(line),
                Err(_) => break,
            }
        };
        match line.map(|line| line.ok().flatten()) {
            None => {}
            Some(Some(line)) => match serde_json::from_str(&line) {
                Ok(told) => link.hear(back_ends, told),
                Err(error) => {
                    tracing::warn!(%error, "proxy.sharing_misspoken");
                    break;
                }
            },
            Some(None) => break,
        }
        heard = true;
        first = link.step(back_ends);
    }
    link.end(back_ends);
}

async fn write(
    writing: &mut (impl AsyncWriteExt + Unpin),
    told: &SharingMessage,
) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    writing.write_all(&line).await
}

impl SharingMessage {
    fn is_empty(&self) -> bool {
        self.hold.is_none() && self.give.is_empty() && self.ask.is_empty()
    }
}

/// The turns of other processes that wait for a place: there may be one before this one and one
/// after it, and what is promised to both would reach neither.
#[derive(Debug, Default)]
pub struct Turns {
    line: Mutex<VecDeque<u64>>,
    links: AtomicU64,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stand(&self, link: u64) {
        let mut line = self.lock();
        if !line.contains(&link) {
            line.push_back(link);
        }
    }

    fn leave(&self, link: u64) {
        self.lock().retain(|one| *one != link);
    }

    fn first(&self) -> Option<u64> {
        self.lock().front().copied()
    }
}

struct SharingLink {
    /// An id that is unique among the links of this process.
    id: u64,
    side: HandoverSide,
    /// The places that are with the other process, wherever both have a back end.
    outside: BTreeMap<BackEndName, u32>,
    asked: bool,
    /// The back ends where the other process asked for a place, until it has one.
    owed: Vec<BackEndName>,
    /// The place that it gets as soon as it is free: nobody enters there before.
    promised: Option<BackEndName>,
    /// The places beyond what this side may have.
    too_many: Vec<Places>,
    turn: usize,
}

impl SharingLink {
    fn new(
        back_ends: &BackEnds,
        side: HandoverSide,
        outside: BTreeMap<BackEndName, u32>,
    ) -> SharingLink {
        let id = back_ends.turns.links.fetch_add(1, Ordering::Relaxed);
        let (owed, too_many) = (Vec::new(), Vec::new());
        SharingLink { id, side, outside, asked: false, owed, promised: None, too_many, turn: 0 }
    }

    fn leaving(back_ends: &BackEnds) -> (SharingLink, Vec<Places>) {
        let (mut outside, mut hold) = (BTreeMap::new(), Vec::new());
        for Lendable { name: at, endpoint, .. } in back_ends.lendable() {
            let given = endpoint.lend_free(u32::MAX);
            hold.push(Places { at: at.clone(), count: endpoint.concurrency - given });
            outside.insert(at, given);
        }
        (SharingLink::new(back_ends, HandoverSide::Leaves, outside), hold)
    }

    fn coming(back_ends: &BackEnds, elsewhere: Vec<BackEndName>) -> SharingLink {
        let all = back_ends.lendable().into_iter().filter(|one| elsewhere.contains(&one.name));
        let outside = all.map(|one| (one.name, one.endpoint.concurrency)).collect();
        SharingLink::new(back_ends, HandoverSide::Comes, outside)
    }

    fn hear(&mut self, back_ends: &BackEnds, told: SharingMessage) {
        let all = back_ends.lendable();
        let find = |name: &BackEndName| all.iter().find(|one| one.name == *name);
        if let Some(hold) = told.hold {
            for (name, outside) in &mut self.outside {
                let held = hold.iter().find(|places| places.at == *name);
                let held = held.map_or(0, |places| places.count);
                if let Some(one) = find(name) {
                    one.endpoint.lend(held);
                    one.endpoint.get_back(*outside);
                }
                *outside = held;
            }
        }
        for Places { at, count } in told.give {
            let outside = self.outside.entry(at.clone()).or_default();
            let taken = count.min(*outside);
            *outside -= taken;
            if let Some(one) = find(&at) {
                one.endpoint.get_back(taken);
            }
            if taken < count && self.side == HandoverSide::Leaves {
                self.too_many.push(Places { at, count: count - taken });
            }
            self.asked = false;
        }
        if !told.ask.is_empty() {
            self.owed = told.ask;
            back_ends.turns.stand(self.id);
        }
        back_ends.advance();
    }

    fn step(&mut self, back_ends: &BackEnds) -> SharingMessage {
        let mut told = SharingMessage {
            give: std::mem::take(&mut self.too_many),
            ..SharingMessage::default()
        };
        let mut all = back_ends.lendable();
        all.retain(|one| self.outside.contains_key(&one.name));
        if let Some(at) = self.promise(back_ends, &all) {
            told.give.push(Places { at, count: 0 });
        }
        if let Some(name) = &self.promised {
            let one = all.iter().find(|one| one.name == *name);
            if one.is_none_or(|one| !one.endpoint.has_lent_too_much()) {
                // The count is zero where it was removed meanwhile: the other process may ask anew.
                let (at, count) = (name.clone(), u32::from(one.is_some()));
                *self.outside.entry(at.clone()).or_default() += count;
                told.give.push(Places { at, count });
                self.promised = None;
                back_ends.turns.leave(self.id);
                if !self.owed.is_empty() {
                    back_ends.turns.stand(self.id);
                }
            }
        }
        if self.side == HandoverSide::Leaves {
            for one in all.iter().filter(|one| !one.is_waited_for) {
                let count = one.endpoint.lend_free(u32::MAX);
                if count > 0 {
                    *self.outside.entry(one.name.clone()).or_default() += count;
                    told.give.push(Places { at: one.name.clone(), count });
                }
            }
        }
        if !self.asked && self.promised.is_none() {
            let owes_another = back_ends.turns.first().is_some_and(|first| first != self.id);
            let wanted = all.iter().filter(|one| one.is_waited_for || owes_another);
            let there = wanted.filter(|one| self.outside.get(&one.name).is_some_and(|n| *n > 0));
            told.ask = there.map(|one| one.name.clone()).collect();
            self.asked = !told.ask.is_empty();
        }
        told
    }

    /// Promises the other process a place. Clients of this side that come later wait until it has
    /// had its turn; those that wait already come before it. Returns what was asked for in vain.
    fn promise(&mut self, back_ends: &BackEnds, all: &[Lendable]) -> Option<BackEndName> {
        let is_next = back_ends.turns.first() == Some(self.id);
        if self.promised.is_some() || !is_next {
            return None;
        }
        let mut fit: Vec<&Lendable> =
            all.iter().filter(|one| self.owed.contains(&one.name)).collect();
        if fit.is_empty() {
            back_ends.turns.leave(self.id);
            return std::mem::take(&mut self.owed).into_iter().next();
        }
        let free = fit.iter().find(|one| one.endpoint.lend_free(1) == 1).copied();
        fit.retain(|one| one.endpoint.in_flight() > 0 || !one.is_waited_for);
        self.turn += 1;
        let chosen = free.or_else(|| {
            let next = fit.get(self.turn % fit.len().max(1)).copied();
            next.inspect(|one| one.endpoint.lend(1))
        });
        if let Some(one) = chosen {
            self.promised = Some(one.name.clone());
            self.owed.clear();
        }
        None
    }

    /// Takes back everything: the other process is gone, and what it had is free.
    fn end(&mut self, back_ends: &BackEnds) {
        back_ends.turns.leave(self.id);
        for one in back_ends.lendable() {
            let promised = u32::from(self.promised.as_ref() == Some(&one.name));
            let outside = self.outside.get(&one.name).copied().unwrap_or(0);
            one.endpoint.get_back(outside.saturating_add(promised));
        }
        back_ends.advance();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::back_ends::{BackEndConfig, BackEndSettings};
    use super::*;
    use router::choice::{Demands, Reaches};
    use router::permit::Permit;
    use runtime::driver::Clock;

    const PLACES: u32 = 3;
    const DEADLINE: Duration = Duration::from_secs(20);

    fn proxy(address: SocketAddr, elsewhere: Vec<BackEndName>) -> Arc<BackEnds> {
        let settings = BackEndSettings {
            clock: Clock::start(),
            balance: router_core::balance::default_strategy(),
            concurrency: Some(PLACES),
            elsewhere,
        };
        let wanted = BackEndConfig { address, sort: None, weight: 1, draining: false };
        Arc::new(BackEnds::new(vec![None], vec![wanted], settings, None).unwrap())
    }

    fn enter(back_ends: &BackEnds) -> Option<Permit> {
        let service = &back_ends.services[0];
        service.queue.try_enter(&service.application(), Demands::anything(Reaches::Near), None)
    }

    fn all_lent(back_ends: &BackEnds) -> bool {
        back_ends.lendable().iter().all(|one| one.endpoint.has_lent_too_much())
    }

    async fn await_permit(back_ends: &BackEnds) -> Permit {
        let service = &back_ends.services[0];
        let place = router::queue::Place::of([127, 0, 0, 1].into());
        let wants = Demands::anything(Reaches::Near);
        service.queue.enter(wants, place, DEADLINE).await.expect("in time")
    }

    #[tokio::test]
    async fn a_place_is_with_one_of_two_processes() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let name = BackEndName { sort: None, address };
        let old = proxy(address, Vec::new());
        let new = proxy(address, vec![name.clone()]);
        let held = enter(&old).unwrap();
        assert!(enter(&new).is_none(), "it has nothing until it is told");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let left = tokio::spawn(leave(old.clone(), BufReader::new(ours)));
        let came = tokio::spawn(come(new.clone(), BufReader::new(theirs), vec![name]));
        let mut here = vec![await_permit(&new).await, await_permit(&new).await];
        assert!(enter(&new).is_none() && enter(&old).is_none());
        // A client that waits on either side gets the next place that is free on the other.
        let (waiting, freed) = tokio::join!(await_permit(&old), async {
            while new.turns.first().is_none() || !all_lent(&new) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(enter(&new).is_none());
            drop(here.pop());
        });
        let () = freed;
        assert!(enter(&new).is_none() && enter(&old).is_none());
        drop(held);
        here.push(await_permit(&new).await);
        assert!(enter(&new).is_none() && enter(&old).is_none());
        // With its end all that the old process had is free.
        left.abort();
        tokio::time::timeout(DEADLINE, came).await.expect("it hears the end").unwrap();
        here.push(await_permit(&new).await);
        assert!(enter(&new).is_none());
        drop(waiting);
    }
}
