//! Sites of files alone. Each node builds one for itself, after the node that rolls it out: until
//! the release that serves is whole here, what was served before is served on.

use std::time::Duration;

use model::release::StaticMount;
use router_core::book::{Description, Processes};

use crate::files::source::Roots;
use crate::table::RoutedApplication;
use os::layout::DataDirectory;

/// The time between two looks for a build that is awaited.
pub(super) const BUILD_LOOK: Duration = Duration::from_millis(200);

/// The files of an application, and where they are.
pub(super) struct Site {
    pub roots: Option<Roots>,
    pub statics: Vec<StaticMount>,
    pub is_built: bool,
    /// Whether they are those of an earlier release.
    pub is_behind: bool,
}

impl Site {
    pub fn of(
        description: &Description,
        layout: &DataDirectory,
        old: Option<&RoutedApplication>,
    ) -> Site {
        let (name, build) = (&description.name, description.build.as_ref());
        let before = old.filter(|_| description.processes == Processes::FilesOnly);
        let before = before
            .and_then(Site::before)
            .filter(|_| build.is_some_and(|build| !layout.build_mark(name, build).is_file()));
        before.unwrap_or_else(|| Site {
            roots: build.map(|build| Roots {
                build: layout.build(name, build),
                persist: layout.persist(name),
            }),
            statics: description.statics.clone(),
            is_built: description.is_built,
            is_behind: false,
        })
    }

    /// Returns what is served while the next release is built.
    fn before(old: &RoutedApplication) -> Option<Site> {
        let roots = old.roots.clone().filter(|_| old.processes == Processes::FilesOnly)?;
        let (statics, is_built) = (old.statics.clone(), old.is_built);
        Some(Site { roots: Some(roots), statics, is_built, is_behind: true })
    }
}
