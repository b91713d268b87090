//! What is next for a name that nothing is under way for here.

use std::time::Duration;

use model::acme::AcmeOrder;
use model::record::{RECORD_VERSION, Unknown};
use model::{CertificateName, NodeId, Timestamp};

use super::{
    ATTEMPT_MAX, Arrival, Check, Effect, Entry, LOST_AFTER, Orderer, RESUMED_MAX, ROOM_PAUSE,
    RUNS_MAX, TURN, Task,
};
use crate::budget;
use crate::challenge::needs_dns;
use crate::turn;

/// How long after a certificate was issued, by the order's record, nothing is due: the certificate
/// may be on its way here.
const ISSUED_GRACE: Duration = Duration::from_secs(15);
/// How long it is believed that requests for a name come here.
const CHECK_FRESH: Duration = Duration::from_secs(300);
/// The pause after a look that did not find the name here, and the longest one. A look costs a
/// question to DNS and a request to ourselves, and no order.
const CHECK_PAUSE: Duration = Duration::from_secs(15);
const CHECK_PAUSE_MAX: Duration = Duration::from_secs(300);
/// How long nobody has to answer until an order is made nevertheless: a network may not let its own
/// machines reach its public address.
const CHECK_PATIENCE: Duration = Duration::from_secs(600);
/// The part of the time from when a certificate is due until it expires that a look may hold it up.
const CHECK_PART: u32 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Nothing(Option<Timestamp>),
    AskRenewal { id: String },
    Check,
    Claim { resumes: bool },
}

/// Returns the record of a name that was never ordered.
pub fn fresh(node: &NodeId) -> AcmeOrder {
    AcmeOrder {
        v: RECORD_VERSION,
        node: node.clone(),
        claimed_at: Timestamp(0),
        active: false,
        url: None,
        key: None,
        orders: Vec::new(),
        issued: Vec::new(),
        failed: Vec::new(),
        failures: 0,
        rest_until: Timestamp(0),
        challenge: None,
        error: None,
        renewal: None,
        unknown: Unknown::new(),
    }
}

impl Orderer {
    /// Does what is next for a name.
    pub(super) fn look(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.entries.get(name) else { return };
        if entry.run.is_some() {
            return self.look_at_run(now, name, effects);
        }
        let decision = self.decide(now, name, entry);
        let is_due = entry.wanted && self.is_due(now, entry);
        let entry = self.entry(name);
        entry.due_seen = is_due.then(|| entry.due_seen.unwrap_or(now));
        let wake = match decision {
            Decision::Nothing(wake) => wake,
            Decision::AskRenewal { id } => {
                let serial = self.send(name, Task::AskRenewal { id }, effects);
                self.entry(name).asking.under_way = Some(serial);
                self.due(name)
            }
            Decision::Check => {
                let serial = self.send(name, Task::Check, effects);
                self.entry(name).check.under_way = Some(serial);
                None
            }
            Decision::Claim { resumes } => return self.begin(now, name, resumes, effects),
        };
        self.wake(name, wake.map(|at| at.max(Timestamp(now.0 + 1))));
    }

    pub(super) fn is_due(&self, now: Timestamp, entry: &Entry) -> bool {
        let window = entry.record.as_ref().and_then(|record| record.renewal.as_ref());
        entry.certificate.as_ref().is_none_or(|facts| facts.due(window) <= now)
    }

    fn position(&self, name: &CertificateName, entry: &Entry) -> u32 {
        let failures = entry.record.as_ref().map_or(0, |record| record.failures);
        turn::position(&name.token(), &self.node, &self.counted(), failures)
    }

    fn decide(&self, now: Timestamp, name: &CertificateName, entry: &Entry) -> Decision {
        let Some(means) = self.means.filter(|_| entry.wanted) else {
            return Decision::Nothing(None);
        };
        if !self.is_due(now, entry) {
            return self.decide_renewal(now, name, entry, means.renewal_info);
        }
        if let Some(quiet) = self.quiet_until.filter(|at| *at > now) {
            return Decision::Nothing(Some(quiet));
        }
        let record = entry.record.as_ref();
        if let Some(wait) = self.claimed_until(entry).filter(|at| *at > now) {
            return Decision::Nothing(Some(wait));
        }
        let resumes = record.is_some_and(|record| {
            record.url.is_some()
                && record.key.is_some()
                && now.since(record.claimed_at) < RESUMED_MAX
        });
        let allowed = match resumes {
            // No order is made for it.
            true => record.map_or(now, |record| record.rest_until),
            false => {
                let all = self.entries.values().filter_map(|entry| entry.record.as_ref());
                let orders = all.flat_map(|record| record.orders.iter().copied()).collect();
                budget::allowed_from(record, now).max(budget::allowed_for_all(orders, now))
            }
        };
        if allowed > now {
            return Decision::Nothing(Some(allowed));
        }
        let issued = record.and_then(|record| record.issued.last());
        if let Some(wait) = issued.map(|at| at.after(ISSUED_GRACE)).filter(|at| *at > now) {
            return Decision::Nothing(Some(wait));
        }
        let rested = record.map_or(Timestamp(0), |record| record.rest_until);
        let since = entry.due_seen.unwrap_or(now).max(rested);
        let turn = since.after(TURN.saturating_mul(self.position(name, entry)));
        if turn > now {
            return Decision::Nothing(Some(turn));
        }
        if needs_dns(name) && !means.dns_hook {
            return Decision::Nothing(None);
        }
        if self.runs >= RUNS_MAX {
            return Decision::Nothing(Some(now.after(ROOM_PAUSE)));
        }
        if resumes || needs_dns(name) {
            return Decision::Claim { resumes };
        }
        decide_check(now, entry)
    }

    fn decide_renewal(
        &self,
        now: Timestamp,
        name: &CertificateName,
        entry: &Entry,
        is_offered: bool,
    ) -> Decision {
        let due = self.due(name);
        let id = entry.certificate.as_ref().and_then(|facts| facts.id.as_ref());
        // One node asks: the others read its answer in the store.
        let asks = is_offered && self.position(name, entry) == 0;
        let Some(id) = id.filter(|_| asks && entry.asking.under_way.is_none()) else {
            return Decision::Nothing(due);
        };
        match entry.asking.next <= now {
            true => Decision::AskRenewal { id: id.clone() },
            false => Decision::Nothing(due.map(|due| due.min(entry.asking.next))),
        }
    }

    /// Returns until when another node's claim is to be left alone.
    fn claimed_until(&self, entry: &Entry) -> Option<Timestamp> {
        let record = entry.record.as_ref().filter(|record| record.active)?;
        if record.node == self.node {
            return None;
        }
        let end = record.claimed_at.after(ATTEMPT_MAX);
        Some(entry.lost_since.map_or(end, |since| since.after(LOST_AFTER).min(end)))
    }

    pub(super) fn set_arrival(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        serial: u64,
        arrival: Arrival,
        effects: &mut Vec<Effect>,
    ) {
        let check = &mut self.entry(name).check;
        if check.under_way != Some(serial) {
            return;
        }
        check.under_way = None;
        match arrival {
            Arrival::Arrives { .. } => (check.failures, check.unknown_since) = (0, None),
            Arrival::Elsewhere { .. } => check.unknown_since = None,
            Arrival::Unknown { .. } => {
                check.unknown_since = Some(check.unknown_since.unwrap_or(now));
            }
        }
        if !matches!(arrival, Arrival::Arrives { .. }) {
            let pause = CHECK_PAUSE.saturating_mul(1 << check.failures.min(8));
            check.failures = check.failures.saturating_add(1);
            check.next = now.after(pause.min(CHECK_PAUSE_MAX));
        }
        check.last = Some((now, arrival));
        self.look(now, name, effects);
    }
}

fn decide_check(now: Timestamp, entry: &Entry) -> Decision {
    let Check { under_way, last, unknown_since, next, .. } = &entry.check;
    if under_way.is_some() {
        return Decision::Nothing(None);
    }
    let Some((at, arrival)) = last else { return Decision::Check };
    if matches!(arrival, Arrival::Arrives { .. }) {
        return match now.since(*at) < CHECK_FRESH {
            true => Decision::Claim { resumes: false },
            false => Decision::Check,
        };
    }
    let patience = unknown_since.map(|since| since.after(CHECK_PATIENCE));
    let late = entry
        .certificate
        .as_ref()
        .zip(entry.due_seen)
        .map(|(facts, seen)| seen.after(facts.not_after.since(seen) / CHECK_PART));
    let anyway = [patience, late].into_iter().flatten().min();
    match anyway {
        Some(anyway) if anyway <= now => Decision::Claim { resumes: false },
        _ if *next <= now => Decision::Check,
        _ => Decision::Nothing(Some(anyway.map_or(*next, |at| at.min(*next)))),
    }
}
