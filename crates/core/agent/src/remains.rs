//! What is left in the store of applications that were destroyed: records that came late, from a
//! node that had not heard of the end. Only tells them from what belongs to the application that
//! has the name now; asked by those that feed the machines, and by whoever removes such records.

use std::collections::{BTreeMap, BTreeSet};

use model::{ApplicationSpec, Release, ReleaseId, Timestamp, TypedKey};

/// The records of one name that tell applications apart.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    /// The times at which the applications that were destroyed had been created.
    pub destroyed: BTreeSet<Timestamp>,
    pub spec: Option<Timestamp>,
    /// The releases, each with what it was pushed to.
    pub releases: BTreeMap<ReleaseId, Option<Timestamp>>,
}

/// The application that has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Nobody,
    /// The application of the specification.
    Stored,
    /// An application whose specification was overwritten, or is still to be heard of.
    Unstored,
}

impl Remains {
    pub fn note_spec(&mut self, spec: &ApplicationSpec) {
        self.spec = Some(spec.created_at);
    }

    pub fn note_release(&mut self, release: &Release) {
        self.releases.insert(release.id.clone(), release.settings.application_created_at);
    }

    pub fn owner(&self) -> Owner {
        let lives = |created_at: &Timestamp| !self.destroyed.contains(created_at);
        let mut application_created_at = self.releases.values().flatten();
        if self.spec.as_ref().is_some_and(lives) {
            Owner::Stored
        } else if !self.destroyed.is_empty() && application_created_at.any(lives) {
            Owner::Unstored
        } else {
            Owner::Nobody
        }
    }

    fn is_left_release(&self, release: &ReleaseId) -> bool {
        let application_created_at = self.releases.get(release).copied().flatten();
        application_created_at.is_some_and(|created_at| self.destroyed.contains(&created_at))
    }

    /// Returns whether what is stored at a key of the name is to be removed.
    pub fn is_left(&self, key: &TypedKey) -> bool {
        if self.destroyed.is_empty() {
            return false;
        }
        match key {
            TypedKey::Destroyed(..) => false,
            _ if self.owner() == Owner::Nobody => true,
            TypedKey::Release(_, id) | TypedKey::ConfigAt(_, id) | TypedKey::Outcome(_, id) => {
                self.is_left_release(id)
            }
            _ => false,
        }
    }

    /// Returns the variables to be written in place of those that came late, which are those of a
    /// release that is left; `Some(None)` if there are to be none.
    pub fn mended<C: Clone + PartialEq>(
        &self,
        now: Option<&C>,
        at: &BTreeMap<ReleaseId, C>,
    ) -> Option<Option<C>> {
        let now = now.filter(|_| self.owner() != Owner::Nobody)?;
        let mut left = at.iter().filter(|(id, _)| self.is_left_release(id));
        if !left.any(|(_, config)| config == now) {
            return None;
        }
        let known = |id: &&ReleaseId| self.releases.contains_key(*id) && !self.is_left_release(id);
        let own = at.keys().rfind(known).and_then(|id| at.get(id));
        (own != Some(now)).then(|| own.cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Timestamp = Timestamp(1);
    const SECOND: Timestamp = Timestamp(2);

    fn id(number: u64) -> ReleaseId {
        ReleaseId { number, node: "n1".parse().unwrap() }
    }

    fn remains(spec: Option<Timestamp>, releases: &[(u64, Timestamp)]) -> Remains {
        let releases = releases.iter().map(|(number, of)| (id(*number), Some(*of))).collect();
        Remains { destroyed: [FIRST].into(), spec, releases }
    }

    fn is_left(remains: &Remains, key: &str) -> bool {
        remains.is_left(&TypedKey::parse(&key.parse().unwrap()).unwrap())
    }

    #[test]
    fn nothing_stays_of_a_destroyed_application_whose_name_nobody_has() {
        for spec in [None, Some(FIRST)] {
            let remains = remains(spec, &[(4, FIRST)]);
            assert_eq!(remains.owner(), Owner::Nobody);
            for key in ["app::shop::spec", "app::shop::config", "app::shop::release::4::n1"] {
                assert!(is_left(&remains, key), "{key}");
            }
            assert!(!is_left(&remains, "cluster::destroyed::shop::1"));
        }
    }

    #[test]
    fn only_late_releases_go_where_the_name_was_given_anew() {
        for (spec, owner) in
            [(Some(SECOND), Owner::Stored), (Some(FIRST), Owner::Unstored), (None, Owner::Unstored)]
        {
            let remains = remains(spec, &[(4, FIRST), (5, SECOND)]);
            assert_eq!(remains.owner(), owner);
            assert!(is_left(&remains, "app::shop::release::4::n1"));
            assert!(is_left(&remains, "app::shop::config::4::n1"));
            for key in ["app::shop::spec", "app::shop::config", "app::shop::release::5::n1"] {
                assert!(!is_left(&remains, key), "{key}");
            }
        }
    }

    #[test]
    fn nothing_is_left_where_nothing_was_destroyed() {
        let remains = Remains { destroyed: BTreeSet::new(), ..remains(None, &[(4, FIRST)]) };
        assert!(!is_left(&remains, "app::shop::release::4::n1"));
    }

    #[test]
    fn variables_that_came_late_give_way_to_those_of_the_newest_release() {
        let both = remains(Some(SECOND), &[(4, FIRST), (3, SECOND)]);
        let at: BTreeMap<ReleaseId, &str> = [(id(4), "late"), (id(3), "own")].into();
        assert_eq!(both.mended(Some(&"late"), &at), Some(Some("own")));
        assert_eq!(both.mended(Some(&"own"), &at), None);
        assert_eq!(both.mended(Some(&"about to be released"), &at), None);
        assert_eq!(both.mended(None, &at), None);
        let without = remains(Some(SECOND), &[(4, FIRST)]);
        assert_eq!(without.mended(Some(&"late"), &at), Some(None));
    }
}
