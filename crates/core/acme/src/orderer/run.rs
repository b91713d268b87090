//! One order of this node, from its claim to the certificate. Each step asks the shell for one
//! thing and goes on with its answer; the authority's own state of the order says what is next, so
//! that another node can go on where this one was lost.

use std::time::Duration;

use model::acme::AcmeOrder;
use model::certificate::SecretText;
use model::{CertificateName, Timestamp};

use super::plan::fresh;
use super::{Effect, Offered, Orderer, Outcome, RESUMED_MAX, SETTLE, STORE_PAUSE, Task, WORK_MAX};
use crate::budget::{self, FAILED_PER_HOUR, HOUR, ISSUED_PER_WEEK, ORDERS_PER_WEEK, WEEK};
use crate::challenge::{self, ChallengeKind};
use crate::problem::{Problem, kind};
use crate::renewal::Facts;

/// The pause between two looks at an order, and the longest one.
const POLL: Duration = Duration::from_millis(500);
const POLL_MAX: Duration = Duration::from_secs(10);

/// An order as the authority shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderView {
    pub status: OrderStatus,
    pub authorizations: Vec<Authorization>,
    /// How long the authority wants to be left alone before the next look.
    pub retry_after: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderStatus {
    Pending,
    Ready,
    Processing,
    Valid,
    Invalid(Problem),
}

/// An authorization that is not valid yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    pub offered: Vec<Offered>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The claim is being written.
    Claiming,
    /// It is written; whether another node has claimed the name, too, is seen at this time.
    Settling(Timestamp),
    Ordering,
    /// The order's URL and key are being written.
    Keeping,
    Looking,
    Preparing,
    Telling,
    /// The authority is at it; the next look is at this time.
    Waiting(Timestamp),
    Finalizing,
    Downloading,
    Writing,
    /// The end is being written.
    Ending,
}

#[derive(Clone, Debug)]
pub(super) struct Run {
    step: Step,
    serial: u64,
    record: AcmeOrder,
    until: Timestamp,
    challenge: Option<ChallengeKind>,
    told: bool,
    looks: u32,
    /// The newest certificate for the name, once it is downloaded.
    issued: Option<Facts>,
}

impl Orderer {
    /// Claims a name, to go on with its order or to make one.
    pub(super) fn begin(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        resumes: bool,
        effects: &mut Vec<Effect>,
    ) {
        let mut record = self.entry(name).record.clone().unwrap_or_else(|| fresh(&self.node));
        (record.node, record.claimed_at, record.active) = (self.node.clone(), now, true);
        if !resumes {
            (record.url, record.key) = (None, None);
            // It is counted before it is made, or a node that is lost in between would make it
            // again and again.
            budget::note(&mut record.orders, now, WEEK, ORDERS_PER_WEEK);
        }
        let serial = self.send(name, Task::Save(Box::new(record.clone())), effects);
        self.runs += 1;
        self.entry(name).run = Some(Run {
            step: Step::Claiming,
            serial,
            record,
            until: now.after(WORK_MAX),
            challenge: None,
            told: false,
            looks: 0,
            issued: None,
        });
        self.wake(name, Some(now.after(WORK_MAX)));
    }

    /// Returns whether another node has claimed a name that this one is at.
    pub(super) fn is_overtaken(&self, name: &CertificateName) -> bool {
        let Some(entry) = self.entries.get(name) else { return false };
        let Some(run) = &entry.run else { return false };
        // Until it has settled, older records may still be on their way to this machine.
        let settles = matches!(run.step, Step::Claiming | Step::Settling(_));
        let other = entry.record.as_ref().filter(|record| record.node != self.node);
        !settles && other.is_some_and(|record| record.active)
    }

    /// Gives up an order without a word to the store.
    pub(super) fn abandon(&mut self, name: &CertificateName, effects: &mut Vec<Effect>) {
        let Some(run) = self.entry(name).run.take() else { return };
        self.runs -= 1;
        self.withdraw(name, run.challenge, effects);
    }

    fn withdraw(
        &mut self,
        name: &CertificateName,
        challenge: Option<ChallengeKind>,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(kind) = challenge {
            self.send(name, Task::Withdraw { kind }, effects);
        }
    }

    fn step(&mut self, name: &CertificateName, step: Step, task: Task, effects: &mut Vec<Effect>) {
        let serial = self.send(name, task, effects);
        let run = self.entry(name).run.as_mut().expect("only a run has steps");
        (run.step, run.serial) = (step, serial);
        let until = run.until;
        self.wake(name, Some(until));
    }

    fn save(&mut self, name: &CertificateName, step: Step, effects: &mut Vec<Effect>) {
        let run = self.entry(name).run.as_ref().expect("only a run is saved");
        let record = Box::new(run.record.clone());
        self.step(name, step, Task::Save(record), effects);
    }

    fn wait(&mut self, now: Timestamp, name: &CertificateName, said: Option<Duration>) {
        let run = self.entry(name).run.as_mut().expect("only a run waits");
        let growing = POLL.saturating_mul(1 << run.looks.min(8)).min(POLL_MAX);
        run.looks += 1;
        let pause = said.map_or(growing, |said| said.clamp(POLL, POLL_MAX));
        let at = now.after(pause).min(run.until);
        run.step = Step::Waiting(at);
        self.wake(name, Some(at));
    }

    /// Does what is due for an order: a look whether the claim has settled, or at the order, or its
    /// end.
    pub(super) fn look_at_run(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        effects: &mut Vec<Effect>,
    ) {
        let Some(run) = self.entries.get(name).and_then(|entry| entry.run.as_ref()) else { return };
        let url = run.record.url.clone();
        match run.step {
            Step::Settling(at) if at <= now => self.settle(now, name, effects),
            Step::Waiting(at) if at <= now && run.until > now => {
                let url = url.expect("it waits for an order");
                self.step(name, Step::Looking, Task::Look { url }, effects);
            }
            // What is being written decides about the order, so it is waited for.
            Step::Ending | Step::Writing | Step::Claiming | Step::Keeping => {
                self.wake(name, None);
            }
            _ if run.until <= now => {
                let what = "the authority did not finish the order in time";
                self.fail(now, name, &Problem::new(kind::TIMEOUT, what), effects);
            }
            Step::Settling(at) | Step::Waiting(at) => self.wake(name, Some(at)),
            _ => self.wake(name, Some(self.until(name))),
        }
    }

    fn until(&self, name: &CertificateName) -> Timestamp {
        let run = self.entries.get(name).and_then(|entry| entry.run.as_ref());
        run.expect("it is under way").until
    }

    /// Goes on with a claim that nobody else has made, too; gives way to one who has.
    fn settle(&mut self, now: Timestamp, name: &CertificateName, effects: &mut Vec<Effect>) {
        let entry = self.entries.get(name).expect("it is under way");
        let run = entry.run.as_ref().expect("it is under way");
        let known = entry.record.as_ref().filter(|record| record.active);
        match known {
            Some(record) if record.node != self.node => {
                self.abandon(name, effects);
                self.look(now, name, effects);
            }
            // A certificate came while it settled.
            Some(_) if !self.is_due(now, entry) => self.release(name, effects),
            // What was written comes back as an event.
            Some(record) if record.claimed_at == run.record.claimed_at => {
                self.go_on(name, effects);
            }
            _ => {
                let at = now.after(SETTLE);
                self.entry(name).run.as_mut().expect("it is under way").step = Step::Settling(at);
                self.wake(name, Some(at));
            }
        }
    }

    /// Takes back a claim for which no order was made.
    fn release(&mut self, name: &CertificateName, effects: &mut Vec<Effect>) {
        let run = self.entry(name).run.as_mut().expect("it is under way");
        let record = &mut run.record;
        (record.active, record.url, record.key) = (false, None, None);
        record.orders.retain(|at| *at != record.claimed_at);
        self.save(name, Step::Ending, effects);
    }

    fn go_on(&mut self, name: &CertificateName, effects: &mut Vec<Effect>) {
        let entry = self.entries.get(name).expect("it is under way");
        let run = entry.run.as_ref().expect("it is under way");
        let (step, task) = match &run.record.url {
            Some(url) => (Step::Looking, Task::Look { url: url.clone() }),
            None => {
                let replaces = entry.certificate.as_ref().and_then(|facts| facts.id.clone());
                (Step::Ordering, Task::Order { replaces })
            }
        };
        self.step(name, step, task, effects);
    }

    /// Goes on with an order after the answer to its last step.
    pub(super) fn advance(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        serial: u64,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let others = !self.counted().is_empty();
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Some(run) = entry.run.as_mut().filter(|run| run.serial == serial) else { return };
        match (&run.step, outcome) {
            (Step::Claiming, Outcome::Saved) if others => {
                let at = now.after(SETTLE);
                run.step = Step::Settling(at);
                self.wake(name, Some(at));
            }
            (Step::Claiming, Outcome::Saved) => self.go_on(name, effects),
            (Step::Ordering, Outcome::Ordered { url, key }) => {
                (run.record.url, run.record.key) = (Some(url), Some(key));
                self.save(name, Step::Keeping, effects);
            }
            (Step::Keeping, Outcome::Saved) => self.go_on(name, effects),
            (Step::Looking, Outcome::Looked(view)) => self.looked(now, name, view, effects),
            (Step::Preparing, Outcome::Prepared) => {
                let kind = run.challenge.expect("it was prepared");
                let url = run.record.url.clone().expect("it was ordered");
                self.step(name, Step::Telling, Task::Tell { url, kind }, effects);
            }
            (Step::Telling, Outcome::Told) => {
                run.told = true;
                self.wait(now, name, None);
            }
            (Step::Finalizing, Outcome::Finalized) => self.wait(now, name, None),
            (Step::Downloading, Outcome::Downloaded { chain, facts }) => {
                self.downloaded(now, name, chain, facts, effects);
            }
            (Step::Writing, Outcome::Written) => self.succeed(now, name, effects),
            (Step::Ending, Outcome::Saved) => self.end(now, name, effects),
            (_, Outcome::Unsaved) => {
                // The claim stays, so this node goes on with it.
                let challenge = run.challenge;
                self.entry(name).run = None;
                self.runs -= 1;
                self.withdraw(name, challenge, effects);
                self.wake(name, Some(now.after(STORE_PAUSE)));
            }
            (_, Outcome::Failed(problem)) => self.fail(now, name, &problem, effects),
            // No other answer belongs to the step that is waited for.
            (_, _) => {}
        }
    }

    fn looked(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        view: OrderView,
        effects: &mut Vec<Effect>,
    ) {
        let means = self.means.unwrap_or_default();
        let entry = self.entries.get_mut(name).expect("it is under way");
        let run = entry.run.as_mut().expect("it is under way");
        let (url, key) = (run.record.url.clone(), run.record.key.clone());
        let (url, key) = (url.expect("it was ordered"), key.unwrap_or_default());
        match view.status {
            OrderStatus::Invalid(problem) => self.fail(now, name, &problem, effects),
            OrderStatus::Ready => {
                self.step(name, Step::Finalizing, Task::Finalize { url, key }, effects);
            }
            OrderStatus::Valid => {
                self.step(name, Step::Downloading, Task::Download { url }, effects);
            }
            OrderStatus::Processing => self.wait(now, name, view.retry_after),
            OrderStatus::Pending => {
                let Some(authorization) = view.authorizations.first().filter(|_| !run.told) else {
                    return self.wait(now, name, view.retry_after);
                };
                let offered = &authorization.offered;
                let last = run.record.challenge.as_deref().and_then(|word| word.parse().ok());
                let last = last.filter(|_| run.record.failures > 0);
                let arrival = entry.check.last.as_ref().map(|(_, arrival)| arrival);
                // A node that was lost has told already; its challenge is prepared once more.
                let told = offered.iter().find(|one| one.told).map(|one| one.kind);
                let chosen = challenge::choose(name, offered, means, arrival, last);
                let Some(kind) = told.or(chosen) else {
                    return self.fail(now, name, &no_challenge(offered), effects);
                };
                run.challenge = Some(kind);
                run.record.challenge = Some(kind.word().into());
                self.step(name, Step::Preparing, Task::Prepare { url, kind }, effects);
            }
        }
    }

    fn downloaded(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        chain: String,
        facts: Facts,
        effects: &mut Vec<Effect>,
    ) {
        let entry = self.entries.get_mut(name).expect("it is under way");
        let run = entry.run.as_mut().expect("it is under way");
        if !facts.succeeds(entry.certificate.as_ref()) {
            // The order of the certificate that is there: its node was lost before it said so.
            let what = "the order has given a certificate already; another one is made";
            return self.fail(now, name, &Problem::new(kind::STALE, what), effects);
        }
        let key: SecretText = run.record.key.clone().unwrap_or_default();
        run.issued = Some(facts.clone());
        self.step(name, Step::Writing, Task::Write { chain, key, facts }, effects);
    }

    fn succeed(&mut self, now: Timestamp, name: &CertificateName, effects: &mut Vec<Effect>) {
        let entry = self.entries.get_mut(name).expect("it is under way");
        let run = entry.run.as_mut().expect("it is under way");
        entry.certificate = run.issued.clone();
        entry.due_seen = None;
        entry.asking = super::Asking::default();
        let record = &mut run.record;
        (record.active, record.url, record.key, record.error) = (false, None, None, None);
        (record.failures, record.rest_until, record.renewal) = (0, Timestamp(0), None);
        record.failed.clear();
        budget::note(&mut record.issued, now, WEEK, ISSUED_PER_WEEK);
        self.save(name, Step::Ending, effects);
    }

    fn fail(
        &mut self,
        now: Timestamp,
        name: &CertificateName,
        problem: &Problem,
        effects: &mut Vec<Effect>,
    ) {
        let node = self.node.clone();
        let entry = self.entries.get_mut(name).expect("it is under way");
        let run = entry.run.as_mut().expect("it is under way");
        let record = &mut run.record;
        // The authority took no order: it refused, or was never asked.
        if run.step == Step::Ordering && problem.kind != kind::TIMEOUT {
            record.orders.retain(|at| *at != record.claimed_at);
        }
        let first = record.orders.last().copied().unwrap_or_default();
        let keeps = problem.keeps_order() && now.since(first) < RESUMED_MAX;
        if !keeps {
            (record.url, record.key) = (None, None);
        }
        record.failures = record.failures.saturating_add(1);
        if !problem.keeps_order() {
            budget::note(&mut record.failed, now, HOUR, FAILED_PER_HOUR);
        }
        let expires = entry.certificate.as_ref().map(|facts| facts.not_after);
        record.rest_until = now.after(budget::pause(problem, record.failures, expires, now));
        record.error = Some(problem.record(&node, now));
        record.active = false;
        self.save(name, Step::Ending, effects);
    }

    fn end(&mut self, now: Timestamp, name: &CertificateName, effects: &mut Vec<Effect>) {
        let entry = self.entries.get_mut(name).expect("it is under way");
        let run = entry.run.take().expect("it is under way");
        entry.record = Some(run.record);
        entry.due_seen = None;
        self.runs -= 1;
        self.withdraw(name, run.challenge, effects);
        self.look(now, name, effects);
    }
}

fn no_challenge(offered: &[Offered]) -> Problem {
    let words: Vec<&str> = offered.iter().map(|one| one.kind.word()).collect();
    let what = match words.is_empty() {
        true => "the authority offers none of http-01, tls-alpn-01 and dns-01".into(),
        false => format!("this cluster cannot answer what is offered: {}", words.join(", ")),
    };
    Problem::new(kind::NO_CHALLENGE, &what)
}
