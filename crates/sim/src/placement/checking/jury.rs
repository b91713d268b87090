//! The jury of a node without a checker, or whose checker hangs: it believes witnesses, as the
//! shell of the jury tells it what they say.

use checker_core::{Evidence, Jury, Ruling};
use model::Machine;

use super::{Part, ready};
use crate::placement::replica::{Key, Record};
use crate::placement::world::World;

impl World {
    pub(super) fn jury_up(&mut self, at: usize) {
        let alive = self.seen_from(at);
        let Some(checking) = self.checking(at) else { return };
        checking.jury = Some(Jury::new());
        self.hear(at, Evidence::Alive(alive));
        let checkers = self.checkers(at);
        self.hear(at, checkers);
        let id = self.nodes[at].id.clone();
        let replica = &self.nodes[at].replica;
        let mut said: Vec<Evidence> = Vec::new();
        let of_it = replica.testimonies().filter(|(_, _, owner, _)| **owner == id);
        said.extend(of_it.map(|(witness, instance, _, verdict)| {
            Evidence::Testimony(instance.clone(), witness.clone(), Some(verdict.clone()))
        }));
        let claims = replica.claims().filter(|(_, owner, _)| **owner == id);
        said.extend(claims.map(|(of, _, claim)| Evidence::Ready(of.clone(), ready(claim))));
        // This comes last, so that what still holds is not taken back first.
        said.extend(replica.verdicts(&id).map(|(of, verdict)| Evidence::Written(of, verdict)));
        said.into_iter().for_each(|said| self.hear(at, said));
    }

    pub(super) fn jury_noticed(&mut self, at: usize, key: &Key) {
        let node = &self.nodes[at];
        let said = match (key, node.replica.get(key)) {
            (Key::Node(_) | Key::Roles(_), _) => self.checkers(at),
            (Key::Testimony(witness, instance, owner), record) if *owner == node.id => {
                let verdict = match record {
                    Some(Record::Verdict(verdict)) => Some(verdict.clone()),
                    _ => None,
                };
                Evidence::Testimony(instance.clone(), witness.clone(), verdict)
            }
            (Key::Claim(instance, owner), record) if *owner == node.id => {
                let generation = match record {
                    Some(Record::Claim(claim)) => ready(claim),
                    _ => None,
                };
                Evidence::Ready(instance.clone(), generation)
            }
            _ => return,
        };
        self.hear(at, said);
    }

    pub(super) fn jury_sees(&mut self, at: usize) {
        let alive = self.seen_from(at);
        self.hear(at, Evidence::Alive(alive));
    }

    /// Returns those on the roster whose record says that they have a checker.
    fn checkers(&self, at: usize) -> Evidence {
        let node = &self.nodes[at];
        let others = node.replica.roles().filter(|(id, checks)| *checks && **id != node.id);
        let listed = |id: &&model::NodeId| node.replica.get(&Key::Node((*id).clone())).is_some();
        Evidence::Checkers(others.map(|(id, _)| id).filter(listed).cloned().collect())
    }

    fn hear(&mut self, at: usize, said: Evidence) {
        let now = self.clock(at);
        let Some(checking) = self.checking(at) else { return };
        let Some(jury) = &mut checking.jury else { return };
        let mut rulings = Vec::new();
        jury.handle(now, said, &mut rulings);
        jury.check_invariants();
        for Ruling { instance, verdict } in rulings {
            if !self.rule(at, &instance, verdict, "judged by witnesses") {
                return self.part_fails(at, Part::Jury);
            }
        }
    }
}
