//! `cortex login`, `cortex logout`: a token for this account, by an invitation, and its end.

use access_core::TokenText;
use anyhow::{Context, bail};
use clap::Args;
use model::TokenName;

use super::contexts::book::{ContextBook, PlatformContext, nodes_of};
use super::contexts::choice::LOCAL;
use super::{Session, output};
use api_types::login::{LogIn, LoggedIn, LoginLine};
use api_types::people::TokenRow;
use client::{Client, encode};

/// The name of a token whose machine has none that could be one.
const UNNAMED_MACHINE: &str = "computer";

#[derive(Debug, Args)]
pub struct Login {
    /// What `cortex users invite` printed
    line: String,
    /// What to call the platform here [default: the host of its first node]
    #[arg(long, value_name = "CONTEXT")]
    name: Option<String>,
    /// What to call the token [default: this machine's name]
    #[arg(long, value_name = "TOKEN")]
    token_name: Option<String>,
}

impl Login {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let ask = "ask whoever invited you for the line again";
        let line: LoginLine =
            self.line.parse().with_context(|| format!("that is not the whole line; {ask}"))?;
        let code = TokenText::parse(&line.code)
            .with_context(|| format!("the code at the end of the line is wrong; {ask}"))?;
        let path = session.contexts()?;
        let mut book = ContextBook::load(&path)?;
        let wanted = self.name.unwrap_or_else(|| host(&line.url.addresses[0]));
        if wanted == LOCAL {
            bail!("'{LOCAL}' is the node on this machine: choose another --name");
        }
        let name = match self.token_name {
            Some(name) => name,
            None => machine(),
        };
        let nodes = nodes_of(&line.url);
        let client = Client::of_cluster(nodes.clone()).with_token(&code);
        let made: LoggedIn = client.post("/v1/login", &LogIn { name }).await?;
        let mut context = PlatformContext {
            user: made.row.user.clone(),
            token: made.token.clone(),
            token_name: made.row.name.clone(),
            expires_at: made.row.expires_at.clone(),
            cluster: made.cluster,
            roster: String::new(),
            nodes,
            invited_at: line.url.addresses,
            invited_by: line.url.fingerprint,
        };
        context.learn(made.nodes, made.roster);
        let old = book.contexts.values().find(|old| {
            (old.cluster.as_str(), &old.user) == (context.cluster.as_str(), &context.user)
        });
        let old = old.map(|old| old.token_name.clone());
        let (user, nodes) = (context.user.clone(), context.nodes.clone());
        let name = book.add(&wanted, context)?;
        book.save(&path).with_context(|| {
            let token = &made.row.name;
            format!("the token '{token}' was made and could not be kept: have it revoked")
        })?;
        if let Some(old) = old.filter(|old| *old != made.row.name) {
            let client = Client::of_cluster(nodes).with_token(&TokenText::parse(&made.token)?);
            let revoking = format!("/v1/tokens/{}/{}", encode(&user), encode(&old));
            client.delete::<TokenRow>(&revoking).await.ok();
        }
        output::say(&format!(
            "Logged in to {name} as {user}, until {}. Commands go there from now on.",
            output::time(&made.row.expires_at)
        ));
        if Client::new(&session.layout).is_answering().await {
            output::say("`cortex use local` brings them back to the node on this machine.");
        }
        Ok(())
    }
}

/// Returns the host of `HOST:PORT`.
fn host(address: &str) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_matches(['[', ']']).to_string()
}

/// Returns this machine's name, as far as a token can have it.
fn machine() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let name: String = name.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    let name = name.trim_matches('-').to_string();
    if name.parse::<TokenName>().is_ok() { name } else { UNNAMED_MACHINE.into() }
}

#[derive(Debug, Args)]
pub struct Logout {
    /// The context to leave [default: the one in use]
    name: Option<String>,
    /// Forget the token without having it revoked
    #[arg(long)]
    forget: bool,
}

impl Logout {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let path = session.contexts()?;
        let mut book = ContextBook::load(&path)?;
        let Some(name) = self.name.or_else(|| session.context.clone()).or(book.current.clone())
        else {
            bail!(
                "no context is in use: `cortex contexts` lists all, `cortex logout NAME` ends one"
            );
        };
        let Some(context) = book.contexts.get(&name) else { bail!("{}", book.no_context(&name)) };
        let (user, token) = (context.user.clone(), context.token_name.clone());
        if !self.forget {
            let text = TokenText::parse(&context.token).context("its token is damaged")?;
            let client = Client::of_cluster(context.nodes.clone()).with_token(&text);
            let revoking = format!("/v1/tokens/{}/{}", encode(&user), encode(&token));
            match client.delete::<TokenRow>(&revoking).await {
                Ok(_) => {}
                Err(error) if is_over(&error) => {}
                Err(error) => {
                    return Err(error.context(format!(
                        "the token '{token}' could not be revoked; `cortex logout {name} --forget` \
                         only forgets it here"
                    )));
                }
            }
        }
        book.remove(&name);
        book.save(&path)?;
        let ended = if self.forget { "was forgotten" } else { "is good no more" };
        output::say(&format!("Logged out of {name}: the token '{token}' of {user} {ended}."));
        Ok(())
    }
}

/// Returns whether the token was good for nothing already.
fn is_over(error: &anyhow::Error) -> bool {
    let Some(client::ClientError::Problem(problem)) = error.downcast_ref() else { return false };
    matches!(problem.code.as_str(), "token_revoked" | "token_expired" | "token_unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_called_after_hosts() {
        assert_eq!(host("192.0.2.7:8205"), "192.0.2.7");
        assert_eq!(host("[2001:db8::1]:8205"), "2001:db8::1");
        assert!(machine().parse::<TokenName>().is_ok());
    }
}
