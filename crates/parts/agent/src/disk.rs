//! What the files of each application take on this node, for the limits of teams. A change that
//! means something is written; nothing periodic enters the store.

use std::collections::BTreeMap;
use std::time::Duration;

use model::node::{DISK_CHANGE_BYTES, NodeDisk};
use model::record::{self, RECORD_VERSION, Unknown};
use model::{ApplicationName, NodeId, TypedKey};
use tokio::time::Instant;

use os::allocated::allocated_bytes;
use os::layout::DataDirectory;
use store::SharedStore;

const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// The pause after a look, as a multiple of what it took: counting takes at most a twentieth of one
/// core.
const PAUSE_FACTOR: u32 = 20;

/// Runs until writing fails.
pub async fn run(store: SharedStore, node: NodeId, layout: DataDirectory) -> anyhow::Result<()> {
    let key = TypedKey::NodeDisk(node).key();
    let mut written = BTreeMap::new();
    let mut is_first = true;
    loop {
        let (began, layout) = (Instant::now(), layout.clone());
        let bytes = runtime::task::spawn_blocking(move || measure(&layout)).await?;
        if is_first || is_changed(&written, &bytes) {
            is_first = false;
            written = bytes.clone();
            let disk = NodeDisk { v: RECORD_VERSION, bytes, unknown: Unknown::new() };
            store.set(key.clone(), record::encode(&disk).into()).await?;
        }
        tokio::time::sleep(LOOK_INTERVAL.max(began.elapsed() * PAUSE_FACTOR)).await;
    }
}

fn measure(layout: &DataDirectory) -> BTreeMap<ApplicationName, u64> {
    let entries = std::fs::read_dir(layout.applications()).into_iter().flatten().flatten();
    let of_application = |entry: std::fs::DirEntry| {
        let name: ApplicationName = entry.file_name().to_str()?.parse().ok()?;
        Some((name, allocated_bytes(&entry.path())))
    };
    entries.filter_map(of_application).collect()
}

fn is_changed(
    before: &BTreeMap<ApplicationName, u64>,
    now: &BTreeMap<ApplicationName, u64>,
) -> bool {
    let of = |all: &BTreeMap<ApplicationName, u64>, name| all.get(name).copied().unwrap_or(0);
    let mut names = before.keys().chain(now.keys());
    names.any(|name| of(before, name).abs_diff(of(now, name)) >= DISK_CHANGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_goes_or_grows_is_a_change_if_it_is_large() {
        let all = |sizes: &[(&str, u64)]| -> BTreeMap<ApplicationName, u64> {
            sizes.iter().map(|(name, bytes)| (name.parse().unwrap(), *bytes)).collect()
        };
        let before = all(&[("a", DISK_CHANGE_BYTES), ("b", 1)]);
        assert!(!is_changed(&before, &all(&[("a", DISK_CHANGE_BYTES + 1)])));
        assert!(is_changed(&before, &all(&[("b", 1)])));
        assert!(is_changed(&before, &all(&[("a", 2 * DISK_CHANGE_BYTES)])));
        assert!(!is_changed(&all(&[]), &all(&[("c", DISK_CHANGE_BYTES - 1)])));
    }
}
