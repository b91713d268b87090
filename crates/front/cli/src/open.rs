//! `cortex open`.

use std::process::{Command, Stdio};

use anyhow::Context;
use clap::Args;

use super::{App, Session, output};
use api_types::ApplicationShown;
use client::encode;

/// The program that desktops provide to show a URL.
const BROWSER: &str = "xdg-open";

#[derive(Debug, Args)]
pub struct Open {
    #[command(flatten)]
    app: App,
}

impl Open {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let name = self.app.name()?;
        let shown: ApplicationShown =
            session.client.get(&format!("/v1/apps/{}", encode(name.as_str()))).await?;
        let url = shown.row.url.with_context(|| {
            format!("{name} has no URL: it has no web process yet; see `cortex info -a {name}`")
        })?;
        output::print(&url)?;
        let mut browser = Command::new(BROWSER);
        browser.arg(&url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // A server has no browser, and the URL was printed.
        browser.spawn().map(drop).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error).context("the browser cannot be started"),
        })
    }
}
