//! Which team an application belongs to: connections that were made for one team's names bring no
//! requests for another's.

use std::collections::{BTreeMap, BTreeSet};

use model::people::Team;
use model::{ApplicationName, TeamName, Timestamp};

#[derive(Debug, Default)]
pub(super) struct Teams {
    /// The applications of each, with the times when they were made.
    applications: BTreeMap<TeamName, BTreeMap<ApplicationName, Timestamp>>,
}

impl Teams {
    /// Takes note of a team, or of its end; returns the applications that it has or had.
    pub fn set(&mut self, name: &TeamName, team: Option<Team>) -> BTreeSet<ApplicationName> {
        let after = team.map(|team| team.applications);
        let affected = after.iter().flat_map(|all| all.keys()).cloned();
        let mut affected: BTreeSet<ApplicationName> = affected.collect();
        let before = match after {
            Some(after) => self.applications.insert(name.clone(), after),
            None => self.applications.remove(name),
        };
        affected.extend(before.unwrap_or_default().into_keys());
        affected
    }

    pub fn of(&self, application: &ApplicationName, created_at: Timestamp) -> Option<TeamName> {
        let has = |all: &BTreeMap<_, _>| all.get(application) == Some(&created_at);
        self.applications.iter().find(|(_, all)| has(all)).map(|(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::record::Unknown;

    #[test]
    fn an_application_is_of_the_team_that_has_it_and_not_its_namesake() {
        let name = |text: &str| -> ApplicationName { text.parse().unwrap() };
        let shop: TeamName = "shop".parse().unwrap();
        let of = |applications: &[(&str, u64)]| Team {
            v: 1,
            created_at: Timestamp(0),
            created_by: String::new(),
            applications: applications
                .iter()
                .map(|(app, at)| (name(app), Timestamp(*at)))
                .collect(),
            limits: Default::default(),
            unknown: Unknown::new(),
        };
        let mut teams = Teams::default();
        assert_eq!(teams.set(&shop, Some(of(&[("a", 1), ("b", 2)]))).len(), 2);
        assert_eq!(teams.of(&name("a"), Timestamp(1)), Some(shop.clone()));
        assert_eq!(teams.of(&name("a"), Timestamp(2)), None);
        let affected = teams.set(&shop, Some(of(&[("b", 2), ("c", 3)])));
        assert_eq!(affected, BTreeSet::from([name("a"), name("b"), name("c")]));
        assert_eq!(teams.of(&name("a"), Timestamp(1)), None);
        assert_eq!(teams.set(&shop, None), BTreeSet::from([name("b"), name("c")]));
        assert_eq!(teams.of(&name("c"), Timestamp(3)), None);
    }
}
