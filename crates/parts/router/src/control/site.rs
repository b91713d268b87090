//! Sites of files alone. Each node builds one for itself, after the node that rolls it out: until
//! the release that serves is whole here, what was served before is served on.

use std::path::PathBuf;
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
    /// The mark of the build that is still to be made, if they are those of an earlier release, or
    /// none.
    pub awaits: Option<PathBuf>,
}

impl Site {
    pub fn of(
        description: &Description,
        layout: &DataDirectory,
        old: Option<&RoutedApplication>,
    ) -> Site {
        let (name, build) = (&description.name, description.build.as_ref());
        let is_site = description.processes == Processes::FilesOnly;
        let mark = build.filter(|_| is_site).map(|build| layout.build_mark(name, build));
        let awaits = mark.filter(|mark| !mark.is_file());
        if let Some(before) = old.filter(|_| awaits.is_some()).and_then(Site::before) {
            return Site { awaits, ..before };
        }
        // A file that is looked for too early would be remembered as one that is not there.
        let roots = build
            .filter(|_| awaits.is_none())
            .map(|build| Roots { build: layout.build(name, build), persist: layout.persist(name) });
        let (statics, is_built) = (description.statics.clone(), description.is_built);
        Site { roots, statics, is_built, awaits }
    }

    /// Returns what is served while the next release is built.
    fn before(old: &RoutedApplication) -> Option<Site> {
        let roots = old.roots.clone().filter(|_| old.processes == Processes::FilesOnly)?;
        let (statics, is_built) = (old.statics.clone(), old.is_built);
        Some(Site { roots: Some(roots), statics, is_built, awaits: None })
    }
}
