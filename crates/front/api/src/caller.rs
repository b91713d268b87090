//! Somebody whose request has passed the door: what they may, and what they see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use access_core::{AccessTarget, Decision, Principal, Refusal, Right, decide, teams_for_new};
use axum::http::StatusCode;
use model::people::{Grant, Team, Token};
use model::value::ContentHash;
use model::{ApplicationName, TeamName, Timestamp, TokenName, UserName};
use store::SharedStore;

use super::problem::Problem;
use super::{records, teams};

/// Somebody who has passed the door.
#[derive(Clone, Debug)]
pub struct Caller(pub(super) Arc<Passed>);

#[derive(Debug)]
pub(super) enum Passed {
    /// The owner of the machine, by the credentials of the socket.
    Machine {
        uid: u32,
    },
    Person(Box<Person>),
}

/// A user who came with a token, or somebody with an invitation for them.
#[derive(Debug)]
pub(super) struct Person {
    pub hash: ContentHash,
    pub name: UserName,
    pub grants: BTreeSet<Grant>,
    pub token: Token,
    pub teams: BTreeMap<TeamName, Team>,
}

impl Caller {
    /// Returns the name that stands in releases and in the audit.
    pub fn name(&self) -> String {
        match &*self.0 {
            Passed::Machine { uid } => super::machine::user_name(*uid),
            Passed::Person(person) => person.name.to_string(),
        }
    }

    /// Returns the token by which a user asks; the owner of the machine has none.
    pub fn token(&self) -> Option<&Token> {
        match &*self.0 {
            Passed::Machine { .. } => None,
            Passed::Person(person) => Some(&person.token),
        }
    }

    /// Returns the token with the hash under which it is on record.
    pub fn token_on_record(&self) -> Option<(ContentHash, &Token)> {
        match &*self.0 {
            Passed::Machine { .. } => None,
            Passed::Person(person) => Some((person.hash, &person.token)),
        }
    }

    pub fn is_machine(&self) -> bool {
        matches!(&*self.0, Passed::Machine { .. })
    }

    /// Returns whether the caller has an invitation instead of a token.
    pub fn is_invited(&self) -> bool {
        self.token().is_some_and(|token| token.invites.is_some())
    }

    /// Returns the roles that the caller holds; the owner of the machine needs none.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        let person = match &*self.0 {
            Passed::Machine { .. } => None,
            Passed::Person(person) => Some(&person.grants),
        };
        person.into_iter().flatten()
    }

    pub fn token_name(&self) -> Option<TokenName> {
        self.token().map(|token| token.name.clone())
    }

    pub(super) fn principal(&self) -> Principal<'_> {
        match &*self.0 {
            Passed::Machine { .. } => Principal::Machine,
            Passed::Person(person) if person.token.invites.is_some() => Principal::Invited,
            Passed::Person(person) => match &person.token.limit {
                None => Principal::User(&person.grants),
                Some(limit) => Principal::Token(&person.grants, limit),
            },
        }
    }

    /// Returns whether the caller has a right on the platform.
    pub fn may(&self, right: Right) -> bool {
        decide(self.principal(), right, AccessTarget::Platform) == Decision::Allowed
    }

    pub(super) fn decide_on(
        &self,
        right: Right,
        name: &ApplicationName,
        created_at: Option<Timestamp>,
    ) -> Decision {
        let Some(created_at) = created_at else {
            return decide(self.principal(), right, AccessTarget::Nothing);
        };
        let teams = match &*self.0 {
            Passed::Machine { .. } => BTreeSet::new(),
            Passed::Person(person) => teams::of_application(&person.teams, name, created_at),
        };
        decide(
            self.principal(),
            right,
            AccessTarget::Application { name, created_at, teams: &teams },
        )
    }

    /// Checks a right on an application that is there, for handlers that waited since the door.
    pub async fn check(
        &self,
        store: &SharedStore,
        right: Right,
        name: &ApplicationName,
        created_at: Timestamp,
    ) -> Result<(), Problem> {
        match self.decide_on(right, name, Some(created_at)) {
            Decision::Hidden => Err(self.no_application(store, name).await?),
            decision => answer(decision, self, Some(name)),
        }
    }

    /// Returns the answer for an application that is not there, or not for the caller.
    pub(super) async fn no_application(
        &self,
        store: &SharedStore,
        name: &ApplicationName,
    ) -> Result<Problem, Problem> {
        let visible = self.visible(store).await?.unwrap_or_default();
        Ok(records::no_application(name, visible.iter().map(ApplicationName::as_str)))
    }

    /// Returns the applications that the caller sees; `None` means all.
    pub async fn visible(
        &self,
        store: &SharedStore,
    ) -> Result<Option<BTreeSet<ApplicationName>>, Problem> {
        if matches!(&*self.0, Passed::Machine { .. }) {
            return Ok(None);
        }
        let mut visible = BTreeSet::new();
        for name in records::names(&**store).await? {
            let created_at = records::created_at(&**store, &name).await?;
            if self.decide_on(Right::SeeApplication, &name, created_at) == Decision::Allowed {
                visible.insert(name);
            }
        }
        Ok(Some(visible))
    }

    /// Gives an application that the caller has made to the team by which they may.
    pub async fn adopt(&self, store: &SharedStore, made: &ApplicationName) -> Result<(), Problem> {
        if let Some((team, created_at)) = self.team_for_new()? {
            teams::add_application(store, &team, created_at, made).await?;
        }
        Ok(())
    }

    /// Returns the team that an application would go to which the caller makes.
    pub fn team_for_new(&self) -> Result<Option<(TeamName, Timestamp)>, Problem> {
        let teams: Vec<_> = teams_for_new(self.principal()).into_iter().collect();
        match &teams[..] {
            [] => Ok(None),
            [team] => Ok(Some(team.clone())),
            _ => {
                let names: Vec<&str> = teams.iter().map(|(name, _)| name.as_str()).collect();
                let detail = format!("it could go to several teams: {}", names.join(", "));
                Err(Problem::conflict("several_teams", detail)
                    .hint("use a token that is limited to one of them"))
            }
        }
    }
}

/// Returns the answer to a decision.
pub(super) fn answer(
    decision: Decision,
    caller: &Caller,
    application: Option<&ApplicationName>,
) -> Result<(), Problem> {
    let forbidden = |code, detail| Problem::new(StatusCode::FORBIDDEN, code, detail);
    let (who, on) = (caller.name(), application.map_or(String::new(), |app| format!(" -a {app}")));
    match decision {
        Decision::Allowed => Ok(()),
        Decision::Hidden => Err(Problem::missing("no_such_path", "nothing is there")),
        Decision::Refused(Refusal::MachineAlone(right)) => {
            let detail = format!("the right to {} is not had by a token", right.words());
            Err(forbidden("machine_alone", detail)
                .hint("the owner of the machine does that, on the machine and without a token"))
        }
        Decision::Refused(Refusal::InvitationAlone) => {
            let detail = "an invitation is good for a token, and nothing else";
            Err(forbidden("invitation_alone", detail.into()).hint("log in with it: `cortex login`"))
        }
        Decision::Refused(Refusal::NotInvited) => {
            let detail = format!("{who} has a token already, and this gives one for an invitation");
            Err(forbidden("not_invited", detail)
                .hint("`cortex tokens create` makes another token of your own"))
        }
        Decision::Refused(Refusal::Role(right)) => {
            let detail = format!("{who} does not have the right to {}", right.words());
            let role = right.role_min();
            Err(forbidden("no_right", detail).hint(format!(
                "it comes with the role {role}, which an owner grants: `cortex users grant {who} \
                 {role}{on}`"
            )))
        }
        Decision::Refused(Refusal::Limited(right)) => {
            let limit = caller.token().and_then(|token| token.limit.as_ref());
            let limit = limit.map_or(String::new(), Grant::to_string);
            let words = right.words();
            let detail = format!("{who} has the right to {words}, but not with this token");
            Err(forbidden("token_limited", detail)
                .hint(format!("the token is limited to {limit}: use another one")))
        }
    }
}
