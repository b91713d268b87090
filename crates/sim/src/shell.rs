//! The shell: performs the application machine's effects in the simulated world.

use agent_core::application::{Effect, Event, IncarnationId, StepFailure, merge};
use model::instance::ProcessIdentity;
use model::{ApplicationName, ReleaseId, Rollout, RolloutPhase};

use crate::fault::Fault;
use crate::process::{Process, Quality};
use crate::records::{Notice, stored};
use crate::world::{Happening, World};

impl World {
    fn quality(&self, name: &ApplicationName, release: &ReleaseId) -> Quality {
        let known = self.qualities.get(&(name.clone(), release.clone()));
        *known.expect("only pushed releases are built")
    }

    fn answer(&mut self, name: &ApplicationName, life: u64, wait: u64, event: Event) {
        // The end of a step is awaited without a limit, as steps may take hours.
        let step = matches!(event, Event::Built { .. } | Event::Released { .. });
        if !step && self.storm(2) {
            return self.count(Fault::LostAnswer);
        }
        self.later(wait, Happening::Agent { name: name.clone(), life, event });
    }

    pub(crate) fn perform(&mut self, name: &ApplicationName, life: u64, effect: Effect) {
        match effect {
            Effect::Build { release } => {
                let bad = self.quality(name, &release.id) == Quality::BadBuild;
                let result = self.step_result(bad, Fault::BadBuild, "Installing gems failed");
                let wait = self.delay(100, 2_000);
                self.tell(|| format!("build {}", release.id.short()));
                self.answer(name, life, wait, Event::Built { release: release.id, result });
            }
            // These are effects of one node among several.
            Effect::Fetch { .. } | Effect::Share { .. } | Effect::FindBuilders { .. } => {
                panic!("a node alone asks nobody: {effect:?}")
            }
            Effect::RunReleaseSteps { release } => {
                let bad = self.quality(name, &release.id) == Quality::BadReleaseStep;
                let result = self.step_result(bad, Fault::BadReleaseStep, "Migrating failed");
                let wait = self.delay(100, 2_000);
                self.tell(|| format!("release steps {}", release.id.short()));
                self.answer(name, life, wait, Event::Released { release: release.id, result });
            }
            Effect::Start { id, release, .. } => {
                self.tell(|| format!("start {} {}", id.instance.label(), release.id.short()));
                self.judge_start(&id);
                self.judge_first_start(&id, &release);
                let wait = self.delay(10, 200);
                self.later(wait, Happening::Launch { life, id, release: release.id });
            }
            Effect::AwaitHealthy { id, .. } => self.await_healthy(name, life, id),
            Effect::Stop { id, grace } => {
                let label = id.instance.label();
                self.tell(|| format!("stop {label}"));
                let process = self.processes.get_mut(&id);
                let Some(process) = process.filter(|process| process.is_alive()) else {
                    let gone = crate::process::exit("not there", "");
                    return self.report_exit(&id, gone);
                };
                process.stopping = true;
                if process.deaf {
                    self.count(Fault::IgnoredTerm);
                    let wait = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                    return self.later(wait, Happening::Exit { id, how: "killed by signal 9" });
                }
                let wait = self.delay(20, 300);
                self.later(wait, Happening::Exit { id, how: "killed by signal 15" });
            }
            Effect::Forget { id } => {
                let gone = self.processes.remove(&id);
                assert!(gone.is_none_or(|p| !p.is_alive()), "{id:?} is forgotten while it lives");
            }
            Effect::WriteClaim { instance, claim } => {
                let before = self.serving_well(name);
                self.tell_claim(&instance, claim.as_ref());
                match claim {
                    Some(claim) => self.records.claims.insert(instance.clone(), stored(&claim)),
                    None => self.records.claims.remove(&instance),
                };
                self.note_proven(&instance);
                self.judge_change(name, before);
                self.notify(Notice::Claim(instance));
            }
            Effect::WriteRollout(rollout) => self.write_rollout(name, rollout),
            Effect::WriteHolder(_) | Effect::Unfit | Effect::Fit => {
                unreachable!("a node alone places nothing")
            }
            Effect::WriteOutcome { release, outcome } => {
                let what = if outcome.is_some() { "" } else { "no " };
                self.tell(|| format!("{what}outcome of {}", release.short()));
            }
            Effect::WriteSpec(_) | Effect::ClearRemains => {
                unreachable!("nothing comes late to a node alone")
            }
            Effect::TakeBack { from, to } => self.take_back(name, &from, &to),
            Effect::NameWritten { .. } => {}
            Effect::Note(note) => self.tell(|| format!("note {note}")),
            Effect::PruneBuilds { keep, .. } => self.judge_prune(name, &keep),
            Effect::AllStopped => {
                self.tell(|| format!("all stopped {name}"));
                self.judge_stopped(name);
                let wanted = self.records.specs.contains_key(name);
                if let Some(node) = &mut self.node
                    && (!wanted || node.stopping.is_some())
                {
                    node.agents.remove(name);
                    self.end_if_stopped();
                }
            }
        }
    }

    fn write_rollout(&mut self, name: &ApplicationName, rollout: Rollout) {
        let before = self.serving_well(name);
        match &rollout.target {
            Some(target) if rollout.phase == RolloutPhase::Starting => {
                self.starting.insert(name.clone(), target.clone());
            }
            _ => drop(self.starting.remove(name)),
        }
        let rollout = merge(self.records.rollouts.get(name).cloned(), rollout);
        self.tell(|| {
            let short =
                |id: &Option<ReleaseId>| id.as_ref().map_or("none".into(), ReleaseId::short);
            let (serving, target) = (short(&rollout.serving), short(&rollout.target));
            let phase = format!("{:?}", rollout.phase).to_lowercase();
            format!("rollout {phase}, target {target}, serving {serving}")
        });
        self.records.rollouts.insert(name.clone(), stored(&rollout));
        self.judge_rollout(name);
        self.judge_change(name, before);
        self.notify(Notice::Rollout(name.clone()));
    }

    fn step_result(&mut self, bad: bool, fault: Fault, why: &str) -> Result<(), StepFailure> {
        if !bad {
            return Ok(());
        }
        self.count(fault);
        Err(StepFailure {
            why: why.into(),
            last_words: "no network".into(),
            ..StepFailure::default()
        })
    }

    fn await_healthy(&mut self, name: &ApplicationName, life: u64, id: IncarnationId) {
        let Some(process) = self.processes.get(&id).filter(|process| process.is_alive()) else {
            return;
        };
        match process.healthy_at {
            Some(at) => {
                let wait = at.saturating_sub(self.now) + 1;
                self.answer(name, life, wait, Event::Healthy { id, warning: None, remark: None });
            }
            None => {
                self.count(Fault::NeverReady);
                let detail = "no port is bound".into();
                self.answer(name, life, 10, Event::NotYetHealthy { id, detail, mistake: None });
            }
        }
    }

    pub(crate) fn launch(&mut self, life: u64, id: IncarnationId, release: ReleaseId) {
        let name = id.instance.application.clone();
        let agent = self.node.as_ref().and_then(|node| node.agents.get(&name));
        if agent.is_none_or(|agent| agent.life != life) {
            return;
        }
        let quality = self.quality(&name, &release);
        if quality == Quality::StartFails {
            self.count(Fault::StartFailed);
            let why = "no such file: server".into();
            return self.answer(&name, life, 1, Event::StartFailed { id, why });
        }
        self.judge_launch(&id, &release);
        self.next_pid += 1;
        let identity =
            ProcessIdentity { pid: self.next_pid, start_ticks: self.now, boot_id: "boot".into() };
        let healthy_at = self.now + self.delay(100, 2_000);
        let looping = self.crash_loops.contains(&name);
        let deaf = self.storm(10);
        let port = id.instance.process.is_web().then_some(20_000 + self.next_pid as u16);
        let process = Process {
            id: id.clone(),
            release,
            identity: identity.clone(),
            port,
            healthy_at: (quality != Quality::NeverReady).then_some(healthy_at),
            hung: false,
            fat: false,
            deaf,
            stopping: false,
            exit: None,
        };
        self.processes.insert(id.clone(), process);
        if quality == Quality::ExitsAtStart || looping {
            self.count(if looping { Fault::CrashLoop } else { Fault::ExitAtStart });
            let wait = self.delay(20, 60);
            self.later(wait, Happening::Exit { id: id.clone(), how: "exit status 1" });
        } else if quality == Quality::Dies {
            self.count(Fault::Dies);
            let wait = healthy_at - self.now + self.delay(500, 10_000);
            self.later(wait, Happening::Exit { id: id.clone(), how: "exit status 3" });
        } else {
            self.fate(&id);
        }
        let wait = self.delay(1, 20);
        self.answer(
            &name,
            life,
            wait,
            Event::Started { id, process: identity, port, ports: Default::default() },
        );
    }

    /// Decides what becomes of a process in a storm.
    fn fate(&mut self, id: &IncarnationId) {
        let wait = self.random.between(100, 240_000);
        if self.storm(20) {
            self.count(Fault::Crash);
            self.later(wait, Happening::Exit { id: id.clone(), how: "killed by signal 11" });
        } else if self.storm(8) {
            self.later(wait, Happening::Hang(id.clone()));
        } else if self.storm(8) {
            self.later(wait, Happening::Grow(id.clone()));
        }
    }
}
