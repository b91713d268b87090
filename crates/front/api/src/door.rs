//! The door of the API: who asks, whether they may, and what is recorded of it. Each route passes
//! through it with the right that the table states; what may be done is decided in `access_core`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access_core::{
    AccessTarget, Allowance, Decision, Principal, Reach, Refusal, Right, TokenState, TokenText,
    Touch, decide, is_use_due, teams_for_new,
};
use axum::extract::{ConnectInfo, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use model::people::{Grant, Team, Token, TokenUse, User};
use model::record::RECORD_VERSION;
use model::value::ContentHash;
use model::{ApplicationName, NodeId, TeamName, Timestamp, TokenName, TypedKey, UserName};
use runtime::driver::Clock;
use runtime::lock::locked;
use store::SharedStore;

use super::peer::{Connection, Peer};
use super::problem::Problem;
use super::records;
use super::table::Recording;
use super::{NodeControl, audit, teams};

/// Refusals of strangers before they have to wait: somebody who tries an old token again, but not
/// somebody who guesses.
const REFUSED_AT_ONCE: u32 = 20;
const REFUSED_EVERY: Duration = Duration::from_secs(6);
/// Changes of a user before they have to wait: more than any script makes, and too few to push
/// the changes of others out of the audit within hours.
const CHANGES_AT_ONCE: u32 = 240;
const CHANGES_EVERY: Duration = Duration::from_secs(2);
/// The most addresses and users that are remembered for this.
const REMEMBERED_MAX: usize = 4096;

/// What the door needs of the node.
pub struct Door {
    pub store: SharedStore,
    pub node: NodeId,
    pub clock: Clock,
    pub control: Arc<dyn NodeControl>,
    /// The number of the last entry of the audit, which tells those of one millisecond apart.
    pub entries: AtomicU32,
    refused: Mutex<Allowance<IpAddr>>,
    changes: Mutex<Allowance<UserName>>,
    /// How much of the cluster this node hears.
    pub touch: Mutex<Touch>,
}

impl Door {
    pub fn new(
        store: SharedStore,
        node: NodeId,
        clock: Clock,
        control: Arc<dyn NodeControl>,
    ) -> Door {
        let refused = Allowance::new(REFUSED_AT_ONCE, REFUSED_EVERY, REMEMBERED_MAX);
        let changes = Allowance::new(CHANGES_AT_ONCE, CHANGES_EVERY, REMEMBERED_MAX);
        Door {
            store,
            node,
            clock,
            control,
            entries: AtomicU32::new(0),
            refused: Mutex::new(refused),
            changes: Mutex::new(changes),
            touch: Mutex::default(),
        }
    }

    /// Refuses somebody who was refused too often lately.
    fn check_patience(&self, connection: &Connection) -> Result<(), Refused> {
        let wait = locked(&self.refused).wait(&connection.network(), self.clock.now());
        wait.map_or(Ok(()), |wait| {
            let detail = "too many requests from there were refused";
            Err(Refused::later("too_many_refused", detail, wait))
        })
    }

    /// Refuses changes of those who own nothing on a node that was cut off: their token may have
    /// been revoked where this node does not hear of it.
    fn check_touch(&self, caller: &Caller) -> Result<(), Problem> {
        let since = locked(&self.touch).cut_off_since(self.clock.now());
        let Some(since) = since.filter(|_| !caller.may(Right::ManagePeople)) else {
            return Ok(());
        };
        let since = records::rfc3339(since);
        let detail = format!("since {since} this node has heard less than half of the cluster");
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "cut_off", detail)
            .hint("tokens only read here until it hears more; ask another node, or an owner"))
    }

    /// Takes a change off a user's allowance; the owner of the machine has no limit.
    fn count_change(&self, caller: &Caller) -> Result<(), Refused> {
        let Passed::Person(person) = &*caller.0 else { return Ok(()) };
        let (mut changes, now) = (locked(&self.changes), self.clock.now());
        if let Some(wait) = changes.wait(&person.name, now) {
            let detail = format!("{} changes too much in too short a time", person.name);
            return Err(Refused::later("too_many_changes", detail, wait));
        }
        changes.take(&person.name, now);
        Ok(())
    }
}

/// A refusal at the door.
struct Refused {
    problem: Problem,
    /// The seconds after which to try again.
    wait: Option<u64>,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        Refused { problem, wait: None }
    }
}

impl Refused {
    fn later(code: &'static str, detail: impl Into<String>, wait: Duration) -> Refused {
        let seconds = wait.as_secs() + 1;
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, code, detail);
        let problem = problem.hint(format!("try again in {seconds} s"));
        Refused { problem, wait: Some(seconds) }
    }

    fn into_response(self) -> Response {
        let mut response = self.problem.into_response();
        if response.status() == StatusCode::UNAUTHORIZED {
            let scheme = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(seconds) = self.wait {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// One route's place at the door.
#[derive(Clone)]
pub struct Gate {
    pub door: Option<Arc<Door>>,
    pub right: Right,
    pub recording: Recording,
}

/// Somebody who has passed the door.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Passed>);

#[derive(Debug)]
enum Passed {
    /// The owner of the machine, by the credentials of the socket.
    Machine {
        uid: u32,
    },
    Person(Box<Person>),
}

/// A user who came with a token, or somebody with an invitation for them.
#[derive(Debug)]
struct Person {
    hash: ContentHash,
    name: UserName,
    grants: BTreeSet<Grant>,
    token: Token,
    teams: BTreeMap<TeamName, Team>,
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

    fn principal(&self) -> Principal<'_> {
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

    fn decide_on(
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
    async fn no_application(
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

/// Lets a request through, or refuses it.
pub async fn pass(
    State(gate): State<Gate>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    parameters: RawPathParams,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match authenticate(gate.door.as_deref(), &peer, request.headers()).await {
        Ok(caller) => caller,
        Err(refused) => return refused.into_response(),
    };
    let application = parameters.iter().find(|(name, _)| *name == "app").map(|(_, app)| app);
    if let Some(door) = &gate.door
        && let Err(problem) = check(door, &caller, gate.right, application).await
    {
        tracing::info!(who = caller.name(), path = request.uri().path(), "api.refused");
        return problem.into_response();
    }
    request.extensions_mut().insert(caller.clone());
    let Some(door) = gate.door.filter(|_| gate.recording == Recording::Change) else {
        return next.run(request).await;
    };
    if let Err(problem) = door.check_touch(&caller) {
        return problem.into_response();
    }
    if let Err(refused) = door.count_change(&caller) {
        return refused.into_response();
    }
    let application = application.and_then(|name| name.parse().ok());
    let asked = audit::Asked::of(&request, &peer);
    let entry = match audit::begin(&door, &caller, asked, application).await {
        Ok(entry) => entry,
        Err(problem) => return problem.into_response(),
    };
    let response = next.run(request).await;
    audit::end(&door, entry, response.status()).await;
    response
}

/// Finds out who asks. A stranger on the network who is refused too often has to wait.
async fn authenticate(
    door: Option<&Door>,
    peer: &Peer,
    headers: &HeaderMap,
) -> Result<Caller, Refused> {
    let mut stated = headers.get_all(header::AUTHORIZATION).iter();
    let stated = (stated.next(), stated.next());
    match (stated, peer, door) {
        ((None, _), Peer::Socket { uid }, _) => Ok(Caller(Arc::new(Passed::Machine { uid: *uid }))),
        ((Some(value), None), Peer::Network(connection), Some(door)) => {
            door.check_patience(connection)?;
            let person = by_token(door, value).await;
            match &person {
                Ok(person) => connection.note(person.hash),
                Err(problem) if problem.is_unauthorized() => {
                    locked(&door.refused).take(&connection.network(), door.clock.now());
                }
                Err(_) => {}
            }
            Ok(Caller(Arc::new(Passed::Person(person?))))
        }
        ((Some(value), None), Peer::Socket { .. }, Some(door)) => {
            Ok(Caller(Arc::new(Passed::Person(by_token(door, value).await?))))
        }
        ((Some(_), None), _, None) => {
            let detail = "this store has no people, and so no tokens";
            Err(unauthorized("token_unknown", detail).into())
        }
        ((None, _), Peer::Network(_), _) => {
            let detail = "a client on the network comes with a token";
            Err(unauthorized("token_needed", detail)
                .hint("log in with an invitation: `cortex login`; `cortex users invite` makes one")
                .into())
        }
        ((Some(_), Some(_)), ..) => Err(malformed("there are several".into()).into()),
    }
}

fn unauthorized(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, code, detail)
}

fn malformed(detail: String) -> Problem {
    unauthorized("token_malformed", detail)
        .hint("copy the token again, or make another one with `cortex tokens create`")
}

async fn by_token(door: &Door, value: &HeaderValue) -> Result<Box<Person>, Problem> {
    let bearer = value.to_str().ok().and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, text)) = bearer else {
        return Err(malformed("one header `Authorization: Bearer cortex_…` is expected".into()));
    };
    let text = TokenText::parse(text).map_err(|fault| malformed(fault.to_string()))?;
    let (hash, now) = (hash_of(&text), door.clock.now());
    let another = "an owner makes another one with `cortex tokens create`";
    match find_token(&door.store, hash, now).await? {
        (TokenState::Valid, Some(token), Some(user)) => {
            // With a full disk, people still see what they may.
            if let Err(problem) = note_use(door, hash, now).await {
                tracing::warn!(?problem, "token.use_not_noted");
            }
            let teams = teams::all(&door.store).await?;
            let (name, grants) = (token.user.clone(), user.grants);
            Ok(Box::new(Person { hash, name, grants, token, teams }))
        }
        (TokenState::Expired, Some(token), _) => {
            let detail = format!("the token '{}' of {} has expired", token.name, token.user);
            Err(unauthorized("token_expired", detail).hint(another))
        }
        (TokenState::Revoked, Some(token), _) if token.invites.is_some() => {
            let detail = format!("this invitation of {} was used or taken back", token.user);
            Err(unauthorized("token_revoked", detail)
                .hint("ask for another one: an owner makes it with `cortex users invite`"))
        }
        (TokenState::Revoked, Some(token), _) => {
            let detail = format!("the token '{}' of {} was revoked", token.name, token.user);
            Err(unauthorized("token_revoked", detail).hint(another))
        }
        _ => Err(unauthorized("token_unknown", "nobody has this token here")
            .hint("is it of another cluster, or older than a year?")),
    }
}

/// Returns the state of a token, with it and its user if they are on record.
pub async fn find_token(
    store: &SharedStore,
    hash: ContentHash,
    now: Timestamp,
) -> Result<(TokenState, Option<Token>, Option<User>), Problem> {
    let token: Option<Token> = records::read(&**store, TypedKey::Token(hash)).await?;
    let user: Option<User> = match &token {
        Some(token) => records::read(&**store, TypedKey::User(token.user.clone())).await?,
        None => None,
    };
    Ok((TokenState::of(token.as_ref(), user.as_ref(), now), token, user))
}

/// Returns the name under which a token is on record. A token cannot be guessed, so a fast hash of
/// it tells nobody anything.
pub fn hash_of(text: &TokenText) -> ContentHash {
    let hash = blake3::derive_key("cortex api token v1", text.as_str().as_bytes());
    ContentHash(hash)
}

/// Notes that a token is used, about once an hour.
async fn note_use(door: &Door, hash: ContentHash, now: Timestamp) -> Result<(), Problem> {
    let key = || TypedKey::TokenUse(hash, door.node.clone());
    let last: Option<TokenUse> = records::read(&*door.store, key()).await?;
    if is_use_due(last.map(|last| last.at), now) {
        let noted = TokenUse { v: RECORD_VERSION, at: now };
        records::write(&*door.store, key(), &noted).await?;
    }
    Ok(())
}

async fn check(
    door: &Door,
    caller: &Caller,
    right: Right,
    application: Option<&str>,
) -> Result<(), Problem> {
    if matches!(&*caller.0, Passed::Machine { .. }) {
        return Ok(());
    }
    let Some(application) = application.filter(|_| right.reach() == Reach::Application) else {
        return answer(decide(caller.principal(), right, AccessTarget::Platform), caller, None);
    };
    let name: ApplicationName = application.parse()?;
    let created_at = records::created_at(&*door.store, &name).await?;
    // A push makes the application where there is none.
    if created_at.is_none() && right == Right::Push && caller.may(Right::CreateApplication) {
        return caller.team_for_new().map(|_| ());
    }
    match caller.decide_on(right, &name, created_at) {
        Decision::Hidden => Err(caller.no_application(&door.store, &name).await?),
        decision => answer(decision, caller, Some(&name)),
    }
}

fn answer(
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

#[cfg(test)]
mod tests;
