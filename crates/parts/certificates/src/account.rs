//! The cluster's account at its authority: made once a person agreed to the terms, with a key that
//! is in the store before the authority hears of it, so that a lost node costs no second account.

use std::sync::Arc;

use acme_core::{Problem, kind};
use anyhow::Context;
use base64::prelude::{BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD, Engine};
use hyper::Request;
use hyper::header::USER_AGENT;
use instant_acme::{
    Account, AccountCredentials, BodyWrapper, ExternalAccountKey, HttpClient, Key, NewAccount,
};
use model::TypedKey;
use model::acme::{AcmeRegistration, AcmeSettings};
use model::certificate::AcmeAccount;
use model::record::{self, RECORD_VERSION, Unknown};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{SharedStore, lookup_record};
use tokio::sync::Mutex;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use crate::authority::AuthorityClient;
use crate::failure::problem;

/// What `AcmeAccount::credentials` holds, in the form of the client of the protocol. Without an id
/// the authority has not heard of it.
#[derive(Serialize, Deserialize)]
struct Credentials {
    id: String,
    key_pkcs8: String,
    directory: String,
}

/// Returns whether the authority that was agreed to knows this account.
pub fn is_registered(settings: &AcmeSettings, account: &AcmeAccount) -> bool {
    let credentials = serde_json::from_str::<Credentials>(account.credentials.expose());
    account.directory == settings.directory && credentials.is_ok_and(|one| !one.id.is_empty())
}

/// The account as the client of the protocol has it, kept from one request to the next.
#[derive(Clone, Default)]
pub struct Accounts(Arc<Mutex<Option<(String, Account)>>>);

impl Accounts {
    /// Returns the account that the store has.
    pub async fn get(&self, store: &SharedStore) -> Result<Account, Problem> {
        let none = || Problem::new(kind::UNREACHABLE, "there is no account at an authority yet");
        let (settings, stored) = read(store).await.map_err(local)?;
        let (settings, stored) = settings.zip(stored).ok_or_else(none)?;
        if !is_registered(&settings, &stored) {
            return Err(none());
        }
        let mut kept = self.0.lock().await;
        // Another key or another authority is another account.
        let text = stored.credentials.expose();
        if let Some((_, account)) = kept.as_ref().filter(|(of, _)| of == text) {
            return Ok(account.clone());
        }
        let http = AuthorityClient::new(settings.roots.as_deref()).map_err(local)?;
        let credentials: AccountCredentials = serde_json::from_str(text)
            .context("the account in the store cannot be read")
            .map_err(local)?;
        let restoring = Account::builder_with_http(Box::new(http)).from_credentials(credentials);
        let account = restoring.await.map_err(|error| problem(&error))?;
        *kept = Some((text.into(), account.clone()));
        Ok(account)
    }

    /// Forgets what is kept, as the authority does not know it.
    pub async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

pub async fn read(
    store: &SharedStore,
) -> anyhow::Result<(Option<AcmeSettings>, Option<AcmeAccount>)> {
    let settings = lookup_record(&**store, TypedKey::AcmeSettings.key()).await?;
    Ok((settings, lookup_record(&**store, TypedKey::AcmeAccount.key()).await?))
}

/// Makes the key of an account, unless the store has one for this authority. The authority has not
/// heard of it then.
pub async fn prepare(store: &SharedStore, settings: &AcmeSettings) -> Result<(), Problem> {
    let (_, account) = read(store).await.map_err(local)?;
    if account.is_some_and(|account| account.directory == settings.directory) {
        return Ok(());
    }
    let (_, key) = Key::generate_pkcs8().map_err(|error| problem(&error))?;
    let client = AuthorityClient::new(settings.roots.as_deref()).map_err(local)?;
    let making = Account::builder_with_http(Box::new(client)).from_parts(
        String::new(),
        key.clone_key(),
        settings.directory.clone(),
    );
    let unregistered = making.await.map_err(|error| problem(&error))?;
    let credentials = Credentials {
        id: String::new(),
        key_pkcs8: URL_SAFE_NO_PAD.encode(key.secret_pkcs8_der()),
        directory: settings.directory.clone(),
    };
    let credentials = serde_json::to_string(&credentials).map_err(|error| local(error.into()))?;
    let account = AcmeAccount {
        v: RECORD_VERSION,
        directory: settings.directory.clone(),
        credentials: credentials.into(),
        thumbprint: unregistered.key_thumbprint().into(),
        contact: settings.contact.clone(),
        unknown: Unknown::new(),
    };
    write(store, &account).await.map_err(local)
}

fn local(error: anyhow::Error) -> Problem {
    Problem::new(kind::UNREACHABLE, &format!("{error:#}"))
}

/// Decodes a key as authorities hand it out, with padding or without.
fn decode(text: &str) -> anyhow::Result<Vec<u8>> {
    let text = text.trim().trim_end_matches('=');
    URL_SAFE_NO_PAD.decode(text).context("the key is not in base64url")
}

async fn write(store: &SharedStore, account: &AcmeAccount) -> anyhow::Result<()> {
    account.check_sizes()?;
    store.set(TypedKey::AcmeAccount.key(), record::encode(account).into()).await?;
    Ok(())
}

/// Makes the account known to its authority. One that the authority knows stays as it is, but for
/// the address of the person.
pub async fn register(store: &SharedStore) -> Result<(), Problem> {
    let (settings, stored) = read(store).await.map_err(local)?;
    let Some((settings, stored)) = settings.zip(stored) else { return Ok(()) };
    let client = AuthorityClient::new(settings.roots.as_deref()).map_err(local)?;
    let builder = Account::builder_with_http(Box::new(client));
    let contact = settings.contact.as_ref().map(|mail| format!("mailto:{mail}"));
    let contacts: Vec<&str> = contact.iter().map(String::as_str).collect();
    let (account, credentials) = match &settings.binding {
        // The client of the protocol makes the key of such an account itself.
        Some(binding) => {
            let mac = decode(binding.hmac_key.expose());
            let mac = mac.map_err(|error| Problem::new("malformed", &format!("{error:#}")))?;
            let external = ExternalAccountKey::new(binding.key_id.clone(), &mac);
            let new = NewAccount {
                contact: &contacts,
                terms_of_service_agreed: true,
                only_return_existing: false,
            };
            let making = builder.create(&new, settings.directory.clone(), Some(&external));
            making.await.map_err(|error| problem(&error))?
        }
        None => {
            let known: Credentials = serde_json::from_str(stored.credentials.expose())
                .context("the account in the store cannot be read")
                .map_err(local)?;
            let key = PrivatePkcs8KeyDer::from(decode(&known.key_pkcs8).map_err(local)?);
            let signing = Key::from_pkcs8_der(key.clone_key()).map_err(|error| problem(&error))?;
            let making = builder.create_from_key((signing, key.into()), settings.directory.clone());
            let (account, credentials) = making.await.map_err(|error| problem(&error))?;
            if !contacts.is_empty() {
                account.update_contacts(&contacts).await.map_err(|error| problem(&error))?;
            }
            (account, credentials)
        }
    };
    let credentials = serde_json::to_string(&credentials).map_err(|error| local(error.into()))?;
    let stored = AcmeAccount {
        credentials: credentials.into(),
        thumbprint: account.key_thumbprint().into(),
        contact: settings.contact.clone(),
        ..stored
    };
    write(store, &stored).await.map_err(local)
}

/// Keeps why there is no account, or that nothing stands in its way any more.
pub async fn note(
    store: &SharedStore,
    error: Option<model::acme::AcmeError>,
) -> anyhow::Result<()> {
    let key = TypedKey::AcmeRegistration.key();
    match error {
        Some(error) => {
            let note = AcmeRegistration { v: RECORD_VERSION, error, unknown: Unknown::new() };
            store.set(key, record::encode(&note).into()).await?;
        }
        None => drop(store.delete(key).await?),
    }
    Ok(())
}

/// Returns the address of the terms that a person has to agree to, as the directory names it.
pub async fn terms(directory: &str, roots: Option<&str>) -> anyhow::Result<Option<String>> {
    let client = AuthorityClient::new(roots)?;
    let request = Request::builder().uri(directory).header(USER_AGENT, "cortex");
    let request = request.body(BodyWrapper::default())?;
    let mut answer = client.request(request).await?;
    let body = answer.body.into_bytes().await.map_err(|error| anyhow::anyhow!("{error}"))?;
    anyhow::ensure!(answer.parts.status.is_success(), "it answers {}", answer.parts.status);
    let directory: Value = serde_json::from_slice(&body).context("this is no ACME directory")?;
    anyhow::ensure!(directory["newOrder"].is_string(), "this is no ACME directory");
    Ok(directory["meta"]["termsOfService"].as_str().map(str::to_owned))
}
