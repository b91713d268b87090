//! What this node does: told at a start, kept in the data directory, so that the next start needs
//! no option.

use std::fs;
use std::io;

use anyhow::{Context, ensure};
use model::role::{Role, Roles};

use crate::layout::DataDirectory;
use crate::store::backend::Backend;
use crate::store::peers::identity::Membership;

/// The roles of this start. A node that keeps no store has to have come into its cluster as one
/// that keeps none, and the other way round.
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

/// Durable when it returns.
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
    fn a_damaged_file_is_told_of() {
        let directory = tempfile::tempdir().unwrap();
        let layout = DataDirectory::new(directory.path().into(), directory.path());
        fs::write(layout.roles(), "cook").unwrap();
        check(&layout, "", Err("is damaged"));
    }
}
