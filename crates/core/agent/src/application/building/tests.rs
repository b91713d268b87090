//! Tests of where a release is built, as one node of several decides it.

use model::application::ApplicationSpec;
use model::release::{Portable, ProcessRecipe, Recipe, StaticMount, Step};
use model::value::ContentHash;
use model::{Machine, ProcessType, Rollout};

use super::*;
use crate::application::Event;
use crate::application::coordination::{REQUEST_WAIT_MAX, TAKE_OVER_AFTER};
use crate::lease::{LEASE, LEASE_GRACE};
use crate::placement::{Hold, UNHEARD_MAX};

const START: Timestamp = Timestamp(1_000_000);

/// The node `n1` of several, all of which run the application, and what its machine asks for.
struct Node {
    now: Timestamp,
    machine: Application,
    said: Vec<Effect>,
}

fn node(id: &str) -> NodeId {
    id.parse().unwrap()
}

fn release(made_on: &str) -> Release {
    let step = Step { name: "Compiling".into(), command: "go build".into() };
    let web = ProcessRecipe { default_count: 2, ..ProcessRecipe::default() };
    Release {
        v: 1,
        id: ReleaseId { number: 1, node: node(made_on) },
        source: ContentHash([0; 32]),
        source_bytes: 1,
        build: None,
        recipe: Recipe {
            build: vec![step],
            portable: Some(Portable::default()),
            processes: [(ProcessType::web(), web)].into(),
            ..Recipe::default()
        },
        settings: Default::default(),
        created_at: START,
        author: "ann".into(),
        note: String::new(),
        replaces: None,
        revision: None,
        remark: None,
        takes_back: None,
        unknown: Default::default(),
    }
}

fn candidate(id: &str, load: u32, alike: bool) -> BuildCandidate {
    BuildCandidate { node: node(id), load_percent: Some(load), alike }
}

fn lacking(why: &str) -> StepFailure {
    StepFailure { why: why.into(), lacks_tool: true, ..StepFailure::default() }
}

impl Node {
    fn new() -> Node {
        let machine = Application::new(node("n1"), "shop".parse().unwrap());
        Node { now: START, machine, said: Vec::new() }
    }

    fn of(nodes: &[&str], release: &Release) -> Node {
        let mut one = Node::new();
        one.starts(nodes, release);
        one
    }

    fn starts(&mut self, nodes: &[&str], release: &Release) {
        let places = [((ProcessType::web(), 1), Hold::Keep)].into();
        for event in [
            Event::Live(nodes.iter().map(|id| node(id)).collect()),
            Event::Places(places),
            Event::Spec(Some(ApplicationSpec::new(START))),
            Event::Release(release.id.clone(), Some(release.clone())),
            Event::Adopted(Vec::new()),
        ] {
            self.hears(event);
        }
    }

    /// Returns a node that was asked to coordinate.
    fn pushes(nodes: &[&str], release: &Release) -> Node {
        let mut one = Node::of(nodes, release);
        one.record(Rollout { phase: RolloutPhase::Requested, ..one.rollout_by("n1", release) });
        one
    }

    fn rollout_by(&self, coordinator: &str, release: &Release) -> Rollout {
        let rollout = Rollout::new(node(coordinator), self.now);
        Rollout { target: Some(release.id.clone()), ..rollout }
    }

    fn record(&mut self, rollout: Rollout) {
        self.hears(Event::Rollout(Some(rollout)));
    }

    fn hears(&mut self, event: Event) {
        self.machine.handle(self.now, event, &mut self.said);
        self.machine.check_invariants();
    }

    fn passes(&mut self, wait: Duration) {
        let end = self.now.after(wait);
        while let Some(at) = self.machine.deadline().filter(|at| *at <= end) {
            self.now = at;
            self.machine.tick(at, &mut self.said);
            self.machine.check_invariants();
        }
        self.now = end;
    }

    /// Returns what is to be done about builds, in short, and forgets it.
    fn does(&mut self) -> Vec<String> {
        let word = |effect: Effect| match effect {
            Effect::Build { .. } => Some("build".to_string()),
            Effect::Fetch { builder, .. } => Some(format!("fetch from {builder}")),
            Effect::Share { .. } => Some("share".into()),
            Effect::FindBuilders { .. } => Some("find".into()),
            Effect::RunReleaseSteps { .. } => Some("release steps".into()),
            Effect::WriteRollout(rollout) => {
                let built = rollout.built_on.map(|node| format!(" built on {node}"));
                let built = built.unwrap_or_default();
                Some(format!("{:?} by {}{built}", rollout.phase, rollout.coordinator))
            }
            _ => None,
        };
        std::mem::take(&mut self.said).into_iter().filter_map(word).collect()
    }

    fn message(&self) -> String {
        let mut messages = self.said.iter().filter_map(|effect| match effect {
            Effect::WriteRollout(rollout) => rollout.message.clone(),
            _ => None,
        });
        messages.next_back().unwrap_or_default()
    }
}

#[test]
fn the_emptiest_of_those_alike_is_chosen() {
    let here = candidate("n1", 40, true);
    let check = |others: &[BuildCandidate], expected: Option<&str>| {
        let all = [std::slice::from_ref(&here), others].concat();
        assert_eq!(emptiest(&node("n1"), &all), expected.map(node), "{others:?}");
    };
    check(&[], None);
    check(&[candidate("n2", 31, true)], None);
    check(&[candidate("n2", 30, true)], Some("n2"));
    check(&[candidate("n2", 30, true), candidate("n3", 5, true)], Some("n3"));
    check(&[candidate("n2", 30, true), candidate("n3", 5, false)], Some("n2"));
    check(&[BuildCandidate { load_percent: None, ..candidate("n2", 0, true) }], None);
    assert_eq!(emptiest(&node("n1"), &[candidate("n2", 0, true)]), None, "itself is unknown");
}

#[test]
fn an_emptier_node_builds_and_coordinates() {
    let release = release("n1");
    let mut one = Node::pushes(&["n1", "n2"], &release);
    assert_eq!(one.does(), ["Building by n1", "find"]);
    let candidates = vec![candidate("n1", 60, true), candidate("n2", 10, true)];
    let id = release.id.clone();
    one.hears(Event::Builders { release: id.clone(), candidates: candidates.clone() });
    assert_eq!(one.does(), ["Requested by n2"]);
    // A second answer changes nothing.
    one.hears(Event::Builders { release: id, candidates });
    assert!(one.does().is_empty());
}

#[test]
fn what_is_built_here_is_shared_before_others_start() {
    let release = release("n1");
    let id = release.id.clone();
    let mut one = Node::pushes(&["n1", "n2"], &release);
    let candidates = vec![candidate("n1", 15, true), candidate("n2", 10, true)];
    one.hears(Event::Builders { release: id.clone(), candidates });
    one.hears(Event::Built { release: id.clone(), result: Ok(()) });
    assert_eq!(one.does(), ["Building by n1", "find", "build", "share"]);
    one.hears(Event::Shared { release: id.clone(), result: Ok(()) });
    assert_eq!(one.does(), ["Starting by n1 built on n1"]);
    // What cannot be shared is built everywhere.
    let mut one = Node::pushes(&["n1", "n2"], &release);
    one.passes(ANSWER_WITHIN);
    one.hears(Event::Built { release: id, result: Ok(()) });
    assert_eq!(one.does(), ["Building by n1", "find", "build", "share"]);
    one.passes(SHARE_WITHIN);
    assert_eq!(one.does(), ["Starting by n1"]);
}

#[test]
fn nothing_is_asked_where_nothing_is_gained() {
    let mut alone = Node::pushes(&["n1"], &release("n1"));
    assert_eq!(alone.does(), ["Building by n1", "build"]);
    let mut bound = release("n1");
    bound.recipe.portable = None;
    let mut one = Node::pushes(&["n1", "n2"], &bound);
    assert_eq!(one.does(), ["Building by n1", "build"]);
    // What was handed to this node is built here.
    let mut given = Node::pushes(&["n1", "n2"], &release("n2"));
    assert_eq!(given.does(), ["Building by n1", "build"]);
}

#[test]
fn followers_fetch_and_build_what_they_cannot_have() {
    let release = release("n2");
    let id = release.id.clone();
    let build = release.build_id();
    let artefact = |fits| Event::Artefact { build: build.clone(), builder: node("n2"), fits };
    let starting = |one: &Node| Rollout {
        phase: RolloutPhase::Starting,
        built_on: Some(node("n2")),
        ..one.rollout_by("n2", &release)
    };
    let mut one = Node::of(&["n1", "n2"], &release);
    one.record(starting(&one));
    assert!(one.does().is_empty(), "the artefact's record is still to come");
    one.hears(artefact(Some(true)));
    assert_eq!(one.does(), ["fetch from n2"]);
    let result = Err("nothing comes".into());
    one.hears(Event::Fetched { release: id.clone(), result });
    assert_eq!(one.does(), ["build"]);
    // The record never comes.
    let mut one = Node::of(&["n1", "n2"], &release);
    one.record(starting(&one));
    one.passes(RECORD_WITHIN);
    assert_eq!(one.does(), ["build"]);
    // The artefact is for another kind of machine.
    let mut one = Node::of(&["n1", "n2"], &release);
    one.record(starting(&one));
    one.hears(artefact(Some(false)));
    assert_eq!(one.does(), ["build"]);
    // The artefact was taken away again.
    let mut one = Node::of(&["n1", "n2"], &release);
    one.hears(artefact(Some(true)));
    one.hears(artefact(None));
    one.record(starting(&one));
    one.passes(RECORD_WITHIN);
    assert_eq!(one.does(), ["build"]);
}

#[test]
fn a_builder_that_dies_is_replaced() {
    let release = release("n1");
    let mut one = Node::of(&["n1", "n2"], &release);
    one.record(Rollout { phase: RolloutPhase::Building, ..one.rollout_by("n2", &release) });
    one.hears(Event::Live([node("n1")].into()));
    one.passes(TAKE_OVER_AFTER);
    assert_eq!(one.does(), ["Building by n1", "build"]);
    // The node that died may come back.
    one.hears(Event::Built { release: release.id.clone(), result: Ok(()) });
    assert_eq!(one.does(), ["share"]);
}

/// Shims of a node process that is gone may still run its release step, until their lease ends.
#[test]
fn release_steps_of_a_dead_coordinator_are_waited_for() {
    let mut release = release("n1");
    release.recipe.release.push(Step { name: "Migrating".into(), command: "migrate".into() });
    let dies = |phase: RolloutPhase| {
        let mut one = Node::of(&["n1", "n2"], &release);
        one.record(Rollout { phase, ..one.rollout_by("n2", &release) });
        one.hears(Event::Live([node("n1")].into()));
        one.does();
        one
    };
    // The news that it has begun them may have been heard or not.
    for phase in [RolloutPhase::Releasing, RolloutPhase::Building] {
        let mut one = dies(phase);
        one.passes(LEASE);
        assert!(one.does().is_empty(), "its step may still run");
        one.passes(LEASE_GRACE);
        assert_eq!(one.does(), ["Building by n1", "build"]);
    }
    // The steps ran.
    let mut one = dies(RolloutPhase::Starting);
    one.passes(TAKE_OVER_AFTER);
    assert_eq!(one.does().first().map(String::as_str), Some("Starting by n1"));
}

/// The coordinator's process ended in the middle of them, and another one may have run them to
/// their end.
#[test]
fn a_coordinator_that_is_back_asks_before_it_runs_release_steps() {
    let mut release = release("n1");
    release.recipe.release.push(Step { name: "Migrating".into(), command: "migrate".into() });
    let back = |nodes: &[&str], release: &Release| {
        let mut one = Node::new();
        one.record(Rollout { phase: RolloutPhase::Releasing, ..one.rollout_by("n1", release) });
        one.starts(nodes, release);
        one
    };
    let begins = ["Building by n1", "build"];
    let mut replaced = back(&["n1", "n2"], &release);
    replaced.passes(UNHEARD_MAX / 2);
    replaced.record(Rollout { phase: RolloutPhase::Done, ..replaced.rollout_by("n2", &release) });
    replaced.passes(UNHEARD_MAX);
    assert!(replaced.does().is_empty(), "they ran");

    let mut unreplaced = back(&["n1", "n2"], &release);
    assert!(unreplaced.does().is_empty(), "the other one may have gone on");
    unreplaced.passes(UNHEARD_MAX);
    assert_eq!(unreplaced.does(), begins);
    assert_eq!(back(&["n1"], &release).does(), begins, "there is nobody to ask");
    release.recipe.release.clear();
    assert_eq!(back(&["n1", "n2"], &release).does(), begins, "building again does no harm");
}

#[test]
fn a_missing_tool_is_looked_for_on_other_nodes() {
    let mut release = release("n1");
    release.recipe.portable = None;
    let id = release.id.clone();
    let fails = |one: &mut Node| {
        let result = Err(lacking("Compiling failed: exit status 127"));
        one.hears(Event::Built { release: id.clone(), result });
    };
    let mut one = Node::pushes(&["n1", "n2"], &release);
    fails(&mut one);
    assert_eq!(one.does(), ["Building by n1", "build", "find"]);
    let candidates = vec![candidate("n1", 0, true), candidate("n2", 90, false)];
    one.hears(Event::Builders { release: id.clone(), candidates });
    assert_eq!(one.does(), ["Requested by n2"]);
    // No other node is there.
    let mut one = Node::pushes(&["n1", "n2"], &release);
    fails(&mut one);
    one.passes(ANSWER_WITHIN);
    assert_eq!(one.message(), "Compiling failed: exit status 127");
    // The build is not tried again on a node where it failed.
    let mut one = Node::of(&["n1", "n2"], &release);
    let tried = |nodes: &[&str]| nodes.iter().map(|id| (node(id), "no go".into())).collect();
    let asked = Rollout { phase: RolloutPhase::Requested, ..one.rollout_by("n1", &release) };
    one.record(Rollout { unable: tried(&["n2"]), ..asked.clone() });
    fails(&mut one);
    let candidates = vec![candidate("n1", 0, true), candidate("n2", 0, true)];
    one.hears(Event::Builders { release: id.clone(), candidates: candidates.clone() });
    let words = ["no node could build it: on node n1 Compiling failed", "on node n2 no go"];
    assert!(words.iter().all(|word| one.message().contains(word)), "{}", one.message());
    // So many have failed that it is the source's fault.
    let mut one = Node::of(&["n1", "n2", "n3", "n4"], &release);
    one.record(Rollout { unable: tried(&["n3", "n4"]), ..asked });
    fails(&mut one);
    one.hears(Event::Builders { release: id.clone(), candidates });
    assert!(one.message().contains("no node could build it"), "{}", one.message());
}

#[test]
fn an_ordinary_failure_is_tried_nowhere_else() {
    let release = release("n2");
    let mut one = Node::pushes(&["n1", "n2"], &release);
    let result = Err(StepFailure { why: "Compiling failed".into(), ..StepFailure::default() });
    one.hears(Event::Built { release: release.id.clone(), result });
    assert_eq!(one.message(), "Compiling failed");
    assert_eq!(one.does(), ["Building by n1", "build", "Failed by n1"]);
}

/// Returns `n1` in the middle of the release steps of what was pushed to it, with the request of
/// another push at once to `n0`, which won: both are the first release.
fn crossing() -> (Node, Release, Release) {
    let step = Step { name: "Migrating".into(), command: "rake db:migrate".into() };
    let mut theirs = release("n0");
    theirs.recipe.portable = None;
    theirs.recipe.release = vec![step];
    let ours = Release { id: ReleaseId { number: 1, node: node("n1") }, ..theirs.clone() };
    let mut one = Node::pushes(&["n0", "n1"], &ours);
    one.hears(Event::Built { release: ours.id.clone(), result: Ok(()) });
    assert_eq!(one.does(), ["Building by n1", "build", "Releasing by n1", "release steps"]);
    one.hears(Event::Release(theirs.id.clone(), Some(theirs.clone())));
    let phase = RolloutPhase::Releasing;
    one.record(Rollout { phase, ..one.rollout_by("n0", &theirs) });
    assert!(one.does().is_empty());
    (one, ours, theirs)
}

#[test]
fn a_survivor_that_lacks_the_source_gives_the_rollout_up() {
    let mut lost = release("n0");
    lost.recipe.portable = None;
    let mut one = Node::of(&["n0", "n1"], &lost);
    one.record(Rollout { phase: RolloutPhase::Starting, ..one.rollout_by("n0", &lost) });
    let fails = |one: &mut Node| {
        let why = "the bytes of this value are on other nodes";
        let failure = StepFailure { why: why.into(), ..StepFailure::default() };
        one.hears(Event::Built { release: lost.id.clone(), result: Err(failure) });
    };
    fails(&mut one);
    assert_eq!(one.does(), ["build"]);
    one.hears(Event::Live([node("n1")].into()));
    one.passes(TAKE_OVER_AFTER);
    assert_eq!(one.does(), ["Starting by n1", "build"]);
    fails(&mut one);
    assert!(one.message().contains("are on other nodes"), "{}", one.message());
    assert_eq!(one.does(), ["Failed by n1"]);
}

#[test]
fn a_site_is_built_on_every_node() {
    let mut site = release("n2");
    site.recipe.portable = None;
    site.recipe.processes.clear();
    let mount = StaticMount { prefix: "/".into(), directory: ".".into(), fallback: None };
    site.recipe.statics = vec![mount];
    let serves = |one: &Node, site: &Release| Rollout {
        phase: RolloutPhase::Done,
        serving: Some(site.id.clone()),
        ..one.rollout_by("n2", site)
    };
    let mut one = Node::of(&["n1", "n2"], &site);
    one.record(serves(&one, &site));
    assert_eq!(one.does(), ["build"]);
    // One that keeps files is where they are.
    site.recipe.persist = vec!["kept".into()];
    let mut one = Node::of(&["n1", "n2"], &site);
    one.record(serves(&one, &site));
    assert!(one.does().is_empty());
}

/// Has `n1` take up what was pushed to it, which was passed over.
fn takes_up(one: &mut Node, release: &Release) {
    one.passes(REQUEST_WAIT_MAX);
    one.hears(Event::Built { release: release.id.clone(), result: Ok(()) });
}

#[test]
fn release_steps_that_ran_are_not_run_again_after_another_push_crossed_them() {
    let (mut one, ours, theirs) = crossing();
    one.hears(Event::Released { release: ours.id.clone(), result: Ok(()) });
    let rollout = one.rollout_by("n0", &theirs);
    one.record(Rollout { phase: RolloutPhase::Starting, ..rollout });
    assert_eq!(one.does(), ["build"], "it follows meanwhile");
    takes_up(&mut one, &ours);
    assert_eq!(one.does(), ["Building by n1", "build", "Releasing by n1", "Starting by n1"]);
}

#[test]
fn release_steps_that_still_run_after_another_push_crossed_them_are_waited_for() {
    let (mut one, ours, _) = crossing();
    takes_up(&mut one, &ours);
    assert_eq!(one.does(), ["Building by n1", "build", "Releasing by n1"]);
    one.hears(Event::Released { release: ours.id.clone(), result: Ok(()) });
    assert_eq!(one.does(), ["Starting by n1"]);
}

#[test]
fn release_steps_that_failed_unheard_fail_their_release() {
    let (mut one, ours, _) = crossing();
    let failure = StepFailure { why: "Migrating failed".into(), ..StepFailure::default() };
    one.hears(Event::Released { release: ours.id.clone(), result: Err(failure) });
    takes_up(&mut one, &ours);
    assert_eq!(one.message(), "Migrating failed");
    assert_eq!(one.does(), ["Building by n1", "build", "Releasing by n1", "Failed by n1"]);
}
