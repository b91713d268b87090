//! The steps that the machine asks for, each in a task of its own; what comes of them goes back to
//! it as an event.

use acme_core::{Arrival, ChallengeKind, Effect, Event, Outcome, Problem, Task, kind};
use model::acme::AcmeOrder;
use model::certificate::SecretText;
use model::{CertificateName, TypedKey, record};
use runtime::driver::Shell;
use tokio::sync::mpsc;

use crate::account::Accounts;
use crate::proving::Records;
use crate::{CertificatesContext, account, authority, leaf, ordering, peers, proving};

/// Random bytes of a nonce: 128 bits, which nobody guesses.
const NONCE_BYTES: usize = 16;

pub struct TaskShell {
    steps: Steps,
    events: mpsc::Sender<Event>,
}

#[derive(Clone)]
struct Steps {
    context: CertificatesContext,
    accounts: Accounts,
    records: Records,
}

impl TaskShell {
    pub fn new(context: CertificatesContext, events: mpsc::Sender<Event>) -> TaskShell {
        let steps = Steps { context, accounts: Accounts::default(), records: Records::default() };
        TaskShell { steps, events }
    }
}

impl Shell for TaskShell {
    type Effect = Effect;

    async fn perform(&mut self, effect: Effect) -> anyhow::Result<()> {
        let (steps, events) = (self.steps.clone(), self.events.clone());
        let Effect { name, serial, task } = effect;
        runtime::task::spawn(async move {
            let (result, retry_after) = authority::noting(steps.take(&name, task)).await;
            let outcome = match result {
                Ok(Some(outcome)) => outcome,
                Ok(None) => return,
                Err(problem) => {
                    let problem = Problem { retry_after, ..problem };
                    let Problem { kind, detail, .. } = &problem;
                    tracing::warn!(%name, kind, detail, "certificates.step_failed");
                    if kind == "accountDoesNotExist" {
                        steps.accounts.forget().await;
                        steps.make_account_anew().await;
                    }
                    Outcome::Failed(problem)
                }
            };
            events.send(Event::Done { name, serial, outcome }).await.ok();
        });
        Ok(())
    }
}

impl Steps {
    async fn take(&self, name: &CertificateName, task: Task) -> Result<Option<Outcome>, Problem> {
        let store = &self.context.store;
        Ok(Some(match task {
            Task::Save(order) => self.save(name, &order).await,
            Task::Write { chain, key, .. } => self.write(name, chain, &key).await?,
            Task::Check => self.check(name).await,
            Task::Withdraw { kind } => {
                let (settings, _) = account::read(store).await.unwrap_or_default();
                proving::withdraw(store, settings, &self.records, name, kind).await;
                return Ok(None);
            }
            Task::AskRenewal { id } => match self.accounts.get(store).await {
                Ok(account) => ordering::renewal(&account, &id).await,
                Err(_) => Outcome::NoRenewal,
            },
            Task::Order { replaces } => {
                let account = self.accounts.get(store).await?;
                let (settings, _) = account::read(store).await.unwrap_or_default();
                let none = || Problem::new(kind::UNREACHABLE, "nobody agrees to an authority");
                let settings = settings.ok_or_else(none)?;
                let made = ordering::order(&account, &settings, name, replaces.as_deref()).await?;
                tracing::info!(%name, "certificates.ordered");
                made
            }
            Task::Look { url } => ordering::look(&self.accounts.get(store).await?, &url).await?,
            Task::Prepare { url, kind } => self.prepare(name, &url, kind).await?,
            Task::Tell { url, kind } => {
                ordering::tell(&self.accounts.get(store).await?, &url, kind).await?
            }
            Task::Finalize { url, key } => {
                let account = self.accounts.get(store).await?;
                ordering::finalize(&account, &url, &key, name).await?
            }
            Task::Download { url } => {
                let account = self.accounts.get(store).await?;
                let chain = ordering::download(&account, &url).await?;
                let facts = leaf::facts(&chain);
                let facts = facts.ok_or_else(|| ordering::unusable("it is no certificate"))?;
                Outcome::Downloaded { chain, facts }
            }
        }))
    }

    async fn save(&self, name: &CertificateName, order: &AcmeOrder) -> Outcome {
        let key = TypedKey::AcmeOrder(name.clone()).key();
        match self.context.store.set(key, record::encode(order).into()).await {
            Ok(_) => Outcome::Saved,
            Err(error) => {
                tracing::warn!(%name, %error, "certificates.not_saved");
                Outcome::Unsaved
            }
        }
    }

    async fn write(
        &self,
        name: &CertificateName,
        chain: String,
        key: &SecretText,
    ) -> Result<Outcome, Problem> {
        let store = &self.context.store;
        let (settings, _) = account::read(store).await.unwrap_or_default();
        let directory = settings.map(|settings| settings.directory).unwrap_or_default();
        let now = self.context.clock.now();
        let (certificate, _) = leaf::record(chain, key, name, &directory, now)?;
        let written = store
            .set(TypedKey::Certificate(name.clone()).key(), record::encode(&certificate).into());
        Ok(match written.await {
            Ok(_) => {
                tracing::info!(%name, not_after = certificate.not_after.0, "certificates.issued");
                Outcome::Written
            }
            Err(error) => {
                tracing::warn!(%name, %error, "certificates.not_saved");
                Outcome::Unsaved
            }
        })
    }

    /// Never fails: a check that cannot be made has found nothing out, and is made again.
    async fn check(&self, name: &CertificateName) -> Outcome {
        let CertificatesContext { store, members, .. } = &self.context;
        let (_, account) = account::read(store).await.unwrap_or_default();
        let (Some(account), Ok(nonce)) = (account, nonce()) else {
            let why = "there is no account, or no random number".into();
            return Outcome::Checked(Arrival::Unknown { why });
        };
        let thumbprint = account.thumbprint;
        let (by, found) = peers::find(members.as_ref(), name, &nonce, &thumbprint).await;
        let mut arrival = found.arrival();
        if self.context.https && matches!(arrival, Arrival::Unknown { .. }) {
            arrival = self.check_shown(name).await.unwrap_or(arrival);
        }
        tracing::debug!(%name, ?by, ?arrival, "certificates.arrival");
        Outcome::Checked(arrival)
    }

    /// Finds out whether a name without a certificate comes here at port 443: nodes show there what
    /// they were given for it, and nothing else yet.
    async fn check_shown(&self, name: &CertificateName) -> Option<Arrival> {
        let CertificatesContext { store, members, clock, .. } = &self.context;
        let digest = blake3::hash(nonce().ok()?.as_bytes());
        let shown = proving::show_certificate(store, *clock, name, digest.as_bytes()).await;
        let (key, hash) = shown.ok()?;
        peers::await_held(members.as_ref(), store, &key).await.ok();
        let found = peers::find_shown(members.as_ref(), name, &hash).await;
        store.delete(key.key()).await.ok();
        matches!(found.arrival(), Arrival::Arrives { .. }).then(|| found.arrival())
    }

    /// Prepares the answer to a challenge on all nodes.
    async fn prepare(
        &self,
        name: &CertificateName,
        url: &str,
        kind: ChallengeKind,
    ) -> Result<Outcome, Problem> {
        let CertificatesContext { store, members, clock, .. } = &self.context;
        let account = self.accounts.get(store).await?;
        let shown = match kind {
            ChallengeKind::Http01 => TypedKey::AcmeAccount,
            ChallengeKind::TlsAlpn01 | ChallengeKind::Dns01 => {
                let asked = ordering::asked(&account, url, kind).await?;
                // It was answered before.
                let Some(asked) = asked else { return Ok(Outcome::Prepared) };
                if kind == ChallengeKind::Dns01 {
                    let (settings, _) = account::read(store).await.unwrap_or_default();
                    let none = || Problem::new(kind::HOOK, "there is no program for DNS");
                    let settings = settings.ok_or_else(none)?;
                    proving::make_record(&settings, &self.records, name, &asked).await?;
                    return Ok(Outcome::Prepared);
                }
                proving::show_certificate(store, *clock, name, &asked.digest).await?.0
            }
        };
        let missing = peers::await_held(members.as_ref(), store, &shown).await;
        let missing = missing.map_err(|error| Problem::new(kind::PEERS, &format!("{error:#}")))?;
        if missing.is_empty() {
            return Ok(Outcome::Prepared);
        }
        let nodes: Vec<&str> = missing.iter().map(|node| node.as_str()).collect();
        let what =
            format!("these nodes do not show what the authority asks for: {}", nodes.join(", "));
        Err(Problem::new(kind::PEERS, &what))
    }

    /// Has the account made again that the authority has forgotten, with the same key.
    async fn make_account_anew(&self) {
        if let Err(problem) = account::register(&self.context.store).await {
            tracing::warn!(kind = problem.kind, why = problem.detail, "certificates.no_account");
        }
    }
}

/// Returns a word that nobody can know before.
pub fn nonce() -> std::io::Result<String> {
    os::secret_file::random_hex(NONCE_BYTES)
}
