//! What an application sees of its machine from behind its wall.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use model::acme::PublicAddresses;
use model::node::NodeAddress;
use model::{ApplicationName, Isolation, Key, Prefix, Release, TypedKey};
use shim::network::{Network, Service, WayOut};
use shim::sandbox::Sandbox;
use store::{WatchEvent, lookup_record};

use super::Preparer;
use crate::specification::mark_of;
use os::directory::private_directory;
use os::secret_file::write_private;

/// The directory of programs in every tool's place.
const PROGRAMS: &str = "bin";
/// The directories beside `bin` in which its programs keep what they need.
const BESIDE_PROGRAMS: &[&str] = &["lib", "lib64", "libexec", "include"];
/// The ending of the keys at which members say where others reach them.
const ADDRESS_ENDING: &str = "::address";
/// The beginning of what nodes say of themselves.
const NODES: &str = "node";
/// The pause after a failure to write down the members: somebody has to free space first.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
/// The time for the name of a member to be resolved; one whose name cannot be has no address now.
const NAME_TIME: Duration = Duration::from_secs(2);
/// The directory of rustup, whose programs start what lies in another one beside it.
const RUSTUP: (&str, &str) = (".cargo", ".rustup");

/// The ports that a process listens at, and whether it may reach the network as the node does.
#[derive(Default)]
pub(super) struct Reach {
    pub tcp: Vec<u16>,
    pub udp: Vec<u16>,
    pub builds: bool,
}

impl Preparer {
    /// Returns the release as an owner wants it run: what was made before the mark, or by a node
    /// that had not heard of it, stands behind the same wall.
    pub(super) async fn behind_mark(
        &self,
        application: &ApplicationName,
        release: &Release,
    ) -> anyhow::Result<Release> {
        let mark = mark_of(&*self.store, application).await?;
        let mut release = release.clone();
        release.recipe.put_behind(mark.as_ref());
        Ok(release)
    }

    /// Returns the wall that a release asks for; `chosen` are the directories of the interpreters
    /// that were chosen for it.
    pub(super) fn sandbox(
        &self,
        application: &ApplicationName,
        release: &Release,
        chosen: &[String],
        reach: Reach,
        closed: Option<Vec<IpAddr>>,
    ) -> Option<Sandbox> {
        release.recipe.wall()?;
        let (layout, build) = (&self.layout, release.build_id());
        let temporary = layout.temporary(application);
        // Links of the node's own, to interpreters that are there anyway or beside them.
        let (links, chosen): (Vec<&Path>, Vec<&Path>) =
            chosen.iter().map(Path::new).partition(|path| path.starts_with(layout.root()));
        let search = self.node_path().split(':').map(Path::new).chain(chosen);
        Some(Sandbox {
            hidden: vec![layout.root().to_owned()],
            readable: search
                .filter(|bin| bin.is_absolute())
                // All data would be there, or it is there anyway.
                .filter(|bin| !layout.root().starts_with(bin) && !bin.starts_with(layout.root()))
                .flat_map(programs)
                .chain(links.into_iter().map(Path::to_owned))
                .collect(),
            writable: vec![
                layout.build(application, &build),
                layout.home(application, &build),
                layout.persist(application),
                layout.cache(application),
                temporary.clone(),
            ],
            temporary,
            ports: reach.tcp.clone(),
            landlock_alone: release.recipe.isolation == Isolation::Landlock,
            network: self.own_network(release.recipe.isolation, reach, closed),
        })
    }

    /// Returns the network of a process that has one of its own. A build fetches what it needs, so
    /// it is in the machine's. `closed` are addresses without a route; if it is
    /// `None`, none has one.
    fn own_network(
        &self,
        isolation: Isolation,
        reach: Reach,
        closed: Option<Vec<IpAddr>>,
    ) -> Option<Network> {
        if isolation != Isolation::Full || reach.builds {
            return None;
        }
        let service = |at| Service { within: at, at };
        let services = self.bus.into_iter().map(service).collect();
        let follow = Some(self.layout.members());
        let egress = closed.map(|closed| WayOut { closed, follow });
        Some(Network { tcp: reach.tcp, udp: reach.udp, services, egress })
    }

    /// Keeps the file with the addresses of all members as it is to be, until the store stops: they
    /// are closed to what runs already.
    pub async fn follow_members(&self) -> anyhow::Result<()> {
        let mut watch = self.store.watch(nodes()?, None).await?;
        loop {
            while let Err(error) = self.note_members().await {
                tracing::error!(error = format!("{error:#}"), "agent.members_not_noted");
                tokio::time::sleep(WRITE_AGAIN).await;
            }
            loop {
                match watch.next().await {
                    None => return Ok(()),
                    Some(WatchEvent::Changed { key, .. }) if !is_address(&key) => {}
                    Some(_) => break,
                }
            }
        }
    }

    /// Writes down the addresses of all members where networks that are there already find them,
    /// and returns them.
    pub(super) async fn note_members(&self) -> anyhow::Result<Vec<IpAddr>> {
        let mut noted = self.members.lock().await;
        let members = self.members().await?;
        if noted.as_ref() != Some(&members) {
            let (file, all) = (self.layout.members(), members.iter());
            let text: String = all.map(|address| format!("{address}\n")).collect();
            let write = move || {
                file.parent().map_or(Ok(()), private_directory)?;
                write_private(&file, text.as_bytes())
            };
            let written = runtime::task::spawn_blocking(write).await?;
            written.context("the addresses of members cannot be written")?;
            *noted = Some(members.clone());
        }
        Ok(members)
    }

    /// Returns the addresses of all members, as far as they can be told now: applications that may
    /// reach the internet are not to reach them.
    async fn members(&self) -> anyhow::Result<Vec<IpAddr>> {
        let mut found = BTreeSet::new();
        for key in self.store.keys(&nodes()?).await? {
            if let Some(TypedKey::PublicAddresses(_)) = TypedKey::parse(&key) {
                let public = lookup_record::<PublicAddresses>(&*self.store, key).await?;
                found.extend(public.into_iter().flat_map(|public| public.addresses));
                continue;
            }
            if !is_address(&key) {
                continue;
            }
            let address = lookup_record::<NodeAddress>(&*self.store, key).await?;
            for place in address.into_iter().flat_map(|address| address.addresses) {
                let named = tokio::time::timeout(NAME_TIME, tokio::net::lookup_host(place)).await;
                found.extend(named.into_iter().flatten().flatten().map(|address| address.ip()));
            }
        }
        Ok(found.into_iter().collect())
    }
}

fn nodes() -> anyhow::Result<Prefix> {
    Ok(Prefix::from(NODES.parse::<Key>()?))
}

/// Returns whether a member says there where it is reached.
fn is_address(key: &Key) -> bool {
    let public = matches!(TypedKey::parse(key), Some(TypedKey::PublicAddresses(_)));
    public || key.as_str().ends_with(ADDRESS_ENDING)
}

/// Returns a directory of programs with what these need beside it, and nothing else of a user's
/// home, where tools are often installed.
fn programs(bin: &Path) -> Vec<PathBuf> {
    let mut shown = vec![bin.to_owned()];
    if let (true, Some(parent)) = (bin.ends_with(PROGRAMS), bin.parent()) {
        shown.extend(BESIDE_PROGRAMS.iter().map(|name| parent.join(name)));
        if parent.ends_with(RUSTUP.0) {
            shown.push(parent.with_file_name(RUSTUP.1));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_users_tools_no_more_is_shown_than_programs_need() {
        let shown = programs(Path::new("/home/ada/.cargo/bin"));
        assert!(shown.contains(&"/home/ada/.rustup".into()), "{shown:?}");
        assert!(shown.contains(&"/home/ada/.cargo/lib".into()), "{shown:?}");
        let parents = ["/home/ada/.cargo", "/home/ada", "/home", "/"];
        assert!(parents.iter().all(|path| !shown.contains(&path.into())), "{shown:?}");
        assert_eq!(programs(Path::new("/opt/tools")), [PathBuf::from("/opt/tools")]);
    }
}
