//! What an application sees of its machine from behind its wall.

use std::path::{Path, PathBuf};

use model::{ApplicationName, Isolation, Release};
use shim::network::{Network, Service};
use shim::sandbox::Sandbox;

use super::Preparer;

/// The directory of programs in every tool's place.
const PROGRAMS: &str = "bin";
/// The directories beside `bin` in which its programs keep what they need.
const BESIDE_PROGRAMS: &[&str] = &["lib", "lib64", "libexec", "include"];
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
    /// Returns the wall that a release asks for; `chosen` are the directories of the interpreters
    /// that were chosen for it.
    pub(super) fn sandbox(
        &self,
        application: &ApplicationName,
        release: &Release,
        chosen: &[String],
        reach: Reach,
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
            network: self.own_network(release.recipe.isolation, reach),
        })
    }

    /// Returns the network of a process that has one of its own. A build fetches what it needs, so
    /// it is in the machine's.
    fn own_network(&self, isolation: Isolation, reach: Reach) -> Option<Network> {
        if isolation != Isolation::Full || reach.builds {
            return None;
        }
        let service = |at| Service { within: at, at };
        let services = self.bus.into_iter().map(service).collect();
        Some(Network { tcp: reach.tcp, udp: reach.udp, services })
    }
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
