//! The schedule: which missing values are fetched, in which order and from which nodes. Those that
//! readers wait for come first, then the newest; a value that no node has now is tried again later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use model::NodeId;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::fetch::fetch;
use super::fetch_board::{FetchBoard, FetchProgress};
use super::links::BulkLinks;
use super::{ASKED_MAX, BulkError, GROUP_BYTES, SPAN_GROUPS, StatedHash, ValueName};
use runtime::task::spawn_blocking;

/// The number of values fetched at a time that nobody reads yet.
const FETCHES_MAX: usize = 4;
/// The number of large values fetched at a time; the remaining place is for small ones, so that
/// they do not wait behind gigabytes.
const LARGE_FETCHES_MAX: usize = 3;
const LARGE_BYTES: u64 = (SPAN_GROUPS * GROUP_BYTES) as u64;
/// The number of values fetched at a time, with those that readers wait for.
const ALL_FETCHES_MAX: usize = 12;
/// The time within which a peer has to say what it has; one that does not is not asked for a value
/// now.
const ASK_MAX: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// The longest pause while a node may have the value that gave no answer: a reader waits for it.
const OPEN_RETRY_MAX: Duration = Duration::from_secs(2);
/// The time between two looks at everything that is missing.
const LINE_PAUSE: Duration = Duration::from_millis(50);
/// The number of values put off at a time; beyond it all are tried again.
const PUT_OFF_MAX: usize = 65_536;
/// The time after which the schedule looks without news; it bounds what lost news cost.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The values that the store lacks, as the schedule asks for them.
pub trait MissingValues: Send + Sync + 'static {
    /// Returns values that are not here and that the winning commits refer to, newest first, at
    /// most `max`. It looks at all of them, so it is called once for many.
    fn missing(&self, max: usize, skip: &dyn Fn(&ValueName) -> bool) -> Vec<ValueName>;
    fn is_missing(&self, value: &ValueName) -> bool;
    /// Returns what the commits of a value say of it.
    fn claims(&self, value: &ValueName) -> Vec<StatedHash>;
    /// Tells the store that these values are here now and durable.
    fn arrived(&self, values: &[ValueName]);
}

struct PutOff {
    until: Instant,
    pause: Duration,
    /// Whether some node may have the value that gave no answer: its readers wait until it does, or
    /// cannot be reached any more.
    is_open: bool,
}

pub struct Schedule {
    fetch_board: Weak<FetchBoard>,
    links: Arc<BulkLinks>,
    wants: Arc<dyn MissingValues>,
    tasks: JoinSet<(ValueName, Result<(), BulkError>)>,
    running: BTreeMap<ValueName, AbortHandle>,
    put_off: BTreeMap<ValueName, PutOff>,
    /// The values for which no claim was true, with those claims; they are refused until another
    /// claim is made.
    refused: BTreeMap<ValueName, Vec<StatedHash>>,
    /// The values to fetch next, newest first.
    line: VecDeque<ValueName>,
    /// The time at which the line is to be formed anew; `None` if it need not be.
    line_due: Option<Instant>,
    /// Whether there were more missing values than the line took.
    was_cut: bool,
    /// The nodes that have the values in line.
    holders: BTreeMap<ValueName, Vec<NodeId>>,
    reachable: BTreeSet<NodeId>,
}

impl Schedule {
    pub fn new(
        fetch_board: Weak<FetchBoard>,
        links: Arc<BulkLinks>,
        wants: Arc<dyn MissingValues>,
    ) -> Schedule {
        Schedule {
            fetch_board,
            links,
            wants,
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
            put_off: BTreeMap::new(),
            refused: BTreeMap::new(),
            line: VecDeque::new(),
            line_due: Some(Instant::now()),
            was_cut: false,
            holders: BTreeMap::new(),
            reachable: BTreeSet::new(),
        }
    }

    /// Runs until the fetch board is told to stop.
    pub async fn run(mut self) {
        while let Some(fetch_board) =
            self.fetch_board.upgrade().filter(|fetch_board| !fetch_board.is_stopped())
        {
            self.meet_peers();
            self.give_up(&fetch_board);
            self.form_line(&fetch_board);
            let wait = self.start_some(&fetch_board).await;
            let changed = fetch_board.changed.notified();
            tokio::select! {
                Some(ended) = self.tasks.join_next() => {
                    let mut all = vec![ended];
                    while let Some(ended) = self.tasks.try_join_next() {
                        all.push(ended);
                    }
                    let ended = all.into_iter().filter_map(Result::ok).collect();
                    self.conclude(&fetch_board, ended);
                }
                () = changed => self.form_line_soon(),
                () = tokio::time::sleep(wait) => self.form_line_soon(),
            }
        }
    }

    /// Has the line formed after a pause, since news may come by the thousand in a second.
    fn form_line_soon(&mut self) {
        self.line_due.get_or_insert(Instant::now() + LINE_PAUSE);
    }

    fn form_line(&mut self, fetch_board: &FetchBoard) {
        let now = Instant::now();
        if self.line.is_empty() && self.line_due.is_none() && self.was_cut {
            self.line_due = Some(now);
        }
        if self.line_due.is_none_or(|due| due > now) {
            return;
        }
        self.refused.retain(|value, claims| self.wants.claims(value) == *claims);
        let skip = |value: &ValueName| {
            if self.refused.contains_key(value) {
                return true;
            }
            let waits = self.put_off.get(value).is_some_and(|put_off| put_off.until > now);
            waits || self.running.contains_key(value)
        };
        self.line = self.wants.missing(ASKED_MAX, &skip).into();
        // Damaged values come after missing ones: their readers may still get them elsewhere.
        let damaged = fetch_board.values.damaged().unwrap_or_default();
        let room = ASKED_MAX.saturating_sub(self.line.len());
        self.line.extend(damaged.into_iter().filter(|value| !skip(value)).take(room));
        self.was_cut = self.line.len() == ASKED_MAX;
        self.line_due = None;
        let line = &self.line;
        self.holders.retain(|value, _| line.contains(value));
    }

    /// Learns which peers can be reached: a new one may have what no other had.
    fn meet_peers(&mut self) {
        let reachable: BTreeSet<NodeId> = self.links.peers.reachable().into_iter().collect();
        if !reachable.is_subset(&self.reachable) {
            self.put_off.clear();
            self.holders.clear();
            self.line_due = Some(Instant::now());
        }
        self.reachable = reachable;
    }

    /// Stops fetching values that no winning commit refers to any more and nobody reads.
    fn give_up(&mut self, fetch_board: &FetchBoard) {
        let wants = &self.wants;
        self.running.retain(|value, task| {
            let goes_on = fetch_board.is_awaited(value)
                || wants.is_missing(value)
                || fetch_board.values.is_damaged(value);
            if !goes_on {
                task.abort();
            }
            goes_on
        });
    }

    /// Starts as many fetches as there are places for. Returns how long nothing more can be done.
    async fn start_some(&mut self, fetch_board: &Arc<FetchBoard>) -> Duration {
        loop {
            let chosen = self.choose(fetch_board);
            if chosen.is_empty() {
                return self.next_look();
            }
            // Only peers that can be reached now are asked.
            self.meet_peers();
            let chosen = self.take_present(fetch_board, chosen).await;
            // A reader is not told what was true when the line was formed.
            let is_known = |value: &ValueName| {
                let holders = self.holders.get(value);
                holders.is_some_and(|known| !known.is_empty() || !fetch_board.is_awaited(value))
            };
            let unknown: Vec<ValueName> =
                chosen.iter().filter(|value| !is_known(value)).copied().collect();
            let all_answered = match unknown.is_empty() {
                true => true,
                false => self.find_holders(&unknown).await,
            };
            for value in chosen {
                match self.holders.remove(&value) {
                    Some(holders) if !holders.is_empty() => self.start(fetch_board, value, holders),
                    _ if !all_answered => self.put_off(value, true),
                    _ => {
                        let why = match self.reachable.len() {
                            0 => "no other node can be reached".to_string(),
                            n => format!("none of the {n} nodes that can be reached has it"),
                        };
                        self.put_off(value, false);
                        fetch_board.report(&value, FetchProgress::Failed(why));
                    }
                }
            }
        }
    }

    /// Chooses the values to start now: first those with readers, then the newest.
    fn choose(&mut self, fetch_board: &FetchBoard) -> Vec<ValueName> {
        let mut chosen: Vec<ValueName> = fetch_board.awaited();
        chosen.retain(|value| match self.refused.get(value).and_then(|claims| claims.first()) {
            Some(claim) => {
                let why = BulkError::Claimed(claim.clone()).to_string();
                fetch_board.report(value, FetchProgress::Failed(why));
                false
            }
            None => true,
        });
        let now = Instant::now();
        let is_open = |value: &ValueName| {
            self.put_off.get(value).is_some_and(|put_off| put_off.is_open && put_off.until > now)
        };
        chosen.retain(|value| !self.running.contains_key(value) && !is_open(value));
        chosen.truncate(ALL_FETCHES_MAX.saturating_sub(self.running.len()));
        let mut places = FETCHES_MAX.saturating_sub(self.running.len() + chosen.len());
        let is_large = |value: &ValueName| value.size > LARGE_BYTES;
        let large = self.running.keys().chain(&chosen).filter(|value| is_large(value)).count();
        let mut large = LARGE_FETCHES_MAX.saturating_sub(large);
        let (wants, running) = (&self.wants, &self.running);
        self.line.retain(|value| {
            if running.contains_key(value) || chosen.contains(value) {
                return false;
            }
            if places == 0 || (is_large(value) && large == 0) {
                return true;
            }
            // The value may have been replaced since the line was formed.
            if wants.is_missing(value) || fetch_board.values.is_damaged(value) {
                places -= 1;
                large -= usize::from(is_large(value));
                chosen.push(*value);
            }
            false
        });
        chosen
    }

    /// Concludes values that have come another way, such as an upload of the same bytes, and
    /// returns the rest.
    async fn take_present(
        &mut self,
        fetch_board: &FetchBoard,
        chosen: Vec<ValueName>,
    ) -> Vec<ValueName> {
        let values = fetch_board.values.clone();
        let names = chosen.clone();
        let look = move || names.iter().map(|v| values.holds(v).unwrap_or(false)).collect();
        let present: Vec<bool> = spawn_blocking(look).await.unwrap_or_default();
        let (here, away): (Vec<_>, Vec<_>) =
            chosen.into_iter().zip(present).partition(|(_, present)| *present);
        let here: Vec<ValueName> = here.into_iter().map(|(value, _)| value).collect();
        self.conclude(fetch_board, here.into_iter().map(|value| (value, Ok(()))).collect());
        away.into_iter().map(|(value, _)| value).collect()
    }

    /// Asks every reachable peer which values it has, also for the next ones in line. Returns
    /// whether all have answered.
    async fn find_holders(&mut self, first: &[ValueName]) -> bool {
        let mut asked = first.to_vec();
        asked.extend(self.line.iter().take(ASKED_MAX.saturating_sub(first.len())));
        let hashes: Vec<[u8; 32]> = asked.iter().map(|value| value.hash).collect();
        let answers = join_all(self.reachable.iter().map(async |peer| {
            let answer = timeout(ASK_MAX, self.links.held(peer, &hashes)).await;
            (peer.clone(), answer.unwrap_or(Err(BulkError::Stalled)))
        }))
        .await;
        // An empty list counts as known: that value is put off when its turn comes.
        self.holders = asked.iter().map(|value| (*value, Vec::new())).collect();
        let mut all_answered = true;
        for (peer, answer) in answers {
            match answer {
                Ok(held) => {
                    for (value, _) in asked.iter().zip(held).filter(|(_, held)| *held) {
                        self.holders.entry(*value).or_default().push(peer.clone());
                    }
                }
                Err(error) => {
                    all_answered = false;
                    tracing::debug!(%peer, %error, "bulk.not_asked");
                }
            }
        }
        all_answered
    }

    fn start(&mut self, fetch_board: &Arc<FetchBoard>, value: ValueName, holders: Vec<NodeId>) {
        let (links, fetch_board) = (self.links.clone(), fetch_board.clone());
        let claims = self.wants.claims(&value);
        let work = async move {
            let report = |proven| fetch_board.report(&value, FetchProgress::Proven(proven));
            let fetched =
                fetch(&fetch_board.values, &links, value, &holders, claims, &report).await;
            (value, fetched)
        };
        self.running.insert(value, self.tasks.spawn(work));
    }

    fn put_off(&mut self, value: ValueName, is_open: bool) {
        if self.put_off.len() >= PUT_OFF_MAX {
            self.put_off.clear();
        }
        let before = self.put_off.get(&value).map(|put_off| put_off.pause * 2);
        let max = if is_open { OPEN_RETRY_MAX } else { RETRY_MAX };
        let pause = before.unwrap_or(RETRY_FIRST).min(max);
        self.put_off.insert(value, PutOff { until: Instant::now() + pause, pause, is_open });
    }

    fn conclude(
        &mut self,
        fetch_board: &FetchBoard,
        ended: Vec<(ValueName, Result<(), BulkError>)>,
    ) {
        let mut arrived = Vec::new();
        for (value, result) in ended {
            self.running.remove(&value);
            match result {
                Ok(()) => {
                    self.put_off.remove(&value);
                    arrived.push(value);
                }
                Err(BulkError::Claimed(claim)) => {
                    let error = BulkError::Claimed(claim).to_string();
                    tracing::error!(value = value.text(), error, "bulk.claim_refused");
                    if self.refused.len() >= PUT_OFF_MAX {
                        self.refused.clear();
                    }
                    self.refused.insert(value, self.wants.claims(&value));
                    fetch_board.report(&value, FetchProgress::Failed(error));
                }
                Err(error) => {
                    tracing::warn!(value = value.text(), size = value.size, %error, "bulk.put_off");
                    // A node whose streams end may be starting again, and one that has lost the
                    // value since may not be the only one that had it.
                    let is_open =
                        matches!(error, BulkError::Cut(_) | BulkError::Stalled | BulkError::Lacks);
                    self.put_off(value, is_open);
                    if !is_open {
                        fetch_board.report(&value, FetchProgress::Failed(error.to_string()));
                    }
                }
            }
        }
        if !arrived.is_empty() {
            self.wants.arrived(&arrived);
        }
        for value in arrived {
            tracing::debug!(value = value.text(), size = value.size, "bulk.fetched");
            fetch_board.report(&value, FetchProgress::Whole);
        }
    }

    fn next_look(&self) -> Duration {
        let now = Instant::now();
        let retries = self.put_off.values().map(|put_off| put_off.until);
        let next = retries.chain(self.line_due).filter(|at| *at > now).min();
        next.map_or(LOOK_INTERVAL, |next| (next - now).min(LOOK_INTERVAL))
    }
}
