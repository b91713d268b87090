//! The choice of the platform that a command speaks to: the node with a data directory that is
//! named, then a context that is named, a URL, the context in use, and the node on this machine.

use std::path::Path;

use access_core::TokenText;
use anyhow::{Context, bail};

use super::book::{ContextBook, nodes_of};
use crate::{Global, output};
use api_types::login::{ClusterUrl, Whoami};
use client::Client;
use os::layout::DataDirectory;

/// The name for the node on this machine, which no context can have.
pub const LOCAL: &str = "local";

/// The client of a command, and the context that it is of.
pub struct Chosen {
    pub client: Client,
    pub context: Option<String>,
}

/// Returns the client of the node on this machine, for commands that are about no other.
pub fn local(global: &Global, layout: &DataDirectory) -> anyhow::Result<Chosen> {
    let client = Client::new(layout);
    let client = match token(global)? {
        Some(token) => client.with_token(&token),
        None => client,
    };
    Ok(Chosen { client, context: None })
}

/// Returns the token that the command line or the environment names.
fn token(global: &Global) -> anyhow::Result<Option<TokenText>> {
    let said = global.token.as_deref().filter(|text| !text.is_empty());
    said.map(TokenText::parse).transpose().context("CORTEX_TOKEN is not usable")
}

/// Chooses for a command that may be about any platform.
pub fn choose(global: &Global, layout: &DataDirectory, path: &Path) -> anyhow::Result<Chosen> {
    if global.data_dir.is_some() {
        return local(global, layout);
    }
    let token = token(global)?;
    if let Some(url) = global.url.as_deref().filter(|_| global.context.is_none()) {
        let url: ClusterUrl = url.parse().with_context(|| {
            "CORTEX_URL is not usable: it is https://HOST:PORT#FINGERPRINT, as `cortex whoami` shows it"
        })?;
        let alone = "CORTEX_URL is set without CORTEX_TOKEN: set both, or neither";
        let client = Client::of_cluster(nodes_of(&url)).with_token(&token.context(alone)?);
        return Ok(Chosen { client, context: None });
    }
    let book = ContextBook::load(path)?;
    let Some(name) = global.context.clone().or(book.current.clone()).filter(|name| name != LOCAL)
    else {
        return local(global, layout);
    };
    let Some(context) = book.contexts.get(&name) else { bail!("{}", book.no_context(&name)) };
    let own = TokenText::parse(&context.token)
        .with_context(|| format!("the token of context {name} is damaged: log in again"))?;
    let client = Client::of_cluster(context.nodes.clone()).with_token(&token.unwrap_or(own));
    Ok(Chosen { client, context: Some(name) })
}

/// Keeps the nodes of the context in mind if they are others now. A command has done its work by
/// then, so that nothing here fails it.
pub async fn refresh(client: &Client, context: &str, path: &Path) {
    let Some(roster) = client.roster() else { return };
    let Ok(book) = ContextBook::load(path) else { return };
    if book.contexts.get(context).is_none_or(|known| known.roster == roster) {
        return;
    }
    let Ok(told) = client.get::<Whoami>("/v1/whoami").await else { return };
    // Another command may have written it meanwhile.
    let Ok(mut book) = ContextBook::load(path) else { return };
    let Some(known) = book.contexts.get_mut(context) else { return };
    known.learn(told.nodes, told.roster);
    if let Err(error) = book.save(path) {
        output::say(&format!("Warning: {error:#}"));
    }
}
