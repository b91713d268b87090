//! The page of an application's own that clients see while it is closed for maintenance: a file of
//! the release, read when the gate closes and not for each request.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::files::source::Roots;
use os::beneath::Directory;

/// The places where it is looked for, relative to the release; the first one counts.
const PLACES: [&str; 2] = ["public/maintenance.html", "maintenance.html"];
/// Bytes of the page, which is kept in memory: with its pictures inside, and no more.
const BYTES_MAX: u64 = 256 * 1024;

/// Returns the page, if the release has one on this machine. Links lead nowhere: an application
/// must not show what it may not read itself.
pub(super) fn read(roots: Option<&Roots>) -> Option<Arc<[u8]>> {
    let directory = Directory::open(&roots?.build).ok()?;
    PLACES.iter().find_map(|place| {
        let file = directory.place(Path::new(place)).ok()?.file().ok()?;
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
        let fits = !bytes.is_empty() && bytes.len() as u64 <= BYTES_MAX;
        fits.then(|| bytes.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_the_release_is_found_and_none_elsewhere() {
        let all = tempfile::tempdir().unwrap();
        let build = all.path().join("build");
        std::fs::create_dir_all(build.join("public")).unwrap();
        let roots = Roots { build: build.clone(), persist: all.path().join("persist") };
        assert_eq!(read(None), None);
        assert_eq!(read(Some(&roots)), None);
        std::fs::write(build.join("maintenance.html"), "back soon").unwrap();
        assert_eq!(read(Some(&roots)).as_deref(), Some(&b"back soon"[..]));
        std::fs::write(all.path().join("secret"), "secret").unwrap();
        let public = build.join("public/maintenance.html");
        std::os::unix::fs::symlink(all.path().join("secret"), &public).unwrap();
        assert_eq!(
            read(Some(&roots)).as_deref(),
            Some(&b"back soon"[..]),
            "a link is not followed"
        );
        std::fs::remove_file(&public).unwrap();
        std::fs::write(&public, vec![b'x'; BYTES_MAX as usize + 1]).unwrap();
        assert_eq!(read(Some(&roots)).as_deref(), Some(&b"back soon"[..]), "too large a page");
    }
}
