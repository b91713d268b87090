//! Tests of what records make of an application, as the router sees it.

use model::application::{KeptEnd, Settings};
use model::release::ProcessRecipe;
use model::value::ContentHash;
use model::{Incarnation, Recipe, Timestamp};

use super::*;

fn name() -> ApplicationName {
    "shop".parse().unwrap()
}

fn instance(slot: u32) -> InstanceId {
    InstanceId { application: name(), process: ProcessType::web(), slot }
}

fn id(number: u64) -> ReleaseId {
    ReleaseId { number, node: "n1".parse().unwrap() }
}

fn incarnation(generation: u64, release: u64, state: InstanceState) -> Incarnation {
    Incarnation {
        generation,
        release: id(release),
        restart: 0,
        state,
        port: Some(20_000),
        ports: Default::default(),
        process: None,
        started_at: None,
        concurrency: Some(1),
        restarts: 0,
        reason: None,
        remark: None,
    }
}

struct World(Book);

impl World {
    fn new() -> World {
        World(Book::new("n1".parse().unwrap()))
    }

    fn put<T: serde::Serialize>(&mut self, key: TypedKey, record: &T) -> &mut World {
        let (affected, error) = self.0.apply(&key.key(), Some(&record::encode(record)));
        assert!(error.is_none());
        assert!(affected.is_some_and(|affected| affected == name()), "{key:?}");
        self
    }

    fn serve(&mut self, release: u64, web: bool) -> &mut World {
        let mut recipe = Recipe::default();
        if web {
            let process = ProcessRecipe { default_count: 1, ..ProcessRecipe::default() };
            recipe.processes.insert(ProcessType::web(), process);
        }
        let record = Release {
            v: 1,
            id: id(release),
            source: ContentHash([0; 32]),
            source_bytes: 0,
            build: None,
            recipe,
            settings: Settings::default(),
            created_at: Timestamp(0),
            author: String::new(),
            note: String::new(),
            replaces: None,
            revision: None,
            remark: None,
            takes_back: None,
            unknown: Default::default(),
        };
        let mut rollout = Rollout::new("n1".parse().unwrap(), Timestamp(0));
        rollout.serving = Some(id(release));
        self.put(TypedKey::Release(name(), id(release)), &record)
            .put(TypedKey::Rollout(name()), &rollout)
    }

    fn claim(&mut self, slot: u32, incarnations: Vec<Incarnation>) -> &mut World {
        self.claim_on("n1", slot, incarnations)
    }

    fn claim_on(&mut self, node: &str, slot: u32, incarnations: Vec<Incarnation>) -> &mut World {
        let mut claim = Claim::new(Timestamp(0));
        claim.incarnations = incarnations;
        self.put(TypedKey::Claim(instance(slot), node.parse().unwrap()), &claim)
    }

    /// Returns node, instances and concurrency of each.
    fn far(&self) -> Vec<(String, u32, Option<u32>)> {
        let far = self.0.describe(&name()).unwrap().far;
        let row = |one: FarDescription| (one.node.to_string(), one.instances(), one.concurrency);
        far.into_iter().map(row).collect()
    }

    fn generations(&self) -> Vec<u64> {
        let description = self.0.describe(&name()).unwrap();
        description.endpoints.iter().map(|endpoint| endpoint.generation).collect()
    }
}

#[test]
fn ready_instances_of_the_serving_release_take_traffic() {
    let mut world = World::new();
    let mut spec = ApplicationSpec::new(Timestamp(0));
    spec.domains = vec!["Shop.Example.".into(), "other.localhost".into(), "a b".into()];
    world.put(TypedKey::Spec(name()), &spec);
    assert_eq!(world.0.describe(&name()).unwrap().processes, Processes::NoRelease);
    world.serve(1, true).claim(
        1,
        vec![
            incarnation(1, 1, InstanceState::Draining),
            incarnation(2, 1, InstanceState::Ready),
            incarnation(3, 2, InstanceState::Ready),
            incarnation(4, 1, InstanceState::Starting),
        ],
    );
    assert_eq!(world.generations(), [2]);
    assert_eq!(world.0.describe(&name()).unwrap().hosts, ["shop.localhost", "shop.example"]);
    assert_eq!(world.0.draining(&name()), BTreeSet::from([(instance(1), 1)]));
    world.serve(2, true);
    assert_eq!(world.generations(), [3]);
    world.serve(2, false);
    assert_eq!(world.0.describe(&name()).unwrap().processes, Processes::FilesOnly);
}

#[test]
fn a_gone_instance_takes_none() {
    let mut world = World::new();
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0))).serve(1, true);
    world.claim(1, vec![incarnation(2, 1, InstanceState::Ready)]);
    let mut verdict = Verdict {
        v: 1,
        generation: 2,
        health: HealthState::Gone,
        detail: String::new(),
        changed_at: Timestamp(7),
        unknown: Default::default(),
    };
    let key = TypedKey::Probe("n1".parse().unwrap(), instance(1));
    world.put(key.clone(), &verdict);
    assert!(world.generations().is_empty());
    verdict.generation = 1;
    world.put(key, &verdict);
    assert_eq!(world.generations(), [2]);
    // What another node says of its own instances, or its checker of this one, takes nothing from
    // here.
    verdict.generation = 2;
    let others = TypedKey::Probe("n2".parse().unwrap(), instance(1)).key();
    world.0.apply(&others, Some(&record::encode(&verdict)));
    let (there, here) = ("n2".parse().unwrap(), "n1".parse().unwrap());
    let testimony = TypedKey::Testimony(there, instance(1), here).key();
    world.0.apply(&testimony, Some(&record::encode(&verdict)));
    assert_eq!(world.generations(), [2]);
}

#[test]
fn a_far_instance_is_gone_by_the_word_of_its_own_node_alone() {
    let mut world = World::new();
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0))).serve(1, true);
    let ready = || vec![incarnation(5, 1, InstanceState::Ready)];
    world.claim_on("n2", 1, ready()).claim_on("n2", 2, ready());
    let two: NodeId = "n2".parse().unwrap();
    world.0.set_member(&two, true);
    let mut verdict = Verdict {
        v: 1,
        generation: 5,
        health: HealthState::Gone,
        detail: String::new(),
        changed_at: Timestamp(7),
        unknown: Default::default(),
    };
    let three: NodeId = "n3".parse().unwrap();
    world.put(TypedKey::Probe(three.clone(), instance(1)), &verdict);
    let testimony = TypedKey::Testimony(three, instance(1), two.clone()).key();
    world.0.apply(&testimony, Some(&record::encode(&verdict)));
    assert_eq!(world.far(), [("n2".into(), 2, Some(2))]);
    world.put(TypedKey::Probe(two.clone(), instance(1)), &verdict);
    assert_eq!(world.far(), [("n2".into(), 1, Some(1))]);
    verdict.generation = 4;
    world.put(TypedKey::Probe(two, instance(1)), &verdict);
    assert_eq!(world.far(), [("n2".into(), 2, Some(2))]);
}

#[test]
fn an_older_release_never_serves_again() {
    let mut world = World::new();
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0)));
    world.serve(1, true).serve(2, true).serve(1, true);
    assert_eq!(world.0.describe(&name()).unwrap().serving, Some(id(2)));
    world.serve(3, true);
    assert_eq!(world.0.describe(&name()).unwrap().serving, Some(id(3)));
}

#[test]
fn instances_of_members_that_answer_are_far_endpoints() {
    let node = |id: &str| id.parse::<NodeId>().unwrap();
    let mut world = World::new();
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0))).serve(1, true);
    let ready = incarnation(5, 1, InstanceState::Ready);
    let mixed = vec![incarnation(1, 1, InstanceState::Draining), ready.clone()];
    world.claim_on("n2", 1, mixed).claim_on("n2", 2, vec![ready.clone()]);
    let unlimited = Incarnation { concurrency: None, ..ready.clone() };
    world.claim_on("n3", 3, vec![unlimited]);
    world.claim_on("n3", 4, vec![incarnation(5, 2, InstanceState::Ready)]);
    assert!(world.far().is_empty(), "none of them is a member");
    assert!(!world.0.describe(&name()).unwrap().unreachable);
    assert_eq!(world.0.set_member(&node("n2"), true), BTreeSet::from([name()]));
    assert!(world.0.set_member(&node("n2"), true).is_empty(), "no change");
    world.0.set_member(&node("n3"), true);
    assert_eq!(world.far(), [("n2".into(), 2, Some(2)), ("n3".into(), 1, None)]);
    assert!(world.generations().is_empty());
    let down = BTreeSet::from([node("n2")]);
    assert_eq!(world.0.set_down(down.clone()), BTreeSet::from([name()]));
    assert_eq!(world.far(), [("n3".into(), 1, None)]);
    world.0.set_member(&node("n3"), false);
    assert!(world.far().is_empty());
    assert!(world.0.describe(&name()).unwrap().unreachable);
    world.claim(1, vec![ready]);
    assert!(!world.0.describe(&name()).unwrap().unreachable, "one is here");
    assert_eq!(world.0.draining(&name()), BTreeSet::new());
}

#[test]
fn a_port_of_the_serving_release_has_endpoints_of_its_process() {
    let node = |id: &str| id.parse::<NodeId>().unwrap();
    let recipe = |id: PortId, process: &str| PortRecipe {
        id,
        process: process.parse().unwrap(),
        env: "PORT".into(),
        proxy_protocol: None,
        idle_ms: None,
    };
    let (mqtt, dns) = (PortId::tcp(1883), PortId::udp(53));
    let ready = |ports: &[(PortId, u16)]| Incarnation {
        port: None,
        ports: ports.iter().copied().collect(),
        ..incarnation(5, 1, InstanceState::Ready)
    };
    let broker = |slot| InstanceId { process: "broker".parse().unwrap(), ..instance(slot) };
    let claim = |incarnations| Claim { incarnations, ..Claim::new(Timestamp(0)) };
    let mut world = World::new();
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0))).serve(1, true);
    let mut release = world.0.applications[&name()].releases[&id(1)].clone();
    release.recipe.ports = vec![recipe(mqtt, "broker"), recipe(dns, "web")];
    world.put(TypedKey::Release(name(), id(1)), &release);
    let two = vec![ready(&[(mqtt, 20_001)]), incarnation(6, 1, InstanceState::Starting)];
    world.put(TypedKey::Claim(broker(1), node("n1")), &claim(two));
    let older = Incarnation { release: id(2), ..ready(&[(mqtt, 20_009)]) };
    world.put(TypedKey::Claim(broker(2), node("n1")), &claim(vec![older]));
    world.put(TypedKey::Claim(broker(3), node("n2")), &claim(vec![ready(&[(mqtt, 20_002)])]));
    world.claim_on("n2", 1, vec![incarnation(5, 1, InstanceState::Ready)]);
    world.0.set_member(&node("n2"), true);
    let services = world.0.describe(&name()).unwrap().services;
    let [mqtt_found, dns_found] = &services[..] else { panic!("{services:?}") };
    let [one] = &mqtt_found.endpoints[..] else { panic!("{mqtt_found:?}") };
    assert_eq!((one.instance.clone(), one.port, one.concurrency), (broker(1), 20_001, None));
    let [far] = &mqtt_found.far[..] else { panic!("{mqtt_found:?}") };
    assert_eq!((far.node.clone(), far.instances(), far.concurrency), (node("n2"), 1, None));
    assert!(dns_found.endpoints.is_empty() && dns_found.far.is_empty(), "web has no such port");
    assert_eq!(world.far(), [("n2".into(), 1, Some(1))], "of HTTP, one instance alone");
    // A process that lets its ports go is forgotten.
    world.put(TypedKey::Claim(broker(3), node("n2")), &claim(Vec::new()));
    assert!(world.0.describe(&name()).unwrap().services[0].far.is_empty());
}

#[test]
fn a_specification_that_comes_late_of_a_destroyed_application_changes_nothing() {
    let (first, second) = (Timestamp(1), Timestamp(2));
    let domains = |world: &World| world.0.describe(&name()).map(|found| found.hosts.len());
    let mut late = ApplicationSpec::new(first);
    late.domains = vec!["shop.example".into()];
    let mut world = World::new();
    world.put(TypedKey::Spec(name()), &late);
    world.put(TypedKey::Destroyed(name(), first), &());
    assert_eq!(domains(&world), None);
    world.put(TypedKey::Spec(name()), &late);
    assert_eq!(domains(&world), None);
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(second));
    world.put(TypedKey::Spec(name()), &late);
    assert_eq!(domains(&world), Some(1));
    world.0.apply(&TypedKey::Destroyed(name(), first).key(), None);
    world.put(TypedKey::Spec(name()), &late);
    assert_eq!(domains(&world), Some(2));
}

#[test]
fn one_that_is_kept_after_its_end_is_not_there() {
    let (first, second) = (Timestamp(1), Timestamp(2));
    let kept = |created_at| {
        let end = KeptEnd { at: second, until: second, by: "ana".into() };
        ApplicationSpec { end: Some(end), ..ApplicationSpec::new(created_at) }
    };
    let mut world = World::new();
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(first));
    world.put(TypedKey::Spec(name()), &kept(first));
    assert!(world.0.describe(&name()).is_none());
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(first));
    assert!(world.0.describe(&name()).is_some(), "it was brought back");
    // What comes late of one that was destroyed for good does not end the one made anew.
    world.put(TypedKey::Destroyed(name(), first), &());
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(second));
    world.put(TypedKey::Spec(name()), &kept(first));
    assert!(world.0.describe(&name()).is_some());
}

#[test]
fn port_of_http_is_the_serving_releases_own_unless_a_command_chose_one() {
    let mut world = World::new();
    let mut spec = ApplicationSpec::new(Timestamp(0));
    spec.port = Some(8001);
    world.put(TypedKey::Spec(name()), &spec).serve(1, true);
    let port = |world: &World| world.0.describe(&name()).unwrap().port;
    assert_eq!(port(&world), Some(8001), "the release is from before it had one");
    let mut release = world.0.applications[&name()].releases[&id(1)].clone();
    release.settings.port = Some(8000);
    world.put(TypedKey::Release(name(), id(1)), &release);
    assert_eq!(port(&world), Some(8000));
    spec.port_chosen = true;
    world.put(TypedKey::Spec(name()), &spec);
    assert_eq!(port(&world), Some(8001));
}

#[test]
fn an_unreadable_record_changes_nothing() {
    let mut world = World::new();
    world.put(TypedKey::Spec(name()), &ApplicationSpec::new(Timestamp(0)));
    let (affected, error) = world.0.apply(&TypedKey::Spec(name()).key(), Some(b"{"));
    assert!(affected.is_some() && error.is_some());
    assert!(world.0.describe(&name()).is_some());
    world.0.apply(&TypedKey::Spec(name()).key(), None);
    assert!(world.0.describe(&name()).is_none());
    assert_eq!(world.0.names().count(), 0);
    world.0.apply(&TypedKey::Spec(name()).key(), Some(b"{"));
    assert_eq!(world.0.names().count(), 0);
}
