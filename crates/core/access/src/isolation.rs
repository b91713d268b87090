//! What applications get that say nothing of their isolation: none as long as everybody is an owner
//! anyway, a wall from the first person who is not.

use std::collections::{BTreeMap, BTreeSet};

use model::people::{Grant, PersonRole, Scope, User};
use model::{Isolation, UserName};

/// The reason why a platform's default is what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultReason {
    /// An owner has set it.
    Set,
    /// Everybody with a role is an owner of the platform.
    OwnersAlone,
    /// This person, and maybe others, has a role and is no owner.
    Person(UserName),
}

/// Returns what applications get that say nothing; `set` is what an owner decided, if anything.
pub fn default_isolation(
    set: Option<Isolation>,
    users: &BTreeMap<UserName, User>,
) -> (Isolation, DefaultReason) {
    let person = users.iter().find(|(_, user)| is_below_owner(&user.grants));
    match (set, person) {
        (Some(isolation), _) => (isolation, DefaultReason::Set),
        (None, None) => (Isolation::None, DefaultReason::OwnersAlone),
        (None, Some((name, _))) => (Isolation::Standard, DefaultReason::Person(name.clone())),
    }
}

/// Returns whether somebody with these grants may do something, and is no owner of the platform.
pub fn is_below_owner(grants: &BTreeSet<Grant>) -> bool {
    let owner = Grant { role: PersonRole::Owner, on: Scope::Platform };
    !grants.is_empty() && !grants.contains(&owner)
}

#[cfg(test)]
mod tests {
    use model::Timestamp;
    use model::record::Unknown;

    use super::*;

    fn check(users: &[(&str, &[(PersonRole, Scope)])]) -> (Isolation, DefaultReason) {
        default_isolation(None, &people(users))
    }

    fn people(users: &[(&str, &[(PersonRole, Scope)])]) -> BTreeMap<UserName, User> {
        let user = |grants: &[(PersonRole, Scope)]| User {
            v: 1,
            created_at: Timestamp(1),
            created_by: "root".into(),
            grants: grants.iter().map(|(role, on)| Grant { role: *role, on: on.clone() }).collect(),
            unknown: Unknown::new(),
        };
        users.iter().map(|(name, grants)| (name.parse().unwrap(), user(grants))).collect()
    }

    fn shop() -> Scope {
        Scope::Team { name: "shop".parse().unwrap(), created_at: Timestamp(1) }
    }

    #[test]
    fn a_wall_comes_with_the_first_person_who_is_no_owner() {
        let (owner, platform) = (PersonRole::Owner, Scope::Platform);
        let alone = (Isolation::None, DefaultReason::OwnersAlone);
        assert_eq!(check(&[]), alone);
        assert_eq!(check(&[("ada", &[(owner, platform.clone())]), ("new", &[])]), alone);
        let both = [(owner, platform.clone()), (PersonRole::Viewer, shop())];
        assert_eq!(check(&[("ada", &both)]), alone);
        for grant in
            [(owner, shop()), (PersonRole::Operator, platform), (PersonRole::Viewer, shop())]
        {
            let person = DefaultReason::Person("ben".parse().unwrap());
            assert_eq!(check(&[("ben", &[grant])]), (Isolation::Standard, person));
        }
    }

    #[test]
    fn what_an_owner_has_set_counts() {
        let nobody = people(&[]);
        let somebody = people(&[("ben", &[(PersonRole::Viewer, shop())])]);
        let set = |isolation| (isolation, DefaultReason::Set);
        for isolation in [Isolation::None, Isolation::Standard] {
            for users in [&nobody, &somebody] {
                assert_eq!(default_isolation(Some(isolation), users), set(isolation));
            }
        }
    }
}
