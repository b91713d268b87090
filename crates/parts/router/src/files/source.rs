//! Where an application's static files lie, and how they are looked for there.

use std::path::PathBuf;

/// The directories that they lie in.
#[derive(Clone, Debug)]
pub struct Roots {
    pub build: PathBuf,
    pub persist: PathBuf,
}

/// How they are looked for.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Nobody else answers: pages need no `.html` in their address, and there is one for what is
    /// not there.
    pub is_site: bool,
    /// A build made them.
    pub is_built: bool,
}
