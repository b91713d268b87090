//! The list of nodes that keep the store: from the roster, and saved in DATA/cluster, so that a
//! start finds one of them even if those of the invitation are gone.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use model::NodeId;
use model::hex::{from_hex, to_hex};
use serde::{Deserialize, Serialize};

use crate::identity::{KeyPin, Seed, write_private};
use crate::roster::{Addresses, Roster};

const FORMAT: u32 = 1;
/// The number of nodes in the list: one of them has to be alive, and a file of this length is read
/// in no time.
const KEEPERS_MAX: usize = 256;

#[derive(Debug, Serialize, Deserialize)]
struct File {
    v: u32,
    keepers: Vec<Seed>,
}

pub struct Keepers {
    path: PathBuf,
    known: Mutex<Roster>,
}

impl Keepers {
    /// Loads the list as it was last known; at first it is that of the invitation.
    pub fn load(path: PathBuf, seeds: Vec<Seed>) -> anyhow::Result<Keepers> {
        let said = || {
            format!(
                "{} cannot be read; remove it to start with those that were there \
             when this node joined",
                path.display()
            )
        };
        let seeds = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => seeds,
            read => {
                let file: File =
                    serde_json::from_slice(&read.with_context(said)?).with_context(said)?;
                ensure!(file.v <= FORMAT, "a newer version of Cortex wrote {}", path.display());
                file.keepers
            }
        };
        let mut known = Roster::default();
        for Seed { id, addresses, pin } in seeds {
            known.pins.extend(pin.as_deref().and_then(from_hex).map(|pin| (id.clone(), pin)));
            known.addresses.insert(id, addresses);
        }
        Ok(Keepers { path, known: Mutex::new(known) })
    }

    fn known(&self) -> MutexGuard<'_, Roster> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn ids(&self) -> Vec<NodeId> {
        self.known().addresses.keys().cloned().collect()
    }

    /// Returns the addresses of the nodes.
    pub fn addresses(&self) -> Addresses {
        self.known().addresses.clone()
    }

    /// Returns the pin that a node has to show.
    pub fn pin_of(&self, node: &NodeId) -> Option<KeyPin> {
        self.known().pins.get(node).copied()
    }

    /// Replaces the list; returns whether it changed. An empty roster is ignored: the node that was
    /// asked may not have it yet.
    pub fn replace(&self, fresh: Roster) -> bool {
        let mut fresh = fresh.keepers();
        fresh.addresses.retain(|_, addresses| !addresses.is_empty());
        while fresh.addresses.len() > KEEPERS_MAX {
            fresh.addresses.pop_last();
        }
        let Roster { addresses, pins, .. } = fresh.clone();
        let mut known = self.known();
        if addresses.is_empty() || (known.addresses == addresses && known.pins == pins) {
            return false;
        }
        *known = fresh;
        drop(known);
        let seed = |(id, addresses)| {
            let pin = pins.get(&id).map(|pin| to_hex(pin));
            Seed { id, addresses, pin }
        };
        let file = File { v: FORMAT, keepers: addresses.into_iter().map(seed).collect() };
        let written = serde_json::to_vec_pretty(&file).map_err(Into::into);
        if let Err(error) = written.and_then(|bytes| write_private(&self.path, &bytes)) {
            tracing::warn!(error = format!("{error:#}"), "remote.list_not_kept");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_keepers_outlives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keepers.json");
        let seed = |id: &str, at: &str| {
            let (id, addresses) = (id.parse().unwrap(), vec![at.into()]);
            Seed { id, addresses, pin: Some(to_hex(&[7; 32])) }
        };
        let keepers = Keepers::load(path.clone(), vec![seed("a", "1:1")]).unwrap();
        let a: NodeId = "a".parse().unwrap();
        assert_eq!((keepers.ids(), keepers.pin_of(&a)), (vec![a.clone()], Some([7; 32])));
        assert!(!keepers.replace(Roster::default()), "an empty roster is none");
        let mut fresh = Roster::default();
        for (id, at) in [("b", "2:2"), ("c", "3:3"), ("guest", "4:4")] {
            fresh.addresses.insert(id.parse().unwrap(), vec![at.into()]);
        }
        fresh.pins.insert("c".parse().unwrap(), [9; 32]);
        fresh.guests.insert("guest".parse().unwrap());
        assert!(keepers.replace(fresh.clone()) && !keepers.replace(fresh.clone()));
        let again = Keepers::load(path.clone(), vec![seed("a", "1:1")]).unwrap();
        assert_eq!(again.addresses(), fresh.clone().keepers().addresses);
        assert_eq!(again.pin_of(&"c".parse().unwrap()), Some([9; 32]));
        fs::write(&path, "{").unwrap();
        let error = Keepers::load(path, Vec::new()).err().unwrap();
        assert!(format!("{error:#}").contains("remove it"), "{error:#}");
    }
}
