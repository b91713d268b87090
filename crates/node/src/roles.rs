//! The roles of this node: given at a start and kept in the data directory, so that the next start
//! needs no option.

use std::fs;
use std::io;

use anyhow::{Context, ensure};
use model::role::{Role, Roles};

use crate::backend::Backend;
use cluster::identity::Membership;
use os::layout::DataDirectory;

/// Returns the roles of this start. A node that keeps no store has to have joined its cluster as
/// one that keeps none, and the other way round.
pub fn settle(
    layout: &DataDirectory,
    asked: Option<&Roles>,
    store: &Backend,
    joins: bool,
) -> anyhow::Result<Roles> {
    let kept = read(layout)?;
    let before = kept.clone().unwrap_or_default();
    let roles = asked.cloned().or(kept).unwrap_or_default();
    if *store != Backend::Local {
        return Ok(roles);
    }
    let keeps = roles.has(Role::Store);
    match Membership::load(&layout.cluster())? {
        None => ensure!(
            keeps || joins,
            "a node without the role 'store' needs a cluster whose store it uses: make an \
             invitation on a node that keeps the store (`cortex nodes invite`) and start this one \
             with --join and it"
        ),
        Some(held) => ensure!(
            held.guest != keeps,
            "this node joined as one {} a store, and that does not change: it was '{before}' and \
             is to be '{roles}'. Remove it (`cortex nodes remove` on another node), then let it \
             join again with an empty --data-dir and the new --roles",
            if held.guest { "without" } else { "with" }
        ),
    }
    Ok(roles)
}

/// Returns what a start with these roles changes, in lines for the user; none on a first start, and
/// none if `settle` refuses it.
pub fn changes(layout: &DataDirectory, asked: &Roles) -> anyhow::Result<Vec<String>> {
    let Some(before) = read(layout)?.filter(|before| before != asked) else {
        return Ok(Vec::new());
    };
    let is_other_store = before.has(Role::Store) != asked.has(Role::Store);
    if is_other_store && Membership::load(&layout.cluster())?.is_some() {
        return Ok(Vec::new());
    }
    let change = |role: Role| match (before.has(role), asked.has(role)) {
        (true, false) => Some(format!("  no {} any more: {}", role.as_str(), without(role))),
        (false, true) => Some(format!("  {} from now on", role.as_str())),
        _ => None,
    };
    let head = format!("The roles of this node were '{before}' and are to be '{asked}':");
    Ok([head].into_iter().chain(Role::ALL.into_iter().filter_map(change)).collect())
}

fn without(role: Role) -> &'static str {
    match role {
        Role::Store => {
            "what its store holds stays in the data directory and is not used; applications that \
             only this node knew are not in the cluster that it joins"
        }
        Role::Agent => {
            "other nodes run what ran here, whose processes end within a minute; where no other \
             node has an agent, nobody watches over them"
        }
        Role::Router => "no public port is open here: clients have to ask another node",
        Role::Checker => {
            "checkers of other nodes judge the instances here, and where there are none, nobody \
             does"
        }
    }
}

/// Writes the roles; they are durable when it returns.
pub fn keep(layout: &DataDirectory, roles: &Roles) -> anyhow::Result<()> {
    if read(layout)?.as_ref() == Some(roles) {
        return Ok(());
    }
    let path = layout.roles();
    let fresh = path.with_extension("fresh");
    let written = (|| {
        let mut file = fs::File::create(&fresh)?;
        io::Write::write_all(&mut file, format!("{roles}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        fs::File::open(layout.root())?.sync_all()
    })();
    written.with_context(|| format!("{} cannot be written; free space for it", path.display()))
}

fn read(layout: &DataDirectory) -> anyhow::Result<Option<Roles>> {
    let path = layout.roles();
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).with_context(|| {
            format!("{} is damaged; say with --roles what this node does", path.display())
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(layout: &DataDirectory, asked: &str, expected: Result<&str, &str>) {
        let asked = (!asked.is_empty()).then(|| asked.parse().unwrap());
        let settled = settle(layout, asked.as_ref(), &Backend::Local, false);
        match (settled, expected) {
            (Ok(roles), Ok(expected)) => assert_eq!(roles.to_string(), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (settled, expected) => panic!("{settled:?}, not {expected:?}"),
        }
    }

    #[test]
    fn roles_stay_and_a_store_neither_comes_nor_goes() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), directory.path());
        check(&layout, "", Ok("store,agent,router,checker"));
        check(&layout, "agent", Err("--join"));
        keep(&layout, &"store,agent".parse().unwrap()).unwrap();
        check(&layout, "", Ok("store,agent"));
        let mut membership = Membership::load_or_found(&layout.cluster()).unwrap();
        check(&layout, "agent", Err("joined as one with a store"));
        check(&layout, "store", Ok("store"));
        membership.guest = true;
        membership.save(&layout.cluster()).unwrap();
        check(&layout, "", Err("joined as one without a store"));
        check(&layout, "agent,router", Ok("agent,router"));
    }

    #[test]
    fn what_other_roles_change_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), directory.path());
        let said = |asked: &str| changes(&layout, &asked.parse().unwrap()).unwrap();
        assert!(said("agent").is_empty(), "it is the first start");
        keep(&layout, &"store,agent,router".parse().unwrap()).unwrap();
        assert!(said("router,agent,store").is_empty());
        let lines = said("store,checker");
        assert!(lines[0].contains("'store,agent,router'") && lines[0].contains("'store,checker'"));
        for (line, needles) in [
            (&lines[1], ["no agent any more", "other nodes run what ran here"]),
            (&lines[2], ["no router any more", "ask another node"]),
            (&lines[3], ["checker", "from now on"]),
        ] {
            assert!(needles.iter().all(|needle| line.contains(needle)), "{lines:#?}");
        }
        assert!(said("agent,router").concat().contains("no store any more"));
        // This change is refused, with what to do instead.
        Membership::load_or_found(&layout.cluster()).unwrap();
        assert!(said("agent,router").is_empty());
    }

    #[test]
    fn a_damaged_file_is_told_of() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), directory.path());
        fs::write(layout.roles(), "cook").unwrap();
        check(&layout, "", Err("is damaged"));
    }
}
