//! `cortex isolation`: what applications get that say nothing of their isolation, and with `-a`,
//! what one gets whatever it says.

use clap::Args;
use model::ApplicationName;

use super::{Json, Session, deploy, output};
use api_types::people::{
    ApplicationIsolation, IsolationAsked, IsolationMarkAsked, IsolationMarkShown, IsolationShown,
};
use client::encode;

const HELP: &str = "\
An application that is not trusted is marked by an owner, whatever its cortex.toml says:
  cortex isolation full -a shop                a network of its own, and no way out of it
  cortex isolation full -a shop --egress all   the internet, if its cortex.toml limits nothing
  cortex isolation standard -a shop            the machine's network, and its own files alone
  cortex isolation default -a shop             what its cortex.toml or the platform says again";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Isolation {
    /// full, standard, landlock, none, or auto: none while everybody is an owner, standard from the
    /// first person who is not; with -a: full, standard or default [default: show what it is]
    level: Option<String>,
    /// An application that is not trusted: what is pushed to it gets no less
    #[arg(short = 'a', long = "app", value_name = "NAME")]
    app: Option<String>,
    /// What it reaches with full: none or all [default: none]
    #[arg(long, requires = "app", requires = "level", value_name = "WHERE")]
    egress: Option<String>,
    #[command(flatten)]
    json: Json,
}

impl Isolation {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        if let Some(name) = &self.app {
            let name = name.parse()?;
            return match self.level {
                None => show(session, &name, self.json).await,
                Some(isolation) => {
                    let asked = IsolationMarkAsked { isolation, egress: self.egress };
                    mark_with(session, &name, asked, self.json).await
                }
            };
        }
        let path = "/v1/isolation";
        let shown: IsolationShown = match self.level {
            None => session.client.get(path).await?,
            Some(default) => session.client.post(path, &IsolationAsked { default }).await?,
        };
        if self.json.json {
            return output::json(&shown);
        }
        print(facts(&shown))
    }
}

fn print(facts: Vec<(&'static str, String)>) -> anyhow::Result<()> {
    for (label, value) in facts {
        output::print(&format!("{:<12} {value}", format!("{label}:")))?;
    }
    Ok(())
}

fn path(name: &ApplicationName) -> String {
    format!("/v1/apps/{}/isolation", encode(name.as_str()))
}

async fn show(session: &Session, name: &ApplicationName, json: Json) -> anyhow::Result<()> {
    let shown: ApplicationIsolation = session.client.get(&path(name)).await?;
    if json.json {
        return output::json(&shown);
    }
    print(facts_of_application(&shown))
}

async fn mark_with(
    session: &Session,
    name: &ApplicationName,
    asked: IsolationMarkAsked,
    json: Json,
) -> anyhow::Result<()> {
    output::begin(&format!("Changing the isolation of {name}"));
    let shown: ApplicationIsolation =
        output::finish(session.client.post(&path(name), &asked).await)?;
    match &shown.released {
        None => output::say("done"),
        Some(released) => {
            output::say(&format!("done, {}", released.release));
            deploy::follow(session, released, deploy::Url::Hidden).await?;
        }
    }
    show(session, name, json).await
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

fn facts_of_application(shown: &ApplicationIsolation) -> Vec<(&'static str, String)> {
    let with = |isolation: &Option<String>, egress: &Option<String>| {
        isolation.as_deref().map(|isolation| words(isolation, egress.as_deref()))
    };
    let given = with(&shown.isolation, &shown.egress);
    let asked = with(&shown.asked, &shown.asked_egress);
    let mut facts = vec![("Isolation", given.unwrap_or_else(|| "no release yet".into()))];
    facts.extend(asked.map(|asked| ("Asked for", asked)));
    facts.extend(shown.mark.as_ref().map(|shown| ("Marked", mark(shown))));
    facts
}

/// Returns what an owner wants at the least, in words.
pub fn mark(shown: &IsolationMarkShown) -> String {
    let wanted = words(&shown.isolation, shown.egress.as_deref());
    format!("{} wants {wanted}, since {}", shown.by, output::time(&shown.since))
}

fn words(isolation: &str, egress: Option<&str>) -> String {
    match egress {
        Some(egress) => format!("{isolation}, egress {egress}"),
        None => isolation.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_what_is_there_and_who_asked_for_it() {
        let (full, none) = (|| Some("full".to_owned()), || Some("none".to_owned()));
        let mark = IsolationMarkShown {
            isolation: "full".into(),
            egress: none(),
            by: "ada".into(),
            since: "2026-01-01T00:00:00Z".into(),
        };
        let shown = ApplicationIsolation {
            application: "shop".into(),
            isolation: full(),
            egress: none(),
            asked: none(),
            asked_egress: None,
            mark: Some(mark),
            released: None,
        };
        let said = facts_of_application(&shown);
        let [given, asked, marked] = &said[..] else { panic!("{said:?}") };
        assert_eq!((given.1.as_str(), asked.1.as_str()), ("full, egress none", "none"));
        assert!(marked.1.starts_with("ada wants full, egress none, since "), "{said:?}");
    }
}
