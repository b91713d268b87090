//! Tests of builds that releases share, and of those that another one takes over from.

use super::*;

fn of_build(number: u64, build: u8) -> Release {
    Release { build: Some(BuildId::Content([build; 16])), ..World::release(number, 1) }
}

/// Returns from which release to which a build was named.
fn named(world: &World) -> Vec<(u64, u64)> {
    let named = world.effects.iter().filter_map(|effect| match effect {
        Effect::NameWritten { old, new } => Some((old.id.number, new.id.number)),
        _ => None,
    });
    named.collect()
}

#[test]
fn what_was_written_is_named_once_where_another_build_takes_over() {
    let mut world = World::new();
    for (number, build) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 1)] {
        world.push(of_build(number, build));
        world.pass(DRAIN_MAX);
        assert_eq!(world.rollout.serving, Some(release_id(number)));
    }
    assert_eq!(named(&world), [(2, 3), (4, 5)]);
}

#[test]
fn a_release_that_fails_leaves_nothing_behind() {
    let mut world = World::new();
    world.push(of_build(1, 1));
    world.broken.insert(2, Broken::Build);
    world.push(of_build(2, 2));
    assert_eq!(world.rollout.serving, Some(release_id(1)));
    assert!(named(&world).is_empty());
}

#[test]
fn builds_that_run_are_kept_and_those_of_the_newest_releases() {
    let mut world = World::new();
    for number in 1..=9 {
        world.push(of_build(number, u8::try_from(number / 2).unwrap()));
        world.pass(DRAIN_MAX);
    }
    let kept = world.effects.iter().rev().find_map(|effect| match effect {
        Effect::PruneBuilds { keep, needed } => Some((keep.clone(), *needed)),
        _ => None,
    });
    let builds = [4, 3, 2, 1, 0].map(|build| BuildId::Content([build; 16]));
    assert_eq!(kept, Some((builds.into(), 1)));
}
