//! `cortex certs agree`, `certs authority`, `certs retry`: certificates that the cluster orders.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use model::certificate::SecretText;

use crate::authority::{contact, directory, read_roots};
use crate::{App, Json, Session, output};
use api_types::authority::{AuthorityAsked, AuthorityShown, TermsShown};
use client::encode;

const PATH: &str = "/v1/authority";

#[derive(Debug, Args)]
pub struct Agree {
    /// Agree to the terms that the authority names; without it they are shown
    #[arg(long)]
    yes: bool,
    /// The authority's directory [default: the one in use, or that of Let's Encrypt]
    #[arg(long, value_name = "URL", value_parser = directory)]
    directory: Option<String>,
    /// The address at which the authority writes to you
    #[arg(long, value_name = "MAIL", value_parser = contact)]
    contact: Option<String>,
    /// What vouches for the authority's own server, in PEM form, if the nodes do not know it
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The profile of certificates, of those that the authority offers, such as `shortlived`
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// The id of the key that the authority gave you, if it wants to know whose the account is
    #[arg(long, value_name = "ID", requires = "eab_key_file")]
    eab_key_id: Option<String>,
    /// The file with that key
    #[arg(long, value_name = "FILE", requires = "eab_key_id")]
    eab_key_file: Option<PathBuf>,
    /// A program on every node that makes records in DNS for names with a star: it is run as
    /// `PROGRAM present|cleanup NAME VALUE`
    #[arg(long, value_name = "PROGRAM")]
    dns_hook: Option<String>,
}

impl Agree {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let key = self.eab_key_file.as_ref().map(|file| {
            let read = std::fs::read_to_string(file);
            read.with_context(|| format!("the key {} cannot be read", file.display()))
        });
        let key = key.transpose()?.map(|key| SecretText::from(key.trim().to_owned()));
        let asked = AuthorityAsked {
            directory: self.directory,
            contact: self.contact,
            roots: self.ca.as_deref().map(read_roots).transpose()?,
            profile: self.profile,
            eab_key_id: self.eab_key_id,
            eab_key: key,
            dns_hook: self.dns_hook,
        };
        if !self.yes {
            let path = format!("{PATH}/terms");
            let shown: TermsShown = session.client.post(&path, &asked).await?;
            let terms = shown.terms.unwrap_or_else(|| "it names none".into());
            output::say(&format!("Authority: {}", shown.directory));
            output::say(&format!("Its terms: {terms}"));
            bail!(
                "nothing was changed: read the terms, and say that you agree by the same command \
                 with --yes"
            );
        }
        output::begin("Agreeing to the authority's terms");
        let shown: AuthorityShown = output::finish(session.client.post(PATH, &asked).await)?;
        output::say("done");
        print(&shown)
    }
}

#[derive(Debug, Args)]
pub struct Authority {
    /// Take the agreement back: nothing is ordered or renewed any more
    #[arg(long)]
    withdraw: bool,
    #[command(flatten)]
    json: Json,
}

impl Authority {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let shown: AuthorityShown = match self.withdraw {
            true => session.client.delete(PATH).await?,
            false => session.client.get(PATH).await?,
        };
        if self.json.json { output::json(&shown) } else { print(&shown) }
    }
}

fn print(shown: &AuthorityShown) -> anyhow::Result<()> {
    let lines = [
        ("directory", shown.directory.clone()),
        ("contact", shown.contact.clone()),
        ("profile", shown.profile.clone()),
        ("program for DNS", shown.dns_hook.clone()),
        ("agreed at", shown.agreed_at.as_deref().map(output::time)),
        ("agreed by", shown.agreed_by.clone()),
    ];
    for (label, value) in lines {
        if let Some(value) = value {
            output::print(&format!("{label:<16}{}", output::plain(&value)))?;
        }
    }
    output::print(&format!("{:<16}{}", "account", output::plain(&shown.account)))
}

#[derive(Debug, Args)]
pub struct Retry {
    /// The domain whose certificate is to be tried again, now that the cause is mended
    domain: String,
    /// It is a name of the platform itself, and of no application
    #[arg(long, conflicts_with = "app")]
    platform: bool,
    #[command(flatten)]
    app: App,
}

impl Retry {
    pub async fn run(self, session: &Session, outer: App) -> anyhow::Result<()> {
        let domain = encode(&self.domain);
        let (path, shows) = match self.platform {
            true => (format!("/v1/certificates/{domain}/retry"), "cortex status".to_owned()),
            false => {
                let app = self.app.or(outer).name()?;
                let path = format!("/v1/apps/{}/domains/{domain}/retry", encode(app.as_str()));
                (path, format!("cortex domains -a {app}"))
            }
        };
        let again: bool = session.client.post(&path, &()).await?;
        output::say(&match again {
            true => format!("It is tried again now; `{shows}` shows how far it is."),
            false => format!("There is nothing to hurry: `{shows}` shows what is next."),
        });
        Ok(())
    }
}
