//! The decision itself: it is made of grants alone, so that a token, which is a user with one more
//! limit, can never do what its user cannot.

use std::collections::{BTreeMap, BTreeSet};

use model::people::{Grant, PersonRole, Scope, User};
use model::{ApplicationName, TeamName, Timestamp, UserName};

use crate::right::{Reach, Right};

/// Somebody who asks for something.
#[derive(Clone, Copy, Debug)]
pub enum Principal<'a> {
    /// The owner of the machine, on the machine.
    Machine,
    User(&'a BTreeSet<Grant>),
    /// A user by a token that is limited.
    Token(&'a BTreeSet<Grant>, &'a Grant),
    /// Somebody with an invitation, which gives a token and nothing else.
    Invited,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub enum AccessTarget<'a> {
    /// Nothing that belongs to one application.
    Platform,
    /// An application that is there, and the teams that have it.
    Application {
        name: &'a ApplicationName,
        created_at: Timestamp,
        teams: &'a BTreeSet<(TeamName, Timestamp)>,
    },
    /// An application that is not there.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Allowed,
    /// To this principal it is as if it were not there.
    Hidden,
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A role is missing, which an owner grants.
    Role(Right),
    /// The user has the right, and the token is limited to less.
    Limited(Right),
    /// Only the owner of the machine may, and not by a token.
    MachineAlone(Right),
    /// An invitation gives a token, and that token the right.
    InvitationAlone,
    /// Only an invitation does that.
    NotInvited,
}

pub fn decide(principal: Principal<'_>, right: Right, target: AccessTarget<'_>) -> Decision {
    match principal {
        Principal::Machine => Decision::Allowed,
        Principal::Invited if right.reach() == Reach::Invited => Decision::Allowed,
        Principal::Invited => Decision::Refused(Refusal::InvitationAlone),
        Principal::User(grants) => by_grants(grants.iter(), right, target),
        Principal::Token(grants, limit) => {
            let user = by_grants(grants.iter(), right, target);
            match (user, by_grants([limit].into_iter(), right, target)) {
                (Decision::Allowed, Decision::Refused(Refusal::Role(right))) => {
                    Decision::Refused(Refusal::Limited(right))
                }
                (Decision::Allowed, limited) => limited,
                (_, Decision::Hidden) => Decision::Hidden,
                (refused, _) => refused,
            }
        }
    }
}

fn by_grants<'a>(
    grants: impl Iterator<Item = &'a Grant>,
    right: Right,
    target: AccessTarget<'_>,
) -> Decision {
    let reach = right.reach();
    let best = grants.filter(|grant| counts(&grant.on, reach, target)).map(|grant| grant.role);
    let allowed = match (reach, best.max()) {
        (Reach::Anyone, _) => true,
        (Reach::Machine, _) => return Decision::Refused(Refusal::MachineAlone(right)),
        (Reach::Invited, _) => return Decision::Refused(Refusal::NotInvited),
        (Reach::Application, None) => return Decision::Hidden,
        (_, best) => best.is_some_and(|role| role >= right.role_min()),
    };
    if allowed { Decision::Allowed } else { Decision::Refused(Refusal::Role(right)) }
}

/// Returns whether a role that is held there counts for such a right and target.
fn counts(held: &Scope, reach: Reach, target: AccessTarget<'_>) -> bool {
    match (reach, held, target) {
        (Reach::Application, _, AccessTarget::Platform | AccessTarget::Nothing) => false,
        (_, Scope::Platform, _) => true,
        (Reach::NewApplication, Scope::Team { .. }, _) => true,
        (
            Reach::Application,
            Scope::Team { name, created_at },
            AccessTarget::Application { teams, .. },
        ) => teams.contains(&(name.clone(), *created_at)),
        (
            Reach::Application,
            Scope::Application { name, created_at },
            AccessTarget::Application { name: asked, created_at: made, .. },
        ) => name == asked && *created_at == made,
        _ => false,
    }
}

/// Returns the teams to which an application may go that this principal makes; none where it
/// may be of no team.
pub fn teams_for_new(principal: Principal<'_>) -> BTreeSet<(TeamName, Timestamp)> {
    let (grants, limit) = match principal {
        Principal::Machine | Principal::Invited => return BTreeSet::new(),
        Principal::User(grants) => (grants, None),
        Principal::Token(grants, limit) => (grants, Some(limit)),
    };
    let makes = |grant: &&Grant| grant.role >= Right::CreateApplication.role_min();
    let within = |grant: &Grant| limit.is_none_or(|limit| is_scope_within(&grant.on, &limit.on));
    let mut teams = BTreeSet::new();
    for grant in grants.iter().filter(makes) {
        match (&grant.on, limit.map(|limit| &limit.on)) {
            (Scope::Platform, None | Some(Scope::Platform)) => return BTreeSet::new(),
            // The limit is narrower than the user's role.
            (Scope::Platform, Some(Scope::Team { name, created_at })) => {
                teams.insert((name.clone(), *created_at));
            }
            (Scope::Team { name, created_at }, _) if within(grant) => {
                teams.insert((name.clone(), *created_at));
            }
            _ => {}
        }
    }
    teams
}

/// Returns whether a token with the first limit can do no more than one with the second.
pub fn is_within(limit: Option<&Grant>, outer: Option<&Grant>) -> bool {
    match (limit, outer) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(limit), Some(outer)) => {
            limit.role <= outer.role && is_scope_within(&limit.on, &outer.on)
        }
    }
}

fn is_scope_within(scope: &Scope, outer: &Scope) -> bool {
    *outer == Scope::Platform || scope == outer
}

/// Returns whether nobody would be owner of the platform any more if this user had these grants,
/// though somebody is now.
pub fn loses_last_owner(
    users: &BTreeMap<UserName, User>,
    changed: &UserName,
    grants: &BTreeSet<Grant>,
) -> bool {
    let owns = |grants: &BTreeSet<Grant>| {
        grants.contains(&Grant { role: PersonRole::Owner, on: Scope::Platform })
    };
    let others = users.iter().any(|(name, user)| name != changed && owns(&user.grants));
    let was = users.get(changed).is_some_and(|user| owns(&user.grants));
    was && !others && !owns(grants)
}

#[cfg(test)]
mod tests;
