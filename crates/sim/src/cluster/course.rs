//! The course of one history, from the founding of a cluster to the quiet at its end.

use model::Key;
use store_core::{Change, Stamp};

use super::chaos::SKEW_MS;
use super::operator::roster_key;
use super::world::{EPOCH, Happening, World};

/// The time limit for agreement: quarantines of ten seconds, sessions that stall for ten, copies
/// and vectors of thirty.
const QUIET_MS_MAX: u64 = 300_000;
/// The time limit for collecting garbage: three rounds of vectors after the roster changed, and one
/// more to collect.
const COLLECT_MS_MAX: u64 = 400_000;
const ROUND_MS: u64 = 1000;
/// The number of histories of which one goes on until its garbage is collected.
const COLLECTED_OF: u64 = 6;
/// How long a node is kept apart; promises and vectors are kept twice meanwhile.
const KEPT_MS: u64 = 70_000;
/// The rounds for which a member is away: enough for the others, which forget it, to collect what
/// it lacks.
const AWAY_ROUNDS: u64 = 20;

/// Lives through one history.
pub fn live(world: &mut World) {
    world.found();
    let end = EPOCH + world.climate.length_ms;
    world.run_until(end);
    world.calm_down();
    let members = world.until_converged(QUIET_MS_MAX);
    world.judge_end(&members);
    if world.random.between(0, COLLECTED_OF) == 0 {
        world.end_slowly(members);
    }
}

impl World {
    /// Founds the cluster; nothing goes wrong before there is one.
    fn found(&mut self) {
        self.calm = true;
        self.hosts[0].connected = true;
        for host in 0..self.hosts.len() {
            let skew = SKEW_MS as u64;
            self.hosts[host].offset = self.random.between(0, 2 * skew + 1) as i64 - skew as i64;
            self.start(host);
        }
        self.set(0, roster_key(0));
        let later = if self.climate.members { self.hosts.len() / 2 } else { 0 };
        for host in 1..self.hosts.len() - later {
            self.run_until(self.now + 50);
            self.invite(host);
        }
        self.run_until(self.now + 500);
        self.calm = false;
        let wait = self.random.between(0, 3000);
        self.later(wait, Happening::Chaos);
        let wait = self.random.between(0, 500);
        self.later(wait, Happening::Operate);
    }

    fn calm_down(&mut self) {
        self.tell(|| "calm".into());
        self.calm = true;
        self.network.blocked.clear();
        self.network.forget_remembered();
        for host in 0..self.hosts.len() {
            if !self.hosts[host].clock_right {
                if self.hosts[host].is_up() {
                    self.stop(host, true);
                }
                self.mend_clock(host);
            }
            self.start(host);
        }
    }

    /// Runs until all members agree, while operators look after alarms; returns the members.
    fn until_converged(&mut self, at_most: u64) -> Vec<usize> {
        let end = self.now + at_most;
        loop {
            self.run_until(self.now + ROUND_MS);
            self.look_after_alarms();
            match self.converged() {
                Ok(members) => return members,
                Err(problem) => {
                    assert!(self.now < end, "no agreement: {problem}");
                }
            }
        }
    }

    /// Takes a member away while others write and squash, and brings it back, after which all
    /// deletes are collected; then it comes back once more, with the disk that it had before.
    fn end_slowly(&mut self, members: Vec<usize>) {
        let newest = self.newest_of(members[0]);
        if newest.time().0 > self.now + ROUND_MS {
            // A node that is alone goes on from where its clock was, until that time comes.
            return;
        }
        // A further node that joined would bring what it wrote by itself.
        let outside = (0..self.hosts.len()).filter(|host| !members.contains(host));
        outside.collect::<Vec<_>>().into_iter().for_each(|host| self.leave_out(host));
        let members = self.while_one_hears_late(members);
        let members = self.while_one_knows(members);
        let backup = members.last().map(|last| self.hosts[*last].disk.clone());
        let members = self.while_one_is_away(members);
        let members = self.until_collected(members);
        let (Some(last), Some(backup)) = (members.last().copied(), backup) else { return };
        if members.len() > 1 {
            let before = self.contents(members[0]);
            self.stop(last, false);
            self.put_back(last, backup);
            self.start(last);
            let members = self.until_converged(QUIET_MS_MAX);
            self.judge_end(&members);
            assert_eq!(self.contents(members[0]), before, "an old disk changed what is read");
        }
    }

    fn part(&mut self, some: &[usize], others: &[usize]) {
        let pairs = some.iter().flat_map(|a| others.iter().map(move |b| (*a, *b)));
        self.network.blocked.extend(pairs.flat_map(|(a, b)| [(a, b), (b, a)]));
    }

    /// Removes a member. The last one to hear of it has meanwhile taken a delete from the removed
    /// one that nobody else knows, and squashes before it can tell.
    fn while_one_hears_late(&mut self, members: Vec<usize>) -> Vec<usize> {
        let [gone, others @ .., last] = members.as_slice() else { return members };
        let [first, ..] = others else { return members };
        let (gone, first, last) = (*gone, *first, *last);
        if self.random.chance(50) {
            return members;
        }
        let key: Key = "k::3".parse().expect("a valid key");
        self.set(first, key.clone());
        self.until_converged(QUIET_MS_MAX);
        let rest = [others, &[last]].concat();
        self.part(&[gone], &rest);
        self.write(gone, key, Change::Delete, Vec::new());
        self.run_until(self.now + KEPT_MS);
        self.network.blocked.clear();
        self.part(&[gone, last], others);
        self.run_until(self.now + 3 * ROUND_MS);
        self.evict_by(first, gone);
        self.run_until(self.now + KEPT_MS);
        self.network.blocked.clear();
        self.part(&[gone], &rest);
        let end = self.now + 20 * ROUND_MS;
        while self.now < end && self.roster_of(last).contains(&self.hosts[gone].tag) {
            self.run_until(self.now + 1);
        }
        self.run_until(self.now + 10);
        self.part(&[last], others);
        self.squash(last);
        self.run_until(self.now + KEPT_MS);
        self.leave_out(gone);
        self.network.blocked.clear();
        let members = self.until_converged(QUIET_MS_MAX);
        self.judge_end(&members);
        members
    }

    /// Lets a member write what only one other hears of, lose its disk, and be let in again by that
    /// other alone; the members that it can reach at first know nothing of all that.
    fn while_one_knows(&mut self, members: Vec<usize>) -> Vec<usize> {
        let [first, others @ .., last] = members.as_slice() else { return members };
        if others.is_empty() {
            return members;
        }
        let (first, last) = (*first, *last);
        self.part(&[first, last], others);
        self.set(last, "k::2".parse().expect("a valid key"));
        self.run_until(self.now + 3 * ROUND_MS);
        self.stop(last, false);
        self.lose_disk_of(last);
        self.network.blocked.clear();
        self.part(&[first], &[others, &[last]].concat());
        self.start(last);
        self.invite_by(first, last);
        self.run_until(self.now + 20 * ROUND_MS);
        self.network.blocked.clear();
        let members = self.until_converged(QUIET_MS_MAX);
        self.judge_end(&members);
        members
    }

    fn leave_out(&mut self, host: usize) {
        self.hosts[host].connected = false;
        self.cut_all_of(host);
    }

    fn newest_of(&self, host: usize) -> Stamp {
        let newest = self.hosts[host].replica().history().last().map(|commit| commit.at.stamp);
        newest.unwrap_or_default()
    }

    fn while_one_is_away(&mut self, members: Vec<usize>) -> Vec<usize> {
        let [first, others @ .., last] = members.as_slice() else { return members };
        self.stop(*last, false);
        let key = |index| format!("k::{index}").parse().expect("a valid key");
        self.write(*first, key(0), Change::Delete, Vec::new());
        self.set(*first, key(1));
        for _ in 0..AWAY_ROUNDS {
            self.run_until(self.now + 10 * ROUND_MS);
            self.squash(*first);
            others.iter().for_each(|other| self.squash(*other));
        }
        self.start(*last);
        let members = self.until_converged(QUIET_MS_MAX);
        self.judge_end(&members);
        members
    }

    /// Runs until all deletes are collected, which happens once everybody has them; nothing else
    /// may go.
    fn until_collected(&mut self, members: Vec<usize>) -> Vec<usize> {
        let first = members[0];
        let before = self.contents(first);
        let newest = self.newest_of(first);
        let end = self.now + COLLECT_MS_MAX;
        let behind = |world: &World| {
            let of = |member: &usize| world.hosts[*member].replica().horizons().garbage;
            members.iter().map(of).min().unwrap_or_default() < newest
        };
        while behind(self) {
            assert!(self.now < end, "garbage is not collected");
            self.run_until(self.now + 10 * ROUND_MS);
            members.iter().for_each(|member| self.squash(*member));
        }
        let members = self.until_converged(QUIET_MS_MAX);
        self.judge_end(&members);
        assert_eq!(self.contents(first), before, "collecting garbage changed what is read");
        let replica = self.hosts[first].replica();
        let old = replica.history().iter().take_while(|commit| commit.at.stamp <= newest);
        assert_eq!(old.filter(|commit| commit.is_delete()).count(), 0, "deletes stay for ever");
        members
    }
}
