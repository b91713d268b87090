//! Which change is taken back, and when none is.

use model::audit::AuditId;
use model::change::PortChoice;
use model::{ProcessSpec, ProcessType, Timestamp};
use serde_json::json;

use super::*;

/// An application with what was changed of it.
struct World {
    spec: ApplicationSpec,
    rollout: Rollout,
    releases: Vec<Release>,
    same_variables: BTreeSet<ReleaseId>,
    roles: BTreeMap<UserName, PersonRole>,
    known: Vec<KnownChange>,
}

fn id(number: u64) -> ReleaseId {
    ReleaseId { number, node: "n1".parse().unwrap() }
}

impl World {
    fn new() -> World {
        World {
            spec: ApplicationSpec::new(Timestamp(1)),
            rollout: Rollout::new("n1".parse().unwrap(), Timestamp(1)),
            releases: Vec::new(),
            same_variables: BTreeSet::new(),
            roles: BTreeMap::new(),
            known: Vec::new(),
        }
    }

    fn changed(&mut self, who: &str, parts: Vec<ChangePart>) -> ChangeId {
        let at = Timestamp(10 + self.known.len() as u64);
        let id = ChangeId { entry: AuditId::new(at, 0), node: "n1".parse().unwrap() };
        let change = Change { at, created_at: Timestamp(1), parts, undoes: None };
        let (who, note, certain) = (who.into(), None, true);
        self.known.insert(0, KnownChange { id: id.clone(), who, note, change, certain });
        id
    }

    fn scale(&mut self, who: &str, count: u32) -> ChangeId {
        let before = self.spec.clone();
        let web = ProcessSpec { count, ..ProcessSpec::default() };
        self.spec.processes.insert(ProcessType::web(), web);
        self.changed(who, parts::of_spec(&before, &self.spec))
    }

    /// Makes a release that serves at once, with variables of its own or those before it.
    fn release(&mut self, who: &str, own_variables: bool) -> ChangeId {
        let number = self.releases.len() as u64 + 1;
        let release = json!({
            "v": 1, "id": id(number), "source": "00".repeat(32), "source_bytes": 1,
            "recipe": { "framework": "python", "decided_by": "" }, "created_at": 1,
            "author": who, "note": "push",
        });
        self.releases.push(serde_json::from_value(release).unwrap());
        if own_variables {
            self.same_variables.clear();
        }
        self.same_variables.insert(id(number));
        let before = self.rollout.serving.replace(id(number));
        self.rollout.target = Some(id(number));
        self.changed(
            who,
            vec![ChangePart::Release { before, after: id(number), note: "push".into() }],
        )
    }

    fn state(&self) -> StateNow<'_> {
        StateNow {
            spec: &self.spec,
            rollout: Some(&self.rollout),
            releases: &self.releases,
            same_variables: self.same_variables.clone(),
            roles: self.roles.clone(),
        }
    }

    fn choose(&self, asked: Option<&ChangeId>, who: &str) -> Result<Choice<'_>, Refusal<'_>> {
        choose(&self.known, asked, who, &self.state())
    }

    /// Returns the kind of the obstacle.
    fn obstacle(&self, asked: Option<&ChangeId>, who: &str) -> Obstacle {
        match self.choose(asked, who) {
            Err(Refusal::Obstacle(_, obstacle)) => obstacle,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_last_change_is_meant_if_it_is_ones_own() {
    let mut world = World::new();
    assert!(matches!(world.choose(None, "ana"), Err(Refusal::Nothing)));
    world.scale("ana", 2);
    let bobs = world.scale("bob", 5);
    assert!(matches!(world.choose(None, "ana"), Err(Refusal::ByOther(one)) if one.id == bobs));
    assert_eq!(world.choose(None, "bob").unwrap().known.id, bobs);
    assert_eq!(world.choose(Some(&bobs), "ana").unwrap().known.id, bobs);
    let never = ChangeId { entry: AuditId::new(Timestamp(999), 0), node: bobs.node.clone() };
    assert!(matches!(world.choose(Some(&never), "ana"), Err(Refusal::NoSuchChange)));
}

#[test]
fn what_somebody_did_since_is_not_overwritten() {
    let mut world = World::new();
    let first = world.scale("ana", 2);
    world.scale("bob", 5);
    let Obstacle::Overtaken(why) = world.obstacle(Some(&first), "ana") else { panic!() };
    assert_eq!(why, "web is at 5 now");
    // Without an entry in the audit, as by a write into the store.
    let mut world = World::new();
    world.scale("ana", 2);
    world.spec.processes.get_mut(&ProcessType::web()).unwrap().count = 7;
    assert!(matches!(world.obstacle(None, "ana"), Obstacle::Overtaken(_)));
    world.spec.processes.clear();
    assert!(matches!(world.obstacle(None, "ana"), Obstacle::Gone(_)));
}

#[test]
fn an_earlier_change_of_something_else_can_be_taken_back() {
    let mut world = World::new();
    let scaled = world.scale("ana", 2);
    world.changed(
        "bob",
        vec![ChangePart::Port {
            before: PortChoice { port: None, chosen: false },
            after: PortChoice::default(),
        }],
    );
    assert_eq!(world.choose(Some(&scaled), "ana").unwrap().parts.len(), 1);
}

#[test]
fn a_release_is_taken_back_to_the_one_before_it() {
    let mut world = World::new();
    let first = world.release("ana", true);
    assert!(matches!(world.obstacle(None, "ana"), Obstacle::Final(_)), "nothing was before it");
    let second = world.release("ana", true);
    assert_eq!(world.choose(None, "ana").unwrap().known.id, second);
    let Obstacle::Overtaken(why) = world.obstacle(Some(&first), "ana") else { panic!() };
    assert_eq!(why, "v2 (push, ana) came after v1");
    world.same_variables.clear();
    assert!(matches!(world.obstacle(None, "ana"), Obstacle::Overtaken(_)));
    world.same_variables.insert(id(2));
    world.releases.remove(0);
    assert!(matches!(world.obstacle(None, "ana"), Obstacle::Final(_)), "v1 is not kept");
}

#[test]
fn a_release_that_failed_is_taken_back_for_its_variables_alone() {
    let mut world = World::new();
    world.release("ana", true);
    world.release("ana", false);
    world.rollout.serving = Some(id(1));
    world.rollout.phase = RolloutPhase::Failed;
    assert!(matches!(world.obstacle(None, "ana"), Obstacle::Gone(_)));
    world.same_variables.remove(&id(1));
    assert_eq!(world.choose(None, "ana").unwrap().parts.len(), 1);
}

#[test]
fn a_release_that_was_taken_back_by_itself_needs_no_undo() {
    let mut world = World::new();
    world.release("ana", true);
    world.release("ana", false);
    world.release("cortex", false);
    world.known.remove(0);
    world.releases[2].takes_back = Some(id(2));
    let Obstacle::Gone(why) = world.obstacle(None, "ana") else { panic!() };
    assert_eq!(why, "v2 failed and was taken back by v3");
}

#[test]
fn what_was_only_asked_for_is_passed_over() {
    let mut world = World::new();
    let scaled = world.scale("ana", 2);
    // The node died after it had written down what it was about to do.
    let scale = ChangePart::Scale { process: ProcessType::web(), before: Some(2), after: Some(9) };
    let cut = world.changed("ana", vec![scale]);
    world.known[0].certain = false;
    assert_eq!(world.choose(None, "ana").unwrap().known.id, scaled);
    world.spec.processes.get_mut(&ProcessType::web()).unwrap().count = 9;
    assert_eq!(world.choose(None, "ana").unwrap().known.id, cut, "it was made after all");
}

#[test]
fn a_change_of_several_parts_is_taken_back_as_far_as_it_stands() {
    let mut world = World::new();
    world.release("ana", true);
    world.release("ana", false);
    let before = world.spec.clone();
    world.spec.set_domains(vec!["a.test".into()], Timestamp(3));
    world.known[0].change.parts.extend(parts::of_spec(&before, &world.spec));
    assert_eq!(world.choose(None, "ana").unwrap().parts.len(), 2);
    (world.rollout.serving, world.rollout.phase) = (Some(id(1)), RolloutPhase::Failed);
    let choice = world.choose(None, "ana").unwrap();
    assert!(matches!(choice.parts[..], [ChangePart::Domains { .. }]), "{choice:?}");
    world.spec.set_domains(vec!["b.test".into()], Timestamp(4));
    assert!(matches!(world.obstacle(None, "ana"), Obstacle::Overtaken(_)));
}

#[test]
fn a_role_is_compared_with_the_one_that_is_held() {
    let mut world = World::new();
    let ana: UserName = "ana".parse().unwrap();
    let after = Some(PersonRole::Developer);
    world.roles.insert(ana.clone(), PersonRole::Developer);
    world.changed("root", vec![ChangePart::Role { user: ana.clone(), before: None, after }]);
    assert!(world.choose(None, "root").is_ok());
    world.roles.insert(ana, PersonRole::Viewer);
    let Obstacle::Overtaken(why) = world.obstacle(None, "root") else { panic!() };
    assert_eq!(why, "ana has the role viewer on it now");
}
