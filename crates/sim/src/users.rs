//! The users: they push, scale, restart, roll back, destroy; by a script or at random.

use std::time::Duration;

use agent_core::application::{TakeBackProgress, taken_back};
use model::application::{KeptEnd, Limits, ProcessSpec, RolloutMode, Settings};
use model::record::Unknown;
use model::release::{ProcessRecipe, Recipe, Step};
use model::value::ContentHash;
use model::{ApplicationName, ApplicationSpec, ProcessType, Release, ReleaseId, Rollout};

use crate::fault::{Fault, Weather};
use crate::process::Quality;
use crate::records::{Notice, stored};
use crate::world::{Happening, World};

/// The times that users and faults are at work, and that the world then has to come to rest.
const BUSY_MS: u64 = 8 * 60_000;
const CALM_MS: u64 = 8 * 60_000;
const REST_MS: u64 = 10 * 60_000;

/// The time for which what was destroyed is kept: for ever, as histories go.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
const START_TIMEOUT_MS: u64 = 10_000;
const STOP_GRACE_MS: u64 = 5_000;

#[derive(Clone, Debug)]
pub struct Push {
    pub quality: Quality,
    pub rollout: RolloutMode,
    pub web: u32,
    pub worker: u32,
    /// Whether it runs what the release before it runs: a change of variables or a rollback.
    pub same_build: bool,
}

impl World {
    pub fn push(&mut self, name: &ApplicationName, push: &Push) -> ReleaseId {
        let id = self.next_release(name);
        self.tell(|| format!("push {} {:?}", id.short(), push.quality));
        if !self.records.specs.contains_key(name) {
            let spec = ApplicationSpec::new(self.timestamp());
            self.records.specs.insert(name.clone(), spec);
            self.notify(Notice::Spec(name.clone()));
        }
        let mut release = self.release(name, id.clone(), push);
        let before = self.records.releases.iter().rev().find(|((owner, _), _)| owner == name);
        release.build = before.filter(|_| push.same_build).map(|(_, before)| before.build_id());
        self.ask_for(name, release, push.quality);
        id
    }

    fn ask_for(&mut self, name: &ApplicationName, release: Release, quality: Quality) {
        self.asked(name);
        let id = release.id.clone();
        self.qualities.insert((name.clone(), id.clone()), quality);
        self.records.releases.insert((name.clone(), id.clone()), stored(&release));
        self.notify(Notice::Release(name.clone(), id.clone()));
        let now = self.timestamp();
        let node = self.id.clone();
        let before = self.records.rollouts.get(name).cloned();
        let mut rollout = before.unwrap_or_else(|| Rollout::new(node.clone(), now));
        rollout.request(id, node, now);
        self.records.rollouts.insert(name.clone(), stored(&rollout));
        self.notify(Notice::Rollout(name.clone()));
    }

    /// Takes a release back as a shell does it: what served before is pushed once more.
    pub(crate) fn take_back(&mut self, name: &ApplicationName, from: &ReleaseId, to: &ReleaseId) {
        let of_it = self.records.releases.iter().filter(|((owner, _), _)| owner == name);
        let releases = of_it.map(|(_, release)| release);
        let taken = taken_back(self.records.rollouts.get(name), releases, from);
        self.judge_taking_back(name, from, to);
        let old = self.records.releases.get(&(name.clone(), to.clone())).cloned();
        let (TakeBackProgress::Unmade, Some(old)) = (taken, old) else { return };
        self.count(Fault::TakenBack);
        let quality = self.qualities[&(name.clone(), to.clone())];
        let id = self.next_release(name);
        self.tell(|| format!("{} is taken back by {}", from.short(), id.short()));
        let (takes_back, build) = (Some(from.clone()), Some(old.build_id()));
        let release = Release { id: id.clone(), takes_back, build, ..old };
        self.ask_for(name, release, quality);
    }

    fn next_release(&self, name: &ApplicationName) -> ReleaseId {
        let numbers = self.qualities.keys().filter(|(owner, _)| owner == name);
        let number = numbers.map(|(_, id)| id.number).max().unwrap_or(0) + 1;
        ReleaseId { number, node: self.id.clone() }
    }

    fn release(&self, name: &ApplicationName, id: ReleaseId, push: &Push) -> Release {
        let spec = self.records.specs.get(name);
        let application_created_at = spec.map(|spec| spec.created_at);
        let mut settings =
            Settings { rollout: push.rollout, application_created_at, ..Settings::default() };
        settings.health.start_timeout_ms = START_TIMEOUT_MS;
        settings.stop_grace_ms = STOP_GRACE_MS;
        settings.limits = Limits { memory_bytes: Some(512_000_000), ..Limits::default() };
        let counts = [("web", push.web), ("worker", push.worker)];
        let processes = counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| {
            let recipe = ProcessRecipe { default_count: count, ..ProcessRecipe::default() };
            (name.parse::<ProcessType>().expect("a valid name"), recipe)
        });
        let recipe = Recipe {
            processes: processes.collect(),
            release: vec![Step { name: "Migrating".into(), command: "true".into() }],
            ..Recipe::default()
        };
        Release {
            v: 1,
            id,
            source: ContentHash([1; 32]),
            source_bytes: 1,
            build: None,
            recipe,
            settings,
            created_at: self.timestamp(),
            author: "ann".into(),
            note: String::new(),
            revision: None,
            replaces: None,
            remark: None,
            takes_back: None,
            unknown: Unknown::new(),
        }
    }

    pub fn change_spec(
        &mut self,
        name: &ApplicationName,
        change: impl FnOnce(&mut ApplicationSpec),
    ) {
        if let Some(spec) = self.records.specs.get_mut(name) {
            self.disturbed_at = self.now;
            change(spec);
            self.asked(name);
            self.notify(Notice::Spec(name.clone()));
        }
    }

    pub fn scale(&mut self, name: &ApplicationName, process: &str, count: u32) {
        self.tell(|| format!("scale {process}={count}"));
        let process: ProcessType = process.parse().expect("a valid name");
        self.change_spec(name, |spec| {
            spec.processes.insert(process, ProcessSpec { count, ..ProcessSpec::default() });
        });
    }

    pub fn restart(&mut self, name: &ApplicationName) {
        self.tell(|| "restart".into());
        self.change_spec(name, |spec| spec.restart += 1);
    }

    /// Destroys it like a command that keeps it, so that it can be brought back.
    pub fn keep(&mut self, name: &ApplicationName) {
        let Some(mut spec) = self.records.specs.remove(name) else { return };
        self.tell(|| "destroy, and keep".into());
        self.count(Fault::Kept);
        self.disturbed_at = self.now;
        let at = self.timestamp();
        spec.end = Some(KeptEnd { at, until: at.after(KEPT), by: "ann".into() });
        self.records.kept.insert(name.clone(), stored(&spec));
        self.served.remove(name);
        self.notify(Notice::Spec(name.clone()));
    }

    pub fn restore(&mut self, name: &ApplicationName) {
        let Some(mut spec) = self.records.kept.remove(name) else { return };
        self.tell(|| "restore".into());
        self.count(Fault::Restored);
        self.disturbed_at = self.now;
        spec.end = None;
        self.records.specs.insert(name.clone(), spec);
        self.asked(name);
        self.notify(Notice::Spec(name.clone()));
    }

    pub fn destroy(&mut self, name: &ApplicationName) {
        let kept = self.records.kept.remove(name);
        if self.records.specs.remove(name).or(kept).is_none() {
            return;
        }
        self.tell(|| "destroy".into());
        self.count(Fault::Destroyed);
        self.served.remove(name);
        self.notify(Notice::Spec(name.clone()));
        self.records.rollouts.remove(name);
        self.notify(Notice::Rollout(name.clone()));
        let releases = self.records.releases.keys().filter(|(owner, _)| owner == name);
        for (owner, id) in releases.cloned().collect::<Vec<_>>() {
            self.records.releases.remove(&(owner.clone(), id.clone()));
            self.notify(Notice::Release(owner, id));
        }
    }

    pub fn crash_loop(&mut self, name: &ApplicationName, wait: u64) {
        self.tell(|| "crash loop".into());
        self.crash_loops.insert(name.clone());
        self.later(wait, Happening::CrashLoopEnds(name.clone()));
        self.kill(name, None);
    }

    /// Kills every process of an application, or those of one slot.
    pub fn kill(&mut self, name: &ApplicationName, label: Option<&str>) {
        let ids: Vec<_> = self
            .processes
            .keys()
            .filter(|id| id.instance.application == *name)
            .filter(|id| label.is_none_or(|label| id.instance.label() == label))
            .cloned()
            .collect();
        for id in ids {
            self.exit(&id, "killed by signal 9");
        }
    }

    fn random_push(&mut self) -> Push {
        let bad = [
            Quality::BadBuild,
            Quality::BadReleaseStep,
            Quality::ExitsAtStart,
            Quality::NeverReady,
            Quality::StartFails,
            Quality::Dies,
        ];
        let quality = match self.random.between(0, 13) {
            n @ 0..6 => bad[n as usize],
            _ => Quality::Good,
        };
        let apart = self.storm(20);
        Push {
            quality,
            rollout: if apart { RolloutMode::StopFirst } else { RolloutMode::StartFirst },
            web: u32::try_from(self.random.between(1, 4)).unwrap_or(1),
            worker: u32::try_from(self.random.between(0, 3)).unwrap_or(0),
            // A build that is there cannot fail.
            same_build: self.random.chance(30) && quality != Quality::BadBuild,
        }
    }

    fn do_something(&mut self, name: &ApplicationName) {
        match self.random.between(0, 100) {
            0..35 => {
                let push = self.random_push();
                self.push(name, &push);
            }
            35..55 => {
                let process = if self.random.chance(70) { "web" } else { "worker" };
                let least = u64::from(self.weather == Weather::Fair);
                let count = self.random.between(least, 6);
                self.scale(name, process, u32::try_from(count).unwrap_or(1));
            }
            55..70 => self.restart(name),
            70..72 => self.keep(name),
            72..73 => self.destroy(name),
            73..85 => {
                let down = self.random.between(100, 30_000);
                self.node_crash(down);
            }
            85..92 => self.actor_panic(name),
            92..94 => {
                let down = self.random.between(100, 30_000);
                self.node_shutdown(down);
            }
            94..98 if self.weather == Weather::Storm => {
                let wait = self.random.between(5_000, 120_000);
                self.crash_loop(name, wait);
            }
            _ => {}
        }
    }
}

/// Lives through one whole history: a busy time, a calm one, a last good push, and rest.
pub fn live(world: &mut World) {
    let names: Vec<ApplicationName> =
        ["shop", "blog"].iter().map(|name| name.parse().expect("a valid name")).collect();
    let start = world.now;
    while world.now < start + BUSY_MS {
        let wait = match world.random.chance(30) {
            true => world.random.between(1, 300),
            false => world.random.between(300, 30_000),
        };
        world.run_until(world.now + wait);
        let name = &names[usize::from(world.random.chance(30))];
        if world.records.kept.contains_key(name) {
            match world.random.chance(70) {
                true => world.restore(name),
                false => world.destroy(name),
            }
        } else if !world.records.specs.contains_key(name) {
            let push = world.random_push();
            world.push(name, &push);
        } else {
            world.do_something(name);
        }
    }
    // What was to fail fails; nothing new goes wrong.
    world.weather = Weather::Still;
    world.run_until(world.now + CALM_MS);
    let push = Push {
        quality: Quality::Good,
        rollout: RolloutMode::StartFirst,
        web: 2,
        worker: 1,
        same_build: false,
    };
    let mut last = Vec::new();
    for name in names {
        world.restore(&name);
        let id = world.push(&name, &push);
        last.push((name, id));
    }
    world.run_until(world.now + REST_MS);
    world.judge_quiet(&last);
    let starts: usize = world.starts.values().map(Vec::len).sum();
    world.run_until(world.now + REST_MS);
    let again: usize = world.starts.values().map(Vec::len).sum();
    assert_eq!(starts, again, "something starts again and again without need");
    world.judge_quiet(&last);
}
