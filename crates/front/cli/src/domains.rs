//! `cortex domains`, `domains add`, `domains remove`, `domains reset`.

use std::net::IpAddr;

use clap::{Args, Subcommand};

use super::{App, Json, Session, output};
use api_types::authority::{ArrivalStatus, CertificateStatus, DomainStatus, DomainsStatus};
use api_types::{DomainsChange, DomainsShown};
use client::encode;

#[derive(Debug, Args)]
pub struct Domains {
    #[command(flatten)]
    app: App,
    #[command(flatten)]
    json: Json,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Let host names lead to an application; from then on commands decide which ones do, and
    /// cortex.toml does not
    Add {
        /// `shop.example.org`, or `*.example.org` for every name below
        #[arg(required = true, value_name = "DOMAIN")]
        domains: Vec<String>,
        #[command(flatten)]
        app: App,
    },
    /// Take host names from an application, so that others can have them
    Remove {
        #[arg(required = true, value_name = "DOMAIN")]
        domains: Vec<String>,
        #[command(flatten)]
        app: App,
    },
    /// Leave the host names to cortex.toml again, from the next push on
    Reset {
        #[command(flatten)]
        app: App,
    },
    /// List the host names besides NAME.localhost
    List {
        #[command(flatten)]
        app: App,
        #[command(flatten)]
        json: Json,
    },
}

impl Domains {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let outer = self.app;
        let (app, verb, change) = match self.action {
            None => return list(session, &outer, self.json).await,
            Some(Action::List { app, json }) => {
                let json = json.or(self.json);
                return list(session, &app.or(outer), json).await;
            }
            Some(Action::Add { domains: add, app }) => {
                (app, "Adding", DomainsChange { add, ..DomainsChange::default() })
            }
            Some(Action::Remove { domains: remove, app }) => {
                (app, "Removing", DomainsChange { remove, ..DomainsChange::default() })
            }
            Some(Action::Reset { app }) => {
                (app, "Resetting", DomainsChange { reset: true, ..DomainsChange::default() })
            }
        };
        apply(session, &app.or(outer), verb, &change).await
    }
}

fn path(name: &model::ApplicationName) -> String {
    format!("/v1/apps/{}/domains", encode(name.as_str()))
}

async fn list(session: &Session, app: &App, json: Json) -> anyhow::Result<()> {
    let path = format!("{}/status", path(&app.name()?));
    let shown: DomainsStatus = session.client.get(&path).await?;
    if json.json {
        return output::json(&shown);
    }
    if shown.domains.is_empty() {
        let name = &shown.application;
        output::say(&format!("{name} has no domains beside {name}.localhost."));
    }
    if shown.password_since.is_some() {
        let name = &shown.application;
        output::say(&format!("{name} asks for a password: `cortex password -a {name}`"));
    }
    shown.domains.iter().try_for_each(print_status)
}

/// Prints a domain with what is known of it, and below it what there is to do.
fn print_status(row: &DomainStatus) -> anyhow::Result<()> {
    output::print(&row.domain)?;
    let line =
        |label: &str, text: &str| output::print(&format!("  {label:<12}{}", output::plain(text)));
    line("DNS", &dns(row))?;
    line("requests", &arrival(row))?;
    line("certificate", &certificate(&row.certificate))?;
    let CertificateStatus { error, advice, .. } = &row.certificate;
    if let Some(error) = error {
        line("last error", error)?;
    }
    if let Some(advice) = advice {
        line("to do", advice)?;
    }
    row.clash.iter().for_each(|clash| output::say(&format!("  {clash}")));
    Ok(())
}

fn dns(row: &DomainStatus) -> String {
    let list = |all: &[IpAddr]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let found = list(&row.dns.found);
    match (&row.dns.problem, row.dns.wanted.is_empty()) {
        (None, _) => found,
        (Some(problem), true) => format!("{problem}; it must lead to this cluster"),
        (Some(problem), false) => {
            let records = row.dns.wanted.iter().map(|address| match address {
                IpAddr::V4(address) => format!("{} A {address}", row.domain),
                IpAddr::V6(address) => format!("{} AAAA {address}", row.domain),
            });
            format!("{problem}; it must say {}", records.collect::<Vec<_>>().join(", or "))
        }
    }
}

fn arrival(row: &DomainStatus) -> String {
    let ArrivalStatus { state, why, seen_from } = &row.arrival;
    let words = match state.as_str() {
        "here" => "come here",
        "elsewhere" => "come somewhere else",
        "nowhere" => "do not come here",
        _ => "not tested",
    };
    let from = seen_from.as_ref().map(|node| format!(" (asked from {node})")).unwrap_or_default();
    let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    format!("{words}{from}{why}")
}

pub fn certificate(status: &CertificateStatus) -> String {
    let CertificateStatus { state, issuer, not_after, renewal, .. } = status;
    let mut text = state.clone();
    if let Some((issuer, not_after)) = issuer.as_ref().zip(not_after.as_ref()) {
        text.push_str(&format!("; of {issuer}, until {}", output::time(not_after)));
    }
    if let Some(renewal) = renewal {
        text.push_str(&format!(", renewed {}", output::time(renewal)));
    }
    text
}

async fn apply(
    session: &Session,
    app: &App,
    verb: &str,
    change: &DomainsChange,
) -> anyhow::Result<()> {
    let name = app.name()?;
    let all: Vec<&str> = change.add.iter().chain(&change.remove).map(String::as_str).collect();
    let what = if all.is_empty() { "domains".into() } else { all.join(", ") };
    output::begin(&format!("{verb} {what} of {name}"));
    let shown: DomainsShown = output::finish(session.client.post(&path(&name), change).await)?;
    output::say("done");
    shown.notes.iter().for_each(|note| output::say(note));
    print(&shown)
}

fn print(shown: &DomainsShown) -> anyhow::Result<()> {
    for row in &shown.domains {
        output::print(&row.domain)?;
        row.clash.iter().for_each(|clash| output::say(&format!("  {clash}")));
    }
    Ok(())
}
