//! Suspicions against members at whose address nobody listens. foca would find out when their turn
//! to be probed comes; they are suspected at once instead, and have as long as after a probe to say
//! that they are alive.

use std::collections::BTreeMap;

use foca::{AccumulatingRuntime, Incarnation, Member, State};
use model::NodeId;
use tokio::time::Instant;

use super::{FocaMembers, Life};

/// The suspicions, at most one per member.
#[derive(Default)]
pub struct Suspicions(BTreeMap<NodeId, Suspicion>);

struct Suspicion {
    until: Instant,
    life: Life,
    incarnation: Incarnation,
}

impl Suspicions {
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|suspicion| suspicion.until).min()
    }

    /// Suspects a member; does nothing if it is unknown or suspected already.
    pub fn add(
        &mut self,
        until: Instant,
        node: &NodeId,
        members: &mut FocaMembers,
        runtime: &mut AccumulatingRuntime<Life>,
    ) {
        let member = members.iter_members().find(|member| member.id().node == *node);
        let Some(member) = member.filter(|member| member.state() == State::Alive) else { return };
        let (life, incarnation) = (member.id().clone(), member.incarnation());
        apply(Member::new(life.clone(), incarnation, State::Suspect), members, runtime);
        self.0.insert(node.clone(), Suspicion { until, life, incarnation });
    }

    /// Declares members down that have said nothing until their time is over: one that is alive
    /// continues under a higher incarnation.
    pub fn judge(
        &mut self,
        now: Instant,
        members: &mut FocaMembers,
        runtime: &mut AccumulatingRuntime<Life>,
    ) {
        for (_, suspicion) in self.0.extract_if(.., |_, suspicion| suspicion.until <= now) {
            let Suspicion { life, incarnation, .. } = suspicion;
            let is_silent = members.iter_members().any(|member| {
                *member.id() == life
                    && member.incarnation() == incarnation
                    && member.state() == State::Suspect
            });
            if is_silent {
                apply(Member::new(life, incarnation, State::Down), members, runtime);
            }
        }
    }
}

fn apply(update: Member<Life>, members: &mut FocaMembers, runtime: &mut AccumulatingRuntime<Life>) {
    if let Err(error) = members.apply_many(std::iter::once(update), true, runtime) {
        tracing::debug!(%error, "peer.liveness");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use foca::{Foca, OwnedNotification, PostcardCodec};
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const WAIT: Duration = Duration::from_secs(1);

    fn life(node: &str) -> Life {
        Life { node: node.parse().unwrap(), number: 7 }
    }

    /// Returns node `a`, which knows `b`.
    fn members() -> (FocaMembers, AccumulatingRuntime<Life>) {
        let random = SmallRng::seed_from_u64(1);
        let mut members = Foca::new(life("a"), super::super::config(), random, PostcardCodec);
        let mut runtime = AccumulatingRuntime::new();
        apply(Member::new(life("b"), 3, State::Alive), &mut members, &mut runtime);
        assert!(!is_down(&mut runtime));
        (members, runtime)
    }

    fn is_down(runtime: &mut AccumulatingRuntime<Life>) -> bool {
        let notices = std::iter::from_fn(|| runtime.to_notify());
        notices.filter(|notice| matches!(notice, OwnedNotification::MemberDown(_))).count() > 0
    }

    #[test]
    fn a_node_whose_port_refuses_counts_as_dead_unless_it_is_heard() {
        let (mut members, mut runtime) = members();
        let (mut suspicions, now) = (Suspicions::default(), Instant::now());
        suspicions.add(now + WAIT, &life("b").node, &mut members, &mut runtime);
        // Later refusals give the member no more time.
        suspicions.add(now + WAIT * 9, &life("b").node, &mut members, &mut runtime);
        assert_eq!(suspicions.next(), Some(now + WAIT));
        suspicions.judge(now, &mut members, &mut runtime);
        assert!(!is_down(&mut runtime), "it has time to answer");
        suspicions.judge(now + WAIT, &mut members, &mut runtime);
        assert!(is_down(&mut runtime));
        assert_eq!((suspicions.next(), members.num_members()), (None, 0));
    }

    #[test]
    fn a_suspect_that_is_heard_meanwhile_lives() {
        let (mut members, mut runtime) = members();
        let (mut suspicions, now) = (Suspicions::default(), Instant::now());
        suspicions.add(now + WAIT, &life("b").node, &mut members, &mut runtime);
        apply(Member::new(life("b"), 4, State::Alive), &mut members, &mut runtime);
        suspicions.judge(now + WAIT, &mut members, &mut runtime);
        assert!(!is_down(&mut runtime));
        assert_eq!(members.num_members(), 1);
        suspicions.add(now, &life("c").node, &mut members, &mut runtime);
        assert_eq!(suspicions.next(), None, "nobody knows that one");
    }
}
