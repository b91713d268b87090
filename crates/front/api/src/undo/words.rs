//! Changes in plain words, for people. Pure.

use model::ProcessType;
use model::change::{Change, ChangePart, DomainChoice};
use model::people::PersonRole;

/// Returns what a change did.
pub fn of_change(change: &Change) -> String {
    let words: Vec<String> = change.parts.iter().map(of_part).collect();
    match &change.undoes {
        None => words.join("; "),
        Some(_) => format!("undo: {}", words.join("; ")),
    }
}

pub fn of_part(part: &ChangePart) -> String {
    match part {
        ChangePart::Release { before: None, after, note } => {
            format!("{note} (the first release, {})", after.short())
        }
        ChangePart::Release { before: Some(before), after, note } => {
            format!("{note} ({} in place of {})", after.short(), before.short())
        }
        ChangePart::Scale { process, before, after } => scale(process, *before, *after),
        ChangePart::Domains { before, after } => domains(before, after),
        ChangePart::Port { before, after } => match (before.port, after.port) {
            (before, after) if before == after => "the port is chosen in another place".into(),
            (before, after) => format!("port from {} to {}", number(before), number(after)),
        },
        ChangePart::Maintenance { after: Some(_), .. } => "closed for maintenance".into(),
        ChangePart::Maintenance { after: None, .. } => "open again after maintenance".into(),
        ChangePart::Password { after: None, .. } => "asks for no password".into(),
        ChangePart::Password { before: None, .. } => "asks for a password".into(),
        ChangePart::Password { .. } => "asks for another password".into(),
        ChangePart::Role { user, before: None, after: Some(role) } => {
            format!("{user} is {}", a(*role))
        }
        ChangePart::Role { user, before: Some(role), after: None } => {
            format!("{user} is no longer {}", a(*role))
        }
        ChangePart::Role { user, before, after } => {
            let word = |role: &Option<PersonRole>| role.map_or("nothing", PersonRole::word);
            format!("{user} from {} to {}", word(before), word(after))
        }
        ChangePart::Variables { names } => format!("variables {}", names.join(", ")),
        ChangePart::Persist { paths } => format!("keeps {}", paths.join(", ")),
        ChangePart::Unknown => "something that a newer version of Cortex does".into(),
    }
}

fn scale(process: &ProcessType, before: Option<u32>, after: Option<u32>) -> String {
    let count = |count: Option<u32>| match count {
        Some(count) => count.to_string(),
        None => "what the release says".into(),
    };
    format!("{process} from {} to {}", count(before), count(after))
}

fn domains(before: &DomainChoice, after: &DomainChoice) -> String {
    let missing = |of: &DomainChoice, in_it: &DomainChoice| -> Vec<String> {
        of.names.iter().filter(|name| !in_it.names.contains(name)).cloned().collect()
    };
    let (added, removed) = (missing(after, before), missing(before, after));
    let mut words = Vec::new();
    if !added.is_empty() {
        words.push(format!("domains added: {}", added.join(", ")));
    }
    if !removed.is_empty() {
        words.push(format!("domains removed: {}", removed.join(", ")));
    }
    if words.is_empty() && before.chosen == after.chosen {
        words.push("domains in another order".into());
    }
    if before.chosen != after.chosen {
        words.push(match after.chosen {
            true => "domains chosen by commands".into(),
            false => "domains left to the project's file".into(),
        });
    }
    words.join("; ")
}

fn number(port: Option<u16>) -> String {
    port.map_or("none".into(), |port| port.to_string())
}

fn a(role: PersonRole) -> String {
    match role {
        PersonRole::Operator | PersonRole::Owner => format!("an {role}"),
        _ => format!("a {role}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_say_what_came_and_what_went() {
        let choice = |names: &[&str], chosen| DomainChoice {
            names: names.iter().map(|name| name.to_string()).collect(),
            chosen,
        };
        let words = domains(&choice(&["a.test"], true), &choice(&["b.test"], true));
        assert_eq!(words, "domains added: b.test; domains removed: a.test");
        let words = domains(&choice(&[], false), &choice(&["a.test"], true));
        assert_eq!(words, "domains added: a.test; domains chosen by commands");
        let words = domains(&choice(&["a.test"], true), &choice(&["a.test"], false));
        assert_eq!(words, "domains left to the project's file");
    }

    #[test]
    fn roles_are_said_as_people_say_them() {
        let role = |before, after| {
            of_part(&ChangePart::Role { user: "ana".parse().unwrap(), before, after })
        };
        assert_eq!(role(None, Some(PersonRole::Operator)), "ana is an operator");
        assert_eq!(role(Some(PersonRole::Viewer), None), "ana is no longer a viewer");
        let both = role(Some(PersonRole::Viewer), Some(PersonRole::Developer));
        assert_eq!(both, "ana from viewer to developer");
    }
}
