//! The file with this node's keys, DATA/cluster/secrets.json: written whole, never replaced by
//! anything that does not hold what it held, and refused if it is damaged or of another cluster.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use model::NodeId;
use model::hex::{from_hex, to_hex};
use model::secrets::SealingKeyId;
use os::directory::private_directory;
use os::layout::DataDirectory;
use os::secret_file::write_private;
use secret_core::keyring::{KEYS_MAX, KeyRing};
use secret_core::sealed::{KEY_BYTES, SealingKey};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

const FORMAT: u32 = 1;
const NAME: &str = "secrets.json";

#[derive(Serialize, Deserialize)]
struct Content {
    v: u32,
    cluster: String,
    /// The node that wrote it.
    node: NodeId,
    /// The keys in hexadecimal digits, by their ids.
    keys: BTreeMap<SealingKeyId, String>,
}

impl Drop for Content {
    fn drop(&mut self) {
        self.keys.values_mut().for_each(Zeroize::zeroize);
    }
}

/// Whose keys the file holds.
#[derive(Clone, Debug)]
pub struct KeyFile {
    path: PathBuf,
    cluster: String,
    node: NodeId,
}

impl KeyFile {
    pub fn of(layout: &DataDirectory, cluster: String, node: NodeId) -> KeyFile {
        KeyFile { path: layout.cluster().join(NAME), cluster, node }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the keys; `None` if there is no file. Nothing is changed, whatever is wrong with it.
    pub fn read(&self) -> anyhow::Result<Option<KeyRing>> {
        let path = self.path.display();
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.to_string()),
        };
        let content = serde_json::from_slice(&bytes).map_err(|_| "it is no such file".to_owned());
        let ring = content.and_then(|content: Content| {
            let ring = ring_of(&content)?;
            Ok((content, ring))
        });
        let (content, ring) = match ring {
            Ok(read) => read,
            Err(why) => bail!(
                "{path}, which holds the keys of this cluster's secrets, is damaged: {why}. Put a \
                 copy of it back, of this node or of another member that keeps the store. If \
                 another such member runs, move the file away and start again: the node asks that \
                 one for the keys. Nothing was changed"
            ),
        };
        // A node's own keys go with it into another cluster; what it wrote before is sealed with
        // them.
        ensure!(
            content.cluster == self.cluster || content.node == self.node,
            "{path} holds the keys of another cluster ({}, of node {}); this node belongs to {}. \
             Put the right file back. If another member that keeps the store runs, move this one \
             away and start again: the node asks that one for the keys. Nothing was changed",
            content.cluster,
            content.node,
            self.cluster
        );
        Ok(Some(ring))
    }

    pub fn write(&self, ring: &KeyRing) -> anyhow::Result<()> {
        ensure!(ring.ids().len() <= KEYS_MAX, "a node has at most {KEYS_MAX} keys for secrets");
        let digits = |key: &SealingKey| to_hex(key.bytes());
        let content = Content {
            v: FORMAT,
            cluster: self.cluster.clone(),
            node: self.node.clone(),
            keys: ring.keys().map(|key| (key.id(), digits(key))).collect(),
        };
        let bytes = Zeroizing::new(serde_json::to_vec_pretty(&content)?);
        if let Some(directory) = self.path.parent() {
            private_directory(directory).with_context(|| directory.display().to_string())?;
        }
        let written = write_private(&self.path, &bytes);
        let path = self.path.display();
        written.with_context(|| format!("{path} cannot be written; free space for it"))
    }
}

fn ring_of(content: &Content) -> Result<KeyRing, String> {
    if content.v != FORMAT {
        return Err(format!("its format is {}, and this version knows {FORMAT}", content.v));
    }
    let mut ring = KeyRing::default();
    for (id, digits) in &content.keys {
        let key = key_of(digits).ok_or_else(|| format!("the key {id} is no key"))?;
        if key.id() != *id {
            return Err(format!("the key that is named {id} is another one"));
        }
        ring.add(key);
    }
    Ok(ring)
}

/// Returns the key of these digits; `None` if they are none.
pub fn key_of(digits: &str) -> Option<SealingKey> {
    Some(SealingKey::new(Zeroizing::new(from_hex::<KEY_BYTES>(digits)?)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Place {
        _directory: tempfile::TempDir,
        layout: DataDirectory,
    }

    impl Place {
        fn new() -> Place {
            let directory = tempfile::tempdir().unwrap();
            let layout = DataDirectory::new(directory.path().join("data"), directory.path());
            fs::create_dir(directory.path().join("data")).unwrap();
            Place { _directory: directory, layout }
        }

        fn file(&self, cluster: &str, node: &str) -> KeyFile {
            KeyFile::of(&self.layout, cluster.into(), node.parse().unwrap())
        }
    }

    fn ring() -> KeyRing {
        let mut ring = KeyRing::default();
        ring.add(key_of(&"01".repeat(32)).unwrap());
        ring.add(key_of(&"02".repeat(32)).unwrap());
        ring
    }

    #[test]
    fn keys_are_kept_for_the_owner_alone() {
        let place = Place::new();
        let file = place.file("c1", "n1");
        assert!(file.read().unwrap().is_none());
        file.write(&ring()).unwrap();
        assert_eq!(file.read().unwrap().unwrap().ids(), ring().ids());
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_reported_and_stays() {
        let place = Place::new();
        let file = place.file("c1", "n1");
        file.write(&ring()).unwrap();
        let whole = fs::read_to_string(file.path()).unwrap();
        let damaged = [
            whole.replace("0101", "0102"),
            whole[..whole.len() / 2].to_owned(),
            String::new(),
            whole.replace("\"v\": 1", "\"v\": 2"),
        ];
        for text in damaged {
            fs::write(file.path(), &text).unwrap();
            let Err(error) = file.read() else { panic!("it was read: {text}") };
            assert!(error.to_string().contains("is damaged"), "{error}");
            assert!(!error.to_string().contains("0101"), "no key is shown: {error}");
            assert_eq!(fs::read_to_string(file.path()).unwrap(), text);
        }
    }

    #[test]
    fn keys_of_another_cluster_are_refused_but_for_the_nodes_own() {
        let place = Place::new();
        place.file("c1", "n1").write(&ring()).unwrap();
        let Err(error) = place.file("c2", "n2").read() else { panic!("it was read") };
        assert!(error.to_string().contains("another cluster (c1, of node n1)"), "{error}");
        assert!(place.file("c2", "n1").read().unwrap().is_some(), "it has joined since");
        assert!(place.file("c1", "n2").read().unwrap().is_some(), "a copy of another member's");
    }
}
