//! `cortex certs`, `certs add`, `certs remove`: certificates of one's own for an application's
//! domains.

mod authority;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use model::certificate::{CHAIN_BYTES_MAX, KEY_BYTES_MAX, SecretText};

use super::application::is_not_there;
use super::{App, Json, Session, output};
use api_types::certificates::{CertificateRow, CertificateUpload, CertificatesShown};
use client::encode;

const ALL: &str = "/v1/certificates";

#[derive(Debug, Args)]
pub struct Certs {
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Serve a certificate of your own for the application's domains, on all nodes
    #[command(visible_alias = "update")]
    Add {
        /// The certificate, then those of its authorities, in PEM form; `-` for what comes in
        chain: PathBuf,
        /// Its private key in PEM form, without a passphrase
        key: PathBuf,
        #[command(flatten)]
        app: App,
    },
    /// Take a certificate away; clients get another one for that name, or none
    Remove {
        /// The name that `certs list` shows
        name: String,
        #[command(flatten)]
        app: App,
    },
    /// Agree to an authority's terms, so that the cluster orders certificates for the domains of
    /// its applications and renews them
    Agree(authority::Agree),
    /// Show which authority was agreed to
    Authority(authority::Authority),
    /// Try again now to get a certificate for a domain, after what stood in its way is mended
    Retry(authority::Retry),
    /// List the certificates for the application's domains, and which nodes hold them
    List {
        /// Show the certificates of all applications, and of the platform
        #[arg(long, conflicts_with = "app")]
        all: bool,
        #[command(flatten)]
        app: App,
        #[command(flatten)]
        json: Json,
    },
}

impl Certs {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let outer = self.app;
        match self.action {
            None => list_of(session, &outer, self.json).await,
            Some(Action::Agree(agree)) => agree.run(session).await,
            Some(Action::Authority(authority)) => authority.run(session).await,
            Some(Action::Retry(retry)) => retry.run(session, outer).await,
            Some(Action::List { all: true, json, .. }) => {
                list(session.client.get(ALL).await?, json.or(self.json))
            }
            Some(Action::List { app, json, .. }) => {
                list_of(session, &app.or(outer), json.or(self.json)).await
            }
            Some(Action::Add { chain, key, app }) => {
                add(session, &app.or(outer), &chain, &key).await
            }
            Some(Action::Remove { name, app }) => {
                let path = format!("{}/{}", path(&app.or(outer))?, encode(&name));
                output::begin(&format!("Removing the certificate for {name}"));
                let _: CertificatesShown = output::finish(session.client.delete(&path).await)?;
                output::say("done");
                Ok(())
            }
        }
    }
}

fn path(app: &App) -> anyhow::Result<String> {
    Ok(format!("/v1/apps/{}/certificates", encode(app.name()?.as_str())))
}

async fn add(session: &Session, app: &App, chain: &Path, key: &Path) -> anyhow::Result<()> {
    ensure!(key != Path::new("-"), "name the file of the private key");
    let of_key = SecretText::from(text(key, "the private key", KEY_BYTES_MAX)?);
    let chain = text(chain, "the certificate", CHAIN_BYTES_MAX)?;
    output::begin(&format!("Adding a certificate to {}", app.name()?));
    let upload = CertificateUpload { chain, key: of_key };
    let shown: CertificatesShown = output::finish(session.client.post(&path(app)?, &upload).await)?;
    output::say("done");
    shown.notes.iter().for_each(|note| output::say(note));
    rows(Json { json: false }, &shown)
}

/// Reads a file as text, which PEM is; nothing of it is in what is said.
fn text(path: &Path, what: &str, bytes_max: usize) -> anyhow::Result<String> {
    let of = || format!("{what} {}", path.display());
    let mut bytes = Vec::new();
    let limit = u64::try_from(bytes_max)? + 1;
    let read = match path == Path::new("-") {
        true => std::io::stdin().lock().take(limit).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)),
    };
    read.with_context(of)?;
    ensure!(bytes.len() <= bytes_max, "{} has more than {bytes_max} bytes", of());
    String::from_utf8(bytes).ok().with_context(|| format!("{} is not in PEM form", of()))
}

/// Lists the certificates of an application; all of them where none is named, and the directory is
/// none either.
async fn list_of(session: &Session, app: &App, json: Json) -> anyhow::Result<()> {
    let shown: anyhow::Result<CertificatesShown> = session.client.get(&path(app)?).await;
    match shown {
        Err(error) if is_not_there(&error) && !app.is_named()? && !json.json => {
            // Who may not see the platform is told how to name an application.
            let Ok(all) = session.client.get(ALL).await else { return Err(error) };
            output::say(
                "This directory is no application, so these are all certificates; `-a NAME` shows \
                 those of one.",
            );
            list(all, json)
        }
        shown => list(shown?, json),
    }
}

fn list(shown: CertificatesShown, json: Json) -> anyhow::Result<()> {
    rows(json, &shown)?;
    shown.notes.iter().for_each(|note| output::say(note));
    Ok(())
}

fn rows(json: Json, shown: &CertificatesShown) -> anyhow::Result<()> {
    let none = "There are no certificates. `cortex certs agree` lets the cluster order them, `cortex \
                certs add CHAIN KEY` brings one.";
    let head = ["NAME", "APP", "ISSUER", "SOURCE", "EXPIRES", "STATE", "HELD BY"];
    output::list(json, &shown.certificates, none, &head, |row| {
        vec![
            row.name.clone(),
            row.application.clone().unwrap_or_else(|| "-".into()),
            row.issuer.clone(),
            row.source.clone(),
            output::time(&row.not_after),
            row.state.clone(),
            held_by(row),
        ]
    })
}

fn held_by(row: &CertificateRow) -> String {
    match row.missing_on.is_empty() {
        true => row.held_by.join(", "),
        false => format!("{}; not {}", row.held_by.join(", "), row.missing_on.join(", ")),
    }
}
