//! The artefacts of builds, for other nodes: packed into the store where they were built, fetched,
//! verified and unpacked where they run. Must not know who builds; driven by applications' actors.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use model::value::ContentHash;
use model::{ApplicationName, NodeId, Release, TypedKey};
use tar::{Builder, EntryType};

use super::persist::Tree;
use super::{Preparer, is_built, mark, set_mark};
use os::archive::header;
use os::beneath::{Directory, Place};
use store::{Value, ValueWriter};

/// The maximum size of an artefact in bytes; a larger tree is built faster than it is fetched.
const BYTES_MAX: u64 = 2 << 30;
/// The maximum time from the first byte to the last; a node that waits longer had better build.
const FETCH_MAX: Duration = Duration::from_secs(120);
/// The maximum depth of a tree: deeper ones are loops in disguise.
const DEPTH_MAX: usize = 100;

impl Preparer {
    /// Offers what was built here to other nodes, unless it is offered already.
    pub async fn share(
        &self,
        application: &ApplicationName,
        release: &Release,
        platform: &str,
    ) -> anyhow::Result<()> {
        ensure!(!platform.is_empty(), "it is not known what kind of machine this is");
        let turn = self.turn(application, release);
        let _turn = turn.lock().await;
        let key = self.artefact(application, release, &self.node, platform);
        if self.store.lookup(&key).await?.is_some() {
            return Ok(());
        }
        let directory = self.directory(application, release);
        let mut without = release.recipe.persist.clone();
        without.extend(release.recipe.portable.iter().flat_map(|p| p.without.iter().cloned()));
        let mut writer = self.store.writer().await?;
        let file = runtime::task::spawn_blocking(move || {
            let without: Vec<PathBuf> = without.iter().map(PathBuf::from).collect();
            pack(&directory, &without, &mut Sink { writer: &mut writer, bytes: 0 })?;
            anyhow::Ok(writer.finish()?)
        });
        self.store.set_file(key, file.await??).await?;
        Ok(())
    }

    /// Unpacks what `builder` offers, unless the release was built here.
    pub async fn fetch(
        &self,
        application: &ApplicationName,
        release: &Release,
        builder: &NodeId,
        platform: &str,
    ) -> anyhow::Result<()> {
        let turn = self.turn(application, release);
        let _turn = turn.lock().await;
        let directory = self.directory(application, release);
        let mark = mark(&directory);
        self.collect(application, release).await?;
        if is_built(&directory, &mark) {
            return self.link(application, release, Tree::Used).await;
        }
        let key = self.artefact(application, release, builder, platform);
        let entry = self.store.lookup(&key).await?.context("it is not in the store any more")?;
        let here = tokio::time::timeout(FETCH_MAX, entry.value.here()).await;
        let seconds = FETCH_MAX.as_secs();
        let value = here.with_context(|| format!("it did not come within {seconds} s"))??;
        let expected = match &value {
            Value::Inline(bytes) => ContentHash(*blake3::hash(bytes).as_bytes()),
            Value::File { hash, .. } | Value::Away { hash, .. } => *hash,
        };
        self.unpack_value(application, release, &directory, value, expected).await?;
        set_mark(mark)
    }

    fn artefact(
        &self,
        application: &ApplicationName,
        release: &Release,
        builder: &NodeId,
        platform: &str,
    ) -> model::Key {
        let (application, build) = (application.clone(), release.build_id());
        TypedKey::Artefact(application, build, builder.clone(), platform.into()).key()
    }
}

struct Sink<'a> {
    writer: &'a mut ValueWriter,
    bytes: u64,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        if self.bytes > BYTES_MAX {
            let gib = BYTES_MAX >> 30;
            return Err(io::Error::other(format!("what was built is larger than {gib} GiB")));
        }
        self.writer.write(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Packs a tree, sorted and without times, so that equal trees give equal bytes. What was built may
/// run already: no link is followed.
fn pack(root: &Path, without: &[PathBuf], to: &mut dyn Write) -> anyhow::Result<()> {
    let mut archive = Builder::new(to);
    let mut packing = Packing { without, archive: &mut archive };
    let unreadable = || format!("{} cannot be read", root.display());
    let directory = Directory::open(root).with_context(unreadable)?;
    packing.directory(&directory, Path::new(""), 0)?;
    archive.finish()?;
    Ok(())
}

struct Packing<'a, 'b> {
    without: &'a [PathBuf],
    archive: &'a mut Builder<&'b mut dyn Write>,
}

impl Packing<'_, '_> {
    fn directory(
        &mut self,
        directory: &Directory,
        path: &Path,
        depth: usize,
    ) -> anyhow::Result<()> {
        ensure!(depth < DEPTH_MAX, "directories are nested deeper than {DEPTH_MAX}");
        for place in directory.entries()? {
            let path = path.join(place.name());
            if !self.without.contains(&path) {
                self.entry(&place, &path, depth).with_context(|| format!("{}", path.display()))?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, place: &Place, path: &Path, depth: usize) -> anyhow::Result<()> {
        let metadata = place.metadata()?;
        if metadata.is_dir() {
            let within = place.directory()?;
            self.archive.append_data(
                &mut header(EntryType::Directory, 0o755, 0),
                path,
                io::empty(),
            )?;
            return self.directory(&within, path, depth + 1);
        }
        if metadata.is_symlink() {
            let target = place.read_link()?;
            let inside = agent_core::paths::stays_inside(path, &target);
            ensure!(inside, "a link that leads out of the release, to {}", target.display());
            self.archive.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?;
        } else if metadata.is_file() {
            let mode = if metadata.permissions().mode() & 0o111 != 0 { 0o755 } else { 0o644 };
            let size = metadata.len();
            let file = place.file()?.take(size);
            self.archive.append_data(&mut header(EntryType::Regular, mode, size), path, file)?;
        }
        // Sockets and pipes belong to a process that ran.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::prepare::unpack::unpack;

    fn packed(root: &Path, without: &[&str]) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let without: Vec<PathBuf> = without.iter().map(PathBuf::from).collect();
        pack(root, &without, &mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn a_tree_comes_out_as_it_went_in() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        fs::create_dir_all(one.join("bin/empty")).unwrap();
        fs::write(one.join("bin/run"), "#!").unwrap();
        fs::set_permissions(one.join("bin/run"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink("bin/run", one.join("start")).unwrap();
        fs::create_dir_all(one.join("cache")).unwrap();
        fs::write(one.join("cache/large"), "x").unwrap();
        let bytes = packed(&one, &["cache"]).unwrap();
        unpack(&bytes[..], ContentHash(*blake3::hash(&bytes).as_bytes()), &two).unwrap();
        assert_eq!(fs::read_link(two.join("start")).unwrap(), Path::new("bin/run"));
        assert_eq!(fs::metadata(two.join("start")).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(two.join("bin/empty").is_dir() && !two.join("cache").exists());
        assert_eq!(packed(&two, &[]).unwrap(), bytes, "and gives the same bytes");
    }

    #[test]
    fn links_that_lead_out_are_not_shared() {
        let directory = tempfile::tempdir().unwrap();
        symlink("/etc/passwd", directory.path().join("out")).unwrap();
        let error = packed(directory.path(), &[]).unwrap_err();
        assert!(format!("{error:#}").contains("leads out of the release"), "{error:#}");
        assert!(packed(directory.path(), &["out"]).is_ok());
    }
}
