//! `cortex isolation`: what applications get that say nothing of their isolation.

use clap::Args;

use super::{Json, Session, output};
use api_types::people::{IsolationAsked, IsolationShown};

#[derive(Debug, Args)]
pub struct Isolation {
    /// full, standard, landlock, none, or auto: none while everybody is an owner, standard from the
    /// first person who is not [default: show what it is]
    default: Option<String>,
    #[command(flatten)]
    json: Json,
}

impl Isolation {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let path = "/v1/isolation";
        let shown: IsolationShown = match self.default {
            None => session.client.get(path).await?,
            Some(default) => session.client.post(path, &IsolationAsked { default }).await?,
        };
        if self.json.json {
            return output::json(&shown);
        }
        for (label, value) in facts(&shown) {
            output::print(&format!("{:<12} {value}", format!("{label}:")))?;
        }
        Ok(())
    }
}

fn facts(shown: &IsolationShown) -> Vec<(&'static str, String)> {
    let mut facts = vec![("Default", format!("{} ({})", shown.default, shown.why))];
    if !shown.without.is_empty() {
        let names = shown.without.join(", ");
        facts.push(("Without", format!("{names}: push again what is to run behind a wall")));
    }
    facts.extend(shown.obstacle.clone().map(|why| ("This node", format!("builds no wall: {why}"))));
    facts
}
