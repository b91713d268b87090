//! The door of the API: who asks, whether they may, and what is recorded of it. Each route passes
//! through it with the right that the table states; what may be done is decided in `access_core`.

pub mod token;

use std::net::IpAddr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use access_core::{AccessTarget, Allowance, Decision, Reach, Right, Touch, decide};
use axum::extract::{ConnectInfo, RawPathParams, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use model::{ApplicationName, NodeId, UserName};
use runtime::driver::Clock;
use runtime::lock::locked;
use store::SharedStore;

use self::token::authenticate;
use super::caller::{Caller, Passed, answer};
use super::peer::{Connection, Peer};
use super::problem::Problem;
use super::records;
use super::table::Recording;
use super::{NodeControl, audit};

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
        let since = since.date();
        let detail = format!("since {since} UTC this node has heard less than half of the cluster");
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
    let asked = match audit::Asked::of(&request, &peer) {
        Ok(asked) => asked,
        Err(problem) => return problem.into_response(),
    };
    let entry = match audit::begin(&door, &caller, asked, application).await {
        Ok(entry) => entry,
        Err(problem) => return problem.into_response(),
    };
    request.extensions_mut().insert(entry.clone());
    let response = next.run(request).await;
    audit::end(&door, entry, response.status()).await;
    response
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
    let created_at = match right {
        Right::RestoreApplication | Right::DestroyApplication => {
            let kept = records::kept(&*door.store, &name).await?;
            let there = records::created_at(&*door.store, &name).await?;
            there.or(kept.map(|(spec, _)| spec.created_at))
        }
        _ => records::created_at(&*door.store, &name).await?,
    };
    // A push makes the application where there is none.
    if created_at.is_none() && right == Right::Push && caller.may(Right::CreateApplication) {
        return caller.team_for_new().map(|_| ());
    }
    match caller.decide_on(right, &name, created_at) {
        Decision::Hidden => Err(caller.no_application(&door.store, &name).await?),
        decision => answer(decision, caller, Some(&name)),
    }
}

#[cfg(test)]
mod tests;
