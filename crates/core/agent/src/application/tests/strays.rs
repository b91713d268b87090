//! Tests of processes that no claim knows.

use super::*;
use model::instance::INCARNATIONS_MAX;

/// Returns a node that comes back without its claim, while as many processes as a slot may have
/// live on in it.
fn without_its_claim() -> (World, Vec<IncarnationId>) {
    let mut world = World::serving(1);
    let instance = world.claims.keys().next().unwrap().clone();
    let stray = |generation| IncarnationId { instance: instance.clone(), generation };
    let strays: Vec<_> = (1..=INCARNATIONS_MAX as u64).map(stray).collect();
    let adopted = strays.iter().map(|id| Adopted {
        id: id.clone(),
        process: identity(id.generation as u32),
        port: None,
        ports: Default::default(),
        exit: None,
    });
    let adopted: Vec<_> = adopted.collect();
    let (spec, releases) = (world.machine.spec.clone(), world.machine.releases.clone());
    world.machine = Application::new(node(), "shop".parse().unwrap());
    (world.claims, world.effects) = (BTreeMap::new(), Vec::new());
    world.event(Event::Spec(spec));
    for (id, release) in releases {
        world.event(Event::Release(id, Some(release)));
    }
    world.event(Event::Rollout(Some(world.rollout.clone())));
    // What a stop leads to is told by the tests.
    let mut effects = Vec::new();
    world.machine.handle(world.now, Event::Adopted(adopted), &mut effects);
    for effect in effects.into_iter().filter(|effect| !matches!(effect, Effect::Stop { .. })) {
        let events = world.perform(&effect);
        events.into_iter().for_each(|event| world.event(event));
    }
    (world, strays)
}

#[test]
fn strays_take_room_in_their_slot_until_they_are_gone() {
    let (mut world, strays) = without_its_claim();
    assert_eq!(world.shown(), "", "it started beside as many as there may be");
    world.event(Event::Exited { id: strays[0].clone(), exit: exit("killed by signal 15") });
    assert_eq!(world.shown(), "1:v1:ready");
}
