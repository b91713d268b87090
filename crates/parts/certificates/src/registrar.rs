//! The account at the authority: made by one node, when a person agreed and there is none.

use std::time::Duration;

use acme_core::{Problem, turn};
use model::acme::AcmeSettings;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::view::View;
use crate::{CertificatesContext, account, ordering, peers};

/// The pause after the first failure; each next one is twice as long, up to the last one. An
/// authority lets one address make ten accounts in three hours.
const PAUSE_FIRST: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(6 * 3600);
/// How long each node waits for those whose turn comes before its own.
const TURN: Duration = Duration::from_secs(60);
/// How long after a start nothing is made: the account may be known elsewhere.
const QUIET: Duration = Duration::from_secs(4);

/// The settings of an authority that does not know this cluster yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Need(AcmeSettings);

impl Need {
    pub fn of(view: &View) -> Option<Need> {
        let settings = view.settings.as_ref()?;
        let known = view.account.as_ref().filter(|one| account::is_registered(settings, one));
        match known {
            Some(one) if one.contact == settings.contact => None,
            _ => Some(Need(settings.clone())),
        }
    }
}

/// Runs until the store stops.
pub async fn run(
    context: CertificatesContext,
    mut needed: watch::Receiver<Option<Need>>,
) -> anyhow::Result<()> {
    sleep(QUIET).await;
    let mut failures = 0;
    loop {
        let Some(need) = needed.borrow_and_update().clone() else {
            failures = 0;
            if needed.changed().await.is_err() {
                return Ok(());
            }
            continue;
        };
        let wait = TURN * position(&context, failures);
        let changed = timeout(wait, needed.changed()).await;
        if wait > Duration::ZERO && changed.is_ok() {
            continue;
        }
        let Err(problem) = make(&context, &need.0).await else {
            account::note(&context.store, None).await?;
            // The store says so, too.
            timeout(PAUSE_FIRST, needed.changed()).await.ok();
            continue;
        };
        tracing::warn!(kind = problem.kind, why = problem.detail, "certificates.no_account");
        let error = problem.record(&context.node, context.clock.now());
        account::note(&context.store, Some(error)).await?;
        let pause = PAUSE_FIRST.saturating_mul(1 << failures.min(10)).min(PAUSE_MAX);
        failures += 1;
        let pause = problem.retry_after.unwrap_or(pause).max(pause);
        timeout(pause, needed.changed()).await.ok();
    }
}

fn position(context: &CertificatesContext, failures: u32) -> u32 {
    let alive = context.members.as_ref().map(|members| members.alive().borrow().clone());
    turn::position("account", &context.node, &alive.unwrap_or_default(), failures)
}

/// Makes the key first, and the account when all nodes have it.
async fn make(context: &CertificatesContext, settings: &AcmeSettings) -> Result<(), Problem> {
    let (result, retry_after) = crate::authority::noting(async {
        account::prepare(&context.store, settings).await?;
        let key = model::TypedKey::AcmeAccount;
        // A node that does not answer gets it when it is back.
        peers::await_held(context.members.as_ref(), &context.store, &key).await.ok();
        // What it was asked last is asked again: its key makes that the same account.
        ordering::again(|| account::register(&context.store)).await
    })
    .await;
    result.map_err(|problem| Problem { retry_after, ..problem })
}
