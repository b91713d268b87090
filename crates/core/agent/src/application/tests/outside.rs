//! Tests of what was started before an owner wanted a wall around the application.

use model::{AskedIsolation, Egress, Isolation, IsolationMark};

use super::*;

impl World {
    fn mark(&mut self) {
        let since = self.now;
        self.spec(|spec| {
            spec.restart += 1;
            spec.isolation = Some(IsolationMark {
                least: AskedIsolation { isolation: Isolation::Full, egress: Egress::None },
                by: "ada".into(),
                since,
                restart: spec.restart,
                unknown: Unknown::new(),
            });
        });
    }

    fn ready_outside(&self) -> usize {
        let all = self.claims.values().flat_map(|claim| &claim.incarnations);
        all.filter(|one| one.restart == 0 && one.state == InstanceState::Ready).count()
    }
}

#[test]
fn what_does_not_come_up_behind_the_wall_does_not_stay_outside_for_that() {
    let mut world = World::serving(2);
    world.broken.insert(1, Broken::NeverReady);
    world.mark();
    // It is replaced in a rolling way as long as that may come to an end.
    assert_eq!(world.shown(), "1:v1:ready 1:v1:starting 2:v1:ready");
    world.pass(OUTSIDE_MAX - Duration::from_secs(1));
    assert_eq!(world.ready_outside(), 2);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.ready_outside(), 0);
    // A later restart is no mark, and keeps what is behind the wall until its successor is there.
    let mut world = World::serving(1);
    world.mark();
    world.drain_all();
    world.broken.insert(1, Broken::NeverReady);
    world.spec(|spec| spec.restart += 1);
    world.pass(OUTSIDE_MAX);
    assert!(world.shown().contains("1:v1:ready"), "{}", world.shown());
}
