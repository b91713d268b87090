//! Undo: the last change of an application is taken back, from what the audit has of it. That
//! nothing is lost that was done since is decided in `plan`; here the records are read and written.

pub mod parts;
pub mod plan;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};

use access_core::{Decision, Right};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use model::change::{ChangeId, ChangePart};
use model::people::{PersonRole, Scope, User};
use model::{ApplicationSpec, Release, Timestamp, TypedKey, UserName};
use store::SharedStore;

use self::plan::{Choice, KnownChange, Obstacle, Refusal, StateNow};
use super::audit::{NewestFirst, Underway};
use super::caller::Caller;
use super::json_body::JsonBody;
use super::problem::Problem;
use super::records::{self, ApplicationRecords, ConfigVariables};
use super::releases::{self, Draft};
use super::{Api, Shared, domains, password, ports, rollback, team_limits, users};
use api_types::undo::{ChangeRow, ChangesShown, UndoAsked, Undone};

/// The most changes of one application that are listed and can be taken back; whoever wants to go
/// back further knows the state that they want better than the way to it.
pub(super) const CHANGES_MAX: usize = 50;
/// Milliseconds from the record of the push that creates an application to its creation: its source
/// comes in between, over a slow network in hours. The clocks of nodes differ by far less.
const CREATION_MAX_MS: u64 = 24 * 3600 * 1000;

/// Lists the changes that the caller could have made, newest first.
pub async fn list(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<ChangesShown>, Problem> {
    let app = records::require(&*api.store, &name).await?;
    let read = Read::of(&api, &caller, &app).await?;
    let state = read.state(&app);
    let made = read.known.iter().filter(|known| plan::is_made(known, &state));
    let changes = made.map(|known| row(known, Some(&state))).collect();
    let next = plan::choose(&read.known, None, &caller.name(), &state);
    let would = next.as_ref().ok().map(|choice| inverse_words(choice, &app));
    let refused = next.err().map(|refusal| refuse(&app, refusal).detail().to_owned());
    Ok(Json(ChangesShown { application: app.name.to_string(), changes, would, refused }))
}

/// Takes a change back.
pub async fn undo(
    State(api): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(entry): Extension<Underway>,
    Path(name): Path<String>,
    JsonBody(asked): JsonBody<UndoAsked>,
) -> Result<Json<Undone>, Problem> {
    let asked: Option<ChangeId> = asked.change.as_deref().map(str::parse).transpose().map_err(
        |error: model::change::BadChangeId| Problem::invalid("invalid_change", error.to_string()),
    )?;
    let _changing = api.changes.lock().await;
    let mut app = records::require(&*api.store, &name).await?;
    let read = Read::of(&api, &caller, &app).await?;
    let choice = plan::choose(&read.known, asked.as_ref(), &caller.name(), &read.state(&app));
    let choice = choice.map_err(|refusal| refuse(&app, refusal))?;
    let (mut notes, mut made) = (Vec::new(), Prepared::default());
    for part in &choice.parts {
        made.prepare(&api, &mut app, part, &mut notes).await?;
    }
    made.check(&api, &read, &mut app).await?;
    let mut draft = match &made.release {
        None => None,
        Some(old) => {
            let id = releases::next_id(&api, &app).await?;
            let what = format!("undo: return to {}", app.label(&old.id));
            let drafted = rollback::draft(&api, &app, old, id, (what, entry.by())).await?;
            Some(drafted)
        }
    };
    if let Some((_, draft)) = &mut draft {
        notes.extend(rollback::check(&api, &caller, &app, draft).await?);
    }
    let by = draft.as_ref().map(|(_, draft)| &draft.id);
    let inverse: Vec<ChangePart> =
        choice.parts.iter().filter_map(|part| part.inverse(by)).collect();
    let did = inverse.iter().map(words::of_part).collect();
    entry.describe_undo(&app, api.now(), inverse, choice.known.id.clone()).await?;
    made.write(&api, &app).await?;
    let released = match draft {
        None => None,
        Some(drafted) => Some(release(&api, &mut app, drafted).await?),
    };
    Ok(Json(Undone {
        application: app.name.to_string(),
        taken_back: row(choice.known, None),
        did,
        notes,
        released,
    }))
}

async fn release(
    api: &Api,
    app: &mut ApplicationRecords,
    (config, draft): (ConfigVariables, Draft),
) -> Result<api_types::Released, Problem> {
    records::write(&*api.store, TypedKey::Config(app.name.clone()), &config).await?;
    let release = releases::make(api, app, draft).await?;
    Ok(releases::released(api, app, &release))
}

/// What an undo is going to write, before anything is written.
#[derive(Default)]
struct Prepared {
    spec: bool,
    release: Option<Release>,
    users: Vec<(UserName, User)>,
}

impl Prepared {
    async fn prepare(
        &mut self,
        api: &Api,
        app: &mut ApplicationRecords,
        part: &ChangePart,
        notes: &mut Vec<String>,
    ) -> Result<(), Problem> {
        match part {
            ChangePart::Release { before: Some(before), .. } => {
                self.release = app.release(before).cloned();
            }
            ChangePart::Scale { process, before, .. } => {
                self.spec = true;
                match before {
                    None => {
                        app.spec.processes.remove(process);
                    }
                    Some(count) => {
                        let spec = app.spec.processes.entry(process.clone());
                        spec.or_default().count = *count;
                    }
                }
            }
            ChangePart::Domains { before, .. } => {
                self.spec = true;
                let (names, said) = domains::claim(api, app, &before.names, false).await?;
                notes.extend(said);
                app.spec.set_domains(names, api.now());
                app.spec.domains_chosen = before.chosen;
            }
            ChangePart::Port { before, .. } => {
                self.spec = true;
                ports::check_http(api, app, before.port).await?;
                (app.spec.port, app.spec.port_chosen) = (before.port, before.chosen);
            }
            ChangePart::Maintenance { before, .. } => {
                self.spec = true;
                app.spec.maintenance = *before;
            }
            ChangePart::Password { before, .. } => {
                self.spec = true;
                if before.is_some() {
                    password::check_asked_everywhere(api, app).await?;
                }
                parts::put_password_back(&mut app.spec, *before);
            }
            ChangePart::Role { user, before, .. } => {
                let record = users::with_role(api, user, &scope(app), *before).await?;
                self.users.push((user.clone(), record));
            }
            ChangePart::Release { before: None, .. }
            | ChangePart::Variables { .. }
            | ChangePart::Persist { .. }
            | ChangePart::Unknown => {}
        }
        Ok(())
    }

    /// Checks what the application would take after it, as a command would.
    async fn check(
        &self,
        api: &Api,
        read: &Read,
        app: &mut ApplicationRecords,
    ) -> Result<(), Problem> {
        if !self.spec {
            return Ok(());
        }
        let after = std::mem::replace(&mut app.spec, read.spec.clone());
        let before = team_limits::used_by(app);
        app.spec = after;
        team_limits::check_scale(api, before, app).await?;
        let releases = [app.serving(), app.current()].into_iter().flatten();
        for release in releases.filter(|_| self.release.is_none()) {
            let http = app.spec.port_with(Some(&release.settings));
            ports::check_services(api, app, &release.recipe.ports, http).await?;
        }
        Ok(())
    }

    async fn write(self, api: &Api, app: &ApplicationRecords) -> Result<(), Problem> {
        if self.spec {
            records::write(&*api.store, TypedKey::Spec(app.name.clone()), &app.spec).await?;
        }
        for (name, user) in self.users {
            records::write(&*api.store, TypedKey::User(name), &user).await?;
        }
        Ok(())
    }
}

fn scope(app: &ApplicationRecords) -> Scope {
    Scope::Application { name: app.name.clone(), created_at: app.spec.created_at }
}

/// What is known of an application's changes, and what they are compared with.
struct Read {
    known: Vec<KnownChange>,
    spec: ApplicationSpec,
    same_variables: BTreeSet<model::ReleaseId>,
    roles: BTreeMap<UserName, PersonRole>,
}

impl Read {
    async fn of(api: &Api, caller: &Caller, app: &ApplicationRecords) -> Result<Read, Problem> {
        let (scope, mut roles) = (scope(app), BTreeMap::new());
        for (name, user) in users::all(&api.store).await? {
            roles.extend(users::role_in(&user.grants, &scope).map(|role| (name, role)));
        }
        Ok(Read {
            known: known(api, caller, app).await?,
            spec: app.spec.clone(),
            same_variables: same_variables(api, app).await?,
            roles,
        })
    }

    fn state<'a>(&'a self, app: &'a ApplicationRecords) -> StateNow<'a> {
        StateNow {
            spec: &self.spec,
            rollout: app.rollout.as_ref(),
            releases: &app.releases,
            same_variables: self.same_variables.clone(),
            roles: self.roles.clone(),
        }
    }
}

/// Returns the releases that were made with the variables that there are now, by content.
async fn same_variables(
    api: &Api,
    app: &ApplicationRecords,
) -> Result<BTreeSet<model::ReleaseId>, Problem> {
    let now = records::config(&*api.store, &app.name).await?;
    let mut same = BTreeSet::new();
    for release in &app.releases {
        let at = TypedKey::ConfigAt(app.name.clone(), release.id.clone());
        let then: Option<ConfigVariables> = records::read(&*api.store, at).await?;
        if then.is_none_or(|then| then == now) {
            same.insert(release.id.clone());
        }
    }
    Ok(same)
}

/// Returns the changes of an application that the caller has the rights for, newest first.
async fn known(
    api: &Api,
    caller: &Caller,
    app: &ApplicationRecords,
) -> Result<Vec<KnownChange>, Problem> {
    known_in(&mut audit_of(&api.store, app).await?, caller, app).await
}

/// Returns the audit from the creation of an application on.
pub(super) async fn audit_of(
    store: &SharedStore,
    app: &ApplicationRecords,
) -> Result<NewestFirst, Problem> {
    let earliest = Timestamp(app.spec.created_at.0.saturating_sub(CREATION_MAX_MS));
    Ok(NewestFirst::open(store).await?.since(earliest))
}

/// Reads as much of the audit as it takes.
pub(super) async fn known_in(
    audit: &mut NewestFirst,
    caller: &Caller,
    app: &ApplicationRecords,
) -> Result<Vec<KnownChange>, Problem> {
    let mut known = Vec::new();
    while known.len() < CHANGES_MAX
        && let Some(page) = audit.page().await?
    {
        for (id, entry, outcome) in page {
            let status = outcome.map(|outcome| outcome.status);
            let refused = status.is_some_and(|status| (400..500).contains(&status));
            let is_meant = entry.application.as_ref() == Some(&app.name) && !refused;
            let change =
                entry.change.filter(|one| is_meant && one.created_at == app.spec.created_at);
            let Some(change) = change else { continue };
            if change.parts.iter().all(|part| may(caller, app, part)) {
                let certain = status.is_some_and(|status| status < 400);
                known.push(KnownChange { id, who: entry.who, note: entry.note, change, certain });
            }
        }
    }
    // What waited for another change was asked for earlier, and made later.
    known.sort_by(|a, b| (b.change.at, &b.id).cmp(&(a.change.at, &a.id)));
    known.truncate(CHANGES_MAX);
    Ok(known)
}

/// Returns whether the caller may take back such a change, which is to make one of its kind.
fn may(caller: &Caller, app: &ApplicationRecords, part: &ChangePart) -> bool {
    let right = match part {
        ChangePart::Release { .. } => Right::Push,
        ChangePart::Scale { .. } => Right::Scale,
        ChangePart::Domains { .. } | ChangePart::Port { .. } => Right::ChooseAddresses,
        ChangePart::Maintenance { .. } | ChangePart::Password { .. } => Right::Maintain,
        ChangePart::Role { .. } => return caller.may(Right::ManagePeople),
        ChangePart::Variables { .. } => Right::Configure,
        ChangePart::Persist { .. } => Right::KeepFiles,
        ChangePart::Unknown => Right::Undo,
    };
    caller.decide_on(right, &app.name, Some(app.spec.created_at)) == Decision::Allowed
}

fn row(known: &KnownChange, state: Option<&StateNow>) -> ChangeRow {
    let obstacle = state.and_then(|state| plan::what_stands(&known.change, state).err());
    ChangeRow {
        change: known.id.to_string(),
        at: records::rfc3339(known.change.at),
        who: known.who.clone(),
        what: words::of_change(&known.change),
        note: known.note.clone(),
        undoes: known.change.undoes.as_ref().map(ToString::to_string),
        obstacle: obstacle.map(|obstacle| obstacle.words().to_owned()),
    }
}

/// Returns what an undo would do.
fn inverse_words(choice: &Choice, app: &ApplicationRecords) -> Vec<String> {
    let words = |part: &&ChangePart| match part {
        ChangePart::Release { before: Some(before), .. } => {
            Some(format!("a new release of the code and variables of {}", app.label(before)))
        }
        part => part.inverse(None).as_ref().map(words::of_part),
    };
    choice.parts.iter().filter_map(words).collect()
}

fn refuse(app: &ApplicationRecords, refusal: Refusal) -> Problem {
    let name = &app.name;
    let said = |known: &KnownChange| {
        let (who, at) = (&known.who, known.change.at.date());
        format!("'{}' by {who} at {at} UTC", words::of_change(&known.change))
    };
    let list = format!("`cortex undo --list -a {name}` shows what can be taken back");
    match refusal {
        Refusal::Nothing => {
            let detail = format!("no change of {name} is on record that you could take back");
            Problem::conflict("nothing_to_undo", detail)
                .hint("`cortex releases` lists releases to go back to with `cortex rollback`")
        }
        Refusal::NoSuchChange => {
            let detail = format!("no such change of {name} is on record that you could take back");
            Problem::missing("no_change", detail).hint(list)
        }
        Refusal::ByOther(known) => {
            let detail = format!("the last change of {name} is not yours: {}", said(known));
            Problem::conflict("changed_by_other", detail).hint(format!(
                "`cortex undo -a {name} --change {}` takes it back all the same; {list}, yours too",
                known.id
            ))
        }
        Refusal::Obstacle(known, obstacle) => {
            let what = said(known);
            let (code, why) = match &obstacle {
                Obstacle::Final(why) => {
                    ("cannot_be_undone", format!("cannot be taken back: {why}"))
                }
                Obstacle::Overtaken(why) => {
                    ("changed_meanwhile", format!("is not the last word any more: {why}"))
                }
                Obstacle::Gone(why) => ("nothing_to_undo", format!("needs no undo: {why}")),
            };
            Problem::conflict(code, format!("{what} {why}")).hint(list)
        }
    }
}
