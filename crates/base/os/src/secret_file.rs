//! Secrets that a node makes for itself and keeps: files that only their owner can read, each made
//! once and whole.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use model::hex::to_hex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Two threads must not each make the same secret.
static MAKING: Mutex<()> = Mutex::new(());

/// Returns the secret of a file in hexadecimal digits, which is made of so many random bytes if it
/// is not there yet. A file of another length is an error: another secret would end what the old
/// one protects.
pub fn read_or_make(path: &Path, bytes: usize) -> anyhow::Result<String> {
    let _turn = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    match read(path) {
        Ok(text) if text.len() == 2 * bytes => return Ok(text),
        Ok(_) => bail!("{} is damaged: remove it to have another made", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    }
    make(path, bytes).with_context(|| format!("{} cannot be made", path.display()))
}

/// Returns the secret of a file that is there.
pub fn read(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// Returns so many random bytes in hexadecimal digits.
pub fn random_hex(bytes: usize) -> io::Result<String> {
    let (mut random, mut filled) = (vec![0; bytes], 0);
    while filled < bytes {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut random[filled..], flags)?;
    }
    Ok(to_hex(&random))
}

/// Replaces a file that its owner alone can read, whole or not at all.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("fresh");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    path.parent().map_or(Ok(()), |directory| fs::File::open(directory)?.sync_all())
}

/// Keeps the memory of this process, and of those that it starts and that do not ask for another
/// limit, out of core dumps.
pub fn leave_no_core() -> io::Result<()> {
    let maximum = getrlimit(Resource::Core).maximum;
    if maximum == Some(0) {
        return Ok(());
    }
    // With one byte the kernel writes no file and starts no program that takes core dumps either;
    // such a program would get one with a limit of nothing.
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(1), maximum })?)
}

fn make(path: &Path, bytes: usize) -> anyhow::Result<String> {
    let text = random_hex(bytes)?;
    write_private(path, text.as_bytes())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let secret = read_or_make(&path, 32).unwrap();
        assert_eq!(secret.len(), 64);
        assert!(secret.bytes().all(|byte| byte.is_ascii_hexdigit()), "{secret}");
        assert_eq!(read_or_make(&path, 32).unwrap(), secret);
        assert_eq!(read(&path).unwrap(), secret);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(read_or_make(&directory.path().join("other"), 32).unwrap(), secret);
    }

    #[test]
    fn a_damaged_secret_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "abc").unwrap();
        let error = read_or_make(&path, 32).unwrap_err();
        assert!(error.to_string().contains("remove it to have another made"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "abc");
    }
}
