//! The directories of an application's static files, and the rules by which they are looked for
//! there.

use std::path::PathBuf;

/// The directories that static files lie in.
#[derive(Clone, Debug)]
pub struct Roots {
    pub build: PathBuf,
    pub persist: PathBuf,
}

/// The rules by which files are looked for.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Whether nobody else answers: pages need no `.html` in their address, and there is one for
    /// what is not there.
    pub is_site: bool,
    /// Whether a build made them.
    pub is_built: bool,
}
