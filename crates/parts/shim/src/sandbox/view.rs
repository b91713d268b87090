//! The view of the file system behind a wall. A new root is filled with binds of what may be seen,
//! then the old one is let go: what is not bound cannot be named.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, unmount,
};
use rustix::process::pivot_root;
use rustix::thread::UnshareFlags;

use super::Sandbox;
use super::namespaces::unshare;

/// The place where the new root is put together; every system has it.
const BASE: &str = "/tmp";
const OLD: &str = "/old";
const NEW: &str = "/new";
/// What belongs to the system below the root, here and on other distributions. Where it is a link,
/// as `/bin` is, the link is there.
pub const SYSTEM: &[&str] =
    &["bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "sys"];
/// The same beside those, where the network is the machine's ...
pub const SYSTEM_WIDE: &[&str] = &["nix", "gnu", "var/lib", "var/cache"];
/// ... and the part of it that holds no sockets of services, for a network of its own: whoever can
/// connect to one has somebody outside who works for him.
const SYSTEM_NARROW: &[&str] =
    &["nix/store", "gnu/store", "var/lib/gems", "var/lib/ghc", "var/lib/ca-certificates-java"];
/// The settings of name resolution; `/etc/resolv.conf` is a link to one of them.
pub const RESOLVERS: &[&str] = &["run/systemd/resolve", "run/resolvconf", "run/NetworkManager"];
pub const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// The maximum size of shared memory, which no other limit counts.
const SHARED_MEMORY: &std::ffi::CStr = c"mode=1777,size=256m";
/// Directories only: a few pages.
const SKELETON: &std::ffi::CStr = c"mode=755,size=4m";
const PLAIN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Moves this process into a view of its own.
pub fn build(sandbox: &Sandbox) -> anyhow::Result<()> {
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWIPC).context("no namespace of mounts")?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", BASE, "tmpfs", PLAIN, SKELETON).context("no place for a new root")?;
    for place in [OLD, NEW] {
        fs::create_dir(format!("{BASE}{place}"))?;
    }
    pivot_root(BASE, format!("{BASE}{OLD}")).context("the root cannot be changed")?;
    rustix::process::chdir("/")?;
    mount("tmpfs", NEW, "tmpfs", PLAIN, SKELETON)?;
    fill(sandbox)?;
    rustix::process::chdir(NEW)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    mount_remount("/", PLAIN | MountFlags::BIND | MountFlags::RDONLY, "")?;
    Ok(())
}

fn fill(sandbox: &Sandbox) -> anyhow::Result<()> {
    let also: [&[&str]; 2] = match sandbox.network {
        None => [SYSTEM_WIDE, RESOLVERS],
        Some(_) => [SYSTEM_NARROW, &[]],
    };
    for name in SYSTEM.iter().chain(also.into_iter().flatten()) {
        let (from, to) = (Path::new(OLD).join(name), Path::new(NEW).join(name));
        match fs::symlink_metadata(&from) {
            Ok(metadata) if metadata.is_symlink() => symlink(fs::read_link(&from)?, &to)?,
            Ok(metadata) if metadata.is_dir() => bind(&from, &to, Access::Read)?,
            _ => {}
        }
    }
    let at = |name: &str| -> anyhow::Result<PathBuf> {
        let path = Path::new(NEW).join(name);
        directory(&path)?;
        Ok(path)
    };
    let run = at("run")?;
    if sandbox.network.is_some() {
        name_resolver(&run).context("no settings for names")?;
    }
    symlink("/run", at("var")?.join("run"))?;
    let noexec = PLAIN | MountFlags::NOEXEC;
    mount("proc", at("proc")?, "proc", noexec, None).context("no list of processes")?;
    devices(&at("dev")?)?;
    for place in ["tmp", "var/tmp"] {
        bind(&below(OLD, &sandbox.temporary), &at(place)?, Access::Write)?;
    }
    for path in &sandbox.hidden {
        let place = below(NEW, path);
        if place.is_dir() {
            mount("tmpfs", &place, "tmpfs", PLAIN, SKELETON)?;
        }
    }
    // What contains another comes before it, or would hide it.
    let readable = sandbox.readable.iter().map(|path| (path, Access::Read));
    let writable = sandbox.writable.iter().map(|path| (path, Access::Write));
    let mut shown: Vec<(&PathBuf, Access)> = readable.chain(writable).collect();
    shown.sort_unstable();
    for (path, access) in shown {
        let from = below(OLD, path);
        if from.exists() {
            bind(&from, &below(NEW, path), access)
                .with_context(|| format!("{} cannot be shown", path.display()))?;
        }
    }
    Ok(())
}

/// Names the resolver of a network of its own, which is the relay where there is a way out. Where
/// nobody listens, names are refused at once.
fn name_resolver(run: &Path) -> anyhow::Result<()> {
    const NAMED: &str = "etc/resolv.conf";
    let settings = run.join("resolv.conf");
    fs::write(&settings, "nameserver 127.0.0.1\n")?;
    let place = Path::new(NEW).join(NAMED);
    match fs::read_link(&place) {
        Ok(target) => {
            // It is taken as it is seen within: as a path below the new root.
            let target = Path::new("/etc").join(target);
            let target = below(NEW, &lexical(&target));
            if !target.exists() {
                directory(target.parent().context("it is a file")?)?;
                fs::copy(&settings, &target)?;
            } else {
                mount_bind(&settings, &target)?;
            }
        }
        Err(_) if place.exists() => mount_bind(&settings, &place)?,
        // The default is the same.
        Err(_) => {}
    }
    Ok(())
}

/// Returns an absolute path without `..`, which leads to the parent of what stands before it.
fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(clean.pop()),
            std::path::Component::Normal(name) => clean.push(name),
            _ => {}
        }
    }
    clean
}

fn devices(place: &Path) -> anyhow::Result<()> {
    mount("tmpfs", place, "tmpfs", MountFlags::NOSUID, SKELETON)?;
    for name in DEVICES {
        let (from, to) = (Path::new(OLD).join("dev").join(name), place.join(name));
        fs::File::create(&to)?;
        mount_bind(&from, &to).with_context(|| format!("/dev/{name}"))?;
    }
    for (name, target) in DEVICE_LINKS {
        symlink(target, place.join(name))?;
    }
    for name in ["pts", "shm"] {
        fs::create_dir(place.join(name))?;
    }
    let noexec = MountFlags::NOSUID | MountFlags::NOEXEC;
    let terminals = c"newinstance,ptmxmode=0666,mode=620";
    mount("devpts", place.join("pts"), "devpts", noexec, terminals)?;
    mount("tmpfs", place.join("shm"), "tmpfs", PLAIN | noexec, SHARED_MEMORY)?;
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    Read,
    Write,
}

fn bind(from: &Path, to: &Path, access: Access) -> anyhow::Result<()> {
    if from.is_dir() {
        directory(to)?;
        mount_bind_recursive(from, to)?;
    } else {
        to.parent().map(directory).transpose()?;
        fs::File::create(to)?;
        mount_bind(from, to)?;
    }
    if access == Access::Read {
        // Mounts below keep what they allow; Landlock refuses to write there.
        mount_remount(to, kept_flags(to)? | MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    Ok(())
}

/// Returns the flags that a mount has, which may not be taken from it here.
fn kept_flags(place: &Path) -> io::Result<MountFlags> {
    let has = statvfs(place)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let kept = pairs.into_iter().filter(|(has_it, _)| has.contains(*has_it));
    Ok(kept.fold(MountFlags::empty(), |flags, (_, flag)| flags | flag))
}

fn directory(place: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(place)
}

fn below(root: &str, path: &Path) -> PathBuf {
    Path::new(root).join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_settings_are_followed_below_the_new_root() {
        for (link, path) in [
            (
                "/etc/../run/systemd/resolve/stub-resolv.conf",
                "/run/systemd/resolve/stub-resolv.conf",
            ),
            ("/run/resolvconf/resolv.conf", "/run/resolvconf/resolv.conf"),
            ("/etc/../../../x", "/x"),
        ] {
            assert_eq!(lexical(Path::new(link)), Path::new(path));
        }
    }
}
