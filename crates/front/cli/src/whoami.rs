//! `cortex whoami`: who one is on the platform that commands go to, and which nodes that has.

use clap::Args;

use super::users::role;
use super::{Json, Session, output};
use api_types::login::Whoami as Told;

#[derive(Debug, Args)]
pub struct Whoami {
    #[command(flatten)]
    json: Json,
}

impl Whoami {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let told: Told = session.client.get("/v1/whoami").await?;
        if self.json.json {
            return output::json(&told);
        }
        for line in lines(&told, session.context.as_deref()) {
            output::print(&line)?;
        }
        Ok(())
    }
}

fn lines(told: &Told, context: Option<&str>) -> Vec<String> {
    let roles: Vec<String> = told.roles.iter().map(role).collect();
    let may = match (told.machine, roles.is_empty()) {
        (true, _) => "the owner of the machine".into(),
        (false, true) => "no role yet".into(),
        (false, false) => roles.join(", "),
    };
    let mut lines = vec![format!("{}: {may}", told.user)];
    if let Some(token) = &told.token {
        let limit = token.limit.as_ref().map(|limit| format!(", limited to {}", role(limit)));
        let (name, until) = (&token.name, output::time(&token.expires_at));
        lines.push(format!("token: {name}, until {until}{}", limit.unwrap_or_default()));
    }
    let context = context.map_or("the node on this machine", |name| name);
    lines.push(format!("context: {context}, answered by {}", told.node));
    for node in &told.nodes {
        if node.fingerprint.is_empty() {
            lines.push(format!("platform: https://{}", node.addresses.join(",")));
            continue;
        }
        lines.push(format!(
            "node: {} https://{}#{}",
            node.id,
            node.addresses.join(","),
            node.fingerprint
        ));
    }
    lines
}
