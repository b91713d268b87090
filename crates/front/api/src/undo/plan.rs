//! Which change of an application is taken back, and whether it still can be: what the change left
//! must be what there is now, or something that was done since would be lost. Pure.

use std::collections::{BTreeMap, BTreeSet};

use model::change::{Change, ChangeId, ChangePart, DomainChoice};
use model::people::PersonRole;
use model::{ApplicationSpec, Release, ReleaseId, Rollout, RolloutPhase, UserName};

use super::parts;

/// A change that is on record.
#[derive(Clone, Debug)]
pub struct KnownChange {
    pub id: ChangeId,
    pub who: String,
    pub note: Option<String>,
    pub change: Change,
    /// Whether its outcome is on record; otherwise it may not have been made.
    pub certain: bool,
}

/// The application as it is now.
pub struct StateNow<'a> {
    pub spec: &'a ApplicationSpec,
    pub rollout: Option<&'a Rollout>,
    pub releases: &'a [Release],
    /// The releases that were made with the variables that there are now.
    pub same_variables: BTreeSet<ReleaseId>,
    /// The roles that users have on the application itself.
    pub roles: BTreeMap<UserName, PersonRole>,
}

/// The reason why a change is not taken back, in words that follow its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing takes such a change back.
    Final(String),
    /// Something else was done since.
    Overtaken(String),
    /// It is as it was before the change.
    Gone(String),
}

impl Obstacle {
    pub fn words(&self) -> &str {
        let (Obstacle::Final(words) | Obstacle::Overtaken(words) | Obstacle::Gone(words)) = self;
        words
    }
}

#[derive(Debug)]
pub enum Refusal<'a> {
    Nothing,
    NoSuchChange,
    /// The last change is somebody else's, and nobody said that this one is meant.
    ByOther(&'a KnownChange),
    Obstacle(&'a KnownChange, Obstacle),
}

/// The change that is taken back, with those of its parts that there are still.
#[derive(Debug)]
pub struct Choice<'a> {
    pub known: &'a KnownChange,
    pub parts: Vec<&'a ChangePart>,
}

/// Returns the change that `who` means: the one that they named, else the last one if it is theirs.
/// `known` has the newest first.
pub fn choose<'a>(
    known: &'a [KnownChange],
    asked: Option<&ChangeId>,
    who: &str,
    state: &StateNow,
) -> Result<Choice<'a>, Refusal<'a>> {
    let mut made = known.iter().filter(|one| is_made(one, state));
    let chosen = match asked {
        Some(id) => made.find(|one| one.id == *id).ok_or(Refusal::NoSuchChange)?,
        None => made.next().ok_or(Refusal::Nothing)?,
    };
    if asked.is_none() && chosen.who != who {
        return Err(Refusal::ByOther(chosen));
    }
    match what_stands(&chosen.change, state) {
        Ok(parts) => Ok(Choice { known: chosen, parts }),
        Err(obstacle) => Err(Refusal::Obstacle(chosen, obstacle)),
    }
}

/// Returns whether a change was made, and not only asked for before the node died.
pub fn is_made(known: &KnownChange, state: &StateNow) -> bool {
    let is_gone = |part| matches!(standing(part, state), Err(Obstacle::Gone(_)));
    known.certain || !known.change.parts.iter().all(is_gone)
}

/// Returns the parts of a change that are as it left them. All others must be as they were before.
pub fn what_stands<'a>(
    change: &'a Change,
    state: &StateNow,
) -> Result<Vec<&'a ChangePart>, Obstacle> {
    let (mut parts, mut gone) = (Vec::new(), None);
    for part in &change.parts {
        match standing(part, state) {
            Ok(()) => parts.push(part),
            Err(obstacle @ Obstacle::Gone(_)) => gone = gone.or(Some(obstacle)),
            Err(obstacle) => return Err(obstacle),
        }
    }
    match gone.filter(|_| parts.is_empty()) {
        Some(gone) => Err(gone),
        None => Ok(parts),
    }
}

fn standing(part: &ChangePart, state: &StateNow) -> Result<(), Obstacle> {
    match part {
        ChangePart::Release { before, after, .. } => release(before.as_ref(), after, state),
        ChangePart::Scale { process, before, after } => {
            let now = state.spec.processes.get(process).map(|one| one.count);
            compare((before, after, &now), || match now {
                Some(count) => format!("{process} is at {count} now"),
                None => format!("{process} has what the release says now"),
            })
        }
        ChangePart::Domains { before, after } => {
            let now = parts::domains(state.spec);
            compare((before, after, &now), || said(&now))
        }
        ChangePart::Port { before, after } => {
            let now = parts::port(state.spec);
            compare((before, after, &now), || match now.port {
                Some(port) => format!("its port is {port} now"),
                None => "it has no port now".into(),
            })
        }
        ChangePart::Maintenance { before, after } => {
            let now = state.spec.maintenance;
            compare((before, after, &now), || match now {
                Some(_) => "it is closed for maintenance now".into(),
                None => "it is open now".into(),
            })
        }
        ChangePart::Password { before, after } => {
            let now = parts::password(state.spec);
            compare((before, after, &now), || match now {
                Some(_) => "it asks for another password now".into(),
                None => "it asks for no password now".into(),
            })?;
            match parts::put_password_back(&mut state.spec.clone(), *before) {
                true => Ok(()),
                false => Err(Obstacle::Final(
                    "of passwords only the last one from before is kept: `cortex password set` sets \
                     one"
                    .into(),
                )),
            }
        }
        ChangePart::Role { user, before, after } => {
            let now = state.roles.get(user).copied();
            compare((before, after, &now), || match now {
                Some(role) => format!("{user} has the role {role} on it now"),
                None => format!("{user} has no role on it now"),
            })
        }
        ChangePart::Variables { .. } => Err(Obstacle::Final(
            "what variables were before the first release is not kept: `cortex config set` and \
             `unset` change them"
                .into(),
        )),
        ChangePart::Persist { .. } => Err(Obstacle::Final(
            "the files have moved to where they outlive releases, and stay there".into(),
        )),
        ChangePart::Unknown => Err(Obstacle::Final(
            "a newer version of Cortex made it: ask a node that runs that".into(),
        )),
    }
}

fn said(choice: &DomainChoice) -> String {
    match &choice.names[..] {
        [] => "it has no domains now".into(),
        names => format!("its domains are now {}", names.join(", ")),
    }
}

fn compare<T: PartialEq>(
    (before, after, now): (&T, &T, &T),
    words: impl FnOnce() -> String,
) -> Result<(), Obstacle> {
    match now {
        now if now == after => Ok(()),
        now if now == before => Err(Obstacle::Gone(words())),
        _ => Err(Obstacle::Overtaken(words())),
    }
}

fn release(
    before: Option<&ReleaseId>,
    after: &ReleaseId,
    state: &StateNow,
) -> Result<(), Obstacle> {
    let short = after.short();
    let asked_for = state.rollout.and_then(|rollout| rollout.target.as_ref());
    let Some(target) = asked_for.filter(|target| *target >= after) else {
        return Err(Obstacle::Gone(format!("{short} was never made")));
    };
    let find = |id: &ReleaseId| state.releases.iter().find(|one| one.id == *id);
    if target != after {
        if let Some(back) = state.releases.iter().find(|one| one.takes_back.as_ref() == Some(after))
        {
            let words = format!("{short} failed and was taken back by {}", back.id.short());
            return Err(Obstacle::Gone(words));
        }
        let by =
            find(target).map_or(String::new(), |one| format!(" ({}, {})", one.note, one.author));
        return Err(Obstacle::Overtaken(format!("{}{by} came after {short}", target.short())));
    }
    let Some(before) = before else {
        return Err(Obstacle::Final(format!("nothing served before {short}")));
    };
    let failed = state.rollout.is_some_and(|rollout| rollout.phase == RolloutPhase::Failed);
    if failed && state.same_variables.contains(before) {
        let words = format!("{short} failed, and {} serves on", before.short());
        return Err(Obstacle::Gone(words));
    }
    if find(before).is_none() {
        return Err(Obstacle::Final(format!("{} is not kept any more", before.short())));
    }
    if !state.same_variables.contains(after) {
        return Err(Obstacle::Overtaken("its variables were changed since".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
