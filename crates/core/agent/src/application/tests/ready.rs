//! Tests of how a release becomes ready, how it is told what keeps it from that, and how it is
//! taken back.

use super::*;

/// Returns a release like `World::release`, with workers.
fn with_workers(number: u64, web: u32, workers: u32) -> Release {
    let mut release = World::release(number, web);
    let recipe = ProcessRecipe { default_count: workers, ..ProcessRecipe::default() };
    release.recipe.processes.insert("clock".parse().unwrap(), recipe.clone());
    release.recipe.processes.insert("worker".parse().unwrap(), recipe);
    release
}

impl World {
    /// Takes a release back as a shell does.
    pub(super) fn take_back(&mut self, from: &ReleaseId, to: &ReleaseId) -> Vec<Event> {
        let releases = self.machine.releases.values();
        if taken_back(Some(&self.rollout), releases, from) != TakeBackProgress::Unmade {
            return Vec::new();
        }
        let number = self.machine.releases.keys().map(|id| id.number).max().unwrap() + 1;
        let id = release_id(number);
        let takes_back = Some(from.clone());
        let release = Release { id: id.clone(), takes_back, ..self.machine.releases[to].clone() };
        self.rollout.target = Some(id.clone());
        self.rollout.phase = RolloutPhase::Requested;
        self.rollout.changed_at = self.now;
        vec![Event::Release(id, Some(release)), Event::Rollout(Some(self.rollout.clone()))]
    }

    fn starting(&self) -> Vec<String> {
        let mut starting = Vec::new();
        for (instance, claim) in &self.claims {
            if claim.incarnations.iter().any(|i| i.state == InstanceState::Starting) {
                starting.push(instance.label());
            }
        }
        starting
    }

    fn ready(&mut self, label: &str) {
        let (instance, claim) = self.claims.iter().find(|(id, _)| id.label() == label).unwrap();
        let generation = claim.incarnations.last().unwrap().generation;
        let id = IncarnationId { instance: instance.clone(), generation };
        self.event(Event::Healthy { id, warning: None, remark: None });
    }

    /// Returns a world with two releases, the second of which has just begun to serve.
    fn switched(count: u32) -> World {
        let mut world = World::serving(count);
        world.pass(Duration::from_secs(3600));
        world.push(World::release(2, count));
        world.drain_all();
        world.effects.clear();
        world
    }

    fn taken_back(&self) -> usize {
        self.effects.iter().filter(|effect| matches!(effect, Effect::TakeBack { .. })).count()
    }

    fn reason(&self, slot: u32) -> Option<String> {
        let (_, claim) = self.claims.iter().find(|(id, _)| id.slot == slot).unwrap();
        claim.incarnations.last().unwrap().reason.clone()
    }
}

#[test]
fn a_warning_reaches_whoever_pushed() {
    let mut world = World::serving(1);
    world.broken.insert(2, Broken::NeverReady);
    world.push(World::release(2, 1));
    let id = world.id(1);
    world.event(Event::Healthy { id, warning: Some("listens on 0.0.0.0".into()), remark: None });
    assert_eq!(world.rollout.phase, RolloutPhase::Done);
    assert_eq!(world.rollout.message.as_deref(), Some("web.1 listens on 0.0.0.0"));
    world.push(World::release(3, 1));
    assert_eq!((world.rollout.phase, world.rollout.message), (RolloutPhase::Done, None));
}

#[test]
fn first_starts_of_a_release_come_one_after_the_other() {
    let mut world = World::new();
    world.broken.insert(1, Broken::NeverReady);
    world.push(with_workers(1, 3, 2));
    assert_eq!(world.starting(), ["web.1"]);
    world.ready("web.1");
    assert_eq!(world.starting(), ["clock.1", "web.2", "web.3"]);
    world.ready("web.2");
    assert_eq!(world.starting(), ["clock.1", "web.3"], "another type's first one is alone too");
    world.ready("clock.1");
    assert_eq!(world.starting(), ["clock.2", "web.3", "worker.1"]);
    for label in ["clock.2", "web.3", "worker.1", "worker.2"] {
        world.ready(label);
    }
    assert_eq!(world.rollout.phase, RolloutPhase::Done);
}

#[test]
fn what_serves_starts_all_at_once() {
    let mut world = World::serving(1);
    world.broken.insert(1, Broken::NeverReady);
    world.scale(3);
    assert_eq!(world.starting(), ["web.2", "web.3"]);
}

/// Claims that the first web process is ready on `other`.
fn claim_elsewhere(world: &mut World, other: &NodeId, release: &ReleaseId, remark: Option<&str>) {
    let instance =
        InstanceId { application: "shop".parse().unwrap(), process: ProcessType::web(), slot: 1 };
    let incarnation = Incarnation {
        generation: 1,
        release: release.clone(),
        restart: 0,
        state: InstanceState::Ready,
        port: None,
        ports: Default::default(),
        process: None,
        started_at: None,
        concurrency: None,
        restarts: 0,
        reason: None,
        remark: remark.map(String::from),
    };
    let claim = Claim { incarnations: vec![incarnation], ..Claim::new(world.now) };
    world.event(Event::Other(instance, other.clone(), Some(claim)));
}

#[test]
fn an_odd_answer_on_another_node_is_remarked_on() {
    for remark in [Some("GET / answers 404"), None] {
        let mut world = World::new();
        let other: NodeId = "n2".parse().unwrap();
        world.event(Event::Live([node(), other.clone()].into()));
        world.event(Event::Places([].into()));
        let release = World::release(1, 1);
        world.push(release.clone());
        assert_eq!(world.rollout.phase, RolloutPhase::Starting);
        claim_elsewhere(&mut world, &other, &release.id, remark);
        assert_eq!(world.rollout.phase, RolloutPhase::Done);
        let expected = remark.map(|remark| format!("web.1: {remark}"));
        assert_eq!(world.rollout.message, expected);
    }
}

#[test]
fn other_nodes_wait_for_the_first_one() {
    use crate::placement::Hold;
    let mut world = World::new();
    let other: NodeId = "n2".parse().unwrap();
    let places = [((ProcessType::web(), 2), Hold::Keep)].into();
    world.event(Event::Live([node(), other.clone()].into()));
    world.event(Event::Places(places));
    let release = World::release(1, 2);
    world.event(Event::Release(release.id.clone(), Some(release.clone())));
    world.rollout.target = Some(release.id.clone());
    world.rollout.phase = RolloutPhase::Starting;
    world.rollout.coordinator = other.clone();
    world.event(Event::Rollout(Some(world.rollout.clone())));
    assert_eq!(starts(&world), 0, "its first one starts elsewhere");
    claim_elsewhere(&mut world, &other, &release.id, None);
    assert_eq!(starts(&world), 1);
}

#[test]
fn a_release_whose_instances_end_is_taken_back() {
    let mut world = World::switched(1);
    world.crash(1);
    assert_eq!(world.taken_back(), 0, "once may be bad luck");
    world.pass(Duration::from_secs(20));
    world.crash(1);
    world.drain_all();
    assert_eq!((world.rollout.serving.clone(), world.taken_back()), (Some(release_id(3)), 1));
    assert_eq!(world.machine.releases[&release_id(3)].takes_back, Some(release_id(2)));
    let (release, outcome) = world.outcomes.last().unwrap();
    assert_eq!((release, outcome.fate), (&release_id(2), Fate::TakenBack));
    let why = "its instances ended within a minute: web.1 ended: killed by signal 9\nTraceback";
    assert!(outcome.why.starts_with(why), "{}", outcome.why);
    // The release brought back is as the first was: whatever it does, nothing else is made of it.
    for _ in 0..3 {
        world.pass(Duration::from_secs(10));
        world.crash(1);
    }
    assert_eq!((world.rollout.serving.clone(), world.taken_back()), (Some(release_id(3)), 1));
}

#[test]
fn one_that_served_for_long_stays() {
    let mut world = World::switched(1);
    world.pass(SERVES_WELL_AFTER);
    world.crash(1);
    world.crash(1);
    assert_eq!(world.taken_back(), 0);
    // The second time comes within a minute of the first one.
    let mut world = World::switched(1);
    world.pass(SERVES_WELL_AFTER / 2);
    world.crash(1);
    world.pass(SERVES_WELL_AFTER - Duration::from_secs(1));
    world.crash(1);
    assert_eq!(world.taken_back(), 1);
}

#[test]
fn crashes_of_different_slots_are_bad_luck_each() {
    let mut world = World::switched(2);
    world.crash(1);
    world.crash(2);
    assert_eq!(world.taken_back(), 0);
}

#[test]
fn the_first_release_has_nothing_to_go_back_to() {
    let mut world = World::serving(1);
    world.crash(1);
    world.crash(1);
    world.crash(1);
    assert_eq!((world.taken_back(), world.rollout.serving), (0, Some(release_id(1))));
}

#[test]
fn a_node_that_comes_back_goes_on_watching() {
    let mut world = World::switched(1);
    world.crash(1);
    adopt(&mut world, &[1]);
    world.crash(1);
    assert_eq!(world.rollout.serving, Some(release_id(3)));
}

#[test]
fn what_was_made_to_take_a_release_back_is_not_made_twice() {
    let world = World::switched(1);
    let mut rollout = world.rollout.clone();
    let from = release_id(2);
    let made = Release { takes_back: Some(from.clone()), ..World::release(3, 1) };
    let both = [world.machine.releases[&from].clone(), made];
    assert_eq!(taken_back(Some(&rollout), both[..1].iter(), &from), TakeBackProgress::Unmade);
    assert_eq!(
        taken_back(Some(&rollout), both.iter(), &from),
        TakeBackProgress::Made(release_id(3))
    );
    assert_eq!(taken_back(None, both.iter(), &from), TakeBackProgress::Overtaken);
    rollout.target = Some(release_id(4));
    rollout.phase = RolloutPhase::Requested;
    assert_eq!(taken_back(Some(&rollout), both[..1].iter(), &from), TakeBackProgress::Overtaken);
}

#[test]
fn a_failed_release_is_remembered_whatever_comes_after() {
    let mut world = World::serving(1);
    world.broken.insert(2, Broken::Exits);
    world.push(World::release(2, 1));
    world.push(World::release(3, 1));
    let [(release, outcome)] = &world.outcomes[..] else { panic!("{:?}", world.outcomes) };
    assert_eq!((release, outcome.fate), (&release_id(2), Fate::Failed));
    assert_eq!(outcome.why, "web.1 ended: exit status 1\nTraceback\nKeyError");
}

#[test]
fn a_failure_is_forgotten_once_the_release_serves() {
    let mut world = World::serving(1);
    world.broken.insert(2, Broken::Exits);
    world.push(World::release(2, 1));
    assert_eq!(world.outcomes.len(), 1);
    world.broken.clear();
    world.push(World::release(2, 1));
    assert_eq!((world.rollout.phase, world.outcomes.len()), (RolloutPhase::Done, 0));
}

#[test]
fn what_will_not_become_ready_fails_at_once_and_is_told_the_way_out() {
    let mut world = World::serving(1);
    world.broken.insert(2, Broken::NeverReady);
    let mut release = World::release(2, 1);
    release.recipe.framework = "node".into();
    world.push(release);
    assert_eq!(world.reason(1), None, "most are ready before anybody asks");
    let id = world.id(1);
    let detail = "listens on 127.0.0.1:3000, but PORT is 20000".to_string();
    let mistake = Some(Mistake::Port);
    world.event(Event::NotYetHealthy { id: id.clone(), detail: detail.clone(), mistake });
    let reason = world.reason(1).unwrap();
    assert!(reason.starts_with("listens on 127.0.0.1:3000, but PORT is 20000: "), "{reason}");
    world.event(Event::Hopeless { id, detail, mistake: Mistake::Port });
    assert_eq!(world.rollout.phase, RolloutPhase::Failed);
    let message = world.rollout.message.unwrap();
    assert!(message.contains("web.1 listens on 127.0.0.1:3000"), "{message}");
    assert!(message.contains("app.listen(process.env.PORT"), "{message}");
}

#[test]
fn what_takes_long_says_what_is_missing() {
    let mut world = World::serving(1);
    world.broken.insert(2, Broken::NeverReady);
    world.push(World::release(2, 1));
    world.pass(Duration::from_secs(4));
    assert_eq!(world.reason(1).as_deref(), Some("no port is bound"));
    let id = world.id(1);
    world.event(Event::Healthy { id, warning: None, remark: None });
    assert_eq!(world.reason(1), None);
}

#[test]
fn what_went_to_the_background_is_told_so() {
    let mut world = World::new();
    world.broken.insert(1, Broken::NeverReady);
    world.push(World::release(1, 1));
    for _ in 0..2 {
        let (id, how) = (world.id(1), "exit status 0".to_string());
        let exit = Exit { how, success: true, background: true, ..Exit::default() };
        world.event(Event::Exited { id, exit });
    }
    let message = world.rollout.message.unwrap();
    assert!(message.starts_with("web.1 went to the background: "), "{message}");
}

#[test]
fn an_odd_answer_of_all_instances_is_remarked_on() {
    let check = |second: Option<&str>, expected: Option<&str>| {
        let mut world = World::new();
        world.broken.insert(1, Broken::NeverReady);
        world.push(World::release(1, 2));
        for (slot, remark) in [(1, Some("GET / answers 404")), (2, second)] {
            let (id, remark) = (world.id(slot), remark.map(String::from));
            world.event(Event::Healthy { id, warning: None, remark });
        }
        assert_eq!(world.rollout.phase, RolloutPhase::Done);
        assert_eq!(world.rollout.message.as_deref(), expected);
    };
    check(Some("GET / answers 404"), Some("web.1: GET / answers 404"));
    check(None, None);
}
