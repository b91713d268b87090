//! The address at which the processes of applications find the bus of this node: a port on loopback
//! that stays the same, since they were started with it, and a token for each application.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, bail};
use model::ApplicationName;
use os::layout::DataDirectory;
use os::secret_file;
use os::shared_port::Listeners;
use redis::FindApplication;

/// The ports that are tried, one after the other: behind those of nodes and of their stores.
const PORTS: std::ops::Range<u16> = 8207..8271;

/// Returns the address of the bus: the one that was chosen before, as long as nobody else has taken
/// it.
pub fn address(layout: &DataDirectory, listeners: &Listeners) -> anyhow::Result<SocketAddr> {
    let path = layout.bus_port();
    let kept = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    // Another node may look for a port at the same time, so it is bound and not only looked at.
    let is_taken = |port: &u16| listeners.reserve(at(*port));
    let Some(port) = kept.into_iter().chain(PORTS).find(is_taken) else {
        bail!("no port from {} to {} is free for the bus of applications", PORTS.start, PORTS.end);
    };
    if kept != Some(port) {
        if let Some(kept) = kept {
            tracing::warn!(
                kept,
                port,
                "bus.moved: another program has its port; what runs finds it after 'cortex restart'"
            );
        }
        fs::write(&path, port.to_string()).with_context(|| format!("{}", path.display()))?;
    }
    Ok(at(port))
}

/// Returns who knows which application a token belongs to: `NAME.DIGITS`, with the digits that the
/// agent gave its processes.
pub fn find_application(layout: DataDirectory) -> FindApplication {
    Arc::new(move |token| {
        let (name, digits) = token.split_once('.')?;
        let name: ApplicationName = name.parse().ok()?;
        let known = secret_file::read(&layout.bus_token(&name)).ok()?;
        // Hashes are compared in constant time.
        (blake3::hash(known.as_bytes()) == blake3::hash(digits.as_bytes())).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(directory: &tempfile::TempDir) -> DataDirectory {
        let layout = DataDirectory::new(directory.path().join("data"), directory.path());
        fs::create_dir_all(layout.root()).unwrap();
        layout
    }

    #[test]
    fn the_port_stays_and_another_node_takes_another_one() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, other] = directories.each_ref().map(layout);
        let (first, second) = (Listeners::default(), Listeners::default());
        let address_of_one = address(&one, &first).unwrap();
        let address_of_other = address(&other, &second).unwrap();
        assert_ne!(address_of_other, address_of_one);
        drop((first, second));
        // In the other order they would change places if they did not remember.
        let (first, second) = (Listeners::default(), Listeners::default());
        assert_eq!(address(&other, &second).unwrap(), address_of_other);
        assert_eq!(address(&one, &first).unwrap(), address_of_one);
    }

    #[test]
    fn a_token_says_whose_it_is_and_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(&directory);
        let blog: ApplicationName = "blog".parse().unwrap();
        fs::create_dir_all(layout.application(&blog)).unwrap();
        let token = secret_file::read_or_make(&layout.bus_token(&blog), 32).unwrap();
        let find = find_application(layout);
        assert_eq!(find(&format!("blog.{token}")), Some(blog));
        for wrong in [&token, &format!("shop.{token}"), "blog.", "blog", "", "../blog.x"] {
            assert_eq!(find(wrong), None, "{wrong}");
        }
    }
}
