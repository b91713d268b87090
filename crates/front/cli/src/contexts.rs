//! `cortex contexts`, `cortex use`: the platforms that this account has logged in to.

pub mod book;
pub mod choice;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use self::book::ContextBook;
use self::choice::LOCAL;
use super::{Json, Session, output};

#[derive(Debug, Args)]
pub struct Contexts {
    #[command(flatten)]
    json: Json,
}

/// A context, without what is secret in it.
#[derive(Debug, Serialize)]
struct ContextRow {
    name: String,
    current: bool,
    user: String,
    token: String,
    expires_at: String,
    cluster: String,
    addresses: Vec<String>,
}

impl Contexts {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        let book = ContextBook::load(&session.contexts()?)?;
        let rows = book.contexts.iter().map(|(name, context)| ContextRow {
            name: name.clone(),
            current: book.current.as_ref() == Some(name),
            user: context.user.clone(),
            token: context.token_name.clone(),
            expires_at: context.expires_at.clone(),
            cluster: context.cluster.clone(),
            addresses: context.nodes.iter().flat_map(|node| node.addresses.clone()).collect(),
        });
        let rows: Vec<ContextRow> = rows.collect();
        let none = "There are no contexts: commands go to the node on this machine. `cortex login` \
                    adds one.";
        let head = ["", "CONTEXT", "USER", "TOKEN", "EXPIRES", "NODES"];
        output::list(self.json, &rows, none, &head, |row| {
            let mark = if row.current { "*" } else { "" };
            vec![
                mark.into(),
                row.name.clone(),
                row.user.clone(),
                row.token.clone(),
                output::time(&row.expires_at),
                row.addresses.join(" "),
            ]
        })
    }
}

#[derive(Debug, Args)]
pub struct Use {
    /// A name that `cortex contexts` lists, or `local` for the node on this machine
    name: String,
}

impl Use {
    pub fn run(self, session: &Session) -> anyhow::Result<()> {
        let path = session.contexts()?;
        let mut book = ContextBook::load(&path)?;
        if self.name == LOCAL {
            book.current = None;
            book.save(&path)?;
            output::say("Commands go to the node on this machine.");
            return Ok(());
        }
        let Some(context) = book.contexts.get(&self.name) else {
            bail!("{}", book.no_context(&self.name));
        };
        output::say(&format!("Commands go to {}, as {}.", self.name, context.user));
        book.current = Some(self.name);
        book.save(&path)
    }
}
